//! Linear layers from a checkpoint: tensors checked, conventions resolved.

use crate::{
    Checkpoint, Error, TensorDType, TensorView,
    checkpoint::{Module, NanScales, StoredScales, Warning},
    resolve::{Scheme, Storage},
};
use nvfp4_core::{
    ActivationScheme, BLOCK_SIZE, GlobalScale, GlobalScales, LinearScales, NvFp4LinearLayer, NvFp4Weights,
    ScaleLayout, SwizzledScales, gguf,
    pack::{NibbleOrder, swap_nibbles},
};
use std::borrow::Cow;

/// Names of a module's tensors in one dialect.
pub(crate) struct Names {
    pub(crate) packed: &'static str,
    pub(crate) scale: &'static str,
    pub(crate) global: &'static str,
    pub(crate) input: &'static str,
    /// Global scales are divisors.
    pub(crate) encode: bool,
    /// The global scale may be absent (then it is 1).
    pub(crate) optional_global: bool,
}

const MODELOPT: Names = Names {
    packed: "weight",
    scale: "weight_scale",
    global: "weight_scale_2",
    input: "input_scale",
    encode: false,
    optional_global: false,
};
const COMPRESSED_TENSORS: Names = Names {
    packed: "weight_packed",
    scale: "weight_scale",
    global: "weight_global_scale",
    input: "input_global_scale",
    encode: true,
    optional_global: false,
};
const TORCHAO: Names = Names {
    packed: "_weight_qdata",
    scale: "_weight_scale",
    global: "_weight_per_tensor_scale",
    input: "_weight_act_per_tensor_scale",
    encode: false,
    optional_global: true,
};
const GGUF: Names = Names {
    packed: "weight",
    scale: "weight",
    global: "scale",
    input: "input_scale",
    encode: false,
    optional_global: true,
};

/// Names of the tensors of an NVFP4 module, or `None` for another kind of storage.
pub(crate) fn tensor_names(storage: &Storage) -> Option<&'static Names> {
    match storage {
        Storage::ModelOpt => Some(&MODELOPT),
        Storage::CompressedTensors => Some(&COMPRESSED_TENSORS),
        Storage::TorchAo(_) => Some(&TORCHAO),
        Storage::Gguf => Some(&GGUF),
        Storage::Dense(_) | Storage::Foreign(_) | Storage::Incomplete => None,
    }
}

/// The fault, in the tensor.
fn tensor_fault(view: TensorView<'_>, fault: impl Into<String>) -> Error {
    Error::Tensor { path: view.path.into(), tensor: view.name.into(), fault: fault.into() }
}

/// For `map_err`: a fault of core's in the tensor.
fn in_tensor(view: TensorView<'_>) -> impl FnOnce(nvfp4_core::Error) -> Error + use<> {
    let (path, tensor) = (view.path.to_path_buf(), view.name.to_string());
    move |source| Error::Values { path, tensor, source }
}

/// `Ok` if type and shape are as expected.
fn check_form(view: TensorView<'_>, dtypes: &[TensorDType], shape: &[usize]) -> Result<(), Error> {
    if !dtypes.contains(&view.dtype) {
        let names: Vec<_> = dtypes.iter().map(|d| d.name()).collect();
        return Err(tensor_fault(view, format!("expected {}, found {}", names.join(" or "), view.dtype)));
    }
    if view.shape != shape {
        return Err(tensor_fault(view, format!("expected shape {shape:?}, found {:?}", view.shape)));
    }
    Ok(())
}

