//! What the example prints.

use crate::measure::{Agreement, Timing};
use serde::Serialize;
use std::fmt;

/// Bytes of weights.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bytes {
    /// The linear layers in f32.
    pub(crate) linear_before: u64,
    /// The linear layers in NVFP4.
    pub(crate) linear_after: u64,
    /// All tensors of the model, its embedding tables included.
    pub(crate) model_before: u64,
    /// All tensors of the checkpoint.
    pub(crate) model_after: u64,
}

/// One way to run the model.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Its linear layers.
    layers: &'static str,
    /// With the f32 model; nothing for that itself.
    #[serde(flatten)]
    agreement: Option<Agreement>,
    seconds: Timing,
}

impl Row {
    pub(crate) fn reference(seconds: Timing) -> Self {
        Self { layers: "f32", agreement: None, seconds }
    }

    pub(crate) fn nvfp4(layers: &'static str, agreement: Agreement, seconds: Timing) -> Self {
        Self { layers, agreement: Some(agreement), seconds }
    }
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) sentences: usize,
    pub(crate) pairs: usize,
    pub(crate) bytes: Bytes,
    /// Least cosine between the W4A16 embeddings and those of candle's own f32 layers with the dequantized weights.
    pub(crate) dequantized_least_cosine: f64,
    pub(crate) rows: Vec<Row>,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1048576.0
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bytes { linear_before, linear_after, model_before, model_after } = self.bytes;
        writeln!(f, "all-MiniLM-L6-v2 with candle: {} sentences, {} pairs of them\n", self.sentences, self.pairs)?;
        writeln!(
            f,
            "linear layers  {:5.1} MiB in f32 -> {:5.1} MiB in NVFP4",
            mib(linear_before),
            mib(linear_after)
        )?;
        writeln!(f, "whole model    {:5.1} MiB        -> {:5.1} MiB\n", mib(model_before), mib(model_after))?;
        writeln!(
            f,
            "{:8}{:>9}{:>9}{:>8}{:>9}{:>10}{:>12}{:>14}",
            "layers", "cosine", "least", "rank", "change", "nearest", "all, ms", "sentence, ms"
        )?;
        for row in &self.rows {
            write!(f, "{:8}", row.layers)?;
            match &row.agreement {
                None => write!(f, "{:45}", "")?,
                Some(a) => write!(
                    f,
                    "{:>9.4}{:>9.4}{:>8.4}{:>9.3}{:>9.0}%",
                    a.mean_cosine,
                    a.least_cosine,
                    a.rank_correlation,
                    a.largest_change,
                    a.same_nearest * 100.0
                )?,
            }
            writeln!(f, "{:>12.1}{:>14.2}", row.seconds.batch * 1e3, row.seconds.single * 1e3)?;
        }
        writeln!(
            f,
            "\nW4A16 and candle's f32 layers with the same weights, dequantized: least cosine {:.6}",
            self.dequantized_least_cosine
        )?;
        writeln!(f, "\ncosine   of a sentence's embedding with the f32 one: mean, and least of all sentences")?;
        writeln!(f, "rank     Spearman's correlation of the similarities of all pairs with the f32 ones")?;
        writeln!(f, "change   the largest of any similarity; nearest: sentences whose nearest one is the same")
    }
}
