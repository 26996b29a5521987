//! Whole-model operations need little memory, whatever the size of the model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_checkpoint::{
    CheckpointFormat, TensorDType, convert,
    convert::ConvertOptions,
    dequantize,
    dequantize::DequantizeOptions,
    quantize,
    quantize::QuantizeOptions,
    verify,
    verify::VerifyOptions,
    write::{CheckpointWriter, TensorSpec, WriteOptions},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts the bytes that are allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `work` needs beyond what is allocated before it.
fn peak(work: impl FnOnce()) -> usize {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

const MIB: usize = 1 << 20;

#[test]
fn peaks_do_not_grow_with_the_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Two weights of 16 MiB and a table of 16 MiB.
    let (n, k) = (2048, 4096);
    let specs = ["a.up_proj.weight", "a.down_proj.weight", "embed_tokens.weight"]
        .map(|name| TensorSpec::new(name, TensorDType::Bf16, [n, k]));
    let writer = CheckpointWriter::create(&path("dense"), &specs, &WriteOptions::default()).unwrap();
    for spec in &specs {
        let mut tensor = writer.tensor(&spec.name).unwrap();
        for row in 0..n {
            let value = |i: usize| half::bf16::from_f32(((row * 31 + i * 17) % 255) as f32 / 127.0 - 1.0);
            let bytes: Vec<u8> = (0..k).flat_map(|i| value(i).to_le_bytes()).collect();
            tensor.write(&bytes).unwrap();
        }
        tensor.finish().unwrap();
    }
    writer.finish().unwrap();

    // A few pieces of 2¹⁸ values for each thread.
    let limit = (2 + 4 * std::thread::available_parallelism().unwrap().get().min(3)) * MIB;
    let check = |what: &str, work: &dyn Fn()| {
        let peak = peak(work);
        assert!(peak < limit, "{what} needs {} KiB, more than {} KiB", peak / 1024, limit / 1024);
    };
    check("quantize", &|| {
        let options = QuantizeOptions::new(CheckpointFormat::ModelOpt);
        let report = quantize(path("dense"), path("modelopt"), &options, &()).unwrap();
        assert_eq!(report.layers.len(), 2);
    });
    check("convert", &|| {
        let options = ConvertOptions::new(CheckpointFormat::CompressedTensors);
        convert(path("modelopt"), path("ct"), &options, &()).unwrap();
    });
    check("dequantize", &|| {
        dequantize(path("ct"), path("again"), &DequantizeOptions::default(), &()).unwrap();
    });
    check("verify", &|| {
        let mut options = VerifyOptions::default();
        options.original = Some(path("dense"));
        let report = verify(path("ct"), &options, &()).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
    });
}
