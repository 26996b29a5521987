//! The state of the driver: its one device, and everything that was made on it.

use super::{
    boundary::Failure,
    capture::Capture,
    context::Context,
    event::Event,
    function::Function,
    graph::{Executable, Graph, Node},
    handle::Registry,
    library::Library,
    log,
    memory::Allocations,
    module::Module,
    pool::Pool,
    status::Status,
    stream::Stream,
};
use crate::{
    image::PackFolders,
    memory::DeviceMemory,
    profile::{PROFILE_VARIABLE, Profile},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The driver once `cuInit` has succeeded.
pub(super) struct Driver {
    pub(super) profile: &'static Profile,
    pub(super) memory: DeviceMemory,
    pub(super) packs: PackFolders,
    pub(super) allocations: Allocations,
    pub(super) contexts: Registry<Context>,
    pub(super) streams: Registry<Stream>,
    pub(super) events: Registry<Event>,
    pub(super) modules: Registry<Module>,
    pub(super) libraries: Registry<Library>,
    pub(super) functions: Registry<Function>,
    pub(super) graphs: Registry<Graph>,
    pub(super) nodes: Registry<Node>,
    pub(super) executables: Registry<Executable>,
    pub(super) pools: Registry<Pool>,
    /// Captures that have begun and not ended.
    pub(super) captures: Mutex<Vec<Arc<Capture>>>,
    /// The device context that processes share, while someone retains it.
    pub(super) primary: Mutex<Primary>,
    /// Held while the device works: one operation at a time, whatever the streams.
    work: Mutex<()>,
}

/// The primary context.
#[derive(Default)]
pub(super) struct Primary {
    pub(super) context: Option<Arc<Context>>,
    /// How often it is retained.
    pub(super) count: usize,
    pub(super) flags: u32,
}

static DRIVER: OnceLock<Result<Driver, Failure>> = OnceLock::new();

/// Starts the driver, once; every call gives the same answer.
pub(super) fn initialize() -> Result<&'static Driver, Failure> {
    let result = DRIVER.get_or_init(|| {
        let result = start();
        if let Err(Failure { message: Some(message), .. }) = &result {
            log::error(message);
        }
        result
    });
    result.as_ref().map_err(|failure| Failure::quiet(failure.status))
}

/// The driver, if it was started.
pub(super) fn driver() -> Result<&'static Driver, Failure> {
    match DRIVER.get() {
        Some(Ok(driver)) => Ok(driver),
        Some(Err(failure)) => Err(Failure::quiet(failure.status)),
        None => Err(Failure::quiet(Status::NOT_INITIALIZED)),
    }
}

fn start() -> Result<Driver, Failure> {
    let target = std::env::var(PROFILE_VARIABLE).unwrap_or_default();
    if target.is_empty() {
        let message = format!("no device, since {PROFILE_VARIABLE} does not name one (such as sm_100a)");
        return Err(Failure::loud(Status::NO_DEVICE, message));
    }
    let profile = Profile::named(&target).map_err(|e| Failure::loud(Status::NO_DEVICE, e.to_string()))?;
    let (handle, context) = (Status::INVALID_HANDLE, Status::INVALID_CONTEXT);
    Ok(Driver {
        profile,
        memory: DeviceMemory::new(profile.memory_bytes),
        packs: PackFolders::from_environment(),
        allocations: Allocations::default(),
        contexts: Registry::new(context),
        streams: Registry::new(handle),
        events: Registry::new(handle),
        modules: Registry::new(handle),
        libraries: Registry::new(handle),
        functions: Registry::new(handle),
        graphs: Registry::new(Status::INVALID_VALUE),
        nodes: Registry::new(Status::INVALID_VALUE),
        executables: Registry::new(Status::INVALID_VALUE),
        pools: Registry::new(Status::INVALID_VALUE),
        captures: Mutex::default(),
        primary: Mutex::default(),
        work: Mutex::default(),
    })
}

impl Driver {
    /// Waits until the device does nothing, and keeps it so.
    pub(super) fn occupy(&self) -> MutexGuard<'_, ()> {
        lock(&self.work)
    }
}

/// A lock that a panic of another thread does not spoil: what is behind these locks is consistent between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
