//! The obvious implementation, slow and independent of the backend: decode every operand, multiply, add.
//!
//! An [`Operand`] keeps codes, block scales and global scales apart, as f32 (which holds each exactly), so that a
//! reader can form any product of them. [`linear_f64`] is the truth that tests compare with; [`linear_f32`] adds in
//! f32 in order of `k`; [`error_bound`] is how far from the truth a sum in f32 may be, in whatever order.

use half::{bf16, f16};
use nvfp4_core::{
    ActivationScale, BLOCK_SIZE, DType, Error, MatrixRef, NvFp4Weights, QuantizedActivation, e2m1, e4m3,
    quantize::ref_nvfp4_quant_dequant,
};

/// A `[rows, k]` matrix of activations or weights, taken apart.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    rows: usize,
    k: usize,
    /// `[rows, k]`: e2m1 values, or values that are not quantized.
    codes: Vec<f32>,
    /// `[rows, k / 16]`; 1 for values that are not quantized.
    block_scales: Vec<f32>,
    /// `[rows]` multipliers; 1 for values that are not quantized.
    global_scales: Vec<f32>,
}

impl Operand {
    /// Activations that keep their type. `k` must be a multiple of 16.
    pub fn unquantized(x: MatrixRef<'_>) -> Result<Self, Error> {
        let (rows, k) = (x.rows(), x.cols());
        if !k.is_multiple_of(BLOCK_SIZE) {
            return Err(Error::NotMultiple { what: "k (input features)", multiple: BLOCK_SIZE, found: k });
        }
        let mut codes = vec![0.0; rows * k];
        for r in 0..rows {
            if let Some(row) = x.row(r) {
                row.widen_into(&mut codes[r * k..][..k]);
            }
        }
        let block_scales = vec![1.0; rows * (k / BLOCK_SIZE)];
        Ok(Self { rows, k, codes, block_scales, global_scales: vec![1.0; rows] })
    }

    /// Activations quantized to NVFP4, in any scale layout.
    pub fn activation(x: &QuantizedActivation) -> Result<Self, Error> {
        x.check()?;
        let (rows, k) = (x.rows, x.k);
        let code = |r: usize, j: usize| x.data[r * (x.padded_k / 2) + j / 2] >> (4 * (j % 2));
        let scale = |r: usize, b: usize| x.scale[x.scale_layout.offset(r, b, x.padded_k / BLOCK_SIZE)];
        let global_scales = match &x.global_scale {
            ActivationScale::PerTensor(scale) => vec![scale.decode().get(); rows],
            ActivationScale::PerToken(bytes) => {
                bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
            }
            _ => return Err(Error::Invalid("the quantized activation has global scales of an unknown kind")),
        };
        Ok(Self::new(rows, k, code, scale, global_scales))
    }

    /// Weights; `rows` are the output features.
    pub fn weights(weights: &NvFp4Weights<'_>) -> Self {
        let (rows, k) = (weights.out_features(), weights.in_features());
        let code = |r: usize, j: usize| weights.packed()[(r * k + j) / 2] >> (4 * (j % 2));
        let scale = |r: usize, b: usize| weights.scales().bytes()[r * (k / BLOCK_SIZE) + b];
        let global_scales = weights.global().iter_rows().map(|s| s.decode().get()).collect();
        Self::new(rows, k, code, scale, global_scales)
    }

    fn new(
        rows: usize,
        k: usize,
        code: impl Fn(usize, usize) -> u8,
        scale: impl Fn(usize, usize) -> u8,
        global_scales: Vec<f32>,
    ) -> Self {
        let grid = |cols: usize| (0..rows).flat_map(move |r| (0..cols).map(move |c| (r, c)));
        Self {
            rows,
            k,
            codes: grid(k).map(|(r, j)| e2m1::decode(code(r, j))).collect(),
            block_scales: grid(k / BLOCK_SIZE).map(|(r, b)| e4m3::decode(scale(r, b))).collect(),
            global_scales,
        }
    }

    /// Rows: tokens or output features.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns: input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// `[rows, k]` values as vLLM's `dequantize_to_dtype` computes them in f32: code · (block scale · global scale).
    pub fn dequantized(&self) -> Vec<f32> {
        let blocks = self.k / BLOCK_SIZE;
        let scale = |i: usize| self.block_scales[i] * self.global_scales[i / blocks];
        self.codes.iter().enumerate().map(|(i, code)| code * scale(i / BLOCK_SIZE)).collect()
    }

    /// Code · block scale of row `r`, column `j`; exact in f32.
    fn value(&self, r: usize, j: usize) -> f32 {
        self.codes[r * self.k + j] * self.block_scales[r * (self.k / BLOCK_SIZE) + j / BLOCK_SIZE]
    }
}

