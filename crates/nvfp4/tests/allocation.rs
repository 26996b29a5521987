//! A forward pass in steady state allocates nothing.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use nvfp4::{ActivationScheme, DType, Linear, MatrixMut, MatrixRef, NvFp4LinearLayer, WorkspacePool};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};
use support::{layer, options, values};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and nobody who reads it.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches no memory that is given out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

fn run(linear: &Linear, x: &[f32], m: usize, out: &mut [f32]) {
    let (n, k) = (linear.out_features(), linear.in_features());
    let x = MatrixRef::new(&x[..m * k], m, k).unwrap();
    linear.forward(x, MatrixMut::new(&mut out[..m * n], m, n).unwrap()).unwrap();
}

#[test]
fn steady_state_allocates_nothing() {
    assert!(allocations(|| drop(vec![1u8; 100])) > 0, "the counter counts");
    for scheme in nvfp4_testkit::layers::SCHEMES {
        let layer = layer(64, 128, scheme, 1);
        let linear = Linear::load(&layer, &options()).unwrap();
        let (x, mut out) = (values(16 * 128, 2), vec![0.0; 16 * 64]);
        linear.warm_up(16, DType::F32, DType::F32).unwrap();
        for m in [1, 16, 7, 3, 0, 12, 1, 16] {
            assert_eq!(allocations(|| run(&linear, &x, m, &mut out)), 0, "{scheme}, {m} rows");
        }
        let quantized = linear.input_quant_key().map(|_| linear.quantize(MatrixRef::new(&x[..], 16, 128).unwrap()));
        if let Some(quantized) = quantized.transpose().unwrap() {
            let view = MatrixMut::new(&mut out[..], 16, 64).unwrap();
            assert_eq!(allocations(|| linear.forward_quantized(&quantized, view).unwrap()), 0, "{scheme}");
        }
    }
}

/// Without a warm-up, the second call of a kind allocates nothing; layers share scratch memory.
#[test]
fn layers_share_scratch_memory() {
    let pool = Arc::new(WorkspacePool::new());
    let options = options().with_workspaces(pool.clone());
    let load = |l: &NvFp4LinearLayer<'_>| Linear::load(l, &options).unwrap();
    let large = load(&layer(64, 256, ActivationScheme::Nvfp4Static, 3));
    let small = load(&layer(16, 48, ActivationScheme::Unquantized, 4));
    let (x, mut out) = (values(8 * 256, 5), vec![0.0; 8 * 64]);
    run(&large, &x, 8, &mut out);
    run(&small, &x, 8, &mut out);
    let held = pool.bytes();
    assert!(held > 0);
    let all = allocations(|| (0..100).for_each(|i| run([&large, &small][i % 2], &x, 1 + i % 8, &mut out)));
    // Buckets 1, 2 and 4 of each layer are planned on the way.
    assert!(all < 100, "{all}");
    let again = allocations(|| (0..100).for_each(|i| run([&large, &small][i % 2], &x, 1 + i % 8, &mut out)));
    assert_eq!((again, pool.bytes()), (0, held));
}
