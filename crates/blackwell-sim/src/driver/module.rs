//! Modules: images that were loaded.

use super::{
    boundary::{Failure, call},
    context::current,
    function::Function,
    handle::{Handle, fresh},
    pointer::{Bytes, In, Out, Text},
    state::{Driver, driver, lock},
    status::Status,
};
use crate::{
    image::{
        self, ImageError,
        extent::{Extent, FAT_BINARY_WRAPPER_MAGIC, Form, HEADER_BYTES, extent},
    },
    machine::Loaded,
    program::Program,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard},
};

/// A loaded module.
pub(super) struct Module {
    pub(super) handle: Handle,
    pub(super) context: Handle,
    pub(super) program: Arc<Program>,
    /// Its variables on the device; `None` once it is unloaded.
    loaded: RwLock<Option<Loaded>>,
    /// Handles of kernels that were asked for, by name.
    functions: Mutex<BTreeMap<String, Handle>>,
}

impl Module {
    /// Loads an image for the current context.
    pub(super) fn load(image: &[u8]) -> Result<Arc<Self>, Failure> {
        let (driver, context) = (driver()?, current()?);
        let image = image::read(image, driver.profile, &driver.packs).map_err(|error| {
            let status = match error {
                ImageError::OtherDevice { .. } | ImageError::NoPtx { .. } => Status::NO_BINARY_FOR_GPU,
                ImageError::Pack { .. } => Status::INVALID_SOURCE,
                _ => Status::INVALID_IMAGE,
            };
            Failure::loud(status, error.to_string())
        })?;
        let program = Program::compile(&image.ptx, driver.profile)
            .map_err(|error| Failure::loud(Status::INVALID_PTX, format!("{}: {error}", image.origin)))?;
        let program = Arc::new(program);
        let loaded = Loaded::new(program.clone(), &driver.memory)
            .map_err(|cause| Failure::loud(Status::OUT_OF_MEMORY, cause.to_string()))?;
        let module = Arc::new(Self {
            handle: fresh(),
            context: context.handle,
            program,
            loaded: RwLock::new(Some(loaded)),
            functions: Mutex::default(),
        });
        driver.modules.insert(module.handle, module.clone());
        Ok(module)
    }

    /// Frees its variables. Kernels that are kept in graphs can no more be launched.
    pub(super) fn unload(&self, driver: &Driver) -> Result<(), Failure> {
        let loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner).take();
        driver.functions.remove_all(|function| function.module.handle == self.handle);
        match loaded {
            Some(loaded) => loaded
                .unload(&driver.memory)
                .map_err(|cause| Failure::loud(Status::INVALID_VALUE, cause.to_string())),
            None => Ok(()),
        }
    }

    /// What kernels run with, while it is held.
    pub(super) fn loaded(&self) -> RwLockReadGuard<'_, Option<Loaded>> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel of a name.
    pub(super) fn function(self: &Arc<Self>, driver: &Driver, name: &str) -> Result<Handle, Failure> {
        if self.program.kernel(name).is_none() {
            let names: Vec<_> = self.program.kernels().map(|kernel| format!("`{}`", kernel.name())).collect();
            let message = format!("no kernel `{name}`; the module has {}", names.join(", "));
            return Err(Failure::loud(Status::NOT_FOUND, message));
        }
        let mut functions = lock(&self.functions);
        if let Some(&handle) = functions.get(name) {
            return Ok(handle);
        }
        let function = Arc::new(Function::new(self.clone(), name));
        let handle = function.handle;
        driver.functions.insert(handle, function);
        functions.insert(name.into(), handle);
        Ok(handle)
    }

    /// Every kernel, in the order of the module.
    pub(super) fn all_functions(self: &Arc<Self>, driver: &Driver) -> Result<Vec<Handle>, Failure> {
        let names: Vec<_> = self.program.kernels().map(|kernel| kernel.name().to_string()).collect();
        names.iter().map(|name| self.function(driver, name)).collect()
    }

    /// Address and bytes of a variable.
    pub(super) fn global(&self, name: &str) -> Result<(u64, u64), Failure> {
        let found = self.loaded().as_ref().and_then(|loaded| loaded.global(name));
        found.ok_or_else(|| Failure::loud(Status::NOT_FOUND, format!("no variable `{name}`")))
    }
}

/// The bytes of an image that lies at an address.
pub(super) fn image_at(address: Bytes) -> Result<Vec<u8>, Failure> {
    if address.is_null() {
        return Err(Failure::loud(Status::INVALID_VALUE, "the image is null"));
    }
    let start = address.start::<4>();
    if start == FAT_BINARY_WRAPPER_MAGIC.to_le_bytes() {
        // Magic, version, address of the fat binary.
        let wrapper = address.take(16);
        let inner = wrapper.last_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        return image_at(Bytes::at(inner as usize));
    }
    let wrong = |error: ImageError| Failure::loud(Status::INVALID_IMAGE, error.to_string());
    let mut known = match Form::of(&start).map_err(wrong)? {
        Form::Ptx => return Ok(address.text()),
        Form::FatBinary => 16,
        Form::Cubin => HEADER_BYTES,
    };
    loop {
        match extent(&address.take(known)).map_err(wrong)? {
            Extent::Whole(length) => return Ok(address.take(length)),
            Extent::AtLeast(length) => known = length,
        }
    }
}