impl Checkpoint {
    /// An NVFP4 layer by module name. The name of a fused module (`qkv_proj`, `gate_up_proj`) whose parts are stored
    /// separately gives the parts, joined as by [`fused_linear`](Self::fused_linear).
    pub fn linear(&self, name: &str) -> Result<NvFp4LinearLayer<'_>, Error> {
        if self.module(name).is_none()
            && let Some(parts) = self.options.fused_modules.parts(name)
            && parts.iter().any(|part| self.module(part).is_some())
        {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let mut fused = self.fused_linear(&parts)?;
            fused.name = name.into();
            return Ok(fused);
        }
        self.load(self.require(name)?, None)
    }

    /// An NVFP4 layer whose weight is stored fused, with the rows of each part. Its global scales may be one value for all
    /// parts, or one for each, and so may its input scales, of which the largest is taken. Bias and weights stay joined;
    /// the weights know the [rows of each part](NvFp4Weights::stacked_rows), and [`NvFp4Weights::slice_rows`] gives them.
    pub fn linear_with_parts(&self, name: &str, rows: &[usize]) -> Result<NvFp4LinearLayer<'_>, Error> {
        self.load(self.require(name)?, Some(rows))
    }

    /// One layer of several that share their input (q, k, v; gate, up), stacked in the given order. Exact: every part keeps
    /// its own global scale, as one for each of its rows.
    ///
    /// With static activation scales, the largest is taken: it clips nothing, and since a layer's output is multiplied by
    /// the scale that was used, any scale gives the same products up to the rounding of the activations.
    pub fn fused_linear(&self, names: &[&str]) -> Result<NvFp4LinearLayer<'static>, Error> {
        let joined = names.join(" + ");
        let modules = names.iter().map(|name| self.require(name)).collect::<Result<Vec<_>, _>>();
        let modules = modules.map_err(|error| match error {
            Error::NoModule { module, .. } => Error::MissingTensor {
                tensor: format!("{module}.weight"),
                module: module.clone(),
                why: format!("it is a part of the fused layer {joined}"),
            },
            other => other,
        })?;
        for module in &modules {
            if let Scheme::Faulty(error) = &module.scheme {
                return Err((**error).clone());
            }
        }
        let (Some(first), true) = (modules.first(), modules.windows(2).all(|m| m[0].scheme == m[1].scheme)) else {
            let parts: Vec<_> = modules.iter().map(|m| format!("{} is {}", m.name, m.scheme)).collect();
            return Err(Error::MixedParts { module: joined, parts: parts.join(", ") });
        };
        let layers = modules.iter().map(|m| self.load(m, None)).collect::<Result<Vec<_>, _>>()?;
        let activation = match first.scheme {
            Scheme::NvFp4(activation) => activation,
            _ => return Err(not_nvfp4(first)),
        };
        join(joined, &layers, activation)
    }

    /// Loads one module.
    fn load(&self, module: &Module, parts: Option<&[usize]>) -> Result<NvFp4LinearLayer<'_>, Error> {
        let activation = match &module.scheme {
            Scheme::NvFp4(activation) => *activation,
            Scheme::Faulty(error) => return Err((**error).clone()),
            _ => return Err(not_nvfp4(module)),
        };
        let names = tensor_names(&module.storage).ok_or_else(|| not_nvfp4(module))?;
        let name = module.name.as_str();
        let (n, k) = (module.out_features, module.in_features);
        let packed_view = self.part(name, names.packed, "it holds the codes")?;
        if k == 0 || !k.is_multiple_of(BLOCK_SIZE) {
            let fault = format!("k (input features) must be a multiple of {BLOCK_SIZE}, found {k}");
            return Err(tensor_fault(packed_view, fault));
        }

        let (mut packed, mut scales, scale_view): (Cow<'_, [u8]>, _, _);
        if let Storage::Gguf = module.storage {
            let (mut codes, mut bytes) = (vec![0; n * k / 2], vec![0; n * k / BLOCK_SIZE]);
            gguf::to_checkpoint(packed_view.bytes, k / BLOCK_SIZE, &mut codes, &mut bytes)
                .map_err(in_tensor(packed_view))?;
            scale_view = packed_view;
            scales = LinearScales::new(n, k / BLOCK_SIZE, bytes).map_err(in_tensor(scale_view))?;
            packed = codes.into();
        } else {
            check_form(packed_view, &[TensorDType::U8], &[n, k / 2])?;
            packed = packed_view.bytes.into();
            if self.options.nibble_order == NibbleOrder::HighFirst {
                swap_nibbles(packed.to_mut());
            }
            scale_view = self.part(name, names.scale, "it holds the block scales")?;
            scales = self.stored_scales(module, scale_view)?;
        }
        match self.options.nan_scales {
            NanScales::Refuse => scales = scales.checked().map_err(in_tensor(scale_view))?,
            NanScales::Repair => {
                let repair = scales.repair_nan(&packed).map_err(in_tensor(scale_view))?;
                if repair.clamped_blocks > 0 {
                    self.warn(Warning::ClampedBlocks {
                        tensor: scale_view.name.into(),
                        blocks: repair.clamped_blocks,
                        first: repair.first_clamped,
                    });
                }
            }
        }

        let global = self.global_scales(module, names, &packed, parts)?;
        let input = self.tensor(&format!("{name}.{}", names.input));
        let input_scale = match activation {
            ActivationScheme::Nvfp4Static => {
                let why =
                    "static W4A4 activations need it (weight-only and dynamic checkpoints say so in their config)";
                Some(input_scale(self.part(name, names.input, why)?, names.encode, parts)?)
            }
            _ => {
                if let Some(input) = input
                    && activation == ActivationScheme::Unquantized
                {
                    self.warn(Warning::IgnoredInputScale { tensor: input.name.into() });
                }
                None
            }
        };
        if let Some(view) = self.tensor(&format!("{name}.pre_quant_scale")) {
            let reason = format!(
                "`{}` (AWQ) scales the input before it is quantized, which is not supported; fold it into the layer before",
                view.name
            );
            return Err(Error::Unsupported { module: name.into(), reason });
        }
        let mut weights = NvFp4Weights::new(n, k, packed, scales, global).map_err(in_tensor(packed_view))?;
        if let Some(rows) = parts {
            weights = weights.with_stacked_rows(rows).map_err(in_tensor(packed_view))?;
        }
        Ok(NvFp4LinearLayer { name: name.into(), weights, activation, input_scale, bias: self.bias(name, n)? })
    }

    /// Block scales as the file has them, row-major.
    fn stored_scales<'a>(&self, module: &Module, view: TensorView<'a>) -> Result<LinearScales<'a>, Error> {
        let (rows, cols) = (module.out_features, module.in_features / BLOCK_SIZE);
        let swizzled = match &module.storage {
            Storage::TorchAo(parameter) => parameter.swizzled,
            _ => self.options.stored_scales == StoredScales::Swizzled128x4,
        };
        let dtypes = [TensorDType::F8E4M3, TensorDType::U8];
        if !swizzled {
            check_form(view, &dtypes, &[rows, cols])?;
            return LinearScales::new(rows, cols, view.bytes).map_err(in_tensor(view));
        }
        // The container's shape differs by producer; its bytes are those of the padded tiles.
        check_form(view, &dtypes, view.shape)?;
        SwizzledScales::from_bytes(ScaleLayout::Swizzled128x4, rows, cols, view.bytes.to_vec())
            .and_then(|tiles| tiles.unswizzle())
            .map_err(in_tensor(view))
    }

    /// Global scales: one value, one for each part, or one for each row.
    fn global_scales(
        &self,
        module: &Module,
        names: &Names,
        packed: &[u8],
        parts: Option<&[usize]>,
    ) -> Result<GlobalScales, Error> {
        let (name, n) = (module.name.as_str(), module.out_features);
        if let Some(parts) = parts {
            let rows = parts.iter().fold(0usize, |sum, &rows| sum.saturating_add(rows));
            if rows != n || parts.contains(&0) {
                let reason = format!(
                    "its parts have {rows} rows in all, the weight has {n}; found {parts:?}, of which none may be zero"
                );
                return Err(Error::Unsupported { module: name.into(), reason });
            }
        }
        let view = match self.tensor(&format!("{name}.{}", names.global)) {
            // torchao's metadata lists the scale of a parameter that has one.
            None if names.optional_global
                && !matches!(&module.storage, Storage::TorchAo(parameter) if parameter.per_tensor_scale) =>
            {
                return Ok(GlobalScales::per_tensor(n, GlobalScale::ONE));
            }
            _ => self.part(name, names.global, "it holds the weight's global scale")?,
        };
        if view.dtype != TensorDType::F32 {
            return Err(tensor_fault(view, format!("expected F32, found {}", view.dtype)));
        }
        let values = view.floats()?;
        let rows: Vec<usize> = match (values.len(), parts) {
            (1, _) => vec![n],
            (count, Some(parts)) if count == parts.len() => parts.to_vec(),
            (count, _) if count == n => vec![1; n],
            (count, parts) => return Err(not_one_or_each(view, count, parts)),
        };
        let mut first = 0;
        let mut scales = Vec::with_capacity(rows.len());
        for (rows, value) in rows.into_iter().zip(values) {
            let width = module.in_features / 2;
            let codes = packed.get(first * width..(first + rows) * width).unwrap_or_default();
            first += rows;
            // Producers write 0 for modules that saw no data; without any code it does not matter.
            let scale = if value == 0.0 && codes.iter().all(|byte| byte & 0x77 == 0) {
                self.warn(Warning::DeadTensor { tensor: view.name.into() });
                GlobalScale::ONE
            } else {
                global_scale(value, names.encode).map_err(in_tensor(view))?
            };
            scales.push((rows, scale));
        }
        Ok(GlobalScales::from_parts(scales))
    }

    fn bias(&self, name: &str, n: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(view) = self.tensor(&format!("{name}.bias")) else { return Ok(None) };
        check_form(view, &[TensorDType::Bf16, TensorDType::F16, TensorDType::F32], &[n])?;
        view.floats().map(Some)
    }
}

