//! A launch of a kernel: grid, CTA, cluster, shared memory, parameters.

use crate::{
    fault::{Cause, FaultKind},
    profile::Profile,
};

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch<'a> {
    /// CTAs along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA along x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster along x, y, z; `[1, 1, 1]` for none.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The image of the kernel's parameter space: every parameter at the offset that PTX gives it.
    pub parameters: &'a [u8],
    /// The kernel may start before its predecessor in the stream has ended (programmatic dependent launch).
    pub programmatic: bool,
}

/// Most threads of a CTA, on every device that is presented.
pub const MAX_THREADS: u32 = 1024;
/// Most threads of a CTA along x, y, z.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Most CTAs of a grid along x, y, z.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Most CTAs of a cluster that every device can hold; kernels may ask for twice as many where the device allows it.
pub const MAX_PORTABLE_CLUSTER: u32 = 8;

impl Launch<'_> {
    /// CTAs of the grid.
    pub fn ctas(&self) -> u64 {
        product(self.grid)
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u64 {
        product(self.block)
    }

    /// CTAs of a cluster.
    pub fn cluster_ctas(&self) -> u64 {
        product(self.cluster)
    }

    /// Checks the launch against the limits of the device, those of the kernel aside. `static_shared` is what the kernel itself declares.
    ///
    /// # Errors
    /// [`FaultKind::BadLaunch`], with the value and its limit.
    pub fn check(&self, profile: &Profile, static_shared: u32) -> Result<(), Cause> {
        let bad = |message: String| Err(Cause::new(FaultKind::BadLaunch, message));
        for (what, sizes, limits) in [("grid", self.grid, MAX_GRID), ("CTA", self.block, MAX_BLOCK)] {
            for ((axis, size), limit) in ["x", "y", "z"].into_iter().zip(sizes).zip(limits) {
                if size == 0 || size > limit {
                    return bad(format!("the {what} is {size} along {axis}; it must be 1 to {limit}"));
                }
            }
        }
        if self.threads() > u64::from(MAX_THREADS) {
            return bad(format!("a CTA of {} threads; the most are {MAX_THREADS}", self.threads()));
        }
        for ((axis, grid), cluster) in ["x", "y", "z"].into_iter().zip(self.grid).zip(self.cluster) {
            if cluster == 0 || !grid.is_multiple_of(cluster) {
                return bad(format!(
                    "the grid is {grid} along {axis}, the cluster {cluster}; the grid must be a multiple"
                ));
            }
        }
        if self.cluster_ctas() > u64::from(profile.max_cluster) {
            return bad(format!("a cluster of {} CTAs; the most are {}", self.cluster_ctas(), profile.max_cluster));
        }
        let shared = u64::from(static_shared) + u64::from(self.dynamic_shared);
        if shared > u64::from(profile.shared_optin) {
            return bad(format!(
                "{static_shared} bytes of static and {} of dynamic shared memory; a CTA has {} on {}",
                self.dynamic_shared, profile.shared_optin, profile.name
            ));
        }
        Ok(())
    }
}

fn product(sizes: [u32; 3]) -> u64 {
    sizes.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Launch<'_> = Launch {
        grid: [4, 2, 1],
        block: [128, 1, 1],
        cluster: [2, 1, 1],
        dynamic_shared: 200 * 1024,
        parameters: &[],
        programmatic: false,
    };

    #[test]
    fn limits() {
        let b200 = Profile::named("sm_100a").unwrap();
        let rtx = Profile::named("sm_120a").unwrap();
        assert_eq!(PLAIN.check(b200, 27 * 1024), Ok(()));
        let refused = |launch: Launch<'_>, profile: &Profile, part: &str| {
            let cause = launch.check(profile, 0).unwrap_err();
            assert!(cause.kind == FaultKind::BadLaunch && cause.message.contains(part), "{cause}");
        };
        assert!(PLAIN.check(b200, 27 * 1024 + 1).unwrap_err().message.contains("232448"));
        refused(PLAIN, rtx, "101376");
        refused(Launch { grid: [0, 1, 1], ..PLAIN }, b200, "grid is 0 along x");
        refused(Launch { block: [1, 1, 65], ..PLAIN }, b200, "65 along z");
        refused(Launch { block: [33, 32, 1], ..PLAIN }, b200, "1056 threads");
        refused(Launch { cluster: [3, 1, 1], ..PLAIN }, b200, "cluster 3");
        refused(Launch { cluster: [0, 1, 1], ..PLAIN }, b200, "cluster 0");
        refused(Launch { grid: [32, 1, 1], cluster: [32, 1, 1], ..PLAIN }, b200, "32 CTAs");
    }

    #[test]
    fn counts_do_not_overflow() {
        let launch = Launch { grid: [u32::MAX; 3], ..PLAIN };
        assert_eq!((launch.ctas(), launch.threads(), launch.cluster_ctas()), (u64::MAX, 128, 2));
    }
}
