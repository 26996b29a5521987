//! Deliberately wrong backends. Each has one [`Fault`] that real backends have had; the suite must catch every one.
//! Without a fault the same code is right, and passes: what the suite finds is the fault.

use crate::{oracle, oracle::scale_offset};
use half::{bf16, f16};
use nvfp4_core::{
    ActivationScale, ActivationScheme, DType, DeviceFacts, Error, FloatSliceMut, GlobalScale, Host, KernelId,
    KernelSupport, LinearPlan, MatrixMut, MatrixRef, NvFp4LinearKernel, NvFp4LinearLayerConfig, NvFp4Weights,
    PreparedWeights, QuantKey, QuantizedActivation, ScaleLayout, Unsupported, WeightScaleKind,
    as_quantized_activation,
    kernel::{LinearInput, WeightLayout},
};
use std::{any::Any, sync::Arc};

mod fault;

pub use fault::{FAULTS, Fault};

/// A straightforward backend for the host, with one fault.
#[derive(Clone, Copy, Debug)]
pub struct BrokenKernel(pub Fault);

const LAYOUT: WeightLayout = WeightLayout::new("testkit-dense", 1);

#[derive(Debug)]
struct Weights {
    layout: WeightLayout,
    n: usize,
    k: usize,
    /// `[n, k]`, without global scale.
    values: Vec<f32>,
    /// One for each row.
    globals: Vec<f32>,
}

impl PreparedWeights for Weights {
    fn layout(&self) -> WeightLayout {
        self.layout
    }
    fn bytes(&self) -> usize {
        self.values.len() * 4 + self.globals.len() * 4
    }
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    config: NvFp4LinearLayerConfig,
    weights: Arc<dyn PreparedWeights>,
    input_scale: Option<GlobalScale>,
    rows: usize,
    calls: std::sync::atomic::AtomicUsize,
}

impl KernelSupport for BrokenKernel {
    fn id(&self) -> KernelId {
        KernelId::new("broken")
    }

    fn is_supported(&self, device: &DeviceFacts) -> Result<(), Unsupported> {
        match device {
            DeviceFacts::Cpu(_) => Ok(()),
            _ if self.0 == Fault::EveryDevice => Ok(()),
            _ => Err(Unsupported::Device { needed: "a CPU".into(), found: device.to_string() }),
        }
    }

    fn can_implement(&self, _: &DeviceFacts, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        let shape = |dimension, multiple, found| Err(Unsupported::Shape { dimension, multiple, found });
        if self.0 == Fault::RunsWhatItRefuses && config.activation == ActivationScheme::Unquantized {
            return Err(Unsupported::Scheme { offered: "W4A4", asked: config.activation });
        }
        match (config.out_features, config.in_features) {
            _ if self.0 == Fault::EveryLayer => Ok(()),
            (0, _) => shape("n (output features)", 1, 0),
            (_, k) if k == 0 || !k.is_multiple_of(16) => shape("k (input features)", 16, k),
            _ => Ok(()),
        }
    }

    fn weight_layout(&self, _: &DeviceFacts, _: &NvFp4LinearLayerConfig) -> WeightLayout {
        LAYOUT
    }

    fn input_quant_key(&self, config: &NvFp4LinearLayerConfig) -> Option<QuantKey> {
        config.activation.quant_key()
    }
}

fn check(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Size { what, expected, found }) }
}

