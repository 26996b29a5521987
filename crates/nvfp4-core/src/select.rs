//! Choosing a backend for a layer, and saying why: a pure function of device, layer and policy.

use crate::{
    device::DeviceFacts,
    kernel::{KernelId, KernelSupport},
    layer::{ActivationScheme, NvFp4LinearLayerConfig},
    preference,
    support::Unsupported,
};
use alloc::{
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::fmt;

/// Which backend to take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Choice {
    /// The best that can run the layer.
    #[default]
    Auto,
    /// The first of these that can, else as [`Choice::Auto`].
    Prefer(Vec<String>),
    /// This one or an error; nothing is ever substituted.
    Force(String),
}

/// What to compute for a layer whose checkpoint quantizes activations (W4A4). A W4A16 layer is always run as such.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Numerics {
    /// The checkpoint's numerics where the hardware multiplies FP4 and on the CPU; weight-only on GPUs that have no
    /// FP4, where it is more exact and no slower. The other one if no backend can do the first.
    #[default]
    Auto,
    /// The checkpoint's numerics or an error.
    Checkpoint,
    /// Weight-only (activations stay as they are) or an error.
    WeightOnly,
}

/// A backend that is switched off, and by whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disabled {
    /// Name of the backend.
    pub name: String,
    /// Who switched it off, e.g. `NVFP4_DISABLE`.
    pub by: String,
}

/// How to choose.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// Which backend to take.
    pub choice: Choice,
    /// What to compute for W4A4 layers.
    pub numerics: Numerics,
    /// Backends that must not be taken, forced or not.
    pub disabled: Vec<Disabled>,
}

/// Why the chosen backend was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Source {
    /// The policy forces it.
    Forced,
    /// The policy prefers it.
    Preferred,
    /// It ranks best in [`preference`].
    Ranked,
}

/// Something that the user should know about a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Note {
    /// A W4A4 layer runs weight-only because the GPU does not multiply FP4.
    #[error("activations stay 16-bit: this GPU has no FP4")]
    NoFp4Hardware,
    /// A W4A4 layer runs weight-only because no W4A4 backend can run it here.
    #[error("activations stay 16-bit: no W4A4 backend can run this layer here")]
    NoQuantizedBackend,
    /// A W4A4 layer runs weight-only because the policy says so.
    #[error("activations stay 16-bit: asked for by the policy")]
    WeightOnlyPolicy,
    /// A W4A4 layer runs with its own numerics on a GPU without FP4, because no weight-only backend can run it.
    #[error(
        "activations are quantized in software: this GPU has no FP4, and no weight-only backend can run this layer"
    )]
    EmulatedQuantization,
}

/// What became of one backend.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It runs the layer.
    Chosen,
    /// It could run the layer, with activations treated this way.
    Eligible(ActivationScheme),
    /// It cannot.
    Rejected(Unsupported),
}

/// One backend that was considered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its name.
    pub id: KernelId,
    /// What became of it.
    pub verdict: Verdict,
}

/// A choice, with everything that was considered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Decision {
    /// The winner.
    pub chosen: KernelId,
    /// Why it won.
    pub source: Source,
    /// The layer as it will be run: the layer that was asked about, or its weight-only form.
    pub config: NvFp4LinearLayerConfig,
    /// What the user should know.
    pub note: Option<Note>,
    /// The winner, then the others that could, best first, then those that cannot.
    pub candidates: Vec<Candidate>,
}

/// No backend was chosen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// None can run the layer; each with its reason.
    #[error("no backend can run this layer{}", Lines(.0))]
    NoneEligible(Vec<(KernelId, Unsupported)>),
    /// The forced one cannot.
    #[error("backend `{id}` was asked for, but: {reason}")]
    Forced {
        /// Its name.
        id: KernelId,
        /// Its reason.
        reason: Unsupported,
    },
    /// The policy names a backend that does not exist.
    #[error("there is no backend `{name}`; there are: {}", .known.join(", "))]
    Unknown {
        /// The name in the policy.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
}

struct Lines<'a>(&'a [(KernelId, Unsupported)]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(id, reason)| write!(f, "\n  {id}: {reason}"))
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Forced => "asked for",
            Source::Preferred => "preferred",
            Source::Ranked => "best of those that can",
        };
        write!(f, "{} ({source}), {}", self.chosen, self.config.activation)?;
        if let Some(note) = &self.note {
            write!(f, "\n  note: {note}")?;
        }
        for candidate in &self.candidates {
            match &candidate.verdict {
                Verdict::Chosen => {}
                Verdict::Eligible(scheme) => write!(f, "\n  {}: could, as {scheme}", candidate.id)?,
                Verdict::Rejected(reason) => write!(f, "\n  {}: {reason}", candidate.id)?,
            }
        }
        Ok(())
    }
}

