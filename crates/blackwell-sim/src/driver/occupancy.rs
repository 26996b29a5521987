//! Occupancy: how many CTAs of a kernel a multiprocessor holds. Threads, CTAs and shared memory limit it here; registers do not, since there
//! is no machine code to count them in.

use super::{
    attribute::RESERVED_SHARED,
    boundary::{Failure, call},
    function::Function,
    handle::Handle,
    launch::{Configuration, check},
    pointer::{In, Out},
    state::{Driver, driver},
    status::Status,
};
use crate::launch::MAX_PORTABLE_CLUSTER;

/// Threads of a warp.
const WARP: u32 = 32;
/// Shared memory is given out in units of so many bytes.
const SHARED_UNIT: u32 = 128;

/// CTAs of a kernel that a multiprocessor holds at once.
pub(super) fn resident(driver: &Driver, function: &Function, threads: u32, dynamic: u32) -> Result<u32, Failure> {
    let profile = driver.profile;
    let needed = function.kernel()?.static_shared().saturating_add(dynamic);
    if threads == 0 || threads > function.max_threads()? || needed > profile.shared_optin {
        return Ok(0);
    }
    let by_threads = profile.threads_per_sm / threads.next_multiple_of(WARP);
    let by_shared = profile.shared_per_sm / (needed + RESERVED_SHARED).next_multiple_of(SHARED_UNIT);
    Ok(profile.ctas_per_sm.min(by_threads).min(by_shared))
}

super::entries! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSizeWithFlags, cuOccupancyAvailableDynamicSMemPerBlock,
    cuOccupancyMaxActiveClusters, cuOccupancyMaxPotentialClusterSize,
}

fn active_blocks(count: Out<i32>, function: Handle, threads: i32, dynamic: usize) -> Result<(), Failure> {
    let driver = driver()?;
    let function = driver.functions.get(function)?;
    let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0);
    let threads = threads.ok_or(Failure::quiet(Status::INVALID_VALUE))?;
    let dynamic = u32::try_from(dynamic).unwrap_or(u32::MAX);
    count.set("numBlocks", resident(driver, &function, threads, dynamic)? as i32)
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: Out<i32>,
    function: Handle,
    threads: i32,
    dynamic: usize,
) -> Status {
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", || active_blocks(count, function, threads, dynamic))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: Out<i32>,
    function: Handle,
    threads: i32,
    dynamic: usize,
    _flags: u32,
) -> Status {
    call("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", || {
        active_blocks(count, function, threads, dynamic)
    })
}

/// Dynamic shared memory by CTA size.
type SharedOfBlock = Option<unsafe extern "C" fn(i32) -> usize>;

fn best_block(
    grid: Out<i32>,
    block: Out<i32>,
    function: Handle,
    shared_of: SharedOfBlock,
    dynamic: usize,
    limit: i32,
) -> Result<(), Failure> {
    let driver = driver()?;
    let function = driver.functions.get(function)?;
    let most = function.max_threads()?;
    let most = u32::try_from(limit).ok().filter(|&limit| limit > 0).map_or(most, |limit| limit.min(most));
    let sizes = (WARP..=most).step_by(WARP as usize).chain([most]);
    let mut best = (0, 0, 0);
    for threads in sizes {
        // SAFETY: the caller gave the function for exactly this question.
        let bytes = shared_of.map_or(dynamic, |shared_of| unsafe { shared_of(threads as i32) });
        let ctas = resident(driver, &function, threads, u32::try_from(bytes).unwrap_or(u32::MAX))?;
        best = best.max((ctas * threads, threads, ctas));
    }
    let (_, threads, ctas) = best;
    grid.set("minGridSize", (ctas * driver.profile.sm_count) as i32)?;
    block.set("blockSize", threads as i32)
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<i32>,
    block: Out<i32>,
    function: Handle,
    shared_of: SharedOfBlock,
    dynamic: usize,
    limit: i32,
) -> Status {
    call("cuOccupancyMaxPotentialBlockSize", || best_block(grid, block, function, shared_of, dynamic, limit))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<i32>,
    block: Out<i32>,
    function: Handle,
    shared_of: SharedOfBlock,
    dynamic: usize,
    limit: i32,
    _flags: u32,
) -> Status {
    call("cuOccupancyMaxPotentialBlockSizeWithFlags", || {
        best_block(grid, block, function, shared_of, dynamic, limit)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: Handle,
    count: i32,
    threads: i32,
) -> Status {
    call("cuOccupancyAvailableDynamicSMemPerBlock", || {
        let driver = driver()?;
        let function = driver.functions.get(function)?;
        let (count, threads) = (u32::try_from(count).unwrap_or(0), u32::try_from(threads).unwrap_or(0));
        if count == 0 || count > resident(driver, &function, threads, 0)? {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        let each = driver.profile.shared_per_sm / count / SHARED_UNIT * SHARED_UNIT;
        let free = each.saturating_sub(RESERVED_SHARED + function.kernel()?.static_shared());
        bytes.set("dynamicSmemSize", free.min(driver.profile.shared_optin) as usize)
    })
}

/// Clusters that the device holds at once, as if any multiprocessors could form one: how they are grouped is not modelled.
#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveClusters(
    count: Out<i32>,
    function: Handle,
    configuration: In<Configuration>,
) -> Status {
    call("cuOccupancyMaxActiveClusters", || {
        let driver = driver()?;
        let function = driver.functions.get(function)?;
        let shape = check(driver, &function, configuration.read("config")?.resolve()?.0)?;
        let ctas: u32 = shape.cluster.iter().product();
        let resident = resident(driver, &function, shape.block.iter().product(), shape.shared)?;
        count.set("numClusters", (resident * driver.profile.sm_count / ctas.max(1)) as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialClusterSize(
    size: Out<i32>,
    function: Handle,
    configuration: In<Configuration>,
) -> Status {
    call("cuOccupancyMaxPotentialClusterSize", || {
        let driver = driver()?;
        let function = driver.functions.get(function)?;
        configuration.read("config")?;
        let most =
            if function.settings().large_clusters { driver.profile.max_cluster } else { MAX_PORTABLE_CLUSTER };
        size.set("clusterSize", most as i32)
    })
}