impl NvFp4LinearKernel<Host> for BrokenKernel {
    fn process_weights_after_loading(
        &self,
        _: &(),
        config: &NvFp4LinearLayerConfig,
        weights: &NvFp4Weights<'_>,
    ) -> Result<Arc<dyn PreparedWeights>, Error> {
        let (n, k) = (weights.out_features(), weights.in_features());
        if self.0 != Fault::UncheckedConfiguration {
            check("n (output features)", config.out_features, n)?;
            check("k (input features)", config.in_features, k)?;
        }
        if weights.global().as_per_tensor().is_none() && config.weight_scale_kind == WeightScaleKind::PerTensor {
            return Err(Error::Unsupported(Unsupported::PerRowScale));
        }
        let cols = k / 16;
        let (packed, scales) = (weights.packed(), weights.scales().bytes());
        let value = |row: usize, i: usize| {
            let high = (i % 2 == 1) != (self.0 == Fault::NibbleOrder);
            let byte = packed[(row * k + i) / 2];
            let code = if high { byte >> 4 } else { byte & 0xf };
            let code = if self.0 == Fault::UnsignedWeights { code & 7 } else { code };
            let at = match self.0 {
                Fault::SwizzledWeightScales => {
                    scale_offset(ScaleLayout::Swizzled128x4, row, i / 16, cols) % scales.len()
                }
                Fault::ScalesOfNeighbour => row.saturating_sub(1) * cols + i / 16,
                _ => row * cols + i / 16,
            };
            let scale = oracle::e4m3(scales[at]);
            let flushed = self.0 == Fault::SubnormalScales && scale < 2f64.powi(-6);
            (oracle::e2m1(code) * if flushed { 0.0 } else { scale }) as f32
        };
        let decode: Vec<f32> = weights.global().iter_rows().map(|g| g.decode().get()).collect();
        let largest = decode.iter().fold(0f32, |a, &b| a.max(b));
        let globals = weights
            .global()
            .iter_rows()
            .map(|g| match self.0 {
                Fault::InvertedGlobalScale => g.encode().get(),
                Fault::FirstGlobalScale => decode[0],
                Fault::LargestGlobalScale => largest,
                _ => g.decode().get(),
            })
            .collect();
        let layout = if self.0 == Fault::WrongLayout { WeightLayout::new("testkit-other", 1) } else { LAYOUT };
        let values = (0..n).flat_map(|row| (0..k).map(move |i| (row, i))).map(|(row, i)| value(row, i)).collect();
        Ok(Arc::new(Weights { layout, n, k, values, globals }))
    }

    fn plan(
        &self,
        config: &NvFp4LinearLayerConfig,
        weights: &Arc<dyn PreparedWeights>,
        input_scale: Option<GlobalScale>,
        m: usize,
    ) -> Result<Box<dyn LinearPlan<Host>>, Error> {
        let any: &dyn Any = weights.as_ref();
        match any.downcast_ref::<Weights>() {
            Some(own) if self.0 != Fault::UncheckedConfiguration => {
                check("n (output features)", config.out_features, own.n)?;
                check("k (input features)", config.in_features, own.k)?;
            }
            None if self.0 != Fault::UncheckedWeights => {
                return Err(Error::Layout { expected: LAYOUT.to_string(), found: weights.layout().to_string() });
            }
            _ => {}
        }
        Ok(Box::new(Plan {
            fault: self.0,
            config: *config,
            weights: weights.clone(),
            input_scale,
            rows: m,
            calls: Default::default(),
        }))
    }
}

/// An activation as values that are still to be multiplied by one global scale a row.
struct Activation {
    rows: Vec<(Vec<f32>, f32)>,
}

impl Plan {
    fn matrix(&self, x: MatrixRef<'_>) -> Result<Activation, Error> {
        let k = x.cols();
        let mut values: Vec<Vec<f32>> = Vec::new();
        for r in 0..x.rows() {
            let start = r * if self.fault == Fault::IgnoresRowStride { k } else { x.row_stride() };
            let mut row = vec![0.0; k];
            x.data()
                .slice(start..start + k)
                .ok_or(Error::Size { what: "x", expected: start + k, found: x.data().len() })?
                .widen_into(&mut row);
            values.push(row);
        }
        if self.config.activation == ActivationScheme::Unquantized || self.fault == Fault::ActivationsNotQuantized {
            return Ok(Activation { rows: values.into_iter().map(|v| (v, 1.0)).collect() });
        }
        let amax = |v: &[f32]| v.iter().fold(0f32, |a, b| a.max(b.abs()));
        let all = values.iter().fold(0f32, |a, v| a.max(amax(v)));
        let dynamic = |amax: f32| GlobalScale::from_decode(amax / 2688.0).unwrap_or(GlobalScale::ONE);
        let scales: Vec<GlobalScale> = match (self.config.activation, self.input_scale) {
            (ActivationScheme::Nvfp4DynamicPerTensor, _) => vec![dynamic(all); values.len()],
            (ActivationScheme::Nvfp4DynamicPerToken, _) => values.iter().map(|v| dynamic(amax(v))).collect(),
            (_, Some(scale)) => vec![scale; values.len()],
            _ => return Err(Error::Invalid("static activations need an input scale")),
        };
        let rows = (0..values.len())
            .map(|r| {
                let other = values.get(r ^ 1).filter(|_| self.fault == Fault::SharedAmax);
                let g = scales[r].encode().get();
                let mut row = Vec::with_capacity(k);
                for b in 0..k / 16 {
                    let block = |v: &[f32]| amax(&v[16 * b..16 * b + 16]);
                    let largest = block(&values[r]).max(other.map_or(0.0, |v| block(v)));
                    let s = oracle::e4m3(oracle::to_e4m3((g * (largest * (1.0 / 6.0))).min(448.0))) as f32;
                    let o = if s == 0.0 { 0.0 } else { 1.0 / (s * (1.0 / g)) };
                    let quantized = |v: &f32| {
                        let v = if v.is_nan() { 6.0 } else { (v * o).clamp(-6.0, 6.0) };
                        oracle::e2m1(oracle::to_e2m1(if v.is_nan() { 6.0 } else { v })) as f32 * s
                    };
                    row.extend(values[r][16 * b..16 * b + 16].iter().map(quantized));
                }
                (row, scales[r].decode().get())
            })
            .collect();
        Ok(Activation { rows })
    }

