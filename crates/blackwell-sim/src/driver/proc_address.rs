//! Looking functions up by name and version.

use super::{
    Entry, all,
    boundary::{Failure, call},
    pointer::{Out, Text},
    status::Status,
};

super::entries! { cuGetProcAddress, cuGetProcAddress_v2, cuGetExportTable }

/// Later forms of functions, with the CUDA version that brought them, where that is later than 4.0: the `#define`s of cuda.h.
const LATER: &[(&str, i32)] = &[
    ("cuCtxCreate_v3", 11040),
    ("cuCtxCreate_v4", 12050),
    ("cuCtxGetDevice_v2", 13000),
    ("cuCtxSynchronize_v2", 13000),
    ("cuDeviceGetUuid_v2", 11040),
    ("cuEventElapsedTime_v2", 12080),
    ("cuGetProcAddress_v2", 12000),
    ("cuGraphAddDependencies_v2", 12030),
    ("cuGraphAddKernelNode_v2", 12000),
    ("cuGraphAddNode_v2", 12030),
    ("cuGraphExecKernelNodeSetParams_v2", 12000),
    ("cuGraphExecUpdate_v2", 12000),
    ("cuGraphGetEdges_v2", 12030),
    ("cuGraphInstantiate_v2", 11000),
    ("cuGraphKernelNodeGetParams_v2", 12000),
    ("cuGraphKernelNodeSetParams_v2", 12000),
    ("cuGraphNodeGetDependencies_v2", 12030),
    ("cuGraphNodeGetDependentNodes_v2", 12030),
    ("cuGraphRemoveDependencies_v2", 12030),
    ("cuMemAdvise_v2", 12020),
    ("cuMemPrefetchAsync_v2", 12020),
    ("cuMemcpy3DBatchAsync_v2", 13000),
    ("cuMemcpyBatchAsync_v2", 13000),
    ("cuStreamBatchMemOp_v2", 11070),
    ("cuStreamBeginCapture_v2", 10010),
    ("cuStreamGetCaptureInfo_v2", 11030),
    ("cuStreamGetCaptureInfo_v3", 12030),
    ("cuStreamGetCtx_v2", 12050),
    ("cuStreamUpdateCaptureDependencies_v2", 12030),
    ("cuStreamWaitValue32_v2", 11070),
    ("cuStreamWaitValue64_v2", 11070),
    ("cuStreamWriteValue32_v2", 11070),
    ("cuStreamWriteValue64_v2", 11070),
];
/// The version that brought most later forms.
const MOST_LATER: i32 = 4000;
/// Forms that are newer than all that programs of today ask for by their plain name.
const NEVER: &[&str] = &["cuLaunchHostFunc_v2", "cuGraphNodeSetParams_v2"];

/// What a look-up gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Function(*const ()),
    /// There is no such function.
    Nothing,
    /// There is, in a later version.
    TooNew,
}

/// The form of function `symbol` that programs of a CUDA version call by that name.
fn find(symbol: &str, version: i32) -> Found {
    // Since CUDA 12, cuda.h means another function by this name.
    if symbol == "cuGraphInstantiate" && version >= 12000 {
        return find("cuGraphInstantiateWithFlags", version);
    }
    let form = |name: &str| -> u32 {
        let suffix = name.strip_prefix(symbol).and_then(|rest| rest.strip_prefix("_v"));
        suffix.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    let forms = all()
        .filter(|entry| entry.name == symbol || form(entry.name) > 0)
        .filter(|e| e.name == symbol || !NEVER.contains(&e.name));
    let since = |entry: &Entry| match LATER.iter().find(|(name, _)| *name == entry.name) {
        Some(&(_, since)) => since,
        None if form(entry.name) > 0 => MOST_LATER,
        None => 0,
    };
    let forms: Vec<_> = forms.collect();
    match forms.iter().filter(|entry| since(entry) <= version).max_by_key(|entry| form(entry.name)) {
        Some(entry) => Found::Function(entry.address),
        None if forms.is_empty() => Found::Nothing,
        None => Found::TooNew,
    }
}

fn look_up(symbol: Text<'_>, version: i32, flags: u64) -> Result<Found, Failure> {
    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
    const PER_THREAD: u64 = 2;
    let symbol = symbol.read("symbol")?;
    if flags & PER_THREAD != 0 {
        let message = format!("`{symbol}` whose null stream is the thread's: such forms are not modelled");
        return Err(Failure::loud(Status::NOT_SUPPORTED, message));
    }
    Ok(find(symbol, version))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(symbol: Text<'_>, function: Out<*const ()>, version: i32, flags: u64) -> Status {
    call("cuGetProcAddress", || match look_up(symbol, version, flags)? {
        Found::Function(address) => function.set("pfn", address),
        Found::Nothing | Found::TooNew => {
            function.set("pfn", std::ptr::null())?;
            Err(Failure::quiet(Status::NOT_FOUND))
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    symbol: Text<'_>,
    function: Out<*const ()>,
    version: i32,
    flags: u64,
    state: Out<u32>,
) -> Status {
    call("cuGetProcAddress_v2", || {
        let (address, answer) = match look_up(symbol, version, flags)? {
            Found::Function(address) => (address, 0),
            Found::Nothing => (std::ptr::null(), 1),
            Found::TooNew => (std::ptr::null(), 2),
        };
        function.set("pfn", address)?;
        if answer != 0 && state.is_null() {
            return Err(Failure::quiet(Status::NOT_FOUND));
        }
        state.set_if_wanted(answer);
        Ok(())
    })
}

/// Tables of functions that are no part of the API, which NVIDIA's own libraries use.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(table: Out<*const ()>, _id: usize) -> Status {
    call("cuGetExportTable", || {
        table.set("ppExportTable", std::ptr::null())?;
        Err(Failure::quiet(Status::NOT_SUPPORTED))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str) -> Found {
        all().find(|entry| entry.name == name).map_or(Found::Nothing, |entry| Found::Function(entry.address))
    }

    #[test]
    fn the_form_is_the_versions() {
        for (symbol, version, name) in [
            ("cuInit", 12000, "cuInit"),
            ("cuMemAlloc", 13000, "cuMemAlloc_v2"),
            ("cuMemAlloc_v2", 13000, "cuMemAlloc_v2"),
            ("cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"),
            ("cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"),
            ("cuStreamGetCaptureInfo", 13000, "cuStreamGetCaptureInfo_v3"),
            ("cuGraphInstantiate", 13000, "cuGraphInstantiateWithFlags"),
            ("cuCtxCreate", 12000, "cuCtxCreate_v3"),
            ("cuLaunchHostFunc", 13000, "cuLaunchHostFunc"),
            ("cuGetProcAddress", 11030, "cuGetProcAddress"),
            ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
        ] {
            assert_ne!(address(name), Found::Nothing, "{name}");
            assert_eq!(find(symbol, version), address(name), "{symbol} of {version}");
        }
        assert_eq!(find("cuNothing", 13000), Found::Nothing);
        assert_eq!(find("cuMemAlloc", 2000), Found::TooNew);
        assert_eq!(find("cuGetProcAddress_v2", 11030), Found::TooNew);
    }
}