fn global_scale(value: f32, encode: bool) -> Result<GlobalScale, nvfp4_core::Error> {
    if encode { GlobalScale::from_encode(value) } else { GlobalScale::from_decode(value) }
}

/// The input scale: one value, or the largest of one for each part of a fused module. The parts have the same input, and
/// the largest clips nothing.
fn input_scale(view: TensorView<'_>, encode: bool, parts: Option<&[usize]>) -> Result<GlobalScale, Error> {
    if view.dtype != TensorDType::F32 {
        return Err(tensor_fault(view, format!("expected F32, found {}", view.dtype)));
    }
    let values = view.floats()?;
    if values.len() != 1 && parts.is_none_or(|parts| parts.len() != values.len()) {
        return Err(not_one_or_each(view, values.len(), parts));
    }
    let scales = values.into_iter().map(|v| global_scale(v, encode)).collect::<Result<Vec<_>, _>>();
    let scales = scales.map_err(in_tensor(view))?;
    scales.into_iter().reduce(larger).ok_or_else(|| not_one_or_each(view, 0, parts))
}

/// A scale tensor that holds neither one value nor one for each part.
fn not_one_or_each(view: TensorView<'_>, found: usize, parts: Option<&[usize]>) -> Error {
    let hint = match parts {
        Some(parts) => format!("the module has {} parts", parts.len()),
        None => "if the module is fused, load it with the rows of its parts".into(),
    };
    let shape = view.shape;
    tensor_fault(view, format!("expected one value, or one for each part; found {found} ({shape:?}); {hint}"))
}

