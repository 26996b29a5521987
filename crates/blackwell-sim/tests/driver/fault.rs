//! What happens when a kernel fails.

use crate::module::{kernel, load};
use cudarc::driver::{
    result,
    sys::{self, CUresult},
};
use std::ptr::null_mut;

pub(crate) const TESTS: &[crate::Test] = &[
    ("fault::spoils_the_context", spoils_the_context),
    ("fault::bad_launches_do_no_harm", bad_launches_do_no_harm),
];

/// Everything that the driver has told, the newest last.
pub(crate) fn log() -> String {
    let mut buffer = vec![0u8; 1 << 16];
    let mut size = buffer.len();
    // SAFETY: the buffer has the length that is given.
    unsafe { sys::cuLogsDumpToMemory(null_mut(), buffer.as_mut_ptr().cast(), &mut size, 0) }.result().unwrap();
    buffer.truncate(size);
    String::from_utf8(buffer).unwrap()
}

/// Writes a number to an address.
const STORE: &str = r"
.version 8.0
.target sm_90
.address_size 64
.visible .entry store(.param .u64 at)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [at];
    mov.b32 %r1, 7;
    st.global.b32 [%rd1], %r1;
    ret;
}
";

/// Launches with one CTA of one thread.
fn store(function: sys::CUfunction, address: u64) -> CUresult {
    let mut address = address;
    let mut parameters = [(&raw mut address).cast()];
    // SAFETY: the kernel takes one address.
    unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters.as_mut_ptr(), null_mut()) }
}

/// A context of the test's own.
fn with_context(test: impl FnOnce()) {
    // SAFETY: the context is made, used and destroyed on this thread.
    unsafe {
        let mut context = null_mut();
        result::init().unwrap();
        sys::cuCtxCreate_v4(&mut context, null_mut(), 0, 0).result().unwrap();
        test();
        sys::cuCtxDestroy_v2(context).result().unwrap();
    }
}

fn spoils_the_context() {
    for (offset, expected, told) in [
        (64, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds"),
        (2, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned"),
    ] {
        with_context(|| {
            let function = kernel(load(STORE), "store");
            let at = crate::memory::allocate(64);
            assert_eq!(store(function, at), CUresult::CUDA_SUCCESS);
            assert_eq!(crate::memory::bytes_at(at, 4), [7, 0, 0, 0]);
            assert_eq!(store(function, at + offset), CUresult::CUDA_SUCCESS, "a launch does not wait");
            // SAFETY: no arguments; that all of these fail is what is tested.
            unsafe {
                assert_eq!(sys::cuCtxSynchronize(), expected);
                assert_eq!(sys::cuMemAlloc_v2(&mut 0, 16), expected);
                assert_eq!(sys::cuStreamSynchronize(null_mut()), expected);
            }
            assert_eq!(store(function, at), expected);
            let log = log();
            let last = log.lines().rev().find(|line| line.contains("kernel `store`")).unwrap();
            assert!(last.contains(told) && last.contains("PTX line 11"), "{last}");
        });
    }
    with_context(|| {
        let at = crate::memory::allocate(64);
        assert_eq!(store(kernel(load(STORE), "store"), at), CUresult::CUDA_SUCCESS, "another context is as new");
        // SAFETY: no arguments.
        unsafe { sys::cuCtxSynchronize() }.result().unwrap();
    });
}

/// Launches that kernel or device do not allow are refused at once and spoil nothing.
fn bad_launches_do_no_harm() {
    with_context(|| {
        let function = kernel(load(crate::module::PTX), "shared_user");
        let mut address = 0u64;
        let mut parameters = [(&raw mut address).cast()];
        let mut launch = |grid: u32, block: [u32; 2], shared: u32| {
            let [x, y] = block;
            let parameters = parameters.as_mut_ptr();
            // SAFETY: the kernel takes one address, which it does not use.
            unsafe {
                sys::cuLaunchKernel(function, grid, 1, 1, x, y, 1, shared, null_mut(), parameters, null_mut())
            }
        };
        for (grid, block, shared, told) in [
            (1, [128, 1], 0, "requires [64, 2, 1]"),
            (1, [512, 1], 0, "the kernel allows 128"),
            (0, [64, 2], 0, "the grid is 0 along x"),
            (1, [64, 2], 48 << 10, "MAX_DYNAMIC_SHARED"),
        ] {
            assert_eq!(launch(grid, block, shared), CUresult::CUDA_ERROR_INVALID_VALUE);
            assert!(log().lines().last().unwrap().contains(told), "{told}: {}", log());
        }
        assert_eq!(launch(1, [64, 2], 0), CUresult::CUDA_SUCCESS);
        // SAFETY: no arguments.
        unsafe { sys::cuCtxSynchronize() }.result().unwrap();
    });
}
