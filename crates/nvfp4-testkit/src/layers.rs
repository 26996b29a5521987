//! Layers and inputs for tests: on a grid where every backend must give the same bits, or random.

use crate::{matrices::HostMatrix, random::Rng};
use nvfp4_core::{
    ActivationScheme, DType, GlobalScale, GlobalScales, LinearScales, NvFp4LinearLayer, NvFp4LinearLayerConfig,
    NvFp4Weights, WeightScaleKind,
};

/// The four schemes.
pub const SCHEMES: [ActivationScheme; 4] = [
    ActivationScheme::Unquantized,
    ActivationScheme::Nvfp4Static,
    ActivationScheme::Nvfp4DynamicPerTensor,
    ActivationScheme::Nvfp4DynamicPerToken,
];

/// The element types.
pub const DTYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// Every pair of input and output type.
pub fn dtype_pairs() -> impl Iterator<Item = (DType, DType)> {
    DTYPES.into_iter().flat_map(|input| DTYPES.into_iter().map(move |output| (input, output)))
}

/// What a test case is, for messages and for making its data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// Rows of the input.
    pub m: usize,
    /// The layer.
    pub config: NvFp4LinearLayerConfig,
    /// With a bias.
    pub bias: bool,
    /// Runs of rows with a global scale of their own.
    pub parts: usize,
    /// Seed of its data.
    pub seed: u64,
}

impl Case {
    /// A case without bias and with one global scale.
    pub fn new(m: usize, n: usize, k: usize, scheme: ActivationScheme, seed: u64) -> Self {
        let config = NvFp4LinearLayerConfig::w4a4(n, k).with_activation(scheme);
        Self { m, config, bias: false, parts: 1, seed }
    }

    /// With these element types.
    pub fn with_dtypes(mut self, (input, output): (DType, DType)) -> Self {
        self.config = self.config.with_dtypes(input, output);
        self
    }

    /// With a bias.
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// With several global scales, as far as there are rows for them.
    pub fn with_parts(mut self, parts: usize) -> Self {
        self.parts = parts.min(self.config.out_features).max(1);
        let kind = if self.parts > 1 { WeightScaleKind::PerRow } else { WeightScaleKind::PerTensor };
        self.config = self.config.with_weight_scale_kind(kind);
        self
    }

    /// The last of the run of rows that part `p` covers is before this row.
    fn part_end(&self, p: usize) -> usize {
        self.config.out_features * (p + 1) / self.parts
    }

    fn global_scales(&self, scales: impl Iterator<Item = GlobalScale>) -> GlobalScales {
        let mut start = 0;
        GlobalScales::from_parts((0..self.parts).zip(scales).map(|(p, scale)| {
            let rows = self.part_end(p) - start;
            start = self.part_end(p);
            (rows, scale)
        }))
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = &self.config;
        write!(
            f,
            "m={} n={} k={}, {} -> {}, {}, {} global scale(s), {}, seed {}",
            self.m,
            c.out_features,
            c.in_features,
            c.input_dtype,
            c.output_dtype,
            c.activation,
            self.parts,
            if self.bias { "bias" } else { "no bias" },
            self.seed
        )?;
        if c.batch_invariant { f.write_str(", batch-invariant") } else { Ok(()) }
    }
}

/// A layer and an input for it.
#[derive(Clone, Debug)]
pub struct Example {
    /// What it is.
    pub case: Case,
    /// The layer.
    pub layer: NvFp4LinearLayer<'static>,
    /// The input, dense.
    pub x: HostMatrix,
}

/// A layer from its parts. Panics if they do not fit each other: the test is wrong then.
pub fn layer(
    config: &NvFp4LinearLayerConfig,
    packed: Vec<u8>,
    scales: Vec<u8>,
    global: GlobalScales,
    input_scale: Option<GlobalScale>,
    bias: Option<Vec<f32>>,
) -> NvFp4LinearLayer<'static> {
    let (n, k) = (config.out_features, config.in_features);
    let fail = |e| -> ! { panic!("test layer {n}x{k}: {e}") };
    let scales = LinearScales::new(n, k / 16, scales).unwrap_or_else(|e| fail(e));
    let layer = NvFp4LinearLayer {
        name: "conformance.layer".into(),
        weights: NvFp4Weights::new(n, k, packed, scales, global).unwrap_or_else(|e| fail(e)),
        activation: config.activation,
        input_scale: input_scale.filter(|_| config.activation == ActivationScheme::Nvfp4Static),
        bias,
    };
    layer.check().unwrap_or_else(|e| fail(e));
    layer
}

fn decode(scale: f64) -> GlobalScale {
    GlobalScale::from_decode(scale as f32).unwrap_or_else(|e| panic!("test scale {scale}: {e}"))
}

