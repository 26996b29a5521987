//! A checkpoint: its files, its configuration, its linear modules.

use crate::{
    Error, Source, TensorView,
    config::{self, QuantizationConfig, pattern::FusedModules, torchao},
    foreign_format::{ForeignFormat, foreign_format},
    gguf,
    quantize::is_embedding,
    resolve::{Contradiction, Scheme, Storage, resolve},
};
use nvfp4_core::pack::NibbleOrder;
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The ecosystem that wrote a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dialect {
    /// NVIDIA ModelOpt.
    ModelOpt,
    /// compressed-tensors (llm-compressor).
    CompressedTensors,
    /// torchao.
    TorchAo,
    /// GGUF (llama.cpp).
    Gguf,
    /// No module is NVFP4.
    Unquantized,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ModelOpt => "ModelOpt",
            Self::CompressedTensors => "compressed-tensors",
            Self::TorchAo => "torchao",
            Self::Gguf => "GGUF",
            Self::Unquantized => "unquantized",
        })
    }
}

/// Order of block scales in a checkpoint's files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum StoredScales {
    /// Row-major, as ModelOpt, compressed-tensors and llama.cpp write; torchao says itself.
    #[default]
    Linear,
    /// In 128x4 tiles, as ComfyUI writes. The files do not tell: shapes that fill whole tiles look alike.
    Swizzled128x4,
}

/// What to do with NaN block scales.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum NanScales {
    /// They are an error.
    #[default]
    Refuse,
    /// They become 448. Exact for blocks of zeros (some ModelOpt versions write NaN there); where a block's values are
    /// clamped by it, there is a warning.
    Repair,
}

/// How to read a checkpoint whose files do not say everything.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Which nibble comes first.
    pub nibble_order: NibbleOrder,
    /// Order of block scales.
    pub stored_scales: StoredScales,
    /// What to do with NaN block scales.
    pub nan_scales: NanScales,
    /// Modules that are fused, by the last component of their names.
    pub fused_modules: FusedModules,
    /// Prefixes of module names, and the prefixes that the configuration uses for the same modules, e.g.
    /// `model.language_model.` → `language_model.model.`.
    pub rename: Vec<(String, String)>,
}

impl OpenOptions {
    /// With this nibble first.
    pub const fn with_nibble_order(mut self, order: NibbleOrder) -> Self {
        self.nibble_order = order;
        self
    }
    /// With block scales in this order.
    pub const fn with_stored_scales(mut self, scales: StoredScales) -> Self {
        self.stored_scales = scales;
        self
    }
    /// With NaN block scales refused or repaired.
    pub const fn with_nan_scales(mut self, policy: NanScales) -> Self {
        self.nan_scales = policy;
        self
    }
    /// With these modules fused.
    pub fn with_fused_modules(mut self, fused: FusedModules) -> Self {
        self.fused_modules = fused;
        self
    }
    /// With these prefixes of module names, each with the prefix that the configuration uses.
    pub fn with_rename<A: Into<String>, B: Into<String>>(
        mut self,
        rename: impl IntoIterator<Item = (A, B)>,
    ) -> Self {
        self.rename = rename.into_iter().map(|(from, to)| (from.into(), to.into())).collect();
        self
    }
}

/// Something that was put right or left out while loading.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// A tensor whose codes are all zero has the global scale 0. Its values are 0 whatever the scale.
    DeadTensor {
        /// The global scale's tensor.
        tensor: String,
    },
    /// A weight-only module has an input scale, which is not used.
    IgnoredInputScale {
        /// The input scale's tensor.
        tensor: String,
    },
    /// NaN block scales were replaced, and values of some blocks are clamped by that.
    ClampedBlocks {
        /// The block scales' tensor.
        tensor: String,
        /// How many blocks.
        blocks: usize,
        /// Row and column of the first.
        first: Option<(usize, usize)>,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeadTensor { tensor } => {
                write!(f, "`{tensor}` is 0 and all codes are zero: the module gives zeros")
            }
            Self::IgnoredInputScale { tensor } => write!(f, "`{tensor}` is ignored: the module is weight-only"),
            Self::ClampedBlocks { tensor, blocks, first } => {
                write!(f, "`{tensor}`: {blocks} NaN scales were set to 448, which clamps values")?;
                first.map_or(Ok(()), |(row, column)| write!(f, "; the first is at row {row}, column {column}"))
            }
        }
    }
}

