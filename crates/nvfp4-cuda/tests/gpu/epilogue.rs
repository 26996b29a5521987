//! The epilogue against f32 arithmetic on the host, bit for bit.

use crate::setup::{Activation, Gpu, Random, encode, round, seed};
use nvfp4_core::DType;
use nvfp4_cuda::{DeviceBuffer, DeviceMatrixMut, DeviceVector, Epilogue, Stream, epilogue::Columns, pack};

pub(crate) const TESTS: &[crate::Test] = &[
    ("epilogue::equals_f32_arithmetic", equals_f32_arithmetic),
    ("epilogue::empty_and_in_place", empty_and_in_place),
];

fn load(gpu: &Gpu) -> Epilogue {
    Epilogue::load(&gpu.device, &pack::search_path()).unwrap()
}

fn floats(gpu: &Gpu, values: &[f32]) -> DeviceBuffer {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    DeviceBuffer::from_host(&gpu.device, &bytes).unwrap()
}

fn vector(buffer: &DeviceBuffer) -> DeviceVector<'_> {
    // SAFETY: the buffer holds that many f32 and lives as long as the borrow.
    unsafe { DeviceVector::from_raw(buffer.address(), buffer.len() / 4) }
}

/// Every element equals the definition; nothing beside the output is written.
fn equals_f32_arithmetic(gpu: &Gpu) {
    let epilogue = load(gpu);
    let seed = seed();
    let mut random = Random(seed);
    let stream = Stream::new(&gpu.device).unwrap();
    // (m, n, staging columns, staging stride, output stride, offset of the output)
    let shapes = [
        (1, 1, 32, 32, 1, 0),
        (1, 100, 128, 128, 100, 0),
        (7, 130, 160, 160, 136, 0),
        (33, 257, 288, 288, 257, 1),
        (100, 384, 384, 384, 384, 0),
        (129, 1000, 1024, 1032, 1003, 3),
        (1000, 48, 64, 64, 48, 8),
        (4096, 4096, 4096, 4096, 4096, 0),
    ];
    for (case, (m, n, columns, from_stride, to_stride, offset)) in shapes.into_iter().enumerate() {
        for dtype in [DType::Bf16, DType::F16] {
            for which in 0..4 {
                let from = Activation::new(gpu, dtype, (m, columns), (from_stride, 0), |_, c| match c < n {
                    true => random.normal() * 8.0,
                    false => f32::NAN,
                });
                let scales: Vec<f32> = (0..n).map(|_| random.normal()).collect();
                let biases: Vec<f32> = (0..n).map(|_| random.normal() * 4.0).collect();
                let (scale, bias) = (floats(gpu, &scales), floats(gpu, &biases));
                let guard = 64;
                let poison = vec![0x5au8; (offset + m * to_stride + guard) * 2];
                let out = DeviceBuffer::from_host(&gpu.device, &poison).unwrap();
                // SAFETY: the buffer has room for the matrix and nothing else uses it.
                let to =
                    unsafe { DeviceMatrixMut::from_raw(out.address() + offset as u64 * 2, dtype, m, n, to_stride) };
                let columns = Columns {
                    scale: (which & 1 != 0).then(|| vector(&scale)),
                    bias: (which & 2 != 0).then(|| vector(&bias)),
                };
                epilogue.apply(stream.as_ref(), from.matrix(), columns, &to).unwrap();
                let found = out.to_host().unwrap();
                let mut expected = poison;
                for r in 0..m {
                    for c in 0..n {
                        let mut y = from.values[r * from.cols + c];
                        if which & 1 != 0 {
                            y *= scales[c];
                        }
                        if which & 2 != 0 {
                            y += biases[c];
                        }
                        let at = (offset + r * to_stride + c) * 2;
                        expected[at..at + 2].copy_from_slice(&encode(dtype, round(dtype, y)));
                    }
                }
                let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "seed {seed}, case {case}, {dtype:?}, {which}: byte of the first fault");
            }
        }
    }
}

fn empty_and_in_place(gpu: &Gpu) {
    let epilogue = load(gpu);
    let stream = Stream::new(&gpu.device).unwrap();
    // SAFETY: a matrix without rows has no bytes.
    let (from, to) = unsafe {
        (
            nvfp4_cuda::DeviceMatrix::from_raw(0, DType::Bf16, 0, 64, 64),
            DeviceMatrixMut::from_raw(0, DType::Bf16, 0, 64, 64),
        )
    };
    epilogue.apply(stream.as_ref(), from, Columns::default(), &to).unwrap();
    let (m, n) = (37, 200);
    let values: Vec<f32> = (0..m * n).map(|i| (i % 251) as f32 - 100.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|&v| encode(DType::F16, v)).collect();
    let buffer = DeviceBuffer::from_host(&gpu.device, &bytes).unwrap();
    let bias = floats(gpu, &(0..n).map(|c| c as f32).collect::<Vec<_>>());
    // SAFETY: both views are of one buffer with the same stride, which `apply` allows.
    let to = unsafe { DeviceMatrixMut::from_raw(buffer.address(), DType::F16, m, n, n) };
    let columns = Columns { scale: None, bias: Some(vector(&bias)) };
    epilogue.apply(stream.as_ref(), buffer.as_matrix(DType::F16, m, n).unwrap(), columns, &to).unwrap();
    let expected: Vec<u8> =
        values.iter().enumerate().flat_map(|(i, &v)| encode(DType::F16, v + (i % n) as f32)).collect();
    assert!(buffer.to_host().unwrap() == expected);
}
