//! Layers and calls for the tests of this crate.

use half::{bf16, f16};
use nvfp4_core::{
    DType, FloatSlice, FloatSliceMut, GlobalScale, GlobalScales, LinearPlan, LinearScales, MatrixMut, MatrixRef,
    NvFp4LinearKernel, NvFp4LinearLayerConfig, NvFp4Weights, QuantizedActivation, WeightScaleKind,
    kernel::{Host, LinearInput},
};
use nvfp4_cpu::CpuNvFp4LinearKernel;
use nvfp4_testkit::random::Rng;

/// Both sets of kernels.
pub(crate) fn kernels() -> [CpuNvFp4LinearKernel; 2] {
    [CpuNvFp4LinearKernel::new(), CpuNvFp4LinearKernel::portable()]
}

pub(crate) fn decode(scale: f32) -> GlobalScale {
    GlobalScale::from_decode(scale).unwrap()
}

/// Weights whose code is `code` everywhere and whose block scale is `scale(row, block)`.
pub(crate) fn constant_weights(
    n: usize,
    k: usize,
    code: u8,
    scale: impl Fn(usize, usize) -> u8,
    global: GlobalScales,
) -> NvFp4Weights<'static> {
    let scales: Vec<u8> = (0..n).flat_map(|r| (0..k / 16).map(move |b| (r, b))).map(|(r, b)| scale(r, b)).collect();
    let scales = LinearScales::new(n, k / 16, scales).unwrap();
    NvFp4Weights::new(n, k, vec![code | code << 4; n * k / 2], scales, global).unwrap()
}

/// Weights with random codes, random scales of moderate size and two global scales.
pub(crate) fn random_weights(n: usize, k: usize, rng: &mut Rng) -> NvFp4Weights<'static> {
    let scales: Vec<u8> = (0..n * k / 16).map(|_| rng.between(0x20, 0x50) as u8).collect();
    let scales = LinearScales::new(n, k / 16, scales).unwrap();
    let global = GlobalScales::from_parts([(n / 3, decode(0.01)), (n - n / 3, decode(0.025))]);
    NvFp4Weights::new(n, k, rng.bytes(n * k / 2), scales, global).unwrap()
}

pub(crate) fn normal(len: usize, rng: &mut Rng) -> Vec<f32> {
    (0..len).map(|_| rng.normal() as f32).collect()
}

/// A matrix of any type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Values {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Values {
    pub(crate) fn new(dtype: DType, values: &[f32]) -> Self {
        match dtype {
            DType::Bf16 => Self::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect()),
            DType::F16 => Self::F16(values.iter().map(|&v| f16::from_f32(v)).collect()),
            DType::F32 => Self::F32(values.to_vec()),
            other => panic!("{other}"),
        }
    }
    pub(crate) fn slice(&self) -> FloatSlice<'_> {
        match self {
            Self::Bf16(v) => v[..].into(),
            Self::F16(v) => v[..].into(),
            Self::F32(v) => v[..].into(),
        }
    }
    pub(crate) fn slice_mut(&mut self) -> FloatSliceMut<'_> {
        match self {
            Self::Bf16(v) => (&mut v[..]).into(),
            Self::F16(v) => (&mut v[..]).into(),
            Self::F32(v) => (&mut v[..]).into(),
        }
    }
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.slice().len()];
        self.slice().widen_into(&mut out);
        out
    }
    pub(crate) fn bits(&self) -> Vec<u32> {
        match self {
            Self::Bf16(v) => v.iter().map(|v| v.to_bits().into()).collect(),
            Self::F16(v) => v.iter().map(|v| v.to_bits().into()).collect(),
            Self::F32(v) => v.iter().map(|v| v.to_bits()).collect(),
        }
    }
}

/// A layer that is ready for any number of rows.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) config: NvFp4LinearLayerConfig,
    plan: Box<dyn LinearPlan<Host>>,
    bias: Option<Vec<f32>>,
}

impl Layer {
    /// Prepares and plans. `config` gets the kind of scales that the weights have.
    pub(crate) fn new(
        kernel: CpuNvFp4LinearKernel,
        config: NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
        input_scale: Option<GlobalScale>,
        rows: usize,
    ) -> Self {
        let kind = match weights.global().as_per_tensor() {
            Some(_) => WeightScaleKind::PerTensor,
            None => WeightScaleKind::PerRow,
        };
        let config = config.with_weight_scale_kind(kind);
        let prepared = kernel.process_weights_after_loading(&(), &config, weights).unwrap();
        let plan = kernel.plan(&config, &prepared, input_scale, rows).unwrap();
        Self { config, plan, bias: None }
    }

    pub(crate) fn with_bias(mut self, bias: Vec<f32>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Applies the layer with all scratch memory and outputs filled with `fill`.
    pub(crate) fn apply(&self, x: LinearInput<'_, Host>, rows: usize, fill: u8) -> Values {
        let n = self.config.out_features;
        let mut workspace = vec![u64::from_ne_bytes([fill; 8]); self.plan.workspace_size().div_ceil(8)];
        let mut out = match self.config.output_dtype {
            DType::Bf16 => Values::Bf16(vec![bf16::from_bits(u16::from_ne_bytes([fill; 2])); rows * n]),
            DType::F16 => Values::F16(vec![f16::from_bits(u16::from_ne_bytes([fill; 2])); rows * n]),
            _ => Values::F32(vec![f32::from_ne_bytes([fill; 4]); rows * n]),
        };
        let matrix = MatrixMut::new(out.slice_mut(), rows, n).unwrap();
        self.plan.apply_weights((), x, self.bias.as_deref(), matrix, &mut workspace).unwrap();
        out
    }

    /// Applies the layer to values that are rounded to its input type.
    pub(crate) fn run(&self, x: &[f32]) -> Values {
        let x = Values::new(self.config.input_dtype, x);
        let k = self.config.in_features;
        let rows = x.slice().len() / k;
        self.apply(LinearInput::Matrix(MatrixRef::new(x.slice(), rows, k).unwrap()), rows, 0xff)
    }

    pub(crate) fn run_quantized(&self, x: &QuantizedActivation) -> Values {
        self.apply(LinearInput::Quantized(x), x.rows, 0xff)
    }
}