    fn quantized(&self, x: &QuantizedActivation) -> Result<Activation, Error> {
        if self.fault != Fault::UncheckedKey {
            as_quantized_activation(x, self.config.activation.quant_key())?;
        }
        if self.fault != Fault::UncheckedBuffers {
            x.check()?;
            check("k of the activation", self.config.in_features, x.k)?;
        }
        let cols = x.padded_k / 16;
        let layout = if self.fault == Fault::LinearActivationScales { ScaleLayout::Linear } else { x.scale_layout };
        let global = |r: usize| match (&x.global_scale, self.input_scale) {
            (ActivationScale::PerTensor(_), Some(own)) if self.fault == Fault::LayerInputScale => {
                own.decode().get()
            }
            (ActivationScale::PerTensor(g), _) => g.decode().get(),
            (ActivationScale::PerToken(bytes), _) => {
                let r = if self.fault == Fault::FirstTokenScale { 0 } else { r };
                let four = bytes.get(4 * r..4 * r + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
                four.map_or(f32::NAN, f32::from_ne_bytes)
            }
            _ => f32::NAN,
        };
        let rows = (0..x.rows)
            .map(|r| {
                let value = |i: usize| {
                    let high = (i % 2 == 1) != (self.fault == Fault::ActivationNibbleOrder);
                    let byte = x.data.get((r * x.padded_k + i) / 2).copied().unwrap_or_default();
                    let code = if high { byte >> 4 } else { byte & 0xf };
                    match x.scale.get(scale_offset(layout, r, i / 16, cols)) {
                        Some(&scale) if scale < 0x7f => (oracle::e2m1(code) * oracle::e4m3(scale)) as f32,
                        _ => f32::NAN,
                    }
                };
                ((0..self.config.in_features).map(value).collect(), global(r))
            })
            .collect();
        Ok(Activation { rows })
    }

    /// `Σ x·w` in f32.
    fn sum(&self, x: &[f32], w: &[f32], m: usize, scratch: &[u64]) -> f32 {
        let used = match self.fault {
            Fault::DropsTail if x.len() / 16 % 2 == 1 => x.len() - 16,
            _ => x.len(),
        };
        let products = x[..used].iter().zip(&w[..used]).map(|(a, b)| a * b);
        match self.fault {
            Fault::NarrowSum => products.fold(0.0, |sum, p| narrow(sum + p, self.config.output_dtype)),
            Fault::BatchDependent if m > 16 => products.rev().fold(0.0, |sum, p| sum + p),
            Fault::StalePadding if !x.len().is_multiple_of(32) => {
                let stale = scratch.first().map_or(0, |word| *word as u32);
                products.sum::<f32>() + f32::from_bits(stale)
            }
            _ => products.fold(0.0, |sum, p| sum + p),
        }
    }

    /// The result before it is rounded.
    fn finish(&self, sum: f32, global: f32, bias: Option<f32>) -> f32 {
        let dtype = self.config.output_dtype;
        match (self.fault, bias) {
            (Fault::NoBias, _) | (_, None) => match self.fault {
                Fault::RoundsBeforeGlobalScale => narrow(sum, dtype) * global,
                _ => sum * global,
            },
            (Fault::BiasBeforeGlobalScale, Some(bias)) => (sum + bias) * global,
            (Fault::RoundsBeforeBias, Some(bias)) => narrow(sum * global, dtype) + bias,
            (Fault::RoundsBeforeGlobalScale, Some(bias)) => narrow(sum, dtype) * global + bias,
            (_, Some(bias)) => sum * global + bias,
        }
    }
}

/// Rounds to nearest even.
fn narrow(v: f32, dtype: DType) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(v).to_f32(),
        DType::F16 => f16::from_f32(v).to_f32(),
        _ => v,
    }
}