/// A linear module of a checkpoint.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Module {
    /// Its name, e.g. `model.layers.0.mlp.down_proj`.
    pub name: String,
    /// Output features, 0 if they cannot be told.
    pub out_features: usize,
    /// Input features, 0 if they cannot be told.
    pub in_features: usize,
    /// How it is stored and meant to be run.
    pub scheme: Scheme,
    /// Bytes of its tensors.
    pub bytes: usize,
    /// What the configuration and the tensors disagree about, if they do: packed NVFP4 that the configuration excludes,
    /// dense or FP8 weights that it calls NVFP4, and the like.
    ///
    /// Packed NVFP4 is faulty then, since it cannot be told how its activations are meant, and does not load. A dense
    /// weight is what it is: [`dense_weight`](Checkpoint::dense_weight) gives it, [`linear`](Checkpoint::linear) does not.
    pub contradiction: Option<Contradiction>,
    pub(crate) storage: Storage,
}

/// What the tensors of a module are.
struct Stored {
    storage: Storage,
    out_features: usize,
    in_features: usize,
}

impl Stored {
    fn new(storage: Storage, (out_features, in_features): (usize, usize)) -> Self {
        Self { storage, out_features, in_features }
    }
}

/// An opened checkpoint. Tensors stay in the mapped files until they are used.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    source: Source,
    config: Option<QuantizationConfig>,
    dialect: Dialect,
    modules: BTreeMap<String, Module>,
    pub(crate) options: OpenOptions,
    warnings: Mutex<Vec<Warning>>,
}

/// The directory of a checkpoint that was opened as `path`.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        _ if path.is_dir() => path,
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Suffixes of the tensors that a quantized module may have.
const PARTS: &[&str] = &[
    "weight_packed",
    "weight_scale_2",
    "weight_global_scale",
    "weight_scale",
    "input_scale",
    "input_global_scale",
    "_weight_qdata",
    "_weight_scale",
    "_weight_per_tensor_scale",
    "_weight_act_per_tensor_scale",
];

