//! `examples/minilm` over the whole model: what it reports must be what NVFP4 costs, and no more.

use crate::{minilm::MiniLm, nvfp4_program::Program};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// NVFP4 over f32: 4.5 of 32 bits, and two f32 scales a layer.
const SIZE: std::ops::Range<f64> = 0.1406..0.1408;
/// Least mean cosine with the f32 embeddings, and least rank correlation of similarities. Rounded to nearest without
/// any tuning, this small model gives 0.977 and 0.977 in W4A16, 0.966 and 0.961 in W4A4; a wrong scale or a swapped
/// nibble anywhere gives less than 0.9.
const LEAST: [(&str, f64, f64); 2] = [("W4A16", 0.97, 0.97), ("W4A4", 0.955, 0.95)];
/// Least cosine between W4A16 layers and candle's own with the dequantized weights: the same numbers summed in another order.
const LEAST_OF_DEQUANTIZED: f64 = 0.99999;

/// Runs the example and checks its report.
pub(crate) fn test(minilm: &MiniLm) -> Result<()> {
    let report = Program::of("minilm-example", "minilm-example")?.report([
        minilm.model.as_os_str(),
        "--repeat".as_ref(),
        "1".as_ref(),
        "--json".as_ref(),
    ])?;
    let number = |value: &Value, key: &str| value[key].as_f64().with_context(|| format!("no `{key}`: {value}"));
    let bytes = &report["bytes"];
    let size = number(bytes, "linear_after")? / number(bytes, "linear_before")?;
    ensure!(SIZE.contains(&size), "the linear layers take {size} of their size in f32");
    ensure!(number(&report, "pairs")? >= 300.0, "{report}");
    let found = number(&report, "dequantized_least_cosine")?;
    ensure!(found >= LEAST_OF_DEQUANTIZED, "W4A16 and dequantized weights: cosine {found}");
    for (layers, cosine, rank) in LEAST {
        let rows = report["rows"].as_array().context("rows")?;
        let row = rows.iter().find(|row| row["layers"] == layers).with_context(|| format!("no row {layers}"))?;
        ensure!(number(row, "mean_cosine")? >= cosine, "{layers}: {row}");
        ensure!(number(row, "rank_correlation")? >= rank, "{layers}: {row}");
    }
    Ok(())
}
