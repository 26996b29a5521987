//! Which tensors of a dense model are quantized.

use regex::Regex;
use serde::Serialize;

/// Module names, in one of two notations.
///
/// * A glob on the whole name: `*` stands for any characters, dots included, `?` for one:
///   `model.layers.3.*`, `*.down_proj`, `lm_head`.
/// * `re:` and a regular expression that must match at the start of the name, as in compressed-tensors:
///   `re:.*\.mlp\.gate$`.
#[derive(Clone, Debug)]
pub struct ModulePattern {
    text: String,
    regex: Regex,
}

impl ModulePattern {
    /// Parses a pattern; the error says what is wrong with a regular expression.
    pub fn new(pattern: &str) -> Result<Self, regex::Error> {
        let regex = match pattern.strip_prefix("re:") {
            Some(expression) => Regex::new(&format!("^(?:{expression})"))?,
            None => {
                let body = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
                Regex::new(&format!("(?s)^{body}$"))?
            }
        };
        Ok(Self { text: pattern.to_string(), regex })
    }

    /// Whether the pattern covers the module.
    pub fn matches(&self, module: &str) -> bool {
        self.regex.is_match(module)
    }
}

impl PartialEq for ModulePattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl std::fmt::Display for ModulePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Which linear modules are quantized. `include` wins over `exclude`, which wins over the defaults, so that
/// `exclude: *` with `include: *.mlp.*` quantizes those alone.
///
/// By default all linear modules are, except those that the ecosystems leave alone
/// (see [`DenseReason`]). A linear module is a two-dimensional `*.weight` in bf16, f16 or f32.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Selection {
    /// Quantize these, whatever else is said. One that cannot be quantized is an error.
    pub include: Vec<ModulePattern>,
    /// Leave these dense.
    pub exclude: Vec<ModulePattern>,
}

/// Why a module stays dense.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum DenseReason {
    /// The caller's pattern.
    Excluded {
        /// The pattern.
        pattern: String,
    },
    /// An embedding table, whose rows are looked up, not multiplied; or a projection of one.
    Embedding,
    /// The output head (`lm_head`, `output_layer`, `output`, `embed_out`, `proj_out`): ModelOpt and llm-compressor
    /// leave it dense by default, because tokens are sensitive to it.
    OutputHead,
    /// A router or gate of a mixture of experts: small, and decides which experts run.
    Router,
    /// Part of a vision or audio tower or of its projector. vLLM never loads `vision_tower`, `vision_model` and
    /// `vit_large_projector` quantized from ModelOpt checkpoints, and llm-compressor's recipes leave all dense.
    OtherModality,
    /// GPT-2's `Conv1D` stores `[in_features, out_features]`; blocks along the rows would be along the wrong axis.
    TransposedConv1d,
    /// `in_features` is not a multiple of 16.
    InFeatures {
        /// `in_features`.
        found: usize,
    },
    /// The tensor is empty.
    Empty,
}

impl std::fmt::Display for DenseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Excluded { pattern } => write!(f, "excluded by `{pattern}`"),
            Self::Embedding => f.write_str("embedding"),
            Self::OutputHead => f.write_str("output head"),
            Self::Router => f.write_str("router or gate of a mixture of experts"),
            Self::OtherModality => f.write_str("vision or audio tower, or its projector"),
            Self::TransposedConv1d => f.write_str("GPT-2 Conv1D, stored transposed"),
            Self::InFeatures { found } => write!(f, "in_features {found} is not a multiple of 16"),
            Self::Empty => f.write_str("empty tensor"),
        }
    }
}

/// What [`Selection::decide`] says of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Quantize,
    Dense(DenseReason),
    /// The caller includes a module that cannot be quantized.
    Impossible(DenseReason),
}

impl Selection {
    /// Decides about `module`, whose weight is `[out_features, in_features]`. `model_type`: that of config.json.
    pub(crate) fn decide(
        &self,
        module: &str,
        out_features: usize,
        in_features: usize,
        model_type: Option<&str>,
    ) -> Verdict {
        let impossible = impossible(out_features, in_features);
        if self.include.iter().any(|p| p.matches(module)) {
            return match impossible {
                Some(reason) => Verdict::Impossible(reason),
                None => Verdict::Quantize,
            };
        }
        let excluded = || self.exclude.iter().find(|p| p.matches(module));
        let reason = excluded()
            .map(|p| DenseReason::Excluded { pattern: p.to_string() })
            .or_else(|| by_name(module, out_features, in_features, model_type))
            .or(impossible);
        match reason {
            Some(reason) => Verdict::Dense(reason),
            None => Verdict::Quantize,
        }
    }
}

