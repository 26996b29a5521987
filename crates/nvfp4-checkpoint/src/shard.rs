//! Tensor-parallel shards of a layer, at legal boundaries.
//!
//! Column-parallel divides the output features, row-parallel the input features. Fused layers are divided part by part
//! (each rank gets its q, its k and its v), so shard the parts and join them, as [`column_parallel`] does.

use crate::{Error, layer::join};
use nvfp4_core::{BLOCK_SIZE, NvFp4LinearLayer};
use std::ops::Range;

/// One of `world` ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rank {
    /// 0 … `world` − 1.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
}

impl Rank {
    /// The rank's part of `size`, which must be a multiple of `world * multiple`.
    fn range(self, module: &str, what: &str, size: usize, multiple: usize) -> Result<Range<usize>, Error> {
        let fail = |reason: String| Err(Error::Shard { module: module.into(), reason });
        if self.world == 0 || self.rank >= self.world {
            return fail(format!("rank {} of {}", self.rank, self.world));
        }
        if !size.is_multiple_of(self.world) || !(size / self.world).is_multiple_of(multiple) {
            return fail(format!(
                "{size} {what} cannot be divided among {} ranks: each needs a multiple of {multiple}",
                self.world
            ));
        }
        let part = size / self.world;
        Ok(self.rank * part..(self.rank + 1) * part)
    }
}

/// The rank's rows of a layer, or of each of several that share their input, joined in order. Each part's output features
/// must be a multiple of the number of ranks. Global scales go with their rows.
pub fn column_parallel(parts: &[NvFp4LinearLayer<'_>], rank: Rank) -> Result<NvFp4LinearLayer<'static>, Error> {
    let names: Vec<&str> = parts.iter().map(|p| p.name.as_str()).collect();
    let name = names.join(" + ");
    let mut shards = Vec::with_capacity(parts.len());
    for part in parts {
        let range = rank.range(&part.name, "output features", part.weights.out_features(), 1)?;
        let weights = part.weights.slice_rows(range.clone()).map_err(|e| shard_error(&part.name, &e))?;
        shards.push(NvFp4LinearLayer {
            name: part.name.clone(),
            weights,
            activation: part.activation,
            input_scale: part.input_scale,
            bias: part.bias.as_ref().map(|b| b.get(range).unwrap_or_default().to_vec()),
        });
    }
    match parts.first() {
        Some(first) => join(name, &shards, first.activation),
        None => Err(Error::Shard { module: name, reason: "no layers were given".into() }),
    }
}

/// The rank's columns of a layer. Input features must divide into multiples of 16 for each rank. The outputs of all ranks are
/// added, so only rank 0 keeps the bias.
pub fn row_parallel(layer: &NvFp4LinearLayer<'_>, rank: Rank) -> Result<NvFp4LinearLayer<'static>, Error> {
    let range = rank.range(&layer.name, "input features", layer.weights.in_features(), BLOCK_SIZE)?;
    Ok(NvFp4LinearLayer {
        name: layer.name.clone(),
        weights: layer.weights.slice_columns(range).map_err(|e| shard_error(&layer.name, &e))?,
        activation: layer.activation,
        input_scale: layer.input_scale,
        bias: layer.bias.clone().filter(|_| rank.rank == 0),
    })
}

fn shard_error(module: &str, error: &nvfp4_core::Error) -> Error {
    Error::Shard { module: module.into(), reason: error.to_string() }
}
