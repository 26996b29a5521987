//! Kernels, and their attributes.

use super::{
    attribute::REGISTERS,
    boundary::{Failure, call},
    handle::{Handle, fresh},
    module::Module,
    pointer::Out,
    state::{driver, lock},
    status::Status,
};
use crate::{launch::MAX_THREADS, program::Kernel};
use std::{
    ffi::{CString, c_char},
    sync::{Arc, Mutex},
};

/// Most registers of a thread.
const MOST_REGISTERS: i32 = 255;

/// A kernel of a module.
pub(super) struct Function {
    pub(super) handle: Handle,
    pub(super) context: Handle,
    pub(super) module: Arc<Module>,
    pub(super) name: String,
    pub(super) c_name: CString,
    settings: Mutex<Settings>,
}

/// What programs have set.
#[derive(Clone, Copy, Default)]
pub(super) struct Settings {
    /// Bytes of dynamic shared memory that are allowed; without this, what a CTA has without asking.
    pub(super) dynamic_shared: Option<u32>,
    carveout: Option<i32>,
    cluster_required: bool,
    /// CTAs of a cluster, if they were fixed.
    pub(super) cluster: [u32; 3],
    /// Clusters of more CTAs than every device can hold are allowed.
    pub(super) large_clusters: bool,
    scheduling: i32,
}

/// `CUfunction_attribute`.
mod id {
    pub(super) const MAX_THREADS: u32 = 0;
    pub(super) const SHARED: u32 = 1;
    pub(super) const CONSTANT: u32 = 2;
    pub(super) const LOCAL: u32 = 3;
    pub(super) const REGISTERS: u32 = 4;
    pub(super) const PTX_VERSION: u32 = 5;
    pub(super) const BINARY_VERSION: u32 = 6;
    pub(super) const CACHE_ALL: u32 = 7;
    pub(super) const DYNAMIC_SHARED: u32 = 8;
    pub(super) const CARVEOUT: u32 = 9;
    pub(super) const CLUSTER_REQUIRED: u32 = 10;
    pub(super) const CLUSTER_X: u32 = 11;
    pub(super) const CLUSTER_Z: u32 = 13;
    pub(super) const LARGE_CLUSTERS: u32 = 14;
    pub(super) const SCHEDULING: u32 = 15;
}

impl Function {
    pub(super) fn new(module: Arc<Module>, name: &str) -> Self {
        let c_name = CString::new(name).unwrap_or_default();
        let context = module.context;
        Self { handle: fresh(), context, module, name: name.into(), c_name, settings: Mutex::default() }
    }

    /// The kernel in its program.
    pub(super) fn kernel(&self) -> Result<&Kernel, Failure> {
        self.module.program.kernel(&self.name).ok_or(Failure::quiet(Status::NOT_FOUND))
    }

    pub(super) fn settings(&self) -> Settings {
        *lock(&self.settings)
    }

    /// Most threads of a CTA.
    pub(super) fn max_threads(&self) -> Result<u32, Failure> {
        let directives = self.kernel()?.directives();
        let most = directives.reqntid.or(directives.maxntid).map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z));
        Ok(most.unwrap_or(MAX_THREADS).min(MAX_THREADS))
    }

    /// Most bytes of dynamic shared memory of a launch.
    pub(super) fn max_dynamic_shared(&self) -> Result<u32, Failure> {
        let default = driver()?.profile.shared_per_block.saturating_sub(self.kernel()?.static_shared());
        Ok(self.settings().dynamic_shared.unwrap_or(default))
    }

    /// Registers of a thread. There is no machine code to count them in: what the PTX allows.
    fn registers(&self) -> Result<i32, Failure> {
        let allowed = self.kernel()?.directives().maxnreg.map(|most| most as i32);
        let most = REGISTERS / self.max_threads()?.max(1) as i32;
        Ok(allowed.unwrap_or(most).min(MOST_REGISTERS))
    }

    fn attribute(&self, attribute: u32) -> Result<i32, Failure> {
        let (settings, kernel) = (self.settings(), self.kernel()?);
        let capability = driver()?.profile.capability;
        Ok(match attribute {
            id::MAX_THREADS => self.max_threads()? as i32,
            id::SHARED => kernel.static_shared() as i32,
            id::LOCAL => kernel.local_bytes() as i32,
            id::CONSTANT | id::CACHE_ALL => 0,
            id::REGISTERS => self.registers()?,
            id::PTX_VERSION | id::BINARY_VERSION => (capability.0 * 10 + capability.1) as i32,
            id::DYNAMIC_SHARED => self.max_dynamic_shared()? as i32,
            id::CARVEOUT => settings.carveout.unwrap_or(-1),
            id::CLUSTER_REQUIRED => i32::from(settings.cluster_required || kernel.directives().explicitcluster),
            id::CLUSTER_X..=id::CLUSTER_Z => {
                let sizes = kernel.directives().reqnctapercluster.unwrap_or(settings.cluster);
                sizes[(attribute - id::CLUSTER_X) as usize] as i32
            }
            id::LARGE_CLUSTERS => i32::from(settings.large_clusters),
            id::SCHEDULING => settings.scheduling,
            _ => return Err(unknown(attribute)),
        })
    }

    fn set(&self, attribute: u32, value: i32) -> Result<(), Failure> {
        let profile = driver()?.profile;
        let fixed = self.kernel()?.directives().reqnctapercluster;
        let room = profile.shared_optin.saturating_sub(self.kernel()?.static_shared());
        let bad = |message: String| Failure::loud(Status::INVALID_VALUE, message);
        let natural = || u32::try_from(value).map_err(|_| bad(format!("attribute {attribute} cannot be {value}")));
        let mut settings = lock(&self.settings);
        match attribute {
            id::DYNAMIC_SHARED => {
                let bytes = natural()?;
                if bytes > room {
                    let message = format!(
                        "{bytes} bytes of dynamic shared memory for `{}`; beside its own there are {room} on {}",
                        self.name, profile.name
                    );
                    return Err(bad(message));
                }
                settings.dynamic_shared = Some(bytes);
            }
            id::CARVEOUT if (-1..=100).contains(&value) => settings.carveout = Some(value),
            id::CLUSTER_REQUIRED => settings.cluster_required = value != 0,
            id::CLUSTER_X..=id::CLUSTER_Z => {
                if fixed.is_some() {
                    return Err(Failure::loud(Status::NOT_PERMITTED, "the PTX fixes the size of clusters"));
                }
                settings.cluster[(attribute - id::CLUSTER_X) as usize] = natural()?;
            }
            id::LARGE_CLUSTERS => settings.large_clusters = value != 0,
            id::SCHEDULING if (0..=2).contains(&value) => settings.scheduling = value,
            id::CARVEOUT | id::SCHEDULING => return Err(bad(format!("attribute {attribute} cannot be {value}"))),
            _ => return Err(unknown(attribute)),
        }
        Ok(())
    }
}

