//! Generic addresses, and the shared addresses of the CTAs of a cluster.
//!
//! A shared address has the CTA's rank in its upper 8 bits and the offset in its lower 24, in both `.shared::cta` and `.shared::cluster`,
//! as on hardware: kernels clear bit 24 to name the even CTA of a pair. The first kibibyte is the system's, so that address 0 is
//! never a kernel's.

use crate::{
    fault::{Cause, FaultKind},
    lower::code::Space,
};

/// Bits of the offset in a shared address.
pub(crate) const RANK_SHIFT: u32 = 24;
/// Shared memory that the system keeps, at the start of every CTA's.
pub(crate) const RESERVED_SHARED: u32 = 1024;
/// Bytes of each window of generic addresses.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;
/// Generic addresses of shared memory.
pub(crate) const SHARED_WINDOW: u64 = 3 << 40;
/// Generic addresses of the thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 4 << 40;
/// Generic addresses of the kernel's parameters.
pub(crate) const PARAM_WINDOW: u64 = 5 << 40;

/// What an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Device(u64),
    Shared { rank: usize, offset: u32 },
    Local(u32),
    Param(u32),
}

impl Place {
    /// What `address` of `space` names for a thread of the CTA of rank `own`.
    pub(super) fn resolve(space: Space, address: u64, own: usize) -> Result<Self, Cause> {
        let shared = |address: u64| Self::Shared {
            rank: (address as u32 >> RANK_SHIFT) as usize,
            offset: address as u32 & ((1 << RANK_SHIFT) - 1),
        };
        Ok(match space {
            Space::Global => Self::Device(address),
            Space::SharedCluster => shared(address),
            Space::SharedCta => match shared(address) {
                Self::Shared { rank, .. } if rank != own => {
                    return Err(Cause::new(
                        FaultKind::OutOfBounds,
                        format!(
                            "shared address {:#x} is of the cluster's CTA {rank}, not of this one, {own}: such an access needs \
                             .shared::cluster",
                            address as u32
                        ),
                    ));
                }
                place => place,
            },
            Space::Local => Self::Local(address as u32),
            Space::Param => Self::Param(address as u32),
            Space::Generic => match address {
                SHARED_WINDOW..LOCAL_WINDOW if address - SHARED_WINDOW < WINDOW_BYTES => shared(address),
                LOCAL_WINDOW..PARAM_WINDOW if address - LOCAL_WINDOW < WINDOW_BYTES => Self::Local(address as u32),
                PARAM_WINDOW.. if address.wrapping_sub(PARAM_WINDOW) < WINDOW_BYTES => Self::Param(address as u32),
                _ => Self::Device(address),
            },
        })
    }
}
