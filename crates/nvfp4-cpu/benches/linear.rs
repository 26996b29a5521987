//! One linear layer on one thread: the backend against a plain triple loop over the packed weights and against an f32
//! GEMM (`matrixmultiply`) of the same shape with dense weights.
//!
//! `cargo bench -p nvfp4-cpu` prints the times; divide those of one run. Throughput is in multiply-adds.

#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use nvfp4_core::{
    ActivationScheme, DType, GlobalScale, GlobalScales, LinearPlan, LinearScales, MatrixMut, MatrixRef,
    NvFp4LinearKernel, NvFp4LinearLayerConfig, NvFp4Weights, e2m1, e4m3, kernel::LinearInput,
};
use nvfp4_cpu::CpuNvFp4LinearKernel;
use std::time::Duration;

/// `[m, k, n]`: a large layer, and the layers of MiniLM.
const SHAPES: [[usize; 2]; 4] = [[4096, 4096], [384, 384], [1536, 384], [384, 1536]];
const ROWS: [usize; 3] = [1, 16, 128];

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

fn weights(n: usize, k: usize, random: &mut Random) -> NvFp4Weights<'static> {
    let packed: Vec<u8> = (0..n * k / 2).map(|_| random.bits() as u8).collect();
    let scales: Vec<u8> = (0..n * k / 16).map(|_| 0x50 + (random.bits() % 0x28) as u8).collect();
    let global = GlobalScale::from_decode(1.0 / 2688.0).expect("a valid scale");
    NvFp4Weights::new(
        n,
        k,
        packed,
        LinearScales::new(n, k / 16, scales).expect("sizes agree"),
        GlobalScales::per_tensor(n, global),
    )
    .expect("sizes agree")
}

/// The loop that everyone writes first.
fn naive(x: &[f32], w: &NvFp4Weights<'_>, out: &mut [f32]) {
    let (n, k) = (w.out_features(), w.in_features());
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        for (row, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0;
            for (j, x) in x.iter().enumerate() {
                let code = w.packed()[(row * k + j) / 2] >> (4 * (j % 2));
                let scale = w.scales().bytes()[row * (k / 16) + j / 16];
                sum += x * e2m1::decode(code) * e4m3::decode(scale);
            }
            *out = sum * (1.0 / 2688.0);
        }
    }
}

fn plan(config: &NvFp4LinearLayerConfig, w: &NvFp4Weights<'_>, m: usize) -> Box<dyn LinearPlan<nvfp4_core::Host>> {
    let kernel = CpuNvFp4LinearKernel::new();
    let prepared = kernel.process_weights_after_loading(&(), config, w).expect("valid weights");
    let scale = GlobalScale::from_decode(1.0 / 2688.0).expect("a valid scale");
    kernel.plan(config, &prepared, Some(scale), m).expect("a layer that the CPU runs")
}

fn linear(c: &mut Criterion) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let mut random = Random(1);
    for [n, k] in SHAPES {
        let w = weights(n, k, &mut random);
        let dense: Vec<f32> = (0..n * k).map(|_| random.unit()).collect();
        for m in ROWS {
            let x: Vec<f32> = (0..m * k).map(|_| random.unit()).collect();
            let xb: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
            let mut group = c.benchmark_group(format!("{n}x{k}"));
            group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
            group.throughput(Throughput::Elements((m * n * k) as u64));

            let mut out = vec![0.0f32; m * n];
            group.bench_function(BenchmarkId::new("naive", m), |b| b.iter(|| naive(&x, &w, &mut out)));
            group.bench_function(BenchmarkId::new("f32", m), |b| {
                b.iter(|| {
                    // SAFETY: the three matrices have the sizes and strides given.
                    unsafe {
                        matrixmultiply::sgemm(
                            m,
                            k,
                            n,
                            1.0,
                            x.as_ptr(),
                            k as isize,
                            1,
                            dense.as_ptr(),
                            1,
                            k as isize,
                            0.0,
                            out.as_mut_ptr(),
                            n as isize,
                            1,
                        )
                    }
                })
            });
            let mut out = vec![bf16::ZERO; m * n];
            for (name, scheme) in
                [("w4a16", ActivationScheme::Unquantized), ("w4a4", ActivationScheme::Nvfp4Static)]
            {
                let config = NvFp4LinearLayerConfig::w4a4(n, k)
                    .with_activation(scheme)
                    .with_dtypes(DType::Bf16, DType::Bf16);
                let plan = plan(&config, &w, m);
                let mut workspace = vec![0u64; plan.workspace_size().div_ceil(8)];
                group.bench_function(BenchmarkId::new(name, m), |b| {
                    pool.install(|| {
                        b.iter(|| {
                            let x = MatrixRef::new(&xb[..], m, k).expect("sizes agree");
                            let out = MatrixMut::new(&mut out[..], m, n).expect("sizes agree");
                            plan.apply_weights((), LinearInput::Matrix(x), None, out, &mut workspace).expect("runs")
                        })
                    })
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, linear);
criterion_main!(benches);
