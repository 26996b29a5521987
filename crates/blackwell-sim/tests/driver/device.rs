//! Names, versions, attributes, errors.

use blackwell_sim::profile::Profile;
use cudarc::driver::{
    CudaContext,
    sys::{self, CUdevice_attribute as Attribute, CUresult},
};
use object::{Object, ObjectSymbol};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, c_void},
    ptr::null_mut,
};

pub(crate) const TESTS: &[crate::Test] = &[
    ("device::is_the_profiles", is_the_profiles),
    ("device::errors_have_names", errors_have_names),
    ("device::nulls_are_refused", nulls_are_refused),
    ("device::every_symbol_is_found_by_name", every_symbol_is_found_by_name),
    ("device::what_is_not_implemented_says_so", what_is_not_implemented_says_so),
    ("device::contexts_form_a_stack", contexts_form_a_stack),
];

fn is_the_profiles() {
    let profile = Profile::named(&std::env::var("NVFP4_SIM").unwrap()).unwrap();
    let context = CudaContext::new(0).unwrap();
    assert_eq!(CudaContext::device_count().unwrap(), 1);
    assert!(CudaContext::new(1).is_err());
    assert_eq!(context.name().unwrap(), profile.name);
    assert_eq!(context.total_mem().unwrap() as u64, profile.memory_bytes);
    let (major, minor) = context.compute_capability().unwrap();
    assert_eq!((major as u32, minor as u32), profile.capability);
    for (attribute, value) in [
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, profile.sm_count),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, profile.shared_optin),
        (Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, profile.ctas_per_sm),
        (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, profile.l2_bytes as u32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX as u32),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
    ] {
        assert_eq!(context.attribute(attribute).unwrap() as u32, value, "{attribute:?}");
    }
    let texture = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH);
    assert_eq!(texture.unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut version = 0;
    // SAFETY: the pointer is valid for a write.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().unwrap();
    assert_eq!(version, 13000);
}

fn errors_have_names() {
    use CUresult::*;
    for code in [
        CUDA_SUCCESS,
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        CUDA_ERROR_INVALID_CLUSTER_SIZE,
        CUDA_ERROR_UNKNOWN,
    ] {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is valid for a write; a text that is returned lives for ever.
        unsafe {
            sys::cuGetErrorName(code, &mut text).result().unwrap();
            assert_eq!(CStr::from_ptr(text).to_str().unwrap(), format!("{code:?}"));
            sys::cuGetErrorString(code, &mut text).result().unwrap();
            assert!(!CStr::from_ptr(text).is_empty(), "{code:?}");
        }
    }
}

fn nulls_are_refused() {
    let _context = CudaContext::new(0).unwrap();
    let refused = |code: CUresult| assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: null is what is tested: nothing is read or written.
    unsafe {
        refused(sys::cuDeviceGetName(null_mut(), 8, 0));
        refused(sys::cuDriverGetVersion(null_mut()));
        refused(sys::cuMemAlloc_v2(null_mut(), 16));
        refused(sys::cuMemcpyHtoD_v2(0, std::ptr::null(), 16));
        refused(sys::cuModuleLoadData(null_mut(), std::ptr::null()));
        refused(sys::cuModuleLoad(null_mut(), std::ptr::null()));
        refused(sys::cuStreamCreate(null_mut(), 0));
        refused(sys::cuGetErrorString(CUresult::CUDA_ERROR_UNKNOWN, null_mut()));
        refused(sys::cuLaunchKernelEx(std::ptr::null(), null_mut(), null_mut(), null_mut()));
    }
}

/// The library exports the API, and looking a function up gives what is exported.
fn every_symbol_is_found_by_name() {
    let folder = std::env::var("LD_LIBRARY_PATH").unwrap();
    let bytes = std::fs::read(std::path::Path::new(&folder).join("libcuda.so.1")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let exported: BTreeSet<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok().filter(|name| name.starts_with("cu")).map(Into::into))
        .collect();
    assert!(exported.len() > 500, "{}", exported.len());
    // SAFETY: cudarc has loaded the library.
    let library = unsafe { sys::culib() };
    for name in &exported {
        let symbol = CString::new(name.as_str()).unwrap();
        // SAFETY: only the address is looked at.
        let there = unsafe { *library.get::<*mut c_void>(symbol.as_bytes_with_nul()).unwrap() };
        let (mut found, mut state) = (null_mut(), sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS);
        // SAFETY: the pointers are valid for writes.
        unsafe { sys::cuGetProcAddress_v2(symbol.as_ptr(), &mut found, 99000, 0, &mut state) }.result().unwrap();
        assert!(!found.is_null(), "{name}");
        // A plain name means its newest form.
        let newest = |form: u32| exported.contains(&format!("{name}_v{form}"));
        if !(2..5).any(newest) && name != "cuGraphInstantiate" {
            assert_eq!(found, there, "{name}");
        }
    }
}

fn what_is_not_implemented_says_so() {
    let _context = CudaContext::new(0).unwrap();
    let mut array = null_mut();
    // SAFETY: nothing is read or written.
    let code = unsafe { sys::cuArrayCreate_v2(&mut array, std::ptr::null()) };
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert!(crate::fault::log().contains("cuArrayCreate_v2: CUDA_ERROR_NOT_SUPPORTED"), "{}", crate::fault::log());
}

fn contexts_form_a_stack() {
    let primary = CudaContext::new(0).unwrap();
    primary.bind_to_thread().unwrap();
    let current = || {
        let mut context = null_mut();
        // SAFETY: the pointer is valid for a write.
        unsafe { sys::cuCtxGetCurrent(&mut context) }.result().unwrap();
        context
    };
    assert_eq!(current(), primary.cu_ctx());
    let mut own = null_mut();
    let mut popped = null_mut();
    // SAFETY: the pointers are valid for writes; the context is destroyed once.
    unsafe {
        sys::cuCtxCreate_v4(&mut own, null_mut(), 0, 0).result().unwrap();
        assert_eq!(current(), own);
        sys::cuCtxPopCurrent_v2(&mut popped).result().unwrap();
        assert_eq!((popped, current()), (own, primary.cu_ctx()));
        sys::cuCtxPushCurrent_v2(own).result().unwrap();
        sys::cuCtxDestroy_v2(own).result().unwrap();
        assert_eq!(current(), primary.cu_ctx());
        assert_eq!(sys::cuCtxPushCurrent_v2(own), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(sys::cuCtxDestroy_v2(primary.cu_ctx()), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    // The context of a thread is its own.
    std::thread::spawn(move || assert!(current().is_null())).join().unwrap();
}