/// Random codes and scales of all sizes, subnormal ones and zeros included; inputs that differ in size from block
/// to block, with zero blocks and outliers; results far from the limits of f16.
pub fn random(case: Case) -> Example {
    let mut rng = Rng::new(case.seed);
    let (n, k) = (case.config.out_features, case.config.in_features);
    let packed = rng.bytes(n * k / 2);
    let scales = (0..n * k / 16)
        .map(|_| if rng.flip() { rng.between(0x30, 0x48) } else { rng.between(0, 0x7e) } as u8)
        .collect();
    // Typical |y| is sqrt(k) · 3 · 100 · global.
    let size = 1.0 / ((k as f64).sqrt() * 300.0);
    let globals: Vec<_> = (0..case.parts).map(|_| decode(size * rng.log_uniform(0.1, 10.0))).collect();
    let bias = case.bias.then(|| (0..n).map(|_| rng.normal() as f32).collect());

    let mut values = Vec::with_capacity(case.m * k);
    while values.len() < case.m * k {
        let block = match rng.below(16) {
            0 => 0.0,
            1 => rng.log_uniform(1e-3, 1e-1),
            2 => 4.0,
            _ => rng.log_uniform(0.2, 1.5),
        };
        values.extend((0..16).map(|_| (block * rng.normal()) as f32));
    }
    let x = HostMatrix::new(case.config.input_dtype, case.m, k, &values);
    let amax = (values.iter().fold(0f32, |a, v| a.max(v.abs()))).max(1e-3);
    let input_scale = decode(f64::from(amax) / 2688.0 * rng.log_uniform(0.7, 3.0));
    Example {
        case,
        layer: layer(
            &case.config,
            packed,
            scales,
            case.global_scales(globals.into_iter()),
            Some(input_scale),
            bias,
        ),
        x,
    }
}

/// Values for which every sum of products is exact in f32 in any order, so that there is one right answer to the
/// bit: codes times powers of two for x, any codes for w, and block scales either all subnormal (`m · 2⁻⁹`) or within
/// a factor of 4; global scales are powers of two, different for each part.
pub fn exact(case: Case) -> Example {
    let mut rng = Rng::new(case.seed);
    let (m, n, k) = (case.m, case.config.out_features, case.config.in_features);
    let packed = rng.bytes(n * k / 2);
    let subnormal = rng.flip();
    let base = rng.between(1, 13) as u8;
    let scales: Vec<u8> = (0..n * k / 16)
        .map(|_| {
            let scale = if subnormal { rng.between(1, 7) as u8 } else { (base + rng.below(3) as u8) << 3 };
            if rng.below(16) == 0 { 0 } else { scale }
        })
        .collect();
    // Block scales are multiples of `unit` of at most 7 units.
    let unit = if subnormal { 2f64.powi(-9) } else { 2f64.powi(i32::from(base) - 7) };

    // x = code · step · x_unit, with a ±6 in each block, so that block scales come out as powers of two. The first
    // block of a row is its largest, by 3.5, so that dynamic global scales come out as a power of two as well:
    // amax = 6 · 3.5 · x_unit = 2688 · x_unit / 128, and the block scales are 448, 128 and 64.
    let dynamic = case.config.activation.is_quantized() && case.config.activation != ActivationScheme::Nvfp4Static;
    let x_unit = 2f64.powi(rng.between(-4, 2) as i32);
    let mut values = Vec::with_capacity(m * k);
    for _ in 0..m {
        for b in 0..k / 16 {
            let step = match (b, rng.below(8)) {
                (0, _) if dynamic => 3.5,
                (0, _) => 1.0,
                (_, 0) => 0.0,
                (_, odd) => 0.5 + 0.5 * (odd % 2) as f64,
            };
            let largest = rng.below(16);
            values.extend((0..16).map(|i| {
                let code = if i == largest { 7 + 8 * rng.below(2) as u8 } else { rng.below(16) as u8 };
                (crate::oracle::e2m1(code) * step * x_unit) as f32
            }));
        }
    }
    let input_scale = decode(x_unit * 2f64.powi(rng.between(-6, 3) as i32));
    // In units of x_unit/4 · 1/2 · unit: a sum stays below 2²⁴.
    let largest_sum = 24.0 * 12.0 * 7.0 * k as f64 + 84.0 * 12.0 * 7.0 * 16.0;
    assert!(largest_sum < 2f64.powi(24), "k = {k} is too long for exact sums");

    // Results of moderate size: global ≈ 2^e / (unit · x_unit · sqrt(k)).
    let scale = (1.0 / (unit * x_unit * (k as f64).sqrt())).log2().round();
    let globals: Vec<f64> = (0..case.parts).map(|p| 2f64.powf(scale - p as f64 % 5.0)).collect();
    let bias = case.bias.then(|| {
        (0..n)
            .map(|row| {
                let part = (0..case.parts).find(|&p| row < case.part_end(p)).unwrap_or(0);
                // A multiple of what the row's sum is a multiple of.
                (rng.between(-1000, 1000) as f64 * unit * x_unit * globals[part]) as f32
            })
            .collect()
    });
    let x = HostMatrix::new(case.config.input_dtype, m, k, &values);
    Example {
        case,
        layer: layer(
            &case.config,
            packed,
            scales,
            case.global_scales(globals.into_iter().map(decode)),
            Some(input_scale),
            bias,
        ),
        x,
    }
}