/// The scale that covers the larger range.
fn larger(a: GlobalScale, b: GlobalScale) -> GlobalScale {
    if b.decode().get() > a.decode().get() { b } else { a }
}

/// Why a module that is not packed NVFP4 does not load.
fn not_nvfp4(module: &Module) -> Error {
    if let Some(found) = &module.contradiction {
        let (config, tensors) = (found.config.clone(), found.tensors.clone());
        return Error::Contradiction { module: module.name.clone(), config, tensors };
    }
    let hint = match &module.storage {
        Storage::Dense(_) => {
            "; run it as an unquantized layer, and list it among the ignored modules of the config"
        }
        Storage::Foreign(format) => format.hint(),
        _ => "",
    };
    Error::NotNvFp4 { module: module.name.clone(), found: module.scheme.to_string(), hint: hint.into() }
}

/// Stacks layers that share their input. `name` is that of the result.
pub(crate) fn join(
    name: String,
    layers: &[NvFp4LinearLayer<'_>],
    activation: ActivationScheme,
) -> Result<NvFp4LinearLayer<'static>, Error> {
    /// An error unless all layers are alike in what `of` says of them.
    fn alike<T: PartialEq>(
        name: &str,
        layers: &[NvFp4LinearLayer<'_>],
        of: impl Fn(&NvFp4LinearLayer<'_>) -> T,
        words: impl Fn(&T) -> String,
    ) -> Result<(), Error> {
        if layers.windows(2).all(|pair| of(&pair[0]) == of(&pair[1])) {
            return Ok(());
        }
        let parts: Vec<_> = layers.iter().map(|l| format!("{} {}", l.name, words(&of(l)))).collect();
        Err(Error::MixedParts { module: name.into(), parts: parts.join(", ") })
    }
    alike(&name, layers, |l| l.weights.in_features(), |k| format!("has {k} input features"))?;
    alike(&name, layers, |l| l.activation, |a| format!("is NVFP4 {a}"))?;
    alike(&name, layers, |l| l.bias.is_some(), |b| format!("has {} bias", if *b { "a" } else { "no" }))?;
    let with_bias = layers.iter().any(|l| l.bias.is_some());
    let weights: Vec<NvFp4Weights<'_>> = layers.iter().map(|l| l.weights.clone()).collect();
    let weights = NvFp4Weights::concat_rows(&weights)
        .map_err(|source| Error::Unsupported { module: name.clone(), reason: source.to_string() })?;
    Ok(NvFp4LinearLayer {
        name,
        weights,
        activation,
        input_scale: layers.iter().filter_map(|l| l.input_scale).reduce(larger),
        bias: with_bias.then(|| layers.iter().filter_map(|l| l.bias.as_deref()).flatten().copied().collect()),
    })
}
