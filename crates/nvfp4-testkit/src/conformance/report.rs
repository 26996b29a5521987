//! What a tier found.

use crate::layers::Case;
use nvfp4_core::Unsupported;
use std::fmt;

/// A check that did not hold.
#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    /// What was run.
    pub case: String,
    /// What was wrong.
    pub what: String,
}

/// The outcome of a tier.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    tier: &'static str,
    implementation: String,
    passed: usize,
    failures: Vec<Failure>,
    refused: Vec<String>,
}

impl Report {
    /// An empty report.
    pub fn new(tier: &'static str, implementation: String) -> Self {
        Self { tier, implementation, passed: 0, failures: Vec::new(), refused: Vec::new() }
    }

    /// Counts a check that held.
    pub fn passed(&mut self) {
        self.passed += 1;
    }

    /// Records a check that did not hold.
    pub fn failed(&mut self, case: impl fmt::Display, what: String) {
        self.failures.push(Failure { case: case.to_string(), what });
    }

    /// Records that a check held or did not.
    pub fn check(&mut self, held: bool, case: impl fmt::Display, what: impl FnOnce() -> String) {
        if held { self.passed() } else { self.failed(case, what()) }
    }

    /// Records a layer that the implementation says it cannot run.
    pub fn refused(&mut self, case: Case, reason: Unsupported) {
        self.refused.push(format!("{case}: {reason}"));
    }

    /// Checks that held.
    pub fn checks(&self) -> usize {
        self.passed
    }

    /// Checks that did not hold.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Layers that the implementation cannot run.
    pub fn refusals(&self) -> &[String] {
        &self.refused
    }

    /// Panics if a check did not hold, or if there was none.
    pub fn assert_passed(&self) {
        assert!(self.failures.is_empty(), "{self}");
        assert!(self.passed > 0, "{self}: nothing was checked");
        eprintln!("{self}");
    }

    /// Panics if the implementation could not run a layer.
    pub fn assert_nothing_refused(&self) {
        assert!(self.refused.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "conformance of {}, tier {}: {} checks passed, {} failed, {} layers refused",
            self.implementation,
            self.tier,
            self.passed,
            self.failures.len(),
            self.refused.len()
        )?;
        for failure in self.failures.iter().take(10) {
            write!(f, "\n  FAILED {}\n    {}", failure.case, failure.what)?;
        }
        for refusal in self.refused.iter().take(10) {
            write!(f, "\n  refused {refusal}")?;
        }
        if self.failures.len() > 10 || self.refused.len() > 10 {
            f.write_str("\n  (the first ten of each)")?;
        }
        Ok(())
    }
}