/// The forms in which a layer may be run, the better first.
fn forms(device: &DeviceFacts, config: &NvFp4LinearLayerConfig, numerics: Numerics) -> Vec<NvFp4LinearLayerConfig> {
    let weight_only = config.with_activation(ActivationScheme::Unquantized);
    if !config.activation.is_quantized() {
        return vec![*config];
    }
    match numerics {
        Numerics::Checkpoint => vec![*config],
        Numerics::WeightOnly => vec![weight_only],
        Numerics::Auto => match device.compute_capability() {
            Some(cc) if !cc.has_fp4() => vec![weight_only, *config],
            _ => vec![*config, weight_only],
        },
    }
}

/// What the user should know if a layer asked for as `asked` runs as `run`.
fn note(
    device: &DeviceFacts,
    asked: &NvFp4LinearLayerConfig,
    run: &NvFp4LinearLayerConfig,
    numerics: Numerics,
) -> Option<Note> {
    let lacks_fp4 = device.compute_capability().is_some_and(|cc| !cc.has_fp4());
    if !asked.activation.is_quantized() {
        None
    } else if run.activation.is_quantized() {
        (lacks_fp4 && numerics == Numerics::Auto).then_some(Note::EmulatedQuantization)
    } else if numerics == Numerics::WeightOnly {
        Some(Note::WeightOnlyPolicy)
    } else if lacks_fp4 {
        Some(Note::NoFp4Hardware)
    } else {
        Some(Note::NoQuantizedBackend)
    }
}

/// Chooses among `backends` for a layer on a device, or says why none can run it. Ties in rank keep the order of
/// `backends`.
pub fn select(
    backends: &[&dyn KernelSupport],
    device: &DeviceFacts,
    config: &NvFp4LinearLayerConfig,
    policy: &Policy,
) -> Result<Decision, SelectError> {
    let find = |name: &str| {
        backends.iter().position(|b| b.id().as_str() == name).ok_or_else(|| SelectError::Unknown {
            name: name.to_string(),
            known: backends.iter().map(|b| b.id().to_string()).collect(),
        })
    };
    let preferred: Vec<usize> = match &policy.choice {
        Choice::Auto => Vec::new(),
        Choice::Prefer(names) => names.iter().map(|n| find(n)).collect::<Result<_, _>>()?,
        Choice::Force(name) => vec![find(name)?],
    };
    for disabled in &policy.disabled {
        find(&disabled.name)?;
    }

    let forms = forms(device, config, policy.numerics);
    // The first form that a backend can run, or why it cannot run the one that is wanted most.
    let judge = |backend: &dyn KernelSupport| -> Result<usize, Unsupported> {
        if let Some(disabled) = policy.disabled.iter().find(|d| d.name == backend.id().as_str()) {
            return Err(Unsupported::Disabled(disabled.by.clone()));
        }
        backend.is_supported(device)?;
        let mut first_reason = None;
        for (i, form) in forms.iter().enumerate() {
            match backend.can_implement(device, form) {
                Ok(()) => return Ok(i),
                Err(reason) => first_reason = first_reason.or(Some(reason)),
            }
        }
        Err(first_reason.unwrap_or(Unsupported::NotReleased))
    };

    let mut eligible = Vec::new();
    let mut rejected = Vec::new();
    for (i, backend) in backends.iter().enumerate() {
        match judge(*backend) {
            Ok(form) => eligible.push((i, form)),
            Err(reason) => rejected.push((i, reason)),
        }
    }

    if let Choice::Force(_) = policy.choice
        && let Some((i, reason)) = rejected.iter().find(|r| preferred.contains(&r.0))
    {
        return Err(SelectError::Forced { id: backends[*i].id(), reason: reason.clone() });
    }

    eligible.sort_by_key(|&(i, form)| {
        let wish = preferred.iter().position(|&p| p == i).unwrap_or(usize::MAX);
        (wish, form, preference::rank(device, forms[form].activation.is_quantized(), backends[i].id()))
    });
    let Some(&(winner, form)) = eligible.first() else {
        return Err(SelectError::NoneEligible(
            rejected.into_iter().map(|(i, reason)| (backends[i].id(), reason)).collect(),
        ));
    };

    let source = match policy.choice {
        Choice::Force(_) => Source::Forced,
        Choice::Prefer(_) if preferred.contains(&winner) => Source::Preferred,
        _ => Source::Ranked,
    };
    let candidates = eligible
        .iter()
        .enumerate()
        .map(|(place, &(i, form))| Candidate {
            id: backends[i].id(),
            verdict: if place == 0 { Verdict::Chosen } else { Verdict::Eligible(forms[form].activation) },
        })
        .chain(
            rejected
                .into_iter()
                .map(|(i, reason)| Candidate { id: backends[i].id(), verdict: Verdict::Rejected(reason) }),
        )
        .collect();
    Ok(Decision {
        chosen: backends[winner].id(),
        source,
        config: forms[form],
        note: note(device, config, &forms[form], policy.numerics),
        candidates,
    })
}