/// Why no weight of this shape can be quantized.
fn impossible(out_features: usize, in_features: usize) -> Option<DenseReason> {
    match (out_features, in_features) {
        (0, _) | (_, 0) => Some(DenseReason::Empty),
        (_, k) if !k.is_multiple_of(nvfp4_core::BLOCK_SIZE) => Some(DenseReason::InFeatures { found: k }),
        _ => None,
    }
}

/// What the ecosystems leave dense, told by the name.
///
/// Sources: ModelOpt's default disabled quantizers (`*lm_head*`, `*output_layer*`, `*proj_out*`, `output.*`,
/// `*router*`, `*block_sparse_moe.gate*`, `*mlp.gate.*`, `*mlp.shared_expert_gate.*`), llm-compressor's recipes
/// (`lm_head`, `re:.*mlp.gate$`, `re:visual.*`, `re:vision_tower.*`, `re:multi_modal_projector.*`), vLLM's ModelOpt
/// loader. Names of embeddings: those of transformers' models.
fn by_name(module: &str, out_features: usize, in_features: usize, model_type: Option<&str>) -> Option<DenseReason> {
    let parts: Vec<&str> = module.split('.').collect();
    let last = parts.last().copied().unwrap_or_default();
    let within = |names: &[&str]| parts.iter().any(|p| names.contains(p));

    // Projections of embeddings (ALBERT's `embedding_hidden_mapping_in`) are linear modules, and stay dense, too.
    if is_embedding(module) || (last.contains("embed") && last != "embed_out") {
        return Some(DenseReason::Embedding);
    }
    if ["lm_head", "output_layer", "embed_out", "proj_out"].contains(&last)
        || module == "output"
        || within(&["lm_head"])
    {
        return Some(DenseReason::OutputHead);
    }
    if last == "gate"
        || last.ends_with("_gate") && last.contains("expert")
        || within(&["router"])
        || last.ends_with("router")
    {
        return Some(DenseReason::Router);
    }
    let modality = [
        "vision_tower",
        "vision_model",
        "vision_encoder",
        "visual",
        "vit_large_projector",
        "multi_modal_projector",
        "mm_projector",
        "audio_tower",
    ];
    if within(&modality) {
        return Some(DenseReason::OtherModality);
    }
    let conv1d = ["c_attn", "c_fc", "c_proj", "q_attn"].contains(&last)
        && match model_type {
            Some(model) => ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"].contains(&model),
            // Without a configuration: `c_attn` makes q, k and v, so it is wider than high only if transposed; with
            // the others, GPT-2's names.
            None => last == "c_attn" && out_features < in_features || gpt2_block(&parts),
        };
    conv1d.then_some(DenseReason::TransposedConv1d)
}

/// Whether the name is that of an embedding table, which is no linear module: its rows are looked up, not multiplied.
pub(crate) fn is_embedding(module: &str) -> bool {
    let mut parts = module.rsplit('.');
    let last = parts.next().unwrap_or_default();
    let ends = ["embed", "embedding", "embeddings", "embed_tokens", "embed_positions", "embed_in"];
    ["wte", "wpe", "shared", "relative_attention_bias"].contains(&last)
        || ends.iter().any(|end| last.ends_with(end))
        || parts.next() == Some("embeddings")
}

