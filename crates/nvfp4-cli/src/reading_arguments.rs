//! The arguments that say how a checkpoint is read whose files do not say everything.

use nvfp4::{
    checkpoint::{NanScales, OpenOptions, StoredScales},
    pack::NibbleOrder,
};

/// How a checkpoint is read.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Checkpoints that do not say everything")]
pub(crate) struct ReadingArguments {
    /// The even element of a pair is in the high nibble (some exporters of image models)
    #[arg(long)]
    high_nibble_first: bool,
    /// Block scales are stored in 128x4 tiles (ComfyUI)
    #[arg(long)]
    swizzled_scales: bool,
    /// Replace NaN block scales by 448 instead of refusing them (some versions of ModelOpt write NaN for zeros)
    #[arg(long)]
    repair_nan_scales: bool,
    /// Modules whose names start with FROM are known to the configuration by names that start with TO
    #[arg(long, value_name = "FROM=TO", value_parser = renaming)]
    rename: Vec<(String, String)>,
}

impl ReadingArguments {
    /// The library's options.
    pub(crate) fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        if self.high_nibble_first {
            options.nibble_order = NibbleOrder::HighFirst;
        }
        if self.swizzled_scales {
            options.stored_scales = StoredScales::Swizzled128x4;
        }
        if self.repair_nan_scales {
            options.nan_scales = NanScales::Repair;
        }
        options.rename = self.rename.clone();
        options
    }
}

fn renaming(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.split_once('=').ok_or("expected FROM=TO")?;
    Ok((from.into(), to.into()))
}
