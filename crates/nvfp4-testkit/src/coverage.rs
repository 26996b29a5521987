//! Which test covers which file of the golden data.

/// (file in the golden directory, source of the tests that compare with it, from the root of the workspace).
///
/// A test holds this table against the directory and the sources, so that no file is added, lost or left unused
/// without anyone noticing.
pub const COVERAGE: &[(&str, &str)] = &[
    ("apply_trace.json", "crates/nvfp4-core/tests/vllm.rs"),
    ("ckpt_ct/config.json", CHECKPOINT),
    ("ckpt_ct/expected_dequant_f32.safetensors", CHECKPOINT),
    ("ckpt_ct/model.safetensors", CHECKPOINT),
    ("ckpt_ct_w4a16/config.json", CHECKPOINT),
    ("ckpt_ct_w4a16/expected_dequant_f32.safetensors", CHECKPOINT),
    ("ckpt_ct_w4a16/model.safetensors", CHECKPOINT),
    ("ckpt_modelopt/config.json", CHECKPOINT),
    ("ckpt_modelopt/expected_dequant_f32.safetensors", CHECKPOINT),
    ("ckpt_modelopt/hf_quant_config.json", CHECKPOINT),
    ("ckpt_modelopt/model.safetensors", CHECKPOINT),
    ("ckpt_modelopt_w4a16/config.json", CHECKPOINT),
    ("ckpt_modelopt_w4a16/expected_dequant_f32.safetensors", CHECKPOINT),
    ("ckpt_modelopt_w4a16/hf_quant_config.json", CHECKPOINT),
    ("ckpt_modelopt_w4a16/model.safetensors", CHECKPOINT),
    ("ckpt_torchao/expected_dequant_f32.safetensors", CHECKPOINT),
    ("ckpt_torchao/model.safetensors", CHECKPOINT),
    ("codec.safetensors", NUMERICS),
    ("compressed_tensors_0_17.safetensors", NUMERICS),
    ("compressed_tensors_0_20.safetensors", NUMERICS),
    ("dequant.safetensors", NUMERICS),
    ("fi_dequant.safetensors", NUMERICS),
    ("gguf_nvfp4.safetensors", NUMERICS),
    ("is_supported.json", "crates/nvfp4-core/tests/vllm.rs"),
    ("linear_emulated.safetensors", NUMERICS),
    ("loading.json", "crates/nvfp4-checkpoint/tests/golden_loading.rs"),
    ("modelopt.safetensors", NUMERICS),
    ("padding.safetensors", "crates/nvfp4-core/tests/layouts/padding.rs"),
    ("process_weights.safetensors", "crates/nvfp4-core/tests/layouts/process_weights.rs"),
    ("quant_keys.json", "crates/nvfp4-core/tests/vllm.rs"),
    ("quant_ref.safetensors", NUMERICS),
    ("selection.json", "crates/nvfp4-core/tests/vllm.rs"),
    ("sf_layout.safetensors", "crates/nvfp4-core/tests/layouts/block_scale.rs"),
    ("shuffle.safetensors", "crates/nvfp4-core/tests/layouts/shuffle.rs"),
    ("swizzle.safetensors", "crates/nvfp4-core/tests/layouts/block_scale.rs"),
    ("torchao.safetensors", "crates/nvfp4-core/tests/layouts/block_scale.rs"),
    ("torchao.safetensors", NUMERICS),
    ("w4a16_prepare.safetensors", "crates/nvfp4-core/tests/layouts/w4a16.rs"),
];

const NUMERICS: &str = "crates/nvfp4-core/tests/golden_numerics.rs";
const CHECKPOINT: &str = "crates/nvfp4-checkpoint/tests/golden_checkpoints.rs";
