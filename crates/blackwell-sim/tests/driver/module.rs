//! Loading modules and libraries, and asking about kernels.

use cudarc::driver::{
    CudaContext, result,
    sys::{self, CUfunction_attribute as Attribute, CUresult},
};
use std::{
    ffi::{CStr, CString, c_void},
    ptr::null_mut,
};

pub(crate) const TESTS: &[crate::Test] = &[
    ("module::kernels_tell_about_themselves", kernels_tell_about_themselves),
    ("module::variables_have_addresses", variables_have_addresses),
    ("module::libraries", libraries),
    ("module::what_cannot_be_loaded", what_cannot_be_loaded),
    ("module::compile_errors_fill_the_log", compile_errors_fill_the_log),
    ("module::occupancy", occupancy),
];

/// Two kernels and three variables, for every device.
pub(crate) const PTX: &str = r"
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .u32 counter = 41;
.global .align 16 .b8 table[20];
.const .align 8 .u64 constant = 7;

.visible .entry mixed(.param .u8 a, .param .align 8 .b8 b[24], .param .f32 c, .param .u64 d)
.maxntid 256, 1, 1
{
    ret;
}

.visible .entry shared_user(.param .u64 p)
.reqntid 64, 2, 1
{
    .shared .align 16 .b8 buffer[4096];
    ret;
}
";

/// A module of the text, and its kernels' handles by name.
pub(crate) fn load(ptx: &str) -> sys::CUmodule {
    let text = CString::new(ptx).unwrap();
    // SAFETY: the image is text with its zero byte.
    unsafe { result::module::load_data(text.as_ptr().cast()) }.unwrap()
}

pub(crate) fn kernel(module: sys::CUmodule, name: &str) -> sys::CUfunction {
    // SAFETY: the module is loaded.
    unsafe { result::module::get_function(module, CString::new(name).unwrap()) }.unwrap()
}

fn attribute(kernel: sys::CUfunction, attribute: Attribute) -> i32 {
    // SAFETY: the kernel is loaded.
    unsafe { result::function::get_function_attribute(kernel, attribute) }.unwrap()
}

