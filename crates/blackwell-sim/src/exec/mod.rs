//! Running kernels: warps of 32 lanes, CTAs and clusters.

mod access;
pub(crate) mod address;
mod barrier;
mod bulk;
mod cluster;
mod collective;
mod cta;
mod diverge;
mod matrix;
mod mbarrier;
mod shared;
mod step;
mod tensor;
mod values;
mod warp;

pub(crate) use cluster::{Cluster, Progress};

use crate::{
    fault::{Cause, FaultKind},
    launch::Launch,
    lower::code::Code,
    memory::DeviceView,
    profile::Profile,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// What every thread of a launch sees.
#[derive(Clone, Copy)]
pub(crate) struct Grid<'a> {
    pub(crate) profile: &'static Profile,
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) code: &'a Code,
    /// Addresses of the module's variables.
    pub(crate) globals: &'a [u64],
    /// The first cluster that nobody has begun or cancelled.
    pub(crate) next_cluster: &'a AtomicU64,
    /// Counts what other clusters can see: writes to global memory and ends.
    pub(crate) events: &'a AtomicU64,
}

impl Grid<'_> {
    /// Clusters along x, y, z.
    pub(crate) fn clusters(&self) -> [u32; 3] {
        core::array::from_fn(|axis| self.launch.grid[axis] / self.launch.cluster[axis].max(1))
    }

    /// Takes the next cluster that nobody has.
    pub(crate) fn take_cluster(&self) -> Option<u64> {
        let count: u64 = self.clusters().into_iter().map(u64::from).product();
        self.next_cluster
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| (next < count).then_some(next + 1))
            .ok()
    }

    /// The index of a cluster along x, y, z.
    pub(crate) fn cluster_index(&self, cluster: u64) -> [u32; 3] {
        split(cluster, self.clusters())
    }

    /// Offset of the dynamic shared memory.
    pub(crate) fn dynamic_shared(&self) -> u32 {
        (address::RESERVED_SHARED + self.code.static_shared).next_multiple_of(self.code.dynamic_alignment.max(16))
    }
}

/// `index` along axes of these sizes, x fastest.
pub(crate) fn split(index: u64, sizes: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = sizes.map(|size| u64::from(size.max(1)));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}

/// A cluster's memories, and the grid that it belongs to.
pub(crate) struct State<'a> {
    pub(crate) grid: Grid<'a>,
    pub(crate) view: DeviceView<'a>,
    pub(crate) cluster: [u32; 3],
    pub(crate) ctas: Vec<cta::Cta>,
    pub(crate) cluster_barrier: cta::ClusterBarrier,
    /// Counts what another thread could notice.
    pub(crate) events: u64,
    /// Instructions that warps executed.
    pub(crate) instructions: u64,
}

impl State<'_> {
    /// The CTA of that rank.
    pub(super) fn cta(&mut self, rank: usize) -> Result<&mut cta::Cta, Cause> {
        let count = self.ctas.len();
        self.ctas
            .get_mut(rank)
            .ok_or_else(|| Cause::new(FaultKind::OutOfBounds, format!("CTA {rank} of a cluster of {count}")))
    }
}

/// A fault, and the lane that it is of, if it is of one.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) lane: Option<usize>,
}

impl<T: Into<Cause>> From<T> for Failure {
    fn from(cause: T) -> Self {
        Self { cause: cause.into(), lane: None }
    }
}

/// Attaches a lane to a cause.
pub(super) fn at<T>(lane: usize, result: Result<T, Cause>) -> Result<T, Failure> {
    result.map_err(|cause| Failure { cause, lane: Some(lane) })
}

/// The lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}
