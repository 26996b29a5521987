//! Loaded modules, and running their kernels.

use crate::{
    exec::{Cluster, Grid, Progress},
    fault::{Cause, Fault, FaultKind},
    launch::Launch,
    memory::DeviceMemory,
    profile::Profile,
    program::{Kernel, Program},
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Clusters that a thread of the host keeps going at once when they wait for others.
const MAX_RESIDENT: usize = 256;

/// A program with its variables in device memory.
pub struct Loaded {
    program: Arc<Program>,
    addresses: Vec<u64>,
}

impl Loaded {
    /// Allocates and initialises the module's variables.
    ///
    /// # Errors
    /// Device memory is full.
    pub fn new(program: Arc<Program>, memory: &DeviceMemory) -> Result<Self, Cause> {
        let mut addresses = Vec::new();
        for variable in &program.globals {
            addresses.push(memory.allocate(variable.bytes)?);
        }
        for (variable, &address) in program.globals.iter().zip(&addresses) {
            memory.write(address, &variable.initial)?;
            for &(offset, other, add) in &variable.addresses {
                let value = addresses.get(other as usize).copied().unwrap_or(0).wrapping_add_signed(add);
                memory.write(address + offset, &value.to_le_bytes())?;
            }
        }
        Ok(Self { program, addresses })
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Address and bytes of a variable of the module.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        let index = self.program.globals.iter().position(|variable| variable.name == name)?;
        Some((*self.addresses.get(index)?, self.program.globals[index].bytes))
    }

    /// Frees the module's variables.
    ///
    /// # Errors
    /// Somebody freed one of them.
    pub fn unload(self, memory: &DeviceMemory) -> Result<(), Cause> {
        self.addresses.into_iter().try_for_each(|address| memory.free(address))
    }
}

/// Runs a kernel to its end, its clusters spread over the host's cores.
///
/// # Errors
/// What is wrong with the launch, or the first fault that a thread ran into.
pub fn run(
    profile: &'static Profile,
    memory: &DeviceMemory,
    module: &Loaded,
    kernel: &str,
    launch: &Launch<'_>,
) -> Result<(), Fault> {
    let name = kernel;
    let Some(kernel) = module.program.kernel(kernel) else {
        let cause = Cause::new(FaultKind::BadLaunch, "the module has no such kernel");
        return Err(Fault::of_launch(name, cause));
    };
    check(kernel, profile, launch).map_err(|cause| Fault::of_launch(name, cause))?;
    let (next_cluster, events) = (AtomicU64::new(0), AtomicU64::new(0));
    let grid = Grid {
        profile,
        launch,
        code: &kernel.code,
        globals: &module.addresses,
        next_cluster: &next_cluster,
        events: &events,
    };
    let clusters: u64 = grid.clusters().into_iter().map(u64::from).product();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(usize::try_from(clusters).unwrap_or(usize::MAX)).max(1);
    let stop = AtomicBool::new(false);
    let first: Mutex<Option<Fault>> = Mutex::new(None);
    let work = || {
        if let Err(fault) = worker(grid, memory, &stop) {
            stop.store(true, Ordering::Relaxed);
            first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
        }
    };
    if threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(fault) => Err(Fault { kernel: name.into(), ..fault }),
        None => Ok(()),
    }
}

/// Runs clusters until none is left. A cluster that only waits for others does not keep them from starting.
fn worker(grid: Grid<'_>, memory: &DeviceMemory, stop: &AtomicBool) -> Result<(), Fault> {
    let mut resident: VecDeque<Cluster<'_>> = VecDeque::new();
    let mut start = true;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if start
            && resident.len() < MAX_RESIDENT
            && let Some(number) = grid.take_cluster()
        {
            resident.push_front(Cluster::new(grid, memory, number));
        }
        let Some(mut cluster) = resident.pop_front() else { return Ok(()) };
        let progress = cluster.turn()?;
        start = progress != Progress::Working || resident.is_empty();
        match progress {
            Progress::Done => {}
            Progress::Working => {
                resident.push_back(cluster);
                start = false;
            }
            Progress::Idle => resident.push_back(cluster),
        }
    }
}

/// Checks a launch against the device and the kernel.
fn check(kernel: &Kernel, profile: &Profile, launch: &Launch<'_>) -> Result<(), Cause> {
    launch.check(profile, kernel.static_shared())?;
    let bad = |message: String| Err(Cause::new(FaultKind::BadLaunch, message));
    let directives = kernel.directives();
    if let Some(required) = directives.reqntid
        && required != launch.block
    {
        return bad(format!("a CTA of {:?} threads; the kernel requires {required:?}", launch.block));
    }
    if let Some(most) = directives.maxntid {
        let most: u64 = most.into_iter().map(u64::from).product();
        if launch.threads() > most {
            return bad(format!("a CTA of {} threads; the kernel allows {most}", launch.threads()));
        }
    }
    if let Some(required) = directives.reqnctapercluster
        && required.iter().any(|&size| size != 0)
        && required != launch.cluster
    {
        return bad(format!("a cluster of {:?} CTAs; the kernel requires {required:?}", launch.cluster));
    }
    let (given, needed) = (launch.parameters.len(), kernel.parameter_bytes() as usize);
    if given != needed {
        return bad(format!("{given} bytes of parameters; the kernel has {needed}"));
    }
    Ok(())
}
