//! How well two sets of embeddings agree, and how long they take.

use crate::{bert::Bert, sentences::Batch};
use candle_core::{Result, Tensor};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How embeddings agree with the f32 ones.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Agreement {
    /// Cosine of each sentence's two embeddings: the mean.
    pub(crate) mean_cosine: f64,
    /// And the smallest.
    pub(crate) least_cosine: f64,
    /// Spearman's rank correlation of the similarities of all pairs.
    pub(crate) rank_correlation: f64,
    /// Largest change of a similarity.
    pub(crate) largest_change: f64,
    /// Share of the sentences whose most similar sentence is the same.
    pub(crate) same_nearest: f64,
}

/// The fastest of several runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Timing {
    /// Seconds for all sentences in one batch.
    pub(crate) batch: f64,
    /// Seconds for one sentence alone.
    pub(crate) single: f64,
}

/// Cosines of all pairs of unit vectors `[sentences, hidden]`: (0, 1), (0, 2), … (1, 2) …
pub(crate) fn similarities(embeddings: &Tensor) -> Result<Vec<f64>> {
    let products = embeddings.matmul(&embeddings.t()?)?.to_vec2::<f32>()?;
    let pairs = products.iter().enumerate().flat_map(|(i, row)| row.iter().skip(i + 1));
    Ok(pairs.map(|&cosine| f64::from(cosine)).collect())
}

/// Compares unit vectors `[sentences, hidden]`, whose similarities are known.
pub(crate) fn agreement(
    expected: &Tensor,
    found: &Tensor,
    reference: &[f64],
    similarities: &[f64],
) -> Result<Agreement> {
    let cosines = (expected * found)?.sum(1)?.to_vec1::<f32>()?;
    let nearest = |embeddings: &Tensor| -> Result<Vec<u32>> {
        let count = embeddings.dim(0)?;
        let others = (embeddings.matmul(&embeddings.t()?)?
            - (Tensor::eye(count, embeddings.dtype(), embeddings.device())? * 2.0)?)?;
        others.argmax(1)?.to_vec1::<u32>()
    };
    let same = nearest(expected)?.iter().zip(nearest(found)?).filter(|(a, b)| **a == *b).count();
    let count = cosines.len() as f64;
    Ok(Agreement {
        mean_cosine: cosines.iter().map(|&c| f64::from(c)).sum::<f64>() / count,
        least_cosine: f64::from(cosines.iter().copied().fold(f32::INFINITY, f32::min)),
        rank_correlation: correlation(&ranks(reference), &ranks(similarities)),
        largest_change: reference.iter().zip(similarities).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max),
        same_nearest: same as f64 / count,
    })
}

/// Ranks from 0; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for run in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let mean = start as f64 + (run.len() - 1) as f64 / 2.0;
        run.iter().for_each(|&i| ranks[i] = mean);
        start += run.len();
    }
    ranks
}

/// Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| f(a - mean_a, b - mean_b)).sum::<f64>();
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

/// The fastest of `repeat` runs over the batch, and over a single sentence; the first run of each is not counted.
pub(crate) fn time(model: &Bert, batch: &Batch, single: &Batch, repeat: u32) -> Result<Timing> {
    let fastest = |batch: &Batch| -> Result<f64> {
        model.embed(batch)?;
        let mut best = Duration::MAX;
        for _ in 0..repeat.max(1) {
            let start = Instant::now();
            model.embed(batch)?;
            best = best.min(start.elapsed());
        }
        Ok(best.as_secs_f64())
    };
    Ok(Timing { batch: fastest(batch)?, single: fastest(single)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_a_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 2.0, 1.0]), [3.0, 0.5, 2.0, 0.5]);
        assert_eq!(ranks(&[]), [] as [f64; 0]);
    }

    #[test]
    fn correlations_of_known_rows() {
        let up = [1.0, 2.0, 3.0, 4.0];
        assert!((correlation(&up, &[10.0, 20.0, 30.0, 40.0]) - 1.0).abs() < 1e-12);
        assert!((correlation(&up, &[4.0, 3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
        // Spearman's formula without ties: 1 - 6 Σ d² / (n (n² - 1)) with d = 1, 1, 1, 1.
        assert!((correlation(&ranks(&up), &ranks(&[2.0, 1.0, 4.0, 3.0])) - 0.6).abs() < 1e-12);
    }

    #[test]
    fn embeddings_agree_with_themselves() {
        let device = &candle_core::Device::Cpu;
        let a = Tensor::new(&[[1f32, 0.0], [0.6, 0.8], [0.0, 1.0]], device).unwrap();
        let pairs = similarities(&a).unwrap();
        assert_eq!(pairs.len(), 3);
        assert!((pairs[0] - 0.6).abs() < 1e-6 && pairs[1] == 0.0 && (pairs[2] - 0.8).abs() < 1e-6);
        let same = agreement(&a, &a, &pairs, &pairs).unwrap();
        assert!((same.mean_cosine - 1.0).abs() < 1e-6 && (same.rank_correlation - 1.0).abs() < 1e-12);
        assert_eq!((same.largest_change, same.same_nearest), (0.0, 1.0));
    }
}