/// Rounds with the fault, if it is one of rounding.
fn narrow_with(v: f32, dtype: DType, fault: Fault) -> f32 {
    let nearest = narrow(v, dtype);
    let largest = match dtype {
        DType::F16 => 65504.0,
        _ => f32::MAX,
    };
    match (fault, dtype) {
        (Fault::Clamps, _) => nearest.clamp(-largest, largest),
        (Fault::Truncates, DType::Bf16) => f32::from_bits(v.to_bits() & 0xffff_0000),
        (Fault::Truncates, DType::F16) if nearest.abs() > v.abs() => {
            f16::from_bits(f16::from_f32(v).to_bits() - 1).to_f32()
        }
        (Fault::TiesAway, DType::Bf16) => f32::from_bits((v.to_bits() + 0x8000) & 0xffff_0000),
        _ => nearest,
    }
}

impl LinearPlan<Host> for Plan {
    fn rows(&self) -> usize {
        self.rows
    }

    fn workspace_size(&self) -> usize {
        64
    }

    fn apply_weights(
        &self,
        (): (),
        x: LinearInput<'_, Host>,
        bias: Option<&[f32]>,
        mut out: MatrixMut<'_>,
        workspace: &mut [u64],
    ) -> Result<(), Error> {
        let any: &dyn Any = self.weights.as_ref();
        let Some(weights) = any.downcast_ref::<Weights>() else { return Ok(()) };
        let (m, k) = match &x {
            LinearInput::Matrix(x) => (x.rows(), x.cols()),
            LinearInput::Quantized(x) => (x.rows, x.k),
        };
        if self.fault == Fault::NoEmptyBatch && m == 0 {
            return Err(Error::Zero { what: "rows" });
        }
        if self.fault != Fault::UncheckedWorkspace && workspace.len() < 8 {
            return Err(Error::Size { what: "workspace", expected: 8, found: workspace.len() });
        }
        if self.fault != Fault::UncheckedShapes {
            check("columns of x", weights.k, k)?;
            check("columns of out", weights.n, out.cols())?;
            check("rows of out", m, out.rows())?;
            if m > self.rows {
                return Err(Error::Size { what: "rows planned", expected: self.rows, found: m });
            }
        }
        if let Some(bias) = bias {
            check("bias", weights.n, bias.len())?;
        }
        let activation = match x {
            LinearInput::Matrix(x) => self.matrix(x)?,
            LinearInput::Quantized(x) => self.quantized(x)?,
        };
        let calls = self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (stride, cols) = (out.row_stride(), out.cols().min(weights.n));
        let rows = m.min(out.rows()) - usize::from(self.fault == Fault::SkipsLastRow && m % 2 == 1);
        let k = k.min(weights.k);
        for r in 0..rows {
            let (values, scale) = &activation.rows[if self.fault == Fault::RowsWrap { r % 128 } else { r }];
            for n in 0..cols {
                let row = if self.fault == Fault::ColumnsWrap { n & 0xffff } else { n };
                let w = &weights.values[row * weights.k..row * weights.k + k];
                let sum = self.sum(&values[..k], w, m, workspace);
                let nudge = if self.fault == Fault::NotRepeatable && calls % 2 == 1 { 1.01 } else { 1.0 };
                let global = scale * weights.globals[row] * nudge;
                let value = self.finish(sum, global, bias.map(|b| b[n]));
                store(out.data_mut(), r * stride + n, value, self.fault);
            }
            if self.fault == Fault::WritesGaps && stride > cols && r + 1 < rows {
                store(out.data_mut(), r * stride + cols, 0.0, Fault::None);
            }
        }
        Ok(())
    }
}

fn store(out: &mut FloatSliceMut<'_>, at: usize, value: f32, fault: Fault) {
    let dtype = out.dtype();
    let put = |old: f32| narrow_with(if fault == Fault::Accumulates { old + value } else { value }, dtype, fault);
    match out {
        FloatSliceMut::Bf16(s) => s[at] = bf16::from_f32(put(s[at].to_f32())),
        FloatSliceMut::F16(s) => s[at] = f16::from_f32(put(s[at].to_f32())),
        FloatSliceMut::F32(s) => s[at] = put(s[at]),
        other => panic!("no output of {}", other.dtype()),
    }
}