/// The bytes of an image in a file.
pub(super) fn image_in(path: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::loud(Status::FILE_NOT_FOUND, format!("{path}: {error}")))
}

super::entries! {
    cuModuleLoad, cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary, cuModuleUnload, cuModuleGetFunction,
    cuModuleGetFunctionCount, cuModuleEnumerateFunctions, cuModuleGetGlobal_v2, cuModuleGetLoadingMode,
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: Out<Handle>, path: Text<'_>) -> Status {
    call("cuModuleLoad", || {
        current()?;
        module.set("module", Module::load(&image_in(path.read("fname")?)?)?.handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<Handle>, image: Bytes) -> Status {
    call("cuModuleLoadData", || {
        current()?;
        module.set("module", Module::load(&image_at(image)?)?.handle)
    })
}

/// Of the options, only the buffers for errors and information have an effect.
#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: Bytes,
    count: u32,
    options: In<u32>,
    values: Out<usize>,
) -> Status {
    call("cuModuleLoadDataEx", || {
        current()?;
        let log = CompileLog::of(count, options, values)?;
        let loaded = image_at(image).and_then(|image| Module::load(&image));
        log.write(loaded.as_ref().err());
        module.set("module", loaded?.handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadFatBinary(module: Out<Handle>, image: Bytes) -> Status {
    call("cuModuleLoadFatBinary", || {
        current()?;
        module.set("module", Module::load(&image_at(image)?)?.handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> Status {
    call("cuModuleUnload", || {
        current()?;
        let driver = driver()?;
        let module = driver.modules.remove(module)?;
        let _idle = driver.occupy();
        module.unload(driver)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text<'_>) -> Status {
    call("cuModuleGetFunction", || {
        current()?;
        let driver = driver()?;
        function.set("hfunc", driver.modules.get(module)?.function(driver, name.read("name")?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) -> Status {
    call("cuModuleGetFunctionCount", || {
        current()?;
        count.set("count", driver()?.modules.get(module)?.program.kernels().count() as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleEnumerateFunctions(functions: Out<Handle>, count: u32, module: Handle) -> Status {
    call("cuModuleEnumerateFunctions", || {
        current()?;
        let driver = driver()?;
        let all = driver.modules.get(module)?.all_functions(driver)?;
        all.iter()
            .take(count as usize)
            .enumerate()
            .for_each(|(index, &function)| functions.set_at(index, function));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text<'_>) -> Status {
    call("cuModuleGetGlobal_v2", || {
        current()?;
        let found = driver()?.modules.get(module)?.global(name.read("name")?)?;
        address.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetLoadingMode(mode: Out<u32>) -> Status {
    const EAGER: u32 = 1;
    call("cuModuleGetLoadingMode", || mode.set("mode", EAGER))
}

/// Where a load that fails tells why (`CU_JIT_ERROR_LOG_BUFFER`).
pub(super) struct CompileLog {
    values: Out<usize>,
    /// Indices of the buffers' sizes among the values, with the buffers: errors, information.
    buffers: [Option<(usize, Out<u8>, usize)>; 2],
}

impl CompileLog {
    /// Looks for buffers among the options.
    pub(super) fn of(count: u32, options: In<u32>, values: Out<usize>) -> Result<Self, Failure> {
        const INFORMATION: u32 = 3;
        const ERRORS: u32 = 5;
        let options = options.array("options", count as usize)?;
        if count > 0 && values.is_null() {
            return Err(Failure::loud(Status::INVALID_VALUE, "`optionValues` is null"));
        }
        let place = |option: u32| options.iter().position(|&found| found == option);
        let buffer = |option: u32| {
            let (buffer, size) = (place(option)?, place(option + 1)?);
            let room = values.get_at(size) & u32::MAX as usize;
            Some((size, values.pointer_at(buffer), room))
        };
        Ok(Self { values, buffers: [buffer(ERRORS), buffer(INFORMATION)] })
    }

    /// Fills the buffers, and replaces their sizes by what was written.
    pub(super) fn write(&self, failure: Option<&Failure>) {
        let message = failure.and_then(|failure| failure.message.as_deref()).unwrap_or_default();
        for (buffer, text) in self.buffers.iter().zip([message, ""]) {
            let Some((size, buffer, room)) = buffer else { continue };
            let Some(room) = room.checked_sub(1) else { continue };
            let length = text.len().min(room);
            for (index, byte) in text.bytes().take(length).chain([0]).enumerate() {
                buffer.set_at(index, byte);
            }
            self.values.set_at(*size, length);
        }
    }
}
