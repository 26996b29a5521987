//! A call allocates nothing, whatever the layer and the number of threads.

use nvfp4_core::{
    ActivationScheme, DType, GlobalScale, GlobalScales, LinearScales, MatrixMut, MatrixRef, NvFp4LinearKernel,
    NvFp4LinearLayerConfig, NvFp4Weights, kernel::LinearInput,
};
use nvfp4_cpu::CpuNvFp4LinearKernel;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

// The only test of this file: allocations of others would be counted.
#[test]
fn calls_allocate_nothing() {
    let (n, k) = (300, 1040);
    let scales = LinearScales::new(n, k / 16, vec![0x38; n * k / 16]).unwrap();
    let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
    let weights = NvFp4Weights::new(n, k, vec![0x2a; n * k / 2], scales, global).unwrap();
    let (x, bias) = (vec![0.5f32; 140 * k], vec![1.0; n]);
    let mut y = vec![0.0f32; 140 * n];
    let mut check = || {
        for kernel in [CpuNvFp4LinearKernel::new(), CpuNvFp4LinearKernel::portable()] {
            for scheme in [
                ActivationScheme::Unquantized,
                ActivationScheme::Nvfp4Static,
                ActivationScheme::Nvfp4DynamicPerTensor,
                ActivationScheme::Nvfp4DynamicPerToken,
            ] {
                let config =
                    NvFp4LinearLayerConfig::w4a4(n, k).with_activation(scheme).with_dtypes(DType::F32, DType::F32);
                let prepared = kernel.process_weights_after_loading(&(), &config, &weights).unwrap();
                let plan = kernel.plan(&config, &prepared, Some(GlobalScale::ONE), 140).unwrap();
                let mut workspace = vec![0u64; plan.workspace_size().div_ceil(8)];
                for m in [0, 1, 5, 140] {
                    let mut call = || {
                        let x = MatrixRef::new(&x[..m * k], m, k).unwrap();
                        let out = MatrixMut::new(&mut y[..m * n], m, n).unwrap();
                        plan.apply_weights((), LinearInput::Matrix(x), Some(&bias), out, &mut workspace).unwrap();
                    };
                    // The pool's threads allocate once each, when they first steal work, which may be in any of the first
                    // calls. An allocation of ours would be in every call.
                    let quiet = (0..50).any(|_| {
                        let before = ALLOCATIONS.load(Ordering::Relaxed);
                        (0..5).for_each(|_| call());
                        ALLOCATIONS.load(Ordering::Relaxed) == before
                    });
                    assert!(quiet, "{kernel:?} {scheme} {m}: no five calls without an allocation");
                }
            }
        }
    };
    #[cfg(feature = "rayon")]
    for threads in [1, 3] {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&mut check);
    }
    #[cfg(not(feature = "rayon"))]
    check();
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter counts");
}
