//! Libraries: modules that belong to no context. Here they are loaded into the context that is current.

use super::{
    boundary::{Failure, call},
    context::current,
    device::check,
    function,
    handle::{Handle, fresh},
    module::{CompileLog, Module, image_at, image_in},
    pointer::{Bytes, In, Out, Text},
    state::driver,
    status::Status,
};
use std::sync::Arc;

/// A library.
pub(super) struct Library {
    module: Arc<Module>,
}

super::entries! {
    cuLibraryLoadData, cuLibraryLoadFromFile, cuLibraryUnload, cuLibraryGetKernel, cuLibraryGetKernelCount,
    cuLibraryEnumerateKernels, cuLibraryGetModule, cuLibraryGetGlobal, cuLibraryGetManaged, cuKernelGetFunction, cuKernelGetLibrary,
    cuKernelGetName, cuKernelGetAttribute, cuKernelSetAttribute, cuKernelSetCacheConfig, cuKernelGetParamInfo,
    cuKernelGetParamCount,
}

fn load(
    library: Out<Handle>,
    image: Result<Vec<u8>, Failure>,
    (count, options, values): (u32, In<u32>, Out<usize>),
) -> Result<(), Failure> {
    let log = CompileLog::of(count, options, values)?;
    let loaded = image.and_then(|image| Module::load(&image));
    log.write(loaded.as_ref().err());
    let module = loaded?;
    let handle = fresh();
    library.set("library", handle)?;
    driver()?.libraries.insert(handle, Arc::new(Library { module }));
    Ok(())
}

/// Library options say how the image may be kept; all of them hold here, since it is copied.
#[unsafe(no_mangle)]
extern "C" fn cuLibraryLoadData(
    library: Out<Handle>,
    image: Bytes,
    options: In<u32>,
    values: Out<usize>,
    count: u32,
    _library_options: In<u32>,
    _library_values: In<usize>,
    _library_count: u32,
) -> Status {
    call("cuLibraryLoadData", || {
        current()?;
        load(library, image_at(image), (count, options, values))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryLoadFromFile(
    library: Out<Handle>,
    path: Text<'_>,
    options: In<u32>,
    values: Out<usize>,
    count: u32,
    _library_options: In<u32>,
    _library_values: In<usize>,
    _library_count: u32,
) -> Status {
    call("cuLibraryLoadFromFile", || {
        current()?;
        load(library, image_in(path.read("fileName")?), (count, options, values))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryUnload(library: Handle) -> Status {
    call("cuLibraryUnload", || {
        let driver = driver()?;
        let library = driver.libraries.remove(library)?;
        // A context that was destroyed has taken its modules with it.
        if driver.modules.remove(library.module.handle).is_err() {
            return Ok(());
        }
        let _idle = driver.occupy();
        library.module.unload(driver)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text<'_>) -> Status {
    call("cuLibraryGetKernel", || {
        let driver = driver()?;
        kernel.set("pKernel", driver.libraries.get(library)?.module.function(driver, name.read("name")?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) -> Status {
    call("cuLibraryGetKernelCount", || {
        count.set("count", driver()?.libraries.get(library)?.module.program.kernels().count() as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryEnumerateKernels(kernels: Out<Handle>, count: u32, library: Handle) -> Status {
    call("cuLibraryEnumerateKernels", || {
        let driver = driver()?;
        let all = driver.libraries.get(library)?.module.all_functions(driver)?;
        all.iter().take(count as usize).enumerate().for_each(|(index, &kernel)| kernels.set_at(index, kernel));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryGetModule(module: Out<Handle>, library: Handle) -> Status {
    call("cuLibraryGetModule", || module.set("pMod", driver()?.libraries.get(library)?.module.handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text<'_>) -> Status {
    call("cuLibraryGetGlobal", || {
        let found = driver()?.libraries.get(library)?.module.global(name.read("name")?)?;
        address.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    })
}

/// No variable is managed.
#[unsafe(no_mangle)]
extern "C" fn cuLibraryGetManaged(
    _address: Out<u64>,
    _bytes: Out<usize>,
    library: Handle,
    name: Text<'_>,
) -> Status {
    call("cuLibraryGetManaged", || {
        driver()?.libraries.get(library)?;
        Err(Failure::loud(Status::NOT_FOUND, format!("no managed variable `{}`", name.read("name")?)))
    })
}

/// A kernel and its function have the same handle.
#[unsafe(no_mangle)]
extern "C" fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) -> Status {
    call("cuKernelGetFunction", || function.set("pFunc", driver()?.functions.get(kernel)?.handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) -> Status {
    call("cuKernelGetLibrary", || {
        let driver = driver()?;
        let module = driver.functions.get(kernel)?.module.handle;
        let found = driver.libraries.find(|library| library.module.handle == module);
        library.set("pLib", found.ok_or(Failure::quiet(Status::INVALID_HANDLE))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuKernelGetName(name: Out<*const std::ffi::c_char>, kernel: Handle) -> Status {
    call("cuKernelGetName", || name.set("name", driver()?.functions.get(kernel)?.c_name.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: Handle, device: i32) -> Status {
    call("cuKernelGetAttribute", || {
        check(device)?;
        function::get_attribute(value, attribute, kernel)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: Handle, device: i32) -> Status {
    call("cuKernelSetAttribute", || {
        check(device)?;
        function::set_attribute(kernel, attribute, value)
    })
}

/// A preference between L1 and shared memory; it changes nothing here.
#[unsafe(no_mangle)]
extern "C" fn cuKernelSetCacheConfig(kernel: Handle, _preference: u32, device: i32) -> Status {
    call("cuKernelSetCacheConfig", || {
        check(device)?;
        driver()?.functions.get(kernel).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuKernelGetParamInfo(kernel: Handle, index: usize, offset: Out<usize>, size: Out<usize>) -> Status {
    call("cuKernelGetParamInfo", || function::parameter(kernel, index, offset, size))
}

#[unsafe(no_mangle)]
extern "C" fn cuKernelGetParamCount(kernel: Handle, count: Out<usize>) -> Status {
    call("cuKernelGetParamCount", || function::parameter_count(kernel, count))
}
