//! A CTA's shared state, and the barriers of CTAs and clusters.

use super::shared::SharedMemory;
use crate::matrix::tensor_memory::TensorMemory;

/// Named barriers of a CTA.
pub(super) const NAMED_BARRIERS: usize = 16;

/// A CTA.
pub(crate) struct Cta {
    pub(super) index: [u32; 3],
    pub(super) shared: SharedMemory,
    pub(super) tensor: TensorMemory,
    pub(super) barriers: [NamedBarrier; NAMED_BARRIERS],
    /// Threads that have not ended.
    pub(super) live: u32,
}

/// A named barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NamedBarrier {
    /// Threads that have arrived since it last opened.
    pub(super) arrived: u32,
    /// Threads that it waits for; `None` for all of the CTA.
    pub(super) count: Option<u32>,
    /// How often it has opened.
    pub(super) generation: u64,
    /// Lanes of this and of the last generation that voted yes.
    pub(super) votes: u32,
    pub(super) last_votes: u32,
    pub(super) last_arrived: u32,
}

impl NamedBarrier {
    /// Opens the barrier if all have arrived.
    pub(super) fn settle(&mut self, live: u32) {
        if self.arrived > 0 && self.arrived >= self.count.unwrap_or(live) {
            (self.last_arrived, self.last_votes) = (self.arrived, self.votes);
            (self.arrived, self.votes, self.count) = (0, 0, None);
            self.generation += 1;
        }
    }
}

/// The barrier of a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterBarrier {
    pub(super) arrived: u32,
    pub(super) generation: u64,
}

impl ClusterBarrier {
    /// Opens the barrier if all `live` threads of the cluster have arrived.
    pub(super) fn settle(&mut self, live: u32) {
        if self.arrived > 0 && self.arrived >= live {
            self.arrived = 0;
            self.generation += 1;
        }
    }
}