/// GPT-2's `[transformer.]h.<layer>.{attn,crossattention,mlp}.<last>`.
fn gpt2_block(parts: &[&str]) -> bool {
    match parts {
        [.., "h", layer, "attn" | "crossattention" | "mlp", _] => layer.bytes().all(|b| b.is_ascii_digit()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(module: &str) -> Verdict {
        Selection::default().decide(module, 64, 64, Some("llama"))
    }

    fn patterns(list: &[&str]) -> Vec<ModulePattern> {
        list.iter().map(|p| ModulePattern::new(p).unwrap()).collect()
    }

    #[test]
    fn linears_of_known_models_are_quantized() {
        for module in [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.mlp.gate_proj",
            "model.layers.0.mlp.experts.3.down_proj",
            "model.layers.0.mlp.shared_expert.gate_proj",
            "model.layers.0.block_sparse_moe.experts.7.w1",
            "encoder.layer.0.attention.self.query",
            "encoder.layer.0.attention.output.dense",
            "encoder.layer.0.output.dense",
            "pooler.dense",
            "transformer.h.0.attn.c_attn", // with a model type that has no Conv1D
        ] {
            assert_eq!(decide(module), Verdict::Quantize, "{module}");
        }
    }

    #[test]
    fn defaults_leave_what_the_ecosystems_leave() {
        for (module, reason) in [
            ("lm_head", DenseReason::OutputHead),
            ("language_model.lm_head", DenseReason::OutputHead),
            ("output", DenseReason::OutputHead),
            ("transformer.output_layer", DenseReason::OutputHead),
            ("embed_out", DenseReason::OutputHead),
            ("model.embed_tokens", DenseReason::Embedding),
            ("embeddings.word_embeddings", DenseReason::Embedding),
            ("bert.embeddings.position_embeddings", DenseReason::Embedding),
            ("transformer.wte", DenseReason::Embedding),
            ("shared", DenseReason::Embedding),
            ("tok_embeddings", DenseReason::Embedding),
            ("encoder.embedding_hidden_mapping_in", DenseReason::Embedding),
            ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", DenseReason::Embedding),
            ("model.layers.0.mlp.gate", DenseReason::Router),
            ("model.layers.0.mlp.shared_expert_gate", DenseReason::Router),
            ("model.layers.0.block_sparse_moe.gate", DenseReason::Router),
            ("model.layers.0.mlp.router", DenseReason::Router),
            ("model.layers.0.feed_forward.router.classifier", DenseReason::Router),
            ("model.vision_tower.encoder.layers.0.mlp.fc1", DenseReason::OtherModality),
            ("visual.blocks.0.attn.qkv", DenseReason::OtherModality),
            ("model.multi_modal_projector.linear_1", DenseReason::OtherModality),
        ] {
            assert_eq!(decide(module), Verdict::Dense(reason), "{module}");
        }
    }

    #[test]
    fn tables_are_told_from_projections() {
        for table in ["model.embed_tokens", "embeddings.word_embeddings", "gpt_neox.embed_in", "transformer.wte"] {
            assert!(is_embedding(table), "{table}");
        }
        for linear in ["encoder.embedding_hidden_mapping_in", "embed_out", "lm_head", "model.layers.0.mlp.up_proj"]
        {
            assert!(!is_embedding(linear), "{linear}");
        }
    }

    #[test]
    fn conv1d_is_recognized_with_and_without_a_configuration() {
        let conv1d = Verdict::Dense(DenseReason::TransposedConv1d);
        let decide = |name: &str, n, k, model| Selection::default().decide(name, n, k, model);
        assert_eq!(decide("transformer.h.0.mlp.c_proj", 64, 64, Some("gpt2")), conv1d);
        assert_eq!(decide("h.11.attn.c_attn", 64, 192, None), conv1d);
        assert_eq!(decide("blocks.0.c_attn", 64, 192, None), conv1d);
        assert_eq!(decide("blocks.0.c_attn", 192, 64, None), Verdict::Quantize);
        assert_eq!(decide("transformer.h.0.mlp.c_proj", 64, 64, Some("gpt_bigcode")), Verdict::Quantize);
    }

    #[test]
    fn include_wins_over_exclude_which_wins_over_defaults() {
        let selection = Selection { include: patterns(&["*.mlp.*", "lm_head"]), exclude: patterns(&["*"]) };
        let decide = |name: &str, k| selection.decide(name, 64, k, None);
        assert_eq!(decide("a.mlp.up_proj", 64), Verdict::Quantize);
        assert_eq!(decide("lm_head", 64), Verdict::Quantize);
        assert_eq!(decide("a.attn.q_proj", 64), Verdict::Dense(DenseReason::Excluded { pattern: "*".into() }));
        assert_eq!(decide("a.mlp.up_proj", 40), Verdict::Impossible(DenseReason::InFeatures { found: 40 }));
        assert_eq!(
            Selection::default().decide("a.mlp.up_proj", 64, 40, None),
            Verdict::Dense(DenseReason::InFeatures { found: 40 })
        );
        assert_eq!(Selection::default().decide("a.b", 0, 64, None), Verdict::Dense(DenseReason::Empty));
    }

    #[test]
    fn patterns_are_globs_or_anchored_regular_expressions() {
        let matches = |p: &str, module: &str| ModulePattern::new(p).unwrap().matches(module);
        assert!(matches("*.down_proj", "a.b.down_proj") && !matches("*.down_proj", "a.b.down_proj.x"));
        assert!(matches("layers.?.x", "layers.3.x") && !matches("layers.?.x", "layers.10.x"));
        assert!(!matches("a.b", "axb"), "a dot is a dot");
        assert!(matches("re:.*gate$", "a.gate") && !matches("re:gate", "a.gate"), "anchored at the start");
        assert!(matches("re:a|b", "bc") && !matches("re:a|b", "cb"), "also with alternatives");
        assert!(ModulePattern::new("re:(").is_err());
    }
}
