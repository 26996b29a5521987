//! config.json and hf_quant_config.json.

use super::{CheckpointFormat, QuantizedModule, ignore_list::ignore_list};
use crate::{
    ModelError,
    config::{compressed_tensors, modelopt, pattern::FusedModules},
    write::{CheckpointWriter, WriteError},
};
use serde_json::{Map, Value, json};

/// The version of nvidia-modelopt whose format is written. Loaders decide by the producer's name, which must be
/// `modelopt`, and some by its version.
const MODELOPT_VERSION: &str = "0.47.0";

/// How a checkpoint stores its key-value cache. FP8 with one scale is the only kind that both formats have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KvCacheScheme {
    Fp8,
}

/// What the configuration files of a checkpoint say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Configuration {
    pub(crate) format: CheckpointFormat,
    /// The quantized modules, at least one.
    pub(crate) modules: Vec<QuantizedModule>,
    /// The linear modules that are not quantized.
    pub(crate) dense: Vec<String>,
    pub(crate) kv_cache: Option<KvCacheScheme>,
}

impl Configuration {
    /// An error if a reader of the format, going by the configuration, takes a quantized module for a dense one.
    /// (vLLM's ModelOpt loader never takes vision towers for quantized, whatever the configuration says.)
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let mut config = Map::new();
        self.apply(&mut config);
        let quantization = config.remove("quantization_config").unwrap_or_default();
        let fused = FusedModules::default();
        let reads_dense: Box<dyn Fn(&str) -> bool> = match self.format {
            CheckpointFormat::ModelOpt => match modelopt::Config::parse(&quantization) {
                Ok(config) => Box::new(move |name| config.is_excluded(name, &fused) != Ok(false)),
                Err(_) => Box::new(|_| true),
            },
            CheckpointFormat::CompressedTensors => match compressed_tensors::Config::parse(&quantization) {
                Ok(config) => Box::new(move |name| {
                    config.is_ignored(name, &fused) != Ok(false)
                        || config.groups_of(name, "Linear", &fused).next().is_none()
                }),
                Err(_) => Box::new(|_| true),
            },
        };
        match self.modules.iter().find(|m| reads_dense(&m.name)) {
            None => Ok(()),
            Some(module) => Err(ModelError::Inexpressible {
                module: module.name.clone(),
                reason: "by the format's rules a module of this name is not quantized; leave it dense or write another format".into(),
            }),
        }
    }

    /// Sets the quantization in `config` (the model's config.json, empty if it had none), and returns
    /// hf_quant_config.json if the format has one.
    pub(crate) fn apply(&self, config: &mut Map<String, Value>) -> Option<Value> {
        remove_quantization(config);
        let ignore = ignore_list(self.format, &self.dense, &self.modules);
        let (quantization, legacy) = match self.format {
            CheckpointFormat::ModelOpt => modelopt_config(&self.modules, &ignore, self.kv_cache),
            CheckpointFormat::CompressedTensors => {
                (compressed_tensors_config(&self.modules, &ignore, self.kv_cache), None)
            }
        };
        config.insert("quantization_config".into(), quantization);
        legacy
    }

    /// Writes config.json and what else the format has.
    pub(crate) fn write(
        &self,
        mut config: Map<String, Value>,
        writer: &CheckpointWriter,
    ) -> Result<(), WriteError> {
        let legacy = self.apply(&mut config);
        write_json(writer, "config.json", &Value::Object(config))?;
        legacy.map_or(Ok(()), |legacy| write_json(writer, "hf_quant_config.json", &legacy))
    }
}

/// Removes every statement about quantization from a model's config.json.
pub(crate) fn remove_quantization(config: &mut Map<String, Value>) {
    for key in ["quantization_config", "compression_config"] {
        config.remove(key);
    }
    // Multimodal models may keep their language model's statement one level down.
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.remove("quantization_config");
    }
}

/// Writes a JSON file of the model directory.
pub(crate) fn write_json(writer: &CheckpointWriter, name: &str, value: &Value) -> Result<(), WriteError> {
    writer.write_file(name, format!("{value:#}\n").as_bytes())
}

