//! Targets of device images, and which devices run which.
//!
//! Conversions to e2m1 and the block-scaled MMA exist only under `a` and `f` targets; code compiled for a plain
//! target runs without them and returns zeros or NaN without an error (FlashInfer #3398, vLLM #37725). So an image
//! carries its exact target, and this table says who may load it.

use nvfp4_core::ComputeCapability;
use std::{fmt, str::FromStr};

/// What a target promises beyond its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Feature {
    /// `sm_90`: runs on this and later minor versions.
    Plain,
    /// `sm_100f`: family features; runs on this and later members of the family.
    Family,
    /// `sm_100a`: all features of exactly this device.
    Architecture,
}

/// A target of device code such as `sm_90a` or `sm_120f`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flavour {
    /// The number.
    pub compute_capability: ComputeCapability,
    /// The suffix.
    pub feature: Feature,
}

impl Flavour {
    /// True if a device of compute capability `device` runs code of this target.
    ///
    /// An `a` image runs on its own device only (120a on 12.1 is refused), an `f` image on its own and later members
    /// of the family, a plain one on its own and later minor versions before Blackwell. For 10.0 and later a plain
    /// image of these kernels is always wrong, and is refused.
    pub fn runs_on(self, device: ComputeCapability) -> bool {
        let image = self.compute_capability;
        match self.feature {
            Feature::Architecture => image == device,
            Feature::Family => image.is_family(device) && image <= device,
            Feature::Plain => !image.has_fp4() && image.is_family(device) && image <= device,
        }
    }

    /// Order in which a device tries the images that it can run: the closest and most special first.
    pub(crate) fn preference(self) -> (Feature, ComputeCapability) {
        (self.feature, self.compute_capability)
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.feature {
            Feature::Plain => "",
            Feature::Family => "f",
            Feature::Architecture => "a",
        };
        f.pad(&format!("{}{suffix}", self.compute_capability))
    }
}

impl FromStr for Flavour {
    type Err = nvfp4_core::device::ParseComputeCapabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let compute_capability = text.parse()?;
        let feature = match text.trim().to_ascii_lowercase().chars().last() {
            Some('a') => Feature::Architecture,
            Some('f') => Feature::Family,
            _ => Feature::Plain,
        };
        Ok(Self { compute_capability, feature })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_table() {
        let runs = |image: &str, device: &str| image.parse::<Flavour>().unwrap().runs_on(device.parse().unwrap());
        let all = [
            "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_103f",
            "sm_110a", "sm_110f", "sm_120", "sm_120a", "sm_120f", "sm_121a", "sm_121f",
        ];
        for (device, accepted) in [
            ("8.0", &["sm_80"][..]),
            ("8.6", &["sm_80", "sm_86"]),
            ("8.9", &["sm_80", "sm_86", "sm_89"]),
            ("9.0", &["sm_90", "sm_90a"]),
            ("10.0", &["sm_100a", "sm_100f"]),
            ("10.3", &["sm_100f", "sm_103a", "sm_103f"]),
            ("11.0", &["sm_110a", "sm_110f"]),
            ("12.0", &["sm_120a", "sm_120f"]),
            ("12.1", &["sm_120f", "sm_121a", "sm_121f"]),
            ("7.5", &[]),
        ] {
            let found: Vec<_> = all.iter().copied().filter(|image| runs(image, device)).collect();
            assert_eq!(found, accepted, "{device}");
        }
    }

    #[test]
    fn text_round_trip() {
        for text in ["sm_80", "sm_90a", "sm_120f"] {
            assert_eq!(text.parse::<Flavour>().unwrap().to_string(), text);
        }
        assert!("sm_x".parse::<Flavour>().is_err());
    }
}
