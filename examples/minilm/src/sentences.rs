//! Sentences as tokens.

use anyhow::{Result, anyhow};
use candle_core::{Device, Tensor};
use std::path::Path;
use tokenizers::Tokenizer;

/// Several sentences, padded to the longest.
pub(crate) struct Batch {
    /// Token numbers, u32 `[sentences, tokens]`.
    pub(crate) ids: Tensor,
    /// f32 `[sentences, tokens]`: 1 for tokens, 0 for padding.
    pub(crate) mask: Tensor,
}

/// The model's tokenizer.
pub(crate) struct Tokens(Tokenizer);

impl Tokens {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_file(path).map_err(|e| anyhow!("{}: {e}", path.display()))?;
        // The file pads everything to 128 tokens.
        tokenizer.with_padding(None);
        Ok(Self(tokenizer))
    }

    pub(crate) fn batch(&self, sentences: &[&str]) -> Result<Batch> {
        let encoded: Vec<Vec<u32>> = sentences
            .iter()
            .map(|s| self.0.encode(*s, true).map(|e| e.get_ids().to_vec()).map_err(|e| anyhow!("{s}: {e}")))
            .collect::<Result<_>>()?;
        let length = encoded.iter().map(Vec::len).max().unwrap_or(0);
        let padded =
            |ids: &Vec<u32>| ids.iter().copied().chain(std::iter::repeat_n(0, length - ids.len())).collect();
        let mask = |ids: &Vec<u32>| (0..length).map(|i| if i < ids.len() { 1.0 } else { 0.0 }).collect();
        let ids: Vec<Vec<u32>> = encoded.iter().map(padded).collect();
        let mask: Vec<Vec<f32>> = encoded.iter().map(mask).collect();
        Ok(Batch { ids: Tensor::new(ids, &Device::Cpu)?, mask: Tensor::new(mask, &Device::Cpu)? })
    }
}
