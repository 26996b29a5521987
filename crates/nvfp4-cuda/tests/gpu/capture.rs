//! Streams, graphs and drop order.

use crate::setup::{Activation, Gpu, Random, encode, seed};
use nvfp4_core::{DType, GlobalScale, ScaleLayout, quantize::QuantizeOptions};
use nvfp4_cuda::{CudaError, DeviceBuffer, Event, Stream};

pub(crate) const TESTS: &[crate::Test] = &[
    ("capture::replay_equals_eager", replay_equals_eager),
    ("capture::drop_order", drop_order),
    ("capture::failure_leaves_the_stream_usable", failure_leaves_the_stream_usable),
    ("capture::memory_is_flat", memory_is_flat),
    ("capture::errors_have_figures", errors_have_figures),
];

const OPTIONS: QuantizeOptions =
    QuantizeOptions { layout: ScaleLayout::Swizzled128x4, padded_n: None, exact: false };

fn replay_equals_eager(gpu: &Gpu) {
    let mut random = Random(seed());
    let stream = Stream::new(&gpu.device).unwrap();
    let stream = stream.as_ref();
    let (m, k) = (33, 464);
    let scale = GlobalScale::from_encode(300.0).unwrap();
    let mut out = gpu.quantizer.allocate(DType::Bf16, m, k, OPTIONS).unwrap();
    let mut x = DeviceBuffer::new(&gpu.device, m * k * 2).unwrap();
    x.fill(stream, 0).unwrap();
    let graph = stream
        .capture(|stream| {
            gpu.quantizer.scaled_fp4_quant(stream, x.as_matrix(DType::Bf16, m, k)?, scale, OPTIONS, &mut out)
        })
        .unwrap();
    assert_eq!(graph.node_counts().unwrap(), (1, 1), "one node, a kernel");
    for _ in 0..100 {
        let fresh = Activation::dense(gpu, DType::Bf16, m, k, |_, _| random.normal());
        let bytes: Vec<u8> = fresh.values.iter().flat_map(|&v| encode(DType::Bf16, v)).collect();
        x.write(&bytes).unwrap();
        graph.launch(stream).unwrap();
        let replayed = (out.data.to_host().unwrap(), out.scale.to_host().unwrap());
        let mut eager = gpu.quantizer.allocate(DType::Bf16, m, k, OPTIONS).unwrap();
        gpu.quantizer.scaled_fp4_quant(stream, fresh.matrix(), scale, OPTIONS, &mut eager).unwrap();
        assert!(replayed == (eager.data.to_host().unwrap(), eager.scale.to_host().unwrap()));
    }
}

/// Capture, drop the graph, drop the operands, then allocate and launch on the same context.
fn drop_order(gpu: &Gpu) {
    let stream = Stream::new(&gpu.device).unwrap();
    let scale = GlobalScale::from_encode(300.0).unwrap();
    for graph_first in [true, false] {
        let x = Activation::dense(gpu, DType::Bf16, 8, 64, |r, c| (r + c) as f32);
        let mut out = gpu.quantizer.allocate(DType::Bf16, 8, 64, OPTIONS).unwrap();
        let graph = stream
            .as_ref()
            .capture(|s| gpu.quantizer.scaled_fp4_quant(s, x.matrix(), scale, OPTIONS, &mut out))
            .unwrap();
        graph.launch(stream.as_ref()).unwrap();
        stream.as_ref().synchronize().unwrap();
        if graph_first {
            drop(graph);
            drop((x, out));
        } else {
            drop((x, out));
            drop(graph);
        }
        let x = Activation::dense(gpu, DType::F16, 3, 32, |r, c| (r * c) as f32);
        let mut out = gpu.quantizer.allocate(DType::F16, 3, 32, OPTIONS).unwrap();
        gpu.quantizer.scaled_fp4_quant(stream.as_ref(), x.matrix(), scale, OPTIONS, &mut out).unwrap();
        gpu.device.synchronize().unwrap();
    }
}

/// An error inside a capture ends it; what synchronizes or captures again is refused, with a reason.
fn failure_leaves_the_stream_usable(gpu: &Gpu) {
    let stream = Stream::new(&gpu.device).unwrap();
    let stream = stream.as_ref();
    let wrong = stream.capture(|s| {
        assert!(s.is_capturing()?);
        s.refuse_capture("planning a layer")
    });
    let Err(CudaError::Capturing { what }) = wrong else { panic!("{wrong:?}") };
    assert_eq!(what, "planning a layer");
    let nested = stream.capture(|s| s.capture(|_| Ok(())).map(drop));
    assert!(matches!(nested, Err(CudaError::Capturing { .. })), "{nested:?}");
    assert!(!stream.is_capturing().unwrap());
    stream.synchronize().unwrap();
    let (start, end) = (Event::new(&gpu.device).unwrap(), Event::new(&gpu.device).unwrap());
    start.record(stream).unwrap();
    end.record(stream).unwrap();
    end.wait(stream).unwrap();
    end.synchronize().unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
}

/// A thousand calls and 64 captures leave the free memory where it was after warming up.
fn memory_is_flat(gpu: &Gpu) {
    let stream = Stream::new(&gpu.device).unwrap();
    let stream = stream.as_ref();
    let scale = GlobalScale::from_encode(300.0).unwrap();
    let x = Activation::dense(gpu, DType::Bf16, 129, 512, |r, c| (r + c) as f32);
    let mut out = gpu.quantizer.allocate(DType::Bf16, 129, 512, OPTIONS).unwrap();
    let mut round = || {
        for _ in 0..64 {
            let graph = stream
                .capture(|s| gpu.quantizer.scaled_fp4_quant(s, x.matrix(), scale, OPTIONS, &mut out))
                .unwrap();
            graph.launch(stream).unwrap();
            stream.synchronize().unwrap();
        }
        for _ in 0..1000 {
            gpu.quantizer.scaled_fp4_quant(stream, x.matrix(), scale, OPTIONS, &mut out).unwrap();
        }
        stream.synchronize().unwrap();
        gpu.device.free_memory().unwrap()
    };
    let warm = round();
    assert_eq!(round(), warm, "free bytes after another round");
}

fn errors_have_figures(gpu: &Gpu) {
    let Err(CudaError::OutOfMemory { bytes, free, total }) = DeviceBuffer::new(&gpu.device, 1 << 50) else {
        panic!("a petabyte was allocated")
    };
    assert!(bytes == 1 << 50 && free <= total && total > 0);
    let Err(CudaError::NoDevice { ordinal, count }) = nvfp4_cuda::Device::new(1000) else {
        panic!("there is a device 1000")
    };
    assert!(ordinal == 1000 && (1..1000).contains(&count));
}