fn kernels_tell_about_themselves() {
    let _context = CudaContext::new(0).unwrap();
    let module = load(PTX);
    let (mixed, user) = (kernel(module, "mixed"), kernel(module, "shared_user"));
    assert_eq!(kernel(module, "mixed"), mixed, "asked twice");
    let mut layout = Vec::new();
    let (mut offset, mut size) = (0, 0);
    // SAFETY: the pointers are valid for writes; asking beyond the last parameter is an error.
    while unsafe { sys::cuFuncGetParamInfo(mixed, layout.len(), &mut offset, &mut size) } == CUresult::CUDA_SUCCESS
    {
        layout.push((offset, size));
    }
    assert_eq!(layout, [(0, 1), (8, 24), (32, 4), (40, 8)]);
    assert_eq!(attribute(mixed, Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 256);
    assert_eq!(attribute(user, Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 128);
    assert_eq!(attribute(user, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 4096);
    let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!(attribute(user, dynamic), 48 * 1024 - 4096);
    // SAFETY: the kernel is loaded.
    let set = |bytes: i32| unsafe { result::function::set_function_attribute(user, dynamic, bytes) };
    set(90 * 1024).unwrap();
    assert_eq!(attribute(user, dynamic), 90 * 1024);
    assert_eq!(set(228 * 1024).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut name = std::ptr::null();
    // SAFETY: the pointer is valid for a write; the name lives as long as the module.
    let name = unsafe {
        sys::cuFuncGetName(&mut name, user).result().unwrap();
        CStr::from_ptr(name)
    };
    assert_eq!(name, c"shared_user");
    // SAFETY: as above.
    let missing = unsafe { result::module::get_function(module, c"nothing".into()) };
    assert_eq!(missing.unwrap_err().0, CUresult::CUDA_ERROR_NOT_FOUND);
    assert!(crate::fault::log().contains("no kernel `nothing`; the module has `mixed`"), "{}", crate::fault::log());
    // SAFETY: nothing of the module is used after this, but to see that it is refused.
    unsafe {
        result::module::unload(module).unwrap();
        assert_eq!(sys::cuModuleUnload(module), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(sys::cuFuncLoad(mixed), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

fn variables_have_addresses() {
    let context = CudaContext::new(0).unwrap();
    let before = context.mem_get_info().unwrap().0;
    let module = load(PTX);
    let variable = |name: &CStr| {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the pointers are valid for writes.
        let code = unsafe { sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name.as_ptr()) };
        code.result().map(|()| (address, bytes))
    };
    let (address, bytes) = variable(c"counter").unwrap();
    assert_eq!((bytes, crate::memory::bytes_at(address, 4)), (4, 41u32.to_le_bytes().to_vec()));
    let (address, bytes) = variable(c"table").unwrap();
    assert_eq!((bytes, address % 16, crate::memory::bytes_at(address, 20)), (20, 0, vec![0; 20]));
    let (address, bytes) = variable(c"constant").unwrap();
    assert_eq!((bytes, crate::memory::bytes_at(address, 8)), (8, 7u64.to_le_bytes().to_vec()));
    assert_eq!(variable(c"missing").unwrap_err().0, CUresult::CUDA_ERROR_NOT_FOUND);
    // SAFETY: nothing of the module is used after this.
    unsafe { result::module::unload(module) }.unwrap();
    assert_eq!(context.mem_get_info().unwrap().0, before);
}

fn libraries() {
    let _context = CudaContext::new(0).unwrap();
    let text = CString::new(PTX).unwrap();
    let (mut library, mut kernel, mut function) = (null_mut(), null_mut(), null_mut());
    let (mut count, mut value, mut address, mut bytes) = (0, 0, 0, 0);
    let none = null_mut();
    // SAFETY: the image is text with its zero byte; the pointers are valid for writes.
    unsafe {
        let data = text.as_ptr().cast();
        sys::cuLibraryLoadData(&mut library, data, null_mut(), none, 0, null_mut(), none, 0).result().unwrap();
        sys::cuLibraryGetKernelCount(&mut count, library).result().unwrap();
        sys::cuLibraryGetKernel(&mut kernel, library, c"mixed".as_ptr()).result().unwrap();
        sys::cuKernelGetFunction(&mut function, kernel).result().unwrap();
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        sys::cuKernelGetAttribute(&mut value, attribute, kernel, 0).result().unwrap();
        sys::cuLibraryGetGlobal(&mut address, &mut bytes, library, c"counter".as_ptr()).result().unwrap();
        sys::cuLibraryUnload(library).result().unwrap();
        assert_eq!(sys::cuLibraryUnload(library), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    assert!(!function.is_null() && address != 0);
    assert_eq!((count, value, bytes), (2, 256, 4));
}

fn load_error(image: &[u8]) -> CUresult {
    // SAFETY: each image ends where its form says, with a zero byte after it.
    unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap_err().0
}

fn what_cannot_be_loaded() {
    let _context = CudaContext::new(0).unwrap();
    assert_eq!(load_error(b"\x01\x02\x03\x04\0"), CUresult::CUDA_ERROR_INVALID_IMAGE);
    let other = PTX.replace("sm_90", "sm_89a") + "\0";
    assert_eq!(load_error(other.as_bytes()), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert!(crate::fault::log().contains("PTX for sm_89a, which"), "{}", crate::fault::log());
    let broken = PTX.replace("ret;", "ret") + "\0";
    assert_eq!(load_error(broken.as_bytes()), CUresult::CUDA_ERROR_INVALID_PTX);
    // SAFETY: the path is text with its zero byte.
    let missing = unsafe { sys::cuModuleLoad(&mut null_mut(), c"/nowhere/kernel.ptx".as_ptr()) };
    assert_eq!(missing, CUresult::CUDA_ERROR_FILE_NOT_FOUND);
}

fn compile_errors_fill_the_log() {
    use sys::CUjit_option as Jit;
    let _context = CudaContext::new(0).unwrap();
    let broken = PTX.replace("ret;", "ret") + "\0";
    let mut buffer = [0xffu8; 300];
    let mut options = [Jit::CU_JIT_ERROR_LOG_BUFFER, Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [buffer.as_mut_ptr().cast::<c_void>(), buffer.len() as *mut c_void];
    // SAFETY: the buffer has the length that is given.
    let code = unsafe {
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        sys::cuModuleLoadDataEx(&mut null_mut(), broken.as_ptr().cast(), 2, options, values)
    };
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    let text = CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap();
    assert!(text.contains("PTX line 13"), "{text}");
    assert_eq!(values[1] as usize, text.len());
}

fn occupancy() {
    let _context = CudaContext::new(0).unwrap();
    let module = load(PTX);
    let user = kernel(module, "shared_user");
    let mut ctas = 0;
    // SAFETY: the pointer is valid for a write.
    let code = unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut ctas, user, 128, 40 << 10) };
    code.result().unwrap();
    let per_sm = match std::env::var("NVFP4_SIM").unwrap().as_str() {
        "sm_120a" | "sm_121a" => 100,
        _ => 228,
    };
    // 4 KiB static, 40 KiB dynamic, 1 KiB of the system's.
    assert_eq!(ctas, per_sm / 45);
}
