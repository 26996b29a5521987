//! The arguments that say how a checkpoint is written.

use nvfp4::checkpoint::{
    CheckpointFormat,
    write::{DEFAULT_SHARD_BYTES, WriteOptions},
};

/// How a checkpoint is written.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct WritingArguments {
    /// Tensor data in one file: bytes, or a number with KB, MB, GB, KiB, MiB or GiB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value_t = DEFAULT_SHARD_BYTES, hide_default_value = true)]
    #[arg(help = "Tensor data in one file: bytes, or a number with KB, MB, GB, KiB, MiB or GiB [default: 5GB]")]
    shard_size: u64,
    /// Replace DST if it is a checkpoint already
    #[arg(long)]
    replace: bool,
}

impl WritingArguments {
    /// The library's options.
    pub(crate) fn options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.shard_bytes = self.shard_size;
        options.replace = self.replace;
        options
    }
}

/// A format that checkpoints are written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum FormatArgument {
    /// llm-compressor's, for vLLM and others
    CompressedTensors,
    /// NVIDIA ModelOpt's, for TensorRT-LLM, vLLM, SGLang and others
    Modelopt,
}

impl FormatArgument {
    pub(crate) const fn format(self) -> CheckpointFormat {
        match self {
            Self::CompressedTensors => CheckpointFormat::CompressedTensors,
            Self::Modelopt => CheckpointFormat::ModelOpt,
        }
    }
}

/// `5GB`, `500MiB`, `1000000`.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 7] = [
        ("KIB", 1 << 10),
        ("MIB", 1 << 20),
        ("GIB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let upper = text.trim().to_ascii_uppercase();
    let found = UNITS.iter().find_map(|(name, unit)| Some((upper.strip_suffix(name)?, *unit)));
    let (number, unit) = found.unwrap_or((&upper, 1));
    let number: u64 = number.trim().parse().map_err(|_| "expected a size such as 5GB or 500MiB".to_string())?;
    match number.checked_mul(unit) {
        None => Err("the size does not fit 64 bits".into()),
        Some(0) => Err("the size must not be zero".into()),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("1", 1), ("7B", 7), ("5GB", 5_000_000_000), ("2 GiB", 2 << 30), ("3kb", 3000), ("1MiB", 1 << 20)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "-1", "1.5GB", "0", "0GB", "1XB", "99999999999GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
