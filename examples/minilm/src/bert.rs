//! The encoder: BERT with candle's operations, its linear layers dense or NVFP4.

use crate::sentences::Batch;
use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Embedding, LayerNorm, VarBuilder};
use nvfp4_candle::{AnyLinear, Nvfp4VarBuilder, forward_all};

/// What config.json says of the model.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
pub(crate) struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
}

/// Is told the name of a linear layer and its input.
pub(crate) type Observer<'a> = dyn Fn(&str, &Tensor) -> Result<()> + 'a;

/// Where tensors come from: candle's builder for what is dense, ours for linear layers if they are NVFP4.
#[derive(Clone)]
struct Place<'a> {
    dense: VarBuilder<'a>,
    nvfp4: Option<Nvfp4VarBuilder>,
}

impl Place<'_> {
    fn pp(&self, name: impl ToString) -> Self {
        let name = name.to_string();
        Self { dense: self.dense.pp(&name), nvfp4: self.nvfp4.as_ref().map(|vb| vb.pp(&name)) }
    }

    fn projection(&self, name: &str, in_features: usize, out_features: usize) -> Result<Projection> {
        let place = self.pp(name);
        let linear = match &place.nvfp4 {
            Some(vb) => AnyLinear::Nvfp4(vb.linear(in_features, out_features)?),
            None => AnyLinear::Dense(candle_nn::linear(in_features, out_features, place.dense.clone())?),
        };
        Ok(Projection { name: place.dense.prefix(), linear })
    }

    fn norm(&self, config: &Config) -> Result<LayerNorm> {
        candle_nn::layer_norm(config.hidden_size, config.layer_norm_eps, self.dense.pp("LayerNorm"))
    }
}

/// A linear layer with its name.
struct Projection {
    name: String,
    linear: AnyLinear,
}

impl Projection {
    fn forward(&self, xs: &Tensor, observe: &Observer<'_>) -> Result<Tensor> {
        observe(&self.name, xs)?;
        self.linear.forward(xs)
    }
}

struct Block {
    query: Projection,
    key: Projection,
    value: Projection,
    attention_output: Projection,
    attention_norm: LayerNorm,
    intermediate: Projection,
    output: Projection,
    output_norm: LayerNorm,
    heads: usize,
}

impl Block {
    fn load(place: &Place<'_>, config: &Config) -> Result<Self> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let attention = place.pp("attention");
        let own = attention.pp("self");
        Ok(Self {
            query: own.projection("query", hidden, hidden)?,
            key: own.projection("key", hidden, hidden)?,
            value: own.projection("value", hidden, hidden)?,
            attention_output: attention.pp("output").projection("dense", hidden, hidden)?,
            attention_norm: attention.pp("output").norm(config)?,
            intermediate: place.pp("intermediate").projection("dense", hidden, wide)?,
            output: place.pp("output").projection("dense", wide, hidden)?,
            output_norm: place.pp("output").norm(config)?,
            heads: config.num_attention_heads,
        })
    }

    /// `mask` is added to the scores.
    fn forward(&self, xs: &Tensor, mask: &Tensor, observe: &Observer<'_>) -> Result<Tensor> {
        let attended = self.attention(xs, mask, observe)?;
        let attended = self.attention_output.forward(&attended, observe)?;
        let xs = self.attention_norm.forward(&(attended + xs)?)?;
        let wide = self.intermediate.forward(&xs, observe)?.gelu_erf()?;
        self.output_norm.forward(&(self.output.forward(&wide, observe)? + xs)?)
    }

    fn attention(&self, xs: &Tensor, mask: &Tensor, observe: &Observer<'_>) -> Result<Tensor> {
        let (batch, length, hidden) = xs.dims3()?;
        let split = |xs: Tensor| -> Result<Tensor> {
            xs.reshape((batch, length, self.heads, hidden / self.heads))?.transpose(1, 2)?.contiguous()
        };
        let [query, key, value] = self.projections(xs, observe)?;
        let (query, key, value) = (split(query)?, split(key)?, split(value)?);
        let scale = ((hidden / self.heads) as f64).sqrt();
        let scores = (query.matmul(&key.t()?)? / scale)?.broadcast_add(mask)?;
        let context = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&value)?;
        context.transpose(1, 2)?.reshape((batch, length, hidden))
    }

    /// Query, key and value: their one input is quantized once.
    fn projections(&self, xs: &Tensor, observe: &Observer<'_>) -> Result<[Tensor; 3]> {
        if let (AnyLinear::Nvfp4(query), AnyLinear::Nvfp4(key), AnyLinear::Nvfp4(value)) =
            (&self.query.linear, &self.key.linear, &self.value.linear)
        {
            return forward_all([query, key, value], xs);
        }
        let forward = |projection: &Projection| projection.forward(xs, observe);
        Ok([forward(&self.query)?, forward(&self.key)?, forward(&self.value)?])
    }
}

/// The encoder.
pub(crate) struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    blocks: Vec<Block>,
}

impl Bert {
    /// With the dense linear layers of `vb`.
    pub(crate) fn dense(vb: &VarBuilder<'_>, config: &Config) -> Result<Self> {
        Self::load(&Place { dense: vb.clone(), nvfp4: None }, config)
    }

    /// With the NVFP4 linear layers of `vb`.
    pub(crate) fn nvfp4(vb: &Nvfp4VarBuilder, config: &Config) -> Result<Self> {
        Self::load(&Place { dense: vb.dense(), nvfp4: Some(vb.clone()) }, config)
    }

    fn load(place: &Place<'_>, config: &Config) -> Result<Self> {
        let embeddings = place.pp("embeddings");
        let table = |name: &str, rows| candle_nn::embedding(rows, config.hidden_size, embeddings.dense.pp(name));
        Ok(Self {
            words: table("word_embeddings", config.vocab_size)?,
            positions: table("position_embeddings", config.max_position_embeddings)?,
            types: table("token_type_embeddings", config.type_vocab_size)?,
            norm: embeddings.norm(config)?,
            blocks: (0..config.num_hidden_layers)
                .map(|i| Block::load(&place.pp("encoder").pp("layer").pp(i), config))
                .collect::<Result<_>>()?,
        })
    }

    /// Hidden states `[sentences, tokens, hidden]` of the last block.
    pub(crate) fn forward(&self, batch: &Batch, observe: &Observer<'_>) -> Result<Tensor> {
        let (_, length) = batch.ids.dims2()?;
        let positions = Tensor::arange(0u32, length as u32, batch.ids.device())?;
        let words = self.words.forward(&batch.ids)?;
        let xs = words
            .broadcast_add(&self.positions.forward(&positions)?)?
            .broadcast_add(&self.types.forward(&Tensor::zeros_like(&positions)?)?)?;
        // 0 for tokens, a large negative number for padding, in the shape of scores.
        let mask = ((batch.mask.unsqueeze(1)?.unsqueeze(1)? - 1.0)? * 1e9)?;
        let mut xs = self.norm.forward(&xs)?;
        for block in &self.blocks {
            xs = block.forward(&xs, &mask, observe)?;
        }
        Ok(xs)
    }

    /// Unit vectors `[sentences, hidden]`: the means over each sentence's tokens.
    pub(crate) fn embed(&self, batch: &Batch) -> Result<Tensor> {
        let mask = batch.mask.unsqueeze(D::Minus1)?;
        let sums = self.forward(batch, &|_, _| Ok(()))?.broadcast_mul(&mask)?.sum(1)?;
        let means = sums.broadcast_div(&mask.sum(1)?)?;
        means.broadcast_div(&means.sqr()?.sum_keepdim(1)?.sqrt()?)
    }
}
