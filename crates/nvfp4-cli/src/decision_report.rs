//! A choice of backend, for people and for programs.

use crate::table::{Align, Table};
use nvfp4::{
    Decision, KernelId, Unsupported,
    select::{SelectError, Source, Verdict},
};
use serde::Serialize;
use std::io::{self, Write};

/// A choice, or why there is none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct DecisionReport {
    /// The backend; null if none can run the layer.
    pub(crate) chosen: Option<&'static str>,
    /// `forced`, `preferred` or `ranked`.
    source: Option<&'static str>,
    /// The scheme that is computed, e.g. `W4A16`.
    runs_as: Option<String>,
    /// What the user should know.
    note: Option<String>,
    /// Every backend that was considered, the best first.
    candidates: Vec<CandidateReport>,
    /// Why no backend was chosen.
    error: Option<String>,
}

/// What became of one backend.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct CandidateReport {
    backend: &'static str,
    /// `chosen`, `eligible` or `rejected`.
    verdict: &'static str,
    /// The scheme that it would compute.
    runs_as: Option<String>,
    /// Why it cannot run the layer.
    #[serde(flatten)]
    refusal: Option<Refusal>,
}

/// Why a backend cannot run a layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Refusal {
    /// For people.
    pub(crate) reason: String,
    /// For programs.
    pub(crate) reason_kind: &'static str,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl From<&Unsupported> for Refusal {
    fn from(reason: &Unsupported) -> Self {
        Self { reason: reason.to_string(), reason_kind: kind(reason), advice: advice(reason) }
    }
}

fn kind(reason: &Unsupported) -> &'static str {
    match reason {
        Unsupported::Device { .. } => "device",
        Unsupported::NotBuilt { .. } => "not_built",
        Unsupported::KernelPack(_) => "kernel_pack",
        Unsupported::Library { .. } => "library",
        Unsupported::Driver { .. } => "driver",
        Unsupported::Shape { .. } => "shape",
        Unsupported::Rows { .. } => "rows",
        Unsupported::Scheme { .. } => "scheme",
        Unsupported::DType { .. } => "dtype",
        Unsupported::PerRowScale => "per_row_scale",
        Unsupported::BatchInvariance => "batch_invariance",
        Unsupported::Quarantined(_) => "quarantined",
        Unsupported::Disabled(_) => "disabled",
        Unsupported::Feature(_) => "feature",
        Unsupported::NotReleased => "not_released",
        _ => "other",
    }
}

/// What a user can do about a reason; `None` if nothing.
fn advice(reason: &Unsupported) -> Option<String> {
    Some(match reason {
        Unsupported::Library { library, needed, .. } => format!("install {library} {needed} or newer"),
        Unsupported::Driver { needed, .. } => {
            format!("install a driver for CUDA {needed} or newer; nvidia-smi shows the present one")
        }
        Unsupported::Scheme { .. } => "--numerics weight-only runs W4A4 layers as W4A16".into(),
        Unsupported::PerRowScale => "quantize fused layers with one shared global scale".into(),
        Unsupported::BatchInvariance => "ask without --batch-invariant".into(),
        Unsupported::Disabled(by) => format!("take it out of {by}"),
        Unsupported::Feature(feature) => format!("build with --features {feature}"),
        _ => return None,
    })
}

impl From<&Result<Decision, SelectError>> for DecisionReport {
    fn from(answer: &Result<Decision, SelectError>) -> Self {
        match answer {
            Ok(decision) => decision.into(),
            Err(refusal) => refusal.into(),
        }
    }
}

impl From<&Decision> for DecisionReport {
    fn from(decision: &Decision) -> Self {
        let candidates = decision.candidates.iter().map(|candidate| {
            let (verdict, runs_as, refusal) = match &candidate.verdict {
                Verdict::Chosen => ("chosen", Some(decision.config.activation), None),
                Verdict::Eligible(scheme) => ("eligible", Some(*scheme), None),
                Verdict::Rejected(reason) => ("rejected", None, Some(reason.into())),
                _ => ("other", None, None),
            };
            let runs_as = runs_as.map(|scheme| scheme.to_string());
            CandidateReport { backend: candidate.id.as_str(), verdict, runs_as, refusal }
        });
        Self {
            chosen: Some(decision.chosen.as_str()),
            source: Some(match decision.source {
                Source::Forced => "forced",
                Source::Preferred => "preferred",
                _ => "ranked",
            }),
            runs_as: Some(decision.config.activation.to_string()),
            note: decision.note.map(|note| note.to_string()),
            candidates: candidates.collect(),
            error: None,
        }
    }
}

impl From<&SelectError> for DecisionReport {
    fn from(error: &SelectError) -> Self {
        let rejected = |(id, reason): (&KernelId, &Unsupported)| CandidateReport {
            backend: id.as_str(),
            verdict: "rejected",
            runs_as: None,
            refusal: Some(reason.into()),
        };
        let (candidates, error) = match error {
            SelectError::NoneEligible(reasons) => (
                reasons.iter().map(|(id, reason)| rejected((id, reason))).collect(),
                "no backend can run this layer".to_string(),
            ),
            SelectError::Forced { id, reason } => (vec![rejected((id, reason))], error.to_string()),
            other => (Vec::new(), other.to_string()),
        };
        Self { chosen: None, source: None, runs_as: None, note: None, candidates, error: Some(error) }
    }
}

impl DecisionReport {
    /// Whether both refuse the same backends for the same reasons.
    pub(crate) fn refuses_as(&self, other: &Self) -> bool {
        let refusals = |report: &Self| -> Vec<(&'static str, Option<Refusal>)> {
            let refused = report.candidates.iter().filter(|candidate| candidate.refusal.is_some());
            refused.map(|candidate| (candidate.backend, candidate.refusal.clone())).collect()
        };
        refusals(self) == refusals(other)
    }

    /// Writes the answer and a table of the backends.
    pub(crate) fn write(&self, title: &str, out: &mut impl Write) -> io::Result<()> {
        self.write_answer(title, out)?;
        self.write_backends(out)
    }

    /// Writes the answer.
    pub(crate) fn write_answer(&self, title: &str, out: &mut impl Write) -> io::Result<()> {
        match (self.chosen, &self.runs_as) {
            (Some(chosen), Some(runs_as)) => {
                let source = match self.source {
                    Some("forced") => "asked for",
                    Some("preferred") => "preferred",
                    _ => "the best of those that can",
                };
                writeln!(out, "{title}: {chosen}, as {runs_as} ({source})")?;
            }
            _ => writeln!(out, "{title}: {}", self.error.as_deref().unwrap_or("nothing"))?,
        }
        if let Some(note) = &self.note {
            writeln!(out, "  note: {note}")?;
        }
        Ok(())
    }

    /// Writes a table of the backends.
    fn write_backends(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new([("backend", Align::Left), ("answer", Align::Left)]);
        for candidate in &self.candidates {
            let answer = match (&candidate.refusal, &candidate.runs_as, candidate.verdict) {
                (_, _, "chosen") => "chosen".to_string(),
                (_, Some(runs_as), _) => format!("could, as {runs_as}"),
                (Some(refusal), ..) => refusal.text(),
                _ => String::new(),
            };
            table.row([candidate.backend.to_string(), answer]);
        }
        table.write(out)
    }
}

impl Refusal {
    /// The reason and the advice on one line.
    pub(crate) fn text(&self) -> String {
        match &self.advice {
            Some(advice) => format!("{}; {advice}", self.reason),
            None => self.reason.clone(),
        }
    }
}
