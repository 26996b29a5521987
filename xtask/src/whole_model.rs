//! The whole MiniLM through the real program: quantize in every format and scheme, verify against the original,
//! convert, dequantize; a damaged checkpoint, which must be found out; and the example in candle.

use crate::{
    minilm::{self, MiniLm},
    minilm_example,
    nvfp4_program::Program,
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// What `nvfp4 quantize --format` writes.
pub(crate) const FORMATS: [&str; 2] = ["compressed-tensors", "modelopt"];
/// What `nvfp4 quantize --scheme` takes.
pub(crate) const SCHEMES: [&str; 2] = ["w4a4", "w4a16"];
/// Linear layers of MiniLM: six blocks of six, and the pooler.
const LINEAR_LAYERS: usize = 37;
/// Embedding tables of MiniLM: words, positions, token types.
const EMBEDDINGS: usize = 3;
/// Relative error of a weight that NVFP4 quantizes well: e2m1 with a scale for 16 values of a bell-shaped distribution gives
/// about 0.095.
const RELATIVE_ERROR: std::ops::Range<f64> = 0.07..0.12;
/// What summing in another order may change, relatively, in f64.
const SUMMATION: f64 = 1e-9;
/// What conversion may change, relatively: the other format stores the reciprocal of the global scale in f32, and the
/// reciprocal of that may be one unit in the last place (2⁻²³) from where it began.
const RECIPROCAL: f64 = 1e-6;

/// Quantizes the whole model; the report.
pub(crate) fn quantize(program: &Program, minilm: &MiniLm, format: &str, scheme: &str, to: &Path) -> Result<Value> {
    let mut arguments: Vec<&OsStr> =
        vec!["quantize".as_ref(), minilm.model.as_ref(), to.as_ref(), "--json".as_ref()];
    arguments.extend(["--format", format, "--scheme", scheme].map(OsStr::new));
    if scheme == "w4a4" {
        arguments.extend([OsStr::new("--calibration"), minilm.calibration.as_ref()]);
    }
    program.report(arguments)
}

/// Dequantizes a checkpoint to f32; the file with the tensors.
pub(crate) fn dequantize(program: &Program, checkpoint: &Path, to: &Path) -> Result<PathBuf> {
    let arguments: [&OsStr; 6] = [
        "dequantize".as_ref(),
        checkpoint.as_ref(),
        to.as_ref(),
        "--dtype".as_ref(),
        "f32".as_ref(),
        "--json".as_ref(),
    ];
    let report = program.report(arguments)?;
    ensure!(list(&report, "layers")?.len() == LINEAR_LAYERS, "dequantize: {report}");
    Ok(to.join("model.safetensors"))
}

/// The demo data against what the model gives now, then every format and scheme.
pub(crate) fn test() -> Result<()> {
    minilm::demo_data(true)?;
    let minilm = minilm::fetch()?;
    let program = Program::build()?;
    let folder = tempfile::tempdir()?;
    for format in FORMATS {
        for scheme in SCHEMES {
            let checkpoint = folder.path().join(format!("{format}-{scheme}"));
            one_checkpoint(&program, &minilm, format, scheme, &checkpoint)
                .with_context(|| format!("{format} {scheme}"))?;
        }
    }
    damaged(&program, &folder.path().join("modelopt-w4a16"))?;
    minilm_example::test(&minilm)
}

fn one_checkpoint(program: &Program, minilm: &MiniLm, format: &str, scheme: &str, checkpoint: &Path) -> Result<()> {
    let quantized = quantize(program, minilm, format, scheme, checkpoint)?;
    let errors = errors_of_layers(&quantized)?;
    for layer in list(&quantized, "layers")? {
        let (n, k) = (number(layer, "out_features")?, number(layer, "in_features")?);
        // Codes, block scales, and an f32 for each global scale that the scheme has.
        let (least, most) = (n * k * 0.5625 + 4.0, n * k * 0.5625 + 8.0);
        let bytes = number(layer, "bytes_after")?;
        ensure!((least..=most).contains(&bytes), "{layer}: {bytes} bytes, not {least} to {most}");
    }
    let dense = list(&quantized, "dense")?;
    ensure!(dense.len() == EMBEDDINGS && dense.iter().all(|d| d["reason"] == "embedding"), "left dense: {dense:?}");

    let found = verify(program, minilm, checkpoint, scheme)?;
    agree("what quantize reports and verify finds", &errors, &found, SUMMATION)?;

    let other = FORMATS.into_iter().find(|f| *f != format).context("another format")?;
    let converted = checkpoint.with_extension("converted");
    program.report::<&OsStr>([
        "convert".as_ref(),
        checkpoint.as_ref(),
        converted.as_ref(),
        "--format".as_ref(),
        other.as_ref(),
        "--json".as_ref(),
    ])?;
    let found = verify(program, minilm, &converted, scheme)?;
    agree(&format!("before and after conversion to {other}"), &errors, &found, RECIPROCAL)?;

    // What is dequantized is the checkpoint's content: verified against it, nothing is lost.
    let dense = checkpoint.with_extension("dequantized");
    dequantize(program, checkpoint, &dense)?;
    let against_itself = verify_against(program, checkpoint, &dense, scheme)?;
    ensure!(against_itself.values().all(|error| *error == 0.0), "dequantized differs: {against_itself:?}");
    Ok(())
}

/// Verifies against the original model: sound, every layer near it. The relative error of each layer.
fn verify(program: &Program, minilm: &MiniLm, checkpoint: &Path, scheme: &str) -> Result<BTreeMap<String, f64>> {
    let errors = verify_against(program, checkpoint, &minilm.model, scheme)?;
    for (layer, error) in &errors {
        ensure!(RELATIVE_ERROR.contains(error), "{layer}: relative error {error} is not in {RELATIVE_ERROR:?}");
    }
    Ok(errors)
}

fn verify_against(
    program: &Program,
    checkpoint: &Path,
    original: &Path,
    scheme: &str,
) -> Result<BTreeMap<String, f64>> {
    let arguments: [&OsStr; 5] =
        ["verify".as_ref(), checkpoint.as_ref(), "--original".as_ref(), original.as_ref(), "--json".as_ref()];
    let report = program.report(arguments)?;
    ensure!(report["errors"] == 0 && report["warnings"] == 0, "verify: {}", report["findings"]);
    for layer in list(&report, "layers")? {
        let found = layer["scheme"].as_str().unwrap_or_default().to_lowercase();
        ensure!(layer["loads"] == true && found.contains(scheme), "{layer}");
    }
    errors_of_layers(&report)
}

/// A checkpoint with one block scale made NaN: `verify` must say no and name the tensor, the row and the column.
fn damaged(program: &Program, checkpoint: &Path) -> Result<()> {
    let tensor = "encoder.layer.3.output.dense.weight_scale";
    let (row, column) = (5, 7);
    let file = checkpoint.join("model.safetensors");
    let mut bytes = fs::read(&file)?;
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length])?;
    let columns = number(&header[tensor]["shape"], 1)? as usize;
    let start = 8 + length + number(&header[tensor]["data_offsets"], 0)? as usize;
    bytes[start + row * columns + column] = 0x7f;
    fs::write(&file, bytes)?;

    let run = program.run::<&OsStr>(["verify".as_ref(), checkpoint.as_ref()])?;
    ensure!(run.code == 1, "exit code {} for a NaN scale\n{}\n{}", run.code, run.stdout, run.stderr);
    let line = run.stdout.lines().find(|line| line.contains(tensor));
    let line = line.with_context(|| format!("no line names {tensor}:\n{}", run.stdout))?;
    ensure!(line.contains(&row.to_string()) && line.contains(&column.to_string()), "no row and column: {line}");
    Ok(())
}