/// Applies `f` to every pair of a row of `x` and a row of `w`, in row-major order of the output `[m, n]`. `f` gets
/// the pairs of values, the product's global scales, and the bias.
fn each_output<T>(
    x: &Operand,
    w: &Operand,
    bias: Option<&[f32]>,
    f: impl Fn(&mut dyn Iterator<Item = (f32, f32)>, [f32; 2], Option<f32>) -> T,
) -> Result<Vec<T>, Error> {
    if x.k != w.k {
        return Err(Error::Size { what: "columns of x (input features)", expected: w.k, found: x.k });
    }
    if let Some(bias) = bias.filter(|bias| bias.len() != w.rows) {
        return Err(Error::Size { what: "bias values", expected: w.rows, found: bias.len() });
    }
    let mut out = Vec::with_capacity(x.rows * w.rows);
    for m in 0..x.rows {
        for n in 0..w.rows {
            let mut pairs = (0..x.k).map(|j| (x.value(m, j), w.value(n, j)));
            let globals = [x.global_scales[m], w.global_scales[n]];
            out.push(f(&mut pairs, globals, bias.map(|bias| bias[n])));
        }
    }
    Ok(out)
}

/// `x · Wᵀ + bias`, `[m, n]`, with products and sums in f64.
pub fn linear_f64(x: &Operand, w: &Operand, bias: Option<&[f32]>) -> Result<Vec<f64>, Error> {
    each_output(x, w, bias, |pairs, [gx, gw], bias| {
        let sum: f64 = pairs.map(|(x, w)| f64::from(x) * f64::from(w)).sum();
        sum * (f64::from(gx) * f64::from(gw)) + bias.map_or(0.0, f64::from)
    })
}

/// `x · Wᵀ + bias`, `[m, n]`, with products and sums in f32, in order of `k`; then the global scale of `x`, that of
/// `W`, and the bias.
pub fn linear_f32(x: &Operand, w: &Operand, bias: Option<&[f32]>) -> Result<Vec<f32>, Error> {
    each_output(x, w, bias, |pairs, [gx, gw], bias| {
        let out = pairs.fold(0.0, |sum, (x, w)| sum + x * w) * gx * gw;
        bias.map_or(out, |bias| out + bias)
    })
}

/// How far a product that adds in f32 may be from [`linear_f64`], before the result is rounded to a narrower type:
/// `γ(k + 2) · Σ|x · w|`, where `γ(n) = n·u / (1 - n·u)` and `u = 2⁻²⁴`, and one more rounding for a bias. `[m, n]`.
pub fn error_bound(x: &Operand, w: &Operand, bias: Option<&[f32]>) -> Result<Vec<f64>, Error> {
    const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
    let n = (x.k + 2) as f64 * UNIT;
    let gamma = n / (1.0 - n);
    each_output(x, w, bias, |pairs, [gx, gw], bias| {
        let sum: f64 = pairs.map(|(x, w)| (f64::from(x) * f64::from(w)).abs()).sum();
        let sum = sum * (f64::from(gx) * f64::from(gw)).abs();
        // The addition of the bias rounds the result, which is at most sum (1 + γ) + |bias|.
        gamma * sum + bias.map_or(0.0, |bias| UNIT * (sum * (1.0 + gamma) + f64::from(bias).abs()))
    })
}

/// What vLLM's emulation of a W4A4 layer computes with: see [`run_nvfp4_emulations`].
#[derive(Clone, PartialEq, Debug)]
pub struct Emulation {
    /// The activations, quantized and dequantized, `[m, k]`.
    pub x: Vec<f32>,
    /// The weights, dequantized, `[n, k]`.
    pub w: Vec<f32>,
    /// Their product, `[m, n]`.
    pub out: Vec<f32>,
}

/// vLLM 0.33's `run_nvfp4_emulations` without a bias: quantizes `x` with the encode scale `encode` by its PyTorch
/// reference, rounds both dequantized operands to the type of `x`, multiplies them, and rounds to that type again.
/// Operands equal vLLM's to the bit; the sums are made in f32 in order of `k`, PyTorch's in some other order.
pub fn run_nvfp4_emulations(x: MatrixRef<'_>, encode: f32, w: &NvFp4Weights<'_>) -> Result<Emulation, Error> {
    let (m, n, k) = (x.rows(), w.out_features(), w.in_features());
    if x.cols() != k {
        return Err(Error::Size { what: "columns of x (input features)", expected: k, found: x.cols() });
    }
    let round = |v: f32| round_to(x.dtype(), v);
    let xdq = ref_nvfp4_quant_dequant(x, encode)?;
    let wdq: Vec<f32> = Operand::weights(w).dequantized().into_iter().map(round).collect();
    let mut out = Vec::with_capacity(m * n);
    for x in xdq.chunks_exact(k) {
        out.extend(wdq.chunks_exact(k).map(|w| round(x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w))));
    }
    Ok(Emulation { x: xdq, w: wdq, out })
}

fn round_to(dtype: DType, v: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(v).to_f32(),
        DType::F16 => f16::from_f32(v).to_f32(),
        _ => v,
    }
}
