//! Linear modules that inference engines run as one matrix, and that therefore should share their global scales.

use std::collections::BTreeMap;

/// Last names of sibling modules that are fused, in the order of the fused matrix.
///
/// Source: vLLM's `packed_modules_mapping` (q/k/v, gate/up, w1/w3, q_a/kv_a), and the siblings with the same input in
/// transformers' BERT, DistilBERT, DeBERTa and T5 and in diffusers.
const FUSED: &[&[&str]] = &[
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["query", "key", "value"],
    &["query_proj", "key_proj", "value_proj"],
    &["q_lin", "k_lin", "v_lin"],
    &["wq", "wk", "wv"],
    &["to_q", "to_k", "to_v"],
    &["add_q_proj", "add_k_proj", "add_v_proj"],
    &["q", "k", "v"],
    &["wi_0", "wi_1"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// Last names of modules whose weight is stored fused: several matrices, stacked along the rows.
///
/// Source: the models of transformers, vLLM and diffusers, Megatron's and llama.cpp's names.
const STORED_FUSED: &[&str] = &[
    "qkv_proj",
    "gate_up_proj",
    "qkv",
    "Wqkv",
    "W_pack",
    "c_attn",
    "query_key_value",
    "to_qkv",
    "linear_qkv",
    "wqkv",
    "attn_qkv",
    "gate_up",
    "w13",
    "in_proj_qkvz",
    "in_proj_ba",
    "fused_qkv_a_proj_with_mqa",
];

/// Whether a module of this name stores several matrices as one.
pub(crate) fn is_stored_fused(module: &str) -> bool {
    STORED_FUSED.contains(&module.rsplit('.').next().unwrap_or(module))
}

/// Modules of one fused layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FusedGroup {
    /// E.g. `model.layers.0.self_attn.{q_proj,k_proj,v_proj}`.
    pub(crate) name: String,
    /// Indices into the modules given, at least two, in the order of the fused matrix.
    pub(crate) members: Vec<usize>,
}

/// Groups of modules that are siblings, have names that are fused, and the same number of input features.
/// `modules`: names and input features.
pub(crate) fn fused_groups<'a>(modules: impl IntoIterator<Item = (&'a str, usize)>) -> Vec<FusedGroup> {
    /// Parent, index of the group of names, input features.
    type Key<'a> = (&'a str, usize, usize);
    // To (place in the fused matrix, index).
    let mut groups: BTreeMap<Key<'_>, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, (name, in_features)) in modules.into_iter().enumerate() {
        let (parent, last) = name.rsplit_once('.').unwrap_or(("", name));
        let place =
            FUSED.iter().enumerate().find_map(|(kind, names)| Some((kind, names.iter().position(|n| *n == last)?)));
        if let Some((kind, place)) = place {
            groups.entry((parent, kind, in_features)).or_default().push((place, index));
        }
    }
    groups
        .into_iter()
        .filter(|(_, members)| members.len() > 1)
        .map(|((parent, kind, _), mut members)| {
            members.sort_unstable();
            let lasts: Vec<&str> =
                members.iter().filter_map(|&(place, _)| FUSED.get(kind)?.get(place).copied()).collect();
            let dot = if parent.is_empty() { "" } else { "." };
            FusedGroup {
                name: format!("{parent}{dot}{{{}}}", lasts.join(",")),
                members: members.into_iter().map(|(_, index)| index).collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_with_the_same_input_are_grouped() {
        let names = [
            ("m.0.attn.v_proj", 64),
            ("m.0.attn.o_proj", 64),
            ("m.0.attn.q_proj", 64),
            ("m.1.attn.q_proj", 64), // alone in its parent
            ("m.0.attn.k_proj", 64),
            ("m.0.mlp.up_proj", 64),
            ("m.0.mlp.gate_proj", 64),
            ("x.to_q", 64),
            ("x.to_k", 96), // cross attention: another input
            ("x.to_v", 96),
            ("gate_proj", 16),
            ("up_proj", 16),
        ];
        let groups = fused_groups(names);
        let found: Vec<_> = groups.iter().map(|g| (g.name.as_str(), &g.members[..])).collect();
        assert_eq!(
            found,
            [
                ("{gate_proj,up_proj}", &[10, 11][..]),
                ("m.0.attn.{q_proj,k_proj,v_proj}", &[2, 4, 0]),
                ("m.0.mlp.{gate_proj,up_proj}", &[6, 5]),
                ("x.{to_k,to_v}", &[8, 9]),
            ]
        );
    }

    #[test]
    fn no_name_is_in_two_groups() {
        let mut all: Vec<_> = FUSED.iter().flat_map(|g| g.iter()).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
