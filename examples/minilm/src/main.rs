//! all-MiniLM-L6-v2 with candle and NVFP4 linear layers, end to end: calibrate the dense model on some sentences, quantize it
//! to a checkpoint, load that as candle modules, embed other sentences in W4A16 and W4A4, and compare with f32.

mod bert;
mod measure;
mod plot;
mod report;
mod sentences;

use anyhow::{Context, Result};
use bert::{Bert, Config};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use clap::Parser;
use nvfp4::{
    LinearOptions, Policy,
    checkpoint::{
        Checkpoint, CheckpointFormat, Source,
        dequantize::DequantizeOptions,
        quantize::{Calibration, ModulePattern, QuantizeOptions},
    },
    select::Numerics,
};
use nvfp4_candle::Nvfp4VarBuilder;
use report::{Report, Row};
use sentences::Tokens;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The sentences that calibration sees; those that are compared are others.
const CALIBRATION: &str = include_str!("../../../xtask/python/sentences.txt");
const COMPARED: &str = include_str!("../sentences.txt");

/// Embed sentences with all-MiniLM-L6-v2 in f32 and with NVFP4 linear layers, and compare
#[derive(Parser)]
struct Arguments {
    /// Folder with config.json, model.safetensors and tokenizer.json; `cargo xtask fetch --model minilm` prints it
    model: PathBuf,
    /// Keep the NVFP4 checkpoint in this folder, which must not exist yet
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Write a plot of all similarities to this SVG file
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Repetitions of each timing, of which the fastest counts
    #[arg(long, default_value_t = 5)]
    repeat: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let config: Config = serde_json::from_slice(&fs::read(arguments.model.join("config.json"))?)?;
    let tokens = Tokens::open(&arguments.model.join("tokenizer.json"))?;
    let sentences: Vec<&str> = COMPARED.lines().filter(|line| !line.is_empty()).collect();
    let (batch, single) = (tokens.batch(&sentences)?, tokens.batch(&sentences[..1])?);

    let dense = dense_model(&arguments.model, &config)?;
    let folder = tempfile::tempdir()?;
    let calibration = folder.path().join("calibration.safetensors");
    candle_core::safetensors::save(&calibrate(&dense, &tokens)?, &calibration)?;
    let path = arguments.checkpoint.clone().unwrap_or_else(|| folder.path().join("checkpoint"));
    let bytes = quantize(&arguments.model, &path, &calibration)?;

    let checkpoint = Arc::new(Checkpoint::open(&path)?);
    let w4a16 = nvfp4_model(&checkpoint, &config, Numerics::WeightOnly)?;
    let w4a4 = nvfp4_model(&checkpoint, &config, Numerics::Checkpoint)?;

    let expected = dense.embed(&batch)?;
    let reference = measure::similarities(&expected)?;
    let mut rows = vec![Row::reference(measure::time(&dense, &batch, &single, arguments.repeat)?)];
    let mut scatter = Vec::new();
    for (name, model) in [("W4A16", &w4a16), ("W4A4", &w4a4)] {
        let found = model.embed(&batch)?;
        let similarities = measure::similarities(&found)?;
        let agreement = measure::agreement(&expected, &found, &reference, &similarities)?;
        rows.push(Row::nvfp4(name, agreement, measure::time(model, &batch, &single, arguments.repeat)?));
        scatter.push((name, similarities));
    }
    if let Some(path) = &arguments.plot {
        fs::write(path, plot::scatter(&reference, &scatter)).with_context(|| path.display().to_string())?;
    }

    // The same weights in candle's own layers: what is lost is lost to the format, not to a fault here.
    let dequantized = dequantized_model(&path, &folder.path().join("dequantized"), &config)?.embed(&batch)?;
    let cosines = (dequantized * w4a16.embed(&batch)?)?.sum(1)?;
    let report = Report {
        sentences: sentences.len(),
        pairs: reference.len(),
        bytes,
        dequantized_least_cosine: f64::from(cosines.min_all()?.to_scalar::<f32>()?),
        rows,
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

/// The original model, in f32.
fn dense_model(folder: &Path, config: &Config) -> Result<Bert> {
    let bytes = fs::read(folder.join("model.safetensors"))?;
    let vb = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu)?;
    Ok(Bert::dense(&vb, config)?)
}

/// The model with the weights of a checkpoint, dequantized into `folder`, in candle's own layers.
fn dequantized_model(checkpoint: &Path, folder: &Path, config: &Config) -> Result<Bert> {
    let mut options = DequantizeOptions::default();
    options.dtype = nvfp4::DType::F32;
    nvfp4::checkpoint::dequantize(checkpoint, folder, &options, &())?;
    dense_model(folder, config)
}

/// The model with the linear layers of an NVFP4 checkpoint. The checkpoint is W4A4; `numerics` says whether to run it as such.
fn nvfp4_model(checkpoint: &Arc<Checkpoint>, config: &Config, numerics: Numerics) -> Result<Bert> {
    let options = LinearOptions::new().with_policy(Policy { numerics, ..Policy::default() });
    let vb = Nvfp4VarBuilder::new(checkpoint.clone(), options, DType::F32, &Device::Cpu)?;
    Ok(Bert::nvfp4(&vb, config)?)
}

/// The largest magnitude at the input of every linear layer, as `<module>.input_amax`.
fn calibrate(model: &Bert, tokens: &Tokens) -> Result<std::collections::HashMap<String, Tensor>> {
    let maxima = RefCell::new(BTreeMap::<String, f32>::new());
    let observe = |module: &str, xs: &Tensor| -> candle_core::Result<()> {
        let found = xs.abs()?.max_all()?.to_scalar::<f32>()?;
        let mut maxima = maxima.borrow_mut();
        let largest = maxima.entry(module.to_string()).or_default();
        *largest = largest.max(found);
        Ok(())
    };
    // One by one: no padding token exists, and none is measured.
    for sentence in CALIBRATION.lines() {
        model.forward(&tokens.batch(&[sentence])?, &observe)?;
    }
    let tensor =
        |(module, amax): (String, f32)| Ok((format!("{module}.input_amax"), Tensor::new(amax, &Device::Cpu)?));
    maxima.into_inner().into_iter().map(tensor).collect()
}

/// Writes the NVFP4 checkpoint; the bytes of the quantized weights before and after, and of both files.
fn quantize(model: &Path, target: &Path, calibration: &Path) -> Result<report::Bytes> {
    let mut options = QuantizeOptions::new(CheckpointFormat::CompressedTensors);
    options.calibration = Some(Calibration::open(calibration)?);
    // Sentence embeddings are means over the tokens: the pooler is not run.
    options.selection.exclude = vec![ModulePattern::new("pooler.*")?];
    let report = nvfp4::checkpoint::quantize(model, target, &options, &())?;
    let file = |path: &Path| -> Result<u64> {
        let source = Source::open(path)?;
        Ok(source.tensors().map(|tensor| tensor.bytes.len() as u64).sum())
    };
    Ok(report::Bytes {
        linear_before: report.layers.iter().map(|layer| layer.bytes_before).sum(),
        linear_after: report.layers.iter().map(|layer| layer.bytes_after).sum(),
        model_before: file(model)?,
        model_after: file(target)?,
    })
}