/// The relative error of each layer of a report.
fn errors_of_layers(report: &Value) -> Result<BTreeMap<String, f64>> {
    let layers = list(report, "layers")?;
    let errors: BTreeMap<_, _> = layers
        .iter()
        .map(|layer| Ok((layer["name"].as_str().context("name")?.to_string(), number(layer, "relative_error")?)))
        .collect::<Result<_>>()?;
    ensure!(errors.len() == LINEAR_LAYERS, "{} layers, not {LINEAR_LAYERS}: {:?}", errors.len(), errors.keys());
    Ok(errors)
}

/// `Ok` if the layers are the same and their errors agree to a relative `tolerance`.
fn agree(what: &str, a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>, tolerance: f64) -> Result<()> {
    ensure!(a.keys().eq(b.keys()), "{what}: {:?} and {:?}", a.keys(), b.keys());
    for ((layer, x), y) in a.iter().zip(b.values()) {
        ensure!((x - y).abs() <= tolerance * x, "{what}: relative error of {layer} is {x}, then {y}");
    }
    Ok(())
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("the report has no list `{key}`: {value}"))
}

fn number<I: serde_json::value::Index + std::fmt::Display>(value: &Value, key: I) -> Result<f64> {
    value.get(&key).and_then(Value::as_f64).with_context(|| format!("no number `{key}`: {value}"))
}