fn unknown(attribute: u32) -> Failure {
    Failure::loud(Status::INVALID_VALUE, format!("no attribute {attribute} that can be read or set so"))
}

/// For functions and kernels of libraries.
pub(super) fn get_attribute(value: Out<i32>, attribute: u32, function: Handle) -> Result<(), Failure> {
    value.set("pi", driver()?.functions.get(function)?.attribute(attribute)?)
}

/// For functions and kernels of libraries.
pub(super) fn set_attribute(function: Handle, attribute: u32, value: i32) -> Result<(), Failure> {
    driver()?.functions.get(function)?.set(attribute, value)
}

/// For functions and kernels of libraries.
pub(super) fn parameter(
    function: Handle,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Result<(), Failure> {
    let function = driver()?.functions.get(function)?;
    // Callers count parameters by asking until there is none.
    let parameter = function.kernel()?.parameters().get(index).ok_or(Failure::quiet(Status::INVALID_VALUE))?;
    offset.set("paramOffset", parameter.offset as usize)?;
    size.set_if_wanted(parameter.size as usize);
    Ok(())
}

/// For functions and kernels of libraries.
pub(super) fn parameter_count(function: Handle, count: Out<usize>) -> Result<(), Failure> {
    count.set("paramCount", driver()?.functions.get(function)?.kernel()?.parameters().len())
}

super::entries! {
    cuFuncGetAttribute, cuFuncSetAttribute, cuFuncGetParamInfo, cuFuncGetParamCount, cuFuncGetModule, cuFuncGetName,
    cuFuncSetCacheConfig, cuFuncSetSharedMemConfig, cuFuncIsLoaded, cuFuncLoad,
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) -> Status {
    call("cuFuncGetAttribute", || get_attribute(value, attribute, function))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) -> Status {
    call("cuFuncSetAttribute", || set_attribute(function, attribute, value))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, size: Out<usize>) -> Status {
    call("cuFuncGetParamInfo", || parameter(function, index, offset, size))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetParamCount(function: Handle, count: Out<usize>) -> Status {
    call("cuFuncGetParamCount", || parameter_count(function, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetModule(module: Out<Handle>, function: Handle) -> Status {
    call("cuFuncGetModule", || module.set("hmod", driver()?.functions.get(function)?.module.handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetName(name: Out<*const c_char>, function: Handle) -> Status {
    call("cuFuncGetName", || name.set("name", driver()?.functions.get(function)?.c_name.as_ptr()))
}

/// A preference between L1 and shared memory; it changes nothing here.
#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(function: Handle, _preference: u32) -> Status {
    call("cuFuncSetCacheConfig", || driver()?.functions.get(function).map(drop))
}

/// No device of today can change the banks of shared memory; drivers accept the wish.
#[unsafe(no_mangle)]
extern "C" fn cuFuncSetSharedMemConfig(function: Handle, _banks: u32) -> Status {
    call("cuFuncSetSharedMemConfig", || driver()?.functions.get(function).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncIsLoaded(state: Out<u32>, function: Handle) -> Status {
    const LOADED: u32 = 1;
    call("cuFuncIsLoaded", || {
        driver()?.functions.get(function)?;
        state.set("state", LOADED)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncLoad(function: Handle) -> Status {
    call("cuFuncLoad", || driver()?.functions.get(function).map(drop))
}
