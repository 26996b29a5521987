//! What a check found.

use serde::Serialize;
use std::fmt;

/// Places that the text of a finding names; the structure has more.
const SHOWN: usize = 16;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// The checkpoint works, but not everywhere or not as well as it should.
    Warning,
    /// The checkpoint does not load, or computes wrong numbers.
    Error,
}

/// What kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// A file cannot be read, or its header lies.
    Unreadable,
    /// A configuration file is not what its ecosystem writes.
    Configuration,
    /// A tensor that a module needs is not there.
    MissingTensor,
    /// A tensor that does not belong to the format.
    ExtraTensor,
    /// A tensor has another element type than the format says.
    WrongType,
    /// A tensor has another shape than the module's other tensors ask for.
    WrongShape,
    /// Block scales that are NaN.
    NanBlockScale,
    /// Block scales with the sign bit, which hardware reads as positive.
    NegativeBlockScale,
    /// Block scales of zero over codes that are not zero: the block is lost.
    ZeroBlockScale,
    /// A global scale that is not positive and finite with a finite reciprocal.
    GlobalScale,
    /// A global scale that looks like one of the other convention (multiplier against divisor).
    GlobalScaleConvention,
    /// The configuration and the tensors contradict each other.
    Contradiction,
    /// Modules that engines run as one matrix have different global scales.
    FusedScalesDiffer,
    /// Modules that engines run as one matrix are not quantized alike.
    FusedSchemesDiffer,
    /// Unquantized values that are NaN or infinite.
    NotFinite,
    /// The loader refuses the module for another reason.
    Loader,
    /// The original has no such module, or one of another shape.
    Original,
    /// The values are far from the original's: see [`Diagnosis`](super::Diagnosis).
    WrongValues,
    /// Rows whose values are far from the original's.
    WrongRows,
    /// Values that the format cannot hold beside the tensor's largest: lost, but not by a fault.
    FormatLimit,
}

/// A place in a tensor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Position {
    /// Row.
    pub row: usize,
    /// Column: of block scales, the block along `k`; of values, the value. Absent for a whole row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// What is there.
    pub found: String,
}

/// One fault, or faults of the same kind in one tensor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What kind.
    pub fault: Fault,
    /// The module or modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// What was found and expected, and what to do.
    pub message: String,
    /// How many places of the tensor are at fault, if the fault has places.
    #[serde(skip_serializing_if = "is_zero")]
    pub count: u64,
    /// The places, in order; [`VerifyOptions::places`](super::VerifyOptions::places) of them at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<Position>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Finding {
    pub(super) fn new(severity: Severity, fault: Fault, message: impl Into<String>) -> Self {
        Self {
            severity,
            fault,
            module: None,
            tensor: None,
            message: message.into(),
            count: 0,
            positions: Vec::new(),
        }
    }

    pub(super) fn error(fault: Fault, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, fault, message)
    }

    pub(super) fn warning(fault: Fault, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, fault, message)
    }

    pub(super) fn in_module(mut self, module: impl Into<String>) -> Self {
        self.module = Some(module.into());
        self
    }

    pub(super) fn in_tensor(mut self, tensor: impl Into<String>) -> Self {
        self.tensor = Some(tensor.into());
        self
    }

    pub(super) fn at(mut self, places: Places) -> Self {
        self.count = places.count;
        self.positions = places.positions;
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: ")?;
        match (&self.tensor, &self.module) {
            (Some(tensor), _) => write!(f, "tensor `{tensor}`: ")?,
            (None, Some(module)) => write!(f, "module `{module}`: ")?,
            (None, None) => {}
        }
        f.write_str(&self.message)?;
        for (i, place) in self.positions.iter().take(SHOWN).enumerate() {
            write!(f, "{} row {}", if i == 0 { ":" } else { ";" }, place.row)?;
            if let Some(column) = place.column {
                write!(f, ", column {column}")?;
            }
            write!(f, ": {}", place.found)?;
        }
        match self.count.saturating_sub(self.positions.len().min(SHOWN) as u64) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Places of one kind of fault, of which the first few are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Places {
    limit: usize,
    pub(super) count: u64,
    pub(super) positions: Vec<Position>,
}

impl Places {
    pub(super) const fn new(limit: usize) -> Self {
        Self { limit, count: 0, positions: Vec::new() }
    }

    pub(super) fn add(&mut self, row: usize, column: Option<usize>, found: impl FnOnce() -> String) {
        self.count += 1;
        if self.positions.len() < self.limit {
            self.positions.push(Position { row, column, found: found() });
        }
    }
}
