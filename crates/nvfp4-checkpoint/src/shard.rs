//! Tensor-parallel shards of a layer, at legal boundaries.
//!
//! Column-parallel divides the output features, row-parallel the input features. Fused layers are divided part by part:
//! each rank gets its share of q, of k and of v.

use crate::{Error, fused_groups::is_stored_fused, layer::join};
use nvfp4_core::{BLOCK_SIZE, NvFp4LinearLayer, NvFp4Weights};
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

/// The rank's rows of a layer, or of each of several that share their input, joined in order. Global scales go with their
/// rows.
///
/// A layer that is several matrices stacked along its rows (`qkv_proj`, or layers joined before) is divided matrix by
/// matrix, and the shards are stacked in the same order; how many rows each has is what
/// [`NvFp4Weights::stacked_rows`] says. A layer with the name of a fused one whose weight does not say is an error: load it
/// with [`linear_with_parts`](crate::Checkpoint::linear_with_parts), or call [`NvFp4Weights::with_stacked_rows`], with the
/// one number of all rows if any row is a legal boundary. Layers that are fused under other names must say so themselves.
///
/// Each matrix's rows must be a multiple of the number of ranks.
pub fn column_parallel(parts: &[NvFp4LinearLayer<'_>], rank: Rank) -> Result<NvFp4LinearLayer<'static>, Error> {
    let names: Vec<&str> = parts.iter().map(|p| p.name.as_str()).collect();
    let name = names.join(" + ");
    let shards = parts.iter().map(|part| shard_rows(part, rank)).collect::<Result<Vec<_>, _>>()?;
    match parts.first() {
        Some(first) => join(name, &shards, first.activation),
        None => Err(Error::Shard { module: name, reason: "no layers were given".into() }),
    }
}

/// The rank's rows of each matrix that is stacked in a layer.
fn shard_rows(layer: &NvFp4LinearLayer<'_>, rank: Rank) -> Result<NvFp4LinearLayer<'static>, Error> {
    let n = layer.weights.out_features();
    let single = [n];
    let stacked = match layer.weights.stacked_rows() {
        Some(rows) => rows,
        None if is_stored_fused(&layer.name) => {
            let reason = format!(
                "it is several matrices stacked (a fused layer), and how many of its {n} rows each has is not known; load \
                 it with the rows of its parts"
            );
            return Err(Error::Shard { module: layer.name.clone(), reason });
        }
        None => &single,
    };
    let (mut weights, mut bias, mut start) = (Vec::with_capacity(stacked.len()), Vec::new(), 0);
    for (i, &rows) in stacked.iter().enumerate() {
        let what = match stacked.len() {
            1 => "output features".into(),
            parts => format!("output features of part {} of {parts}", i + 1),
        };
        let share = rank.range(&layer.name, &what, rows, 1)?;
        let share = start + share.start..start + share.end;
        start += rows;
        weights.push(layer.weights.slice_rows(share.clone()).map_err(|e| shard_error(&layer.name, &e))?);
        if let Some(values) = &layer.bias {
            let values = values.get(share).ok_or_else(|| Error::Shard {
                module: layer.name.clone(),
                reason: format!("expected {n} bias values, found {}", values.len()),
            })?;
            bias.extend_from_slice(values);
        }
    }
    Ok(NvFp4LinearLayer {
        name: layer.name.clone(),
        weights: NvFp4Weights::concat_rows(&weights).map_err(|e| shard_error(&layer.name, &e))?,
        activation: layer.activation,
        input_scale: layer.input_scale,
        bias: layer.bias.is_some().then_some(bias),
    })
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
