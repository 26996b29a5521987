//! The mbarrier object: arrivals and transaction bytes that a phase waits for.

use crate::fault::{Cause, FaultKind};

/// Most arrivals of a phase, and most bytes that may be outstanding.
const LIMIT: i64 = (1 << 20) - 1;

/// An mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mbarrier {
    /// Arrivals of a whole phase.
    expected: i64,
    /// Arrivals that the current phase still waits for.
    pending: i64,
    /// Bytes that the current phase still waits for.
    bytes: i64,
    /// Phases that are over.
    phase: u64,
}

impl Mbarrier {
    pub(super) fn new(count: u32) -> Result<Self, Cause> {
        let expected = i64::from(count);
        if !(1..=LIMIT).contains(&expected) {
            return Err(misuse(format!("mbarrier.init with a count of {count}; it must be 1 to {LIMIT}")));
        }
        Ok(Self { expected, pending: expected, bytes: 0, phase: 0 })
    }

    /// What `mbarrier.arrive` returns: the phase, and the arrivals it waited for.
    pub(super) fn state(&self) -> u64 {
        self.phase << 20 | self.pending as u64
    }

    /// The arrivals in a state.
    pub(super) fn pending_of(state: u64) -> u64 {
        state & LIMIT as u64
    }

    pub(super) fn arrive(&mut self, count: u32, drop: bool) -> Result<(), Cause> {
        let count = i64::from(count);
        if count < 1 || count > self.pending {
            return Err(misuse(format!(
                "{count} arrivals where the phase waits for {} of {}",
                self.pending, self.expected
            )));
        }
        self.pending -= count;
        if drop {
            self.expected -= count;
        }
        self.settle();
        Ok(())
    }

    /// `expect_tx` with positive, `complete_tx` with negative bytes.
    pub(super) fn transact(&mut self, bytes: i64) -> Result<(), Cause> {
        self.bytes += bytes;
        if self.bytes.abs() > LIMIT {
            return Err(misuse(format!("{} outstanding bytes; they may be {LIMIT} at most", self.bytes)));
        }
        self.settle();
        Ok(())
    }

    fn settle(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.expected;
        }
    }

    /// Whether the phase of that parity is over.
    pub(super) fn parity_is_over(&self, parity: u64) -> bool {
        self.phase & 1 != parity & 1
    }

    /// Whether the phase of that state is over.
    pub(super) fn state_is_over(&self, state: u64) -> bool {
        self.phase > state >> 20
    }
}

impl std::fmt::Display for Mbarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "phase {} (parity {}) waits for {} of {} arrivals and {} bytes",
            self.phase,
            self.phase & 1,
            self.pending,
            self.expected,
            self.bytes
        )
    }
}

fn misuse(message: String) -> Cause {
    Cause::new(FaultKind::Barrier, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_with_its_last_arrival_and_byte() {
        let mut barrier = Mbarrier::new(2).unwrap();
        let state = barrier.state();
        barrier.transact(64).unwrap();
        barrier.arrive(2, false).unwrap();
        assert!(!barrier.parity_is_over(0) && !barrier.state_is_over(state));
        barrier.transact(-64).unwrap();
        assert!(barrier.parity_is_over(0) && !barrier.parity_is_over(1) && barrier.state_is_over(state));
        assert_eq!(Mbarrier::pending_of(barrier.state()), 2);
        // Bytes may come before they are expected, as long as an arrival is missing.
        barrier.transact(-16).unwrap();
        barrier.arrive(1, true).unwrap();
        barrier.transact(16).unwrap();
        assert!(barrier.parity_is_over(0));
        barrier.arrive(1, false).unwrap();
        assert!(barrier.parity_is_over(1));
        // One arrival was dropped.
        barrier.arrive(1, false).unwrap();
        assert!(barrier.parity_is_over(0));
    }

    #[test]
    fn misuse_is_refused() {
        assert!(Mbarrier::new(0).is_err() && Mbarrier::new(1 << 20).is_err());
        let mut barrier = Mbarrier::new(1).unwrap();
        assert!(barrier.arrive(2, false).is_err() && barrier.arrive(0, false).is_err());
        assert!(barrier.transact(1 << 20).is_err());
    }
}