impl Checkpoint {
    /// Opens a directory, a safetensors file, an index of shards, or a GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, OpenOptions::default())
    }

    /// As [`open`](Self::open), told what the files do not say.
    pub fn open_with(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        let source = Source::open(path)?;
        let config = Self::read_config(path, &source)?;
        Ok(Self::with_config(path, source, config, options))
    }

    /// What the configuration files beside a source say.
    pub(crate) fn read_config(path: &Path, source: &Source) -> Result<Option<QuantizationConfig>, Error> {
        if source.is_gguf() {
            return Ok(None);
        }
        Ok(match config::read(directory(path))? {
            // torchao describes its parameters in the weight files.
            Some((QuantizationConfig::Other(method), _)) if method == "torchao" => None,
            other => other.map(|(config, _)| config),
        })
    }

    /// A checkpoint of these tensors, with this configuration; without one, the tensors alone decide.
    pub(crate) fn with_config(
        path: &Path,
        source: Source,
        config: Option<QuantizationConfig>,
        options: OpenOptions,
    ) -> Self {
        let mut checkpoint = Self {
            path: path.into(),
            source,
            config,
            dialect: Dialect::Unquantized,
            modules: BTreeMap::new(),
            options,
            warnings: Mutex::default(),
        };
        checkpoint.modules = checkpoint.find_modules();
        checkpoint.dialect = checkpoint.find_dialect();
        checkpoint
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The ecosystem that wrote it.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// What the configuration says, if there is one.
    pub const fn config(&self) -> Option<&QuantizationConfig> {
        self.config.as_ref()
    }

    /// The files and tensors.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.source.tensors()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.source.tensor(name)
    }

    /// Every linear module with its scheme, by name: a table to hold against the model card.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.values()
    }

    /// A module by name.
    pub fn module(&self, name: &str) -> Option<&Module> {
        self.modules.get(name)
    }

    /// The weight of an unquantized module. A packed one is an error that says so. What the configuration says of the
    /// module does not matter; see [`Module::contradiction`].
    pub fn dense_weight(&self, module: &str) -> Result<TensorView<'_>, Error> {
        let found = self.require(module)?;
        match (&found.scheme, self.tensor(&format!("{module}.weight"))) {
            (Scheme::Dense(_), Some(weight)) => Ok(weight),
            (Scheme::Faulty(error), _) => Err((**error).clone()),
            (scheme, _) => Err(Error::Unsupported {
                module: module.into(),
                reason: format!(
                    "asked for as a dense module, but it is {scheme}: packed FP4 has half as many columns"
                ),
            }),
        }
    }

    /// What was put right or left out so far.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn warn(&self, warning: Warning) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// The module, or the error that names those like it.
    pub(crate) fn require(&self, module: &str) -> Result<&Module, Error> {
        self.modules.get(module).ok_or_else(|| {
            let last = module.rsplit('.').next().unwrap_or(module);
            let like = |name: &&String| name.ends_with(last) || name.starts_with(module);
            Error::NoModule {
                module: module.into(),
                near: self.modules.keys().filter(like).take(3).cloned().collect(),
            }
        })
    }

    /// A tensor that a module needs.
    pub(crate) fn part(&self, module: &str, suffix: &str, why: &str) -> Result<TensorView<'_>, Error> {
        let tensor = format!("{module}.{suffix}");
        self.tensor(&tensor).ok_or_else(|| Error::MissingTensor { module: module.into(), tensor, why: why.into() })
    }

    fn find_modules(&self) -> BTreeMap<String, Module> {
        let mut names: Vec<&str> = Vec::new();
        for tensor in self.source.tensors() {
            let Some((module, suffix)) = tensor.name.rsplit_once('.') else { continue };
            let weight = matches!(suffix, "weight" | "qweight" | "dqweight") && tensor.shape.len() == 2;
            if (weight || PARTS.contains(&suffix)) && names.last() != Some(&module) {
                names.push(module);
            }
        }
        names.sort_unstable();
        names.dedup();
        names.into_iter().filter_map(|name| Some((name.to_string(), self.find_module(name)?))).collect()
    }

    /// A module from its tensors; `None` if it is no linear module.
    fn find_module(&self, name: &str) -> Option<Module> {
        let tensor = |suffix: &str| self.source.tensor(&format!("{name}.{suffix}"));
        let has_input_scale = ["input_scale", "input_global_scale", "_weight_act_per_tensor_scale"]
            .into_iter()
            .any(|suffix| tensor(suffix).is_some());
        let (scheme, contradiction, Stored { storage, out_features, in_features }) = match self.find_storage(name) {
            Ok(None) => return None,
            Err(error) => (Scheme::Faulty(Box::new(error)), None, Stored::new(Storage::Incomplete, (0, 0))),
            Ok(Some(stored)) => {
                let (names, fused) = (self.config_names(name), &self.options.fused_modules);
                let config = self.config.as_ref();
                let (scheme, contradiction) =
                    resolve(config, &names, fused, &stored.storage, has_input_scale, is_embedding(name));
                (scheme, contradiction, stored)
            }
        };
        let suffixes = PARTS.iter().chain(&["weight", "bias", "scale", "qweight"]);
        let bytes = suffixes.filter_map(|suffix| tensor(suffix)).map(|t| t.bytes.len()).sum();
        Some(Module { name: name.into(), out_features, in_features, scheme, bytes, contradiction, storage })
    }

    /// How a module is stored; `None` if it is no linear module. The error is for tensors that make no whole module.
    fn find_storage(&self, name: &str) -> Result<Option<Stored>, Error> {
        let tensor = |suffix: &str| self.source.tensor(&format!("{name}.{suffix}"));
        let size = |view: TensorView<'_>, dimension: usize| view.shape.get(dimension).copied().unwrap_or(0);
        let shape = |view: TensorView<'_>, per_byte: usize| (size(view, 0), size(view, 1).saturating_mul(per_byte));
        let missing = |suffix: &str| Error::MissingTensor {
            module: name.into(),
            tensor: format!("{name}.{suffix}"),
            why: "the module has other tensors of a quantized module".into(),
        };
        let unsupported = |reason: String| Error::Unsupported { module: name.into(), reason };

        if let Some((kind, row)) = tensor("weight").and_then(|weight| self.source.gguf_type(weight.name)) {
            let Some(weight) = tensor("weight") else { return Ok(None) };
            let storage = match (kind == gguf::NVFP4, weight.dtype.as_float()) {
                (true, _) if weight.shape.len() == 2 => Storage::Gguf,
                (false, Some(dtype)) => Storage::Dense(dtype),
                _ if weight.shape.len() == 2 => Storage::Foreign(ForeignFormat::Gguf(kind.name.into())),
                _ => Storage::Foreign(ForeignFormat::Gguf(format!("{} of shape {:?}", kind.name, weight.shape))),
            };
            return Ok(Some(Stored::new(storage, (size(weight, 0), row))));
        }
        if let Some(format) = foreign_format(tensor) {
            // Only what holds a value in each element shows its shape.
            let features = tensor("weight").filter(|_| format == ForeignFormat::Fp8).map(|w| shape(w, 1));
            return Ok(Some(Stored::new(Storage::Foreign(format), features.unwrap_or_default())));
        }
        if let Some(packed) = tensor("weight_packed") {
            return Ok(Some(Stored::new(Storage::CompressedTensors, shape(packed, 2))));
        }
        let parameter = torchao::parameter(self.source.metadata(), &format!("{name}.weight"));
        if let Some(packed) = tensor("_weight_qdata") {
            return match parameter.map_err(unsupported)? {
                Some(parameter) => Ok(Some(Stored::new(Storage::TorchAo(parameter), shape(packed, 2)))),
                None => {
                    Err(unsupported(format!("the file's metadata does not describe the parameter `{name}.weight`")))
                }
            };
        }
        if let Ok(Some(_)) = parameter {
            return Err(missing("_weight_qdata"));
        }
        if let Some(weight) = tensor("weight") {
            return Ok(Some(match weight.dtype.as_float() {
                Some(dtype) => Stored::new(Storage::Dense(dtype), shape(weight, 1)),
                None => Stored::new(Storage::ModelOpt, shape(weight, 2)),
            }));
        }
        let has = |suffixes: &[&str]| suffixes.iter().any(|suffix| tensor(suffix).is_some());
        if has(&["weight_global_scale", "input_global_scale"]) {
            Err(missing("weight_packed"))
        } else if has(&["weight_scale_2", "weight_scale"]) {
            Err(missing("weight"))
        } else if PARTS.iter().any(|part| part.starts_with('_') && tensor(part).is_some()) {
            Err(missing("_weight_qdata"))
        } else {
            Ok(None)
        }
    }

    /// A module's name, and those under which the configuration may know it.
    pub(crate) fn config_names(&self, name: &str) -> Vec<String> {
        let renamed = self.options.rename.iter();
        let renamed = renamed.filter_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from.as_str())?)));
        std::iter::once(name.to_string()).chain(renamed).collect()
    }

    fn find_dialect(&self) -> Dialect {
        match &self.config {
            _ if self.source.is_gguf() => return Dialect::Gguf,
            Some(QuantizationConfig::ModelOpt(_)) => return Dialect::ModelOpt,
            Some(QuantizationConfig::CompressedTensors(_)) => return Dialect::CompressedTensors,
            _ => {}
        }
        let dialect = |module: &Module| match module.storage {
            Storage::ModelOpt => Some(Dialect::ModelOpt),
            Storage::CompressedTensors => Some(Dialect::CompressedTensors),
            Storage::TorchAo(_) => Some(Dialect::TorchAo),
            _ => None,
        };
        self.modules.values().find_map(dialect).unwrap_or(Dialect::Unquantized)
    }
}