/// Modules by scheme: W4A4, W4A16.
fn by_scheme(modules: &[QuantizedModule]) -> [Vec<&str>; 2] {
    let names = |quantized: bool| {
        modules.iter().filter(|m| m.quantized_activations == quantized).map(|m| m.name.as_str()).collect()
    };
    [names(true), names(false)]
}

fn modelopt_config(
    modules: &[QuantizedModule],
    ignore: &[String],
    kv_cache: Option<KvCacheScheme>,
) -> (Value, Option<Value>) {
    let arguments = json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 });
    let producer = json!({ "name": "modelopt", "version": MODELOPT_VERSION });
    let algorithms = ["NVFP4", "W4A16_NVFP4"];
    let [w4a4, w4a16] = by_scheme(modules);
    let mut groups = Map::new();
    let mut layers = Map::new();
    let mixed = !w4a4.is_empty() && !w4a16.is_empty();
    for ((names, algorithm), quantized_activations) in [w4a4, w4a16].into_iter().zip(algorithms).zip([true, false])
    {
        if names.is_empty() {
            continue;
        }
        let mut group = json!({ "weights": arguments });
        group["targets"] = if mixed { json!(names) } else { json!(["Linear"]) };
        if quantized_activations {
            group["input_activations"] = arguments.clone();
        }
        groups.insert(format!("group_{}", groups.len()), group);
        for name in names {
            layers.insert(name.into(), json!({ "quant_algo": algorithm, "group_size": 16 }));
        }
    }
    let algorithm = match (mixed, modules.first().is_some_and(|m| m.quantized_activations)) {
        (true, _) => "MIXED_PRECISION",
        (false, true) => "NVFP4",
        (false, false) => "W4A16_NVFP4",
    };
    let mut quantization = json!({
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "config_groups": groups,
        "ignore": ignore,
        "producer": producer,
    });
    let mut legacy = json!({
        "quant_algo": algorithm,
        "kv_cache_quant_algo": kv_cache.map(|KvCacheScheme::Fp8| "FP8"),
        "group_size": 16,
        "exclude_modules": ignore,
    });
    if let Some(KvCacheScheme::Fp8) = kv_cache {
        quantization["kv_cache_scheme"] = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
    }
    if mixed {
        quantization["quantized_layers"] = Value::Object(layers.clone());
        legacy["quantized_layers"] = Value::Object(layers);
    }
    (quantization, Some(json!({ "producer": producer, "quantization": legacy })))
}

fn compressed_tensors_config(
    modules: &[QuantizedModule],
    ignore: &[String],
    kv_cache: Option<KvCacheScheme>,
) -> Value {
    let arguments = |dynamic: Value, observer: &str| {
        json!({
            "num_bits": 4,
            "type": "float",
            "symmetric": true,
            "group_size": 16,
            "strategy": "tensor_group",
            "block_structure": null,
            "dynamic": dynamic,
            "actorder": null,
            "scale_dtype": "torch.float8_e4m3fn",
            "zp_dtype": null,
            "observer": observer,
            "observer_kwargs": {},
        })
    };
    let [w4a4, w4a16] = by_scheme(modules);
    let mixed = !w4a4.is_empty() && !w4a16.is_empty();
    let mut groups = Map::new();
    for (names, quantized_activations) in [(w4a4, true), (w4a16, false)] {
        if names.is_empty() {
            continue;
        }
        let input = match quantized_activations {
            true => arguments(json!("local"), "static_minmax"),
            false => Value::Null,
        };
        let group = json!({
            "targets": if mixed { json!(names) } else { json!(["Linear"]) },
            "weights": arguments(json!(false), "memoryless_minmax"),
            "input_activations": input,
            "output_activations": null,
            "format": "nvfp4-pack-quantized",
        });
        groups.insert(format!("group_{}", groups.len()), group);
    }
    let kv_cache_scheme = kv_cache.map(|KvCacheScheme::Fp8| {
        json!({ "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true })
    });
    json!({
        "config_groups": groups,
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": kv_cache_scheme,
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "ignore": ignore,
    })
}
