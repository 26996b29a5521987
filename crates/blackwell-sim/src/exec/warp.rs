//! A warp: its registers, and the groups of lanes that go on together.
//!
//! Lanes that part at a branch become two groups with a *node* that says where they meet: the branch's immediate post-dominator. A
//! group that arrives there waits for the others of its node. Every group can run while others wait, so lanes may wait for
//! each other, as on GPUs with independent thread scheduling.

use super::{Failure, Grid, split};
use crate::lower::code::{LANES, LaneValues, Position};

/// A 32-thread warp.
pub(crate) struct Warp {
    /// The rank of its CTA in the cluster.
    pub(super) rank: usize,
    /// Its index in the CTA.
    pub(super) index: u32,
    pub(super) threads: [[u32; 3]; LANES],
    /// Lanes that have not ended.
    pub(super) live: u32,
    pub(super) registers: Vec<LaneValues>,
    /// Local memory, one lane's after the other's.
    pub(super) local: Vec<u8>,
    pub(super) local_written: Vec<bool>,
    pub(super) groups: Vec<Group>,
    pub(super) nodes: Vec<Node>,
    pub(super) free_nodes: Vec<usize>,
    /// The generation of the cluster barrier at each lane's last arrival.
    pub(super) cluster_arrivals: [u64; LANES],
    /// The line that it executes, for faults.
    pub(super) position: Position,
}

/// Lanes that execute together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) position: Position,
    pub(super) mask: u32,
    pub(super) node: usize,
    pub(super) waiting: Option<Waiting>,
    /// The generation of the barrier at which it has arrived already.
    pub(super) token: Option<u64>,
}

/// What a group waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Named {
        barrier: u32,
    },
    Cluster,
    Mbarrier {
        rank: usize,
        offset: u32,
        phase: u64,
        by_parity: bool,
    },
    /// Other lanes that execute the same instruction; `present` do so already.
    Lanes {
        members: u32,
        present: u32,
    },
    TensorMemory,
}

/// A place where lanes meet again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Lanes that will come, unless they end before.
    pub(super) expected: u32,
    pub(super) arrived: u32,
    pub(super) reconverge: Position,
    pub(super) parent: usize,
}

/// The node of lanes that have not parted.
pub(super) const ROOT: usize = 0;

/// What became of an instruction.
pub(super) enum Step {
    Next,
    /// It was not executed; try again.
    Wait(Waiting),
}

impl Warp {
    pub(super) fn new(grid: &Grid<'_>, rank: usize, index: u32) -> Self {
        let [x, y, z] = grid.launch.block;
        let count = x * y * z;
        let first = index * LANES as u32;
        let live = match count - first {
            32.. => u32::MAX,
            lanes => (1 << lanes) - 1,
        };
        let local = grid.code.local_bytes as usize * LANES;
        Self {
            rank,
            index,
            threads: core::array::from_fn(|lane| split(u64::from(first) + lane as u64, grid.launch.block)),
            live,
            registers: vec![[0; LANES]; grid.code.slots],
            local: vec![0; local],
            local_written: vec![false; local],
            groups: vec![Group { position: 0, mask: live, node: ROOT, waiting: None, token: None }],
            nodes: vec![Node { expected: live, arrived: 0, reconverge: Position::MAX, parent: ROOT }],
            free_nodes: Vec::new(),
            cluster_arrivals: [0; LANES],
            position: 0,
        }
    }

    /// A range of a lane's local memory.
    pub(super) fn local_range(
        &self,
        lane: usize,
        offset: u32,
        count: usize,
    ) -> Result<std::ops::Range<usize>, crate::fault::Cause> {
        let bytes = self.local.len() / LANES;
        let end = offset as usize + count;
        if end > bytes {
            return Err(crate::fault::Cause::new(
                crate::fault::FaultKind::OutOfBounds,
                format!("{count} bytes at local offset {offset:#x}; the thread's local memory has {bytes} bytes"),
            ));
        }
        Ok(lane * bytes + offset as usize..lane * bytes + end)
    }

    pub(super) fn is_done(&self) -> bool {
        self.groups.is_empty()
    }
}

/// Failure type of a warp's steps.
pub(super) type Outcome<T> = Result<T, Failure>;
