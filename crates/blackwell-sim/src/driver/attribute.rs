//! `cuDeviceGetAttribute`.

use super::{
    boundary::{Failure, call},
    device::{PCI, check},
    pointer::Out,
    state::driver,
    status::Status,
};
use crate::{
    launch::{MAX_BLOCK, MAX_GRID, MAX_THREADS},
    profile::Profile,
};

/// Registers of a multiprocessor and, on every device that is presented, of a CTA at most.
pub(super) const REGISTERS: i32 = 65536;
/// Bytes of shared memory of each CTA that the system takes.
pub(super) const RESERVED_SHARED: u32 = 1024;
/// Bytes to which `cuMemAllocPitch` aligns rows.
pub(super) const PITCH_ALIGNMENT: i32 = 512;
/// Kinds of handles by which memory pools can be shared: none.
const NO_HANDLES: i32 = 0;

super::entries! { cuDeviceGetAttribute }

/// The value of a device attribute. The numbers are those of `CUdevice_attribute` (cuda.h); values that are no figure of a product are the
/// limits of its compute capability in the CUDA C++ Programming Guide. `None`: an attribute that does not exist, or that belongs to
/// textures and surfaces, which are not modelled.
fn value(profile: &Profile, attribute: i32) -> Option<i32> {
    let int = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    let (yes, no) = (1, 0);
    Some(match attribute {
        1 => MAX_THREADS as i32,
        2..=4 => MAX_BLOCK[attribute as usize - 2] as i32,
        5..=7 => MAX_GRID[attribute as usize - 5] as i32,
        8 => profile.shared_per_block as i32,
        // Constant memory; warp; pitch.
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => REGISTERS,
        13 => profile.clock_khz as i32,
        14 => 512,
        // Copies beside kernels; multiprocessors; no time limit on kernels.
        15 => yes,
        16 => profile.sm_count as i32,
        17 => no,
        // The one integrated device is GB10.
        18 => i32::from(profile.capability == (12, 1)),
        // Host memory can be mapped; compute mode is the default.
        19 => yes,
        20 => 0,
        30 => 512,
        31 => yes,
        // ECC, as data-centre devices have it.
        32 => i32::from(profile.shared_optin > 200 << 10),
        33 => PCI.1,
        34 => PCI.2,
        35 => no,
        36 => profile.memory_clock_khz as i32,
        37 => profile.memory_bus_bits as i32,
        38 => int(profile.l2_bytes),
        39 => profile.threads_per_sm as i32,
        // Copy engines; unified addresses.
        40 => 3,
        41 => yes,
        50 => PCI.0,
        51 => 32,
        75 => profile.capability.0 as i32,
        76 => profile.capability.1 as i32,
        // Stream priorities; L1 for global and local memory.
        78..=80 => yes,
        81 => profile.shared_per_sm as i32,
        // Managed memory; one device a board.
        83 => yes,
        84 | 85 => no,
        // Host atomics, of the integrated device.
        86 => i32::from(profile.capability == (12, 1)),
        // Single to double precision.
        87 => match profile.capability.0 {
            12 => 64,
            _ => 2,
        },
        // Kernels cannot access memory that was not allocated or registered through the driver; managed memory can be accessed
        // from both sides.
        88 | 100 | 101 => no,
        89 => yes,
        90 => yes,
        91 => yes,
        // Stream memory operations are not modelled; cooperative launches are.
        92..=94 => no,
        95 => yes,
        96 => no,
        97 => profile.shared_optin as i32,
        98 => no,
        99 => yes,
        // Virtual memory management and sharing memory with other processes are not modelled.
        102..=105 => no,
        106 => profile.ctas_per_sm as i32,
        107..=110 => no,
        111 => RESERVED_SHARED as i32,
        112 => no,
        113 | 114 => no,
        115 => yes,
        116..=118 => no,
        119 => NO_HANDLES,
        // Cluster launch, of compute capability 9.0 and later; so are tensor maps.
        120 | 127 => yes,
        121..=126 => no,
        // Unified function pointers; NUMA; multicast; MPS; host NUMA.
        128..=134 => no,
        135..=137 => no,
        _ => return None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(result: Out<i32>, attribute: i32, device: i32) -> Status {
    call("cuDeviceGetAttribute", || {
        let driver = driver()?;
        check(device)?;
        let value = value(driver.profile, attribute);
        let unknown = || Failure::loud(Status::INVALID_VALUE, format!("attribute {attribute} is not modelled"));
        result.set("pi", value.ok_or_else(unknown)?)
    })
}
