//! Rates of the activation quantizer beside a copy kernel that moves the same bytes, in one run. Needs a GPU.
//!
//! Each measurement replays a graph of many launches that rotate over buffers larger than the L2 cache; the figure is
//! the median over replays, interleaved between quantizer and copy.

use nvfp4_core::{DType, GlobalScale, ScaleLayout, quantize::QuantizeOptions};
use nvfp4_cuda::{CudaError, Device, DeviceBuffer, Event, Graph, Quantizer, Stream, StreamRef, pack};

/// Rows × columns, as TARGETS asks: the smallest call, prefill sizes, and at least 16 Mi elements.
const SHAPES: [(usize, usize); 8] =
    [(1, 4096), (1, 14336), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096), (8192, 8192), (8192, 28672)];
const LAYOUT: ScaleLayout = ScaleLayout::Swizzled128x4;

fn main() {
    if let Err(error) = run() {
        eprintln!("quantize benchmark not run: {error}");
        let required = std::env::var_os("NVFP4_REQUIRE_GPU").is_some_and(|v| !v.is_empty());
        std::process::exit(i32::from(required));
    }
}

/// Microseconds of one launch of `graph`, which holds `launches`.
fn time(stream: StreamRef<'_>, graph: &Graph, events: &[Event; 2], launches: usize) -> Result<f64, CudaError> {
    events[0].record(stream)?;
    graph.launch(stream)?;
    events[1].record(stream)?;
    events[1].synchronize()?;
    Ok(f64::from(events[0].elapsed_ms(&events[1])?) * 1e3 / launches as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn run() -> Result<(), CudaError> {
    let device = Device::new(0)?;
    let quantizer = Quantizer::load(&device, &pack::search_path())?;
    println!("device: {}, image: {}", device.describe(), quantizer.target());
    println!("type   rows   cols   quantize us   GB/s    copy us   GB/s    quantize rate / copy rate");
    for dtype in [DType::Bf16, DType::F32] {
        for (m, k) in SHAPES {
            shape(&device, &quantizer, dtype, m, k)?;
        }
    }
    Ok(())
}

fn shape(device: &Device, quantizer: &Quantizer, dtype: DType, m: usize, k: usize) -> Result<(), CudaError> {
    let stream = Stream::new(device)?;
    let stream = stream.as_ref();
    let options = QuantizeOptions { layout: LAYOUT, padded_n: None, exact: false };
    let scale = GlobalScale::from_encode(500.0)?;
    let read = m * k * dtype.size();
    let written = m * k / 2 + LAYOUT.len(m, k / 16)?;
    // Enough sets to leave the 60 MB of L2 behind; enough launches that their start does not count.
    let sets = (256usize << 20).div_ceil(read + written).clamp(2, 64);
    let launches = sets.max(16).next_multiple_of(sets);
    let noise: Vec<u8> = (0..read / dtype.size())
        .flat_map(|i| {
            let v = ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0;
            if dtype == DType::F32 {
                v.to_le_bytes().to_vec()
            } else {
                half::bf16::from_f32(v).to_le_bytes().to_vec()
            }
        })
        .collect();
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    let mut copies = Vec::new();
    // A copy reads and writes half of the bytes each.
    let half = ((read + written) / 2).next_multiple_of(16);
    for _ in 0..sets {
        inputs.push(DeviceBuffer::from_host(device, &noise)?);
        outputs.push(quantizer.allocate(dtype, m, k, options)?);
        let mut from = DeviceBuffer::new(device, half)?;
        from.fill(stream, 0x5a)?;
        copies.push((from, DeviceBuffer::new(device, half)?));
    }
    let quantize = stream.capture(|s| {
        for i in 0..launches {
            let x = inputs[i % sets].as_matrix(dtype, m, k)?;
            quantizer.scaled_fp4_quant(s, x, scale, options, &mut outputs[i % sets])?;
        }
        Ok(())
    })?;
    let copy = stream.capture(|s| {
        for i in 0..launches {
            let (from, to) = &mut copies[i % sets];
            quantizer.copy(s, from, to)?;
        }
        Ok(())
    })?;
    let events = [Event::new(device)?, Event::new(device)?];
    let (mut quantize_us, mut copy_us) = (Vec::new(), Vec::new());
    for round in 0..23 {
        let (q, c) = (time(stream, &quantize, &events, launches)?, time(stream, &copy, &events, launches)?);
        if round >= 3 {
            quantize_us.push(q);
            copy_us.push(c);
        }
    }
    let (q, c) = (median(quantize_us), median(copy_us));
    let (q_rate, c_rate) = ((read + written) as f64 / q / 1e3, (2 * half) as f64 / c / 1e3);
    println!("{dtype:<5} {m:>6} {k:>6} {q:>13.2} {q_rate:>6.0} {c:>10.2} {c_rate:>6.0} {:>12.2}", q_rate / c_rate);
    Ok(())
}
