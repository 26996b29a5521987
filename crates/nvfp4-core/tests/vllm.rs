//! Every recorded answer of vLLM 0.33.0, field for field.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{
    Error, QuantKey,
    requirements::REQUIREMENTS,
    vllm::{
        Applied, Call, Environment, GemmOperands, KERNELS, Kernel, Platform, Request, TensorInfo, TorchDType,
        apply_weights, init_nvfp4_linear_kernel, process_weights_after_loading,
    },
};
use nvfp4_testkit::golden;
use serde_json::{Map, Value, json};

fn rows(file: &Value) -> &Vec<Value> {
    let rows = file["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    rows
}

/// `Some` text of an optional field.
fn text<'a>(row: &'a Value, field: &str) -> Option<&'a str> {
    row.get(field).and_then(Value::as_str)
}

fn flag(row: &Value, field: &str, default: bool) -> bool {
    row.get(field).map_or(default, |value| value.as_bool().unwrap())
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().map(|n| n.try_into().unwrap())
}

fn class(row: &Value) -> &'static Kernel {
    let name = text(row, "kernel").unwrap();
    Kernel::of(name).unwrap_or_else(|| panic!("no kernel class {name}"))
}

/// The fields of a row, all of which must be known to the test.
fn check_fields(row: &Value, known: &[&str]) {
    for field in row.as_object().unwrap().keys() {
        assert!(known.contains(&field.as_str()), "the field `{field}` is not compared: {row}");
    }
}

fn environment(row: &Value) -> Environment {
    let platform = match text(row, "platform") {
        None | Some("cuda") => Platform::Cuda,
        Some("rocm") => Platform::Rocm,
        Some(_) => Platform::Other,
    };
    let mut environment = Environment::cuda(0);
    environment.platform = platform;
    environment.compute_capability = number(&row["cc"]);
    environment.flashinfer = flag(row, "fi", true);
    environment.cutlass = flag(row, "cutlass", true);
    environment.humming = flag(row, "humming", false);
    environment
}

#[test]
fn is_supported_of_every_class() {
    let file = golden::json("is_supported.json");
    for row in rows(&file) {
        check_fields(row, &["platform", "cc", "fi", "kernel", "supported", "reason", "explicit_cc"]);
        let argument = row.get("explicit_cc").and_then(number);
        let found = class(row).is_supported_with_argument(&environment(row), argument);
        assert_eq!(found.is_ok(), flag(row, "supported", false), "{row}");
        assert_eq!(found.err(), text(row, "reason"), "{row}");
        if argument.is_none() {
            assert_eq!(class(row).is_supported(&environment(row)), found, "{row}");
        }
    }
    // The argument is ignored by all but one class.
    let old = Environment::cuda(70);
    for kernel in KERNELS.iter().filter(|k| k.name != "FlashInferCuteDslNvFp4W4A16LinearKernel") {
        assert_eq!(kernel.is_supported_with_argument(&old, Some(100)), kernel.is_supported(&old), "{kernel}");
    }
}

#[test]
fn selection_of_every_recorded_machine() {
    let file = golden::json("selection.json");
    for row in rows(&file) {
        check_fields(row, &["args", "result", "logs"]);
        let args = &row["args"];
        check_fields(args, &["platform", "cc", "fi", "cutlass", "humming", "lb", "a16", "bi", "disabled"]);
        let disabled: Vec<&str> = args
            .get("disabled")
            .map_or(Vec::new(), |d| d.as_array().unwrap().iter().flat_map(Value::as_str).collect());
        let mut request = Request::new(environment(args), flag(args, "a16", false));
        request.linear_backend = text(args, "lb").unwrap_or("auto");
        request.batch_invariant = flag(args, "bi", false);
        request.disabled_kernels = &disabled;

        let selection = init_nvfp4_linear_kernel(&request);
        let result = match &selection.kernel {
            Ok(kernel) => kernel.to_string(),
            Err(exception) => exception.to_string(),
        };
        let logs: Vec<_> = selection.logs.iter().map(|line| json!([line.level, line.text])).collect();
        assert_eq!((json!(result), json!(logs)), (row["result"].clone(), row["logs"].clone()), "{args}");
    }
}

#[test]
fn order_and_backends_of_the_classes() {
    let file = golden::json("selection.json");
    let names: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
    assert_eq!(json!(names), file["order"]["cuda"]);
    assert_eq!(file["order"]["rocm"], json!(["EmulationNvFp4LinearKernel"]));
    let backends = file["nvfp4_backend_map"].as_object().unwrap();
    for (backend, classes) in backends {
        let found: Vec<_> = KERNELS.iter().filter(|k| k.linear_backend == backend).map(|k| k.name).collect();
        assert_eq!(&json!(found), classes, "{backend}");
    }
    for kernel in &KERNELS {
        assert!(backends.contains_key(kernel.linear_backend), "{kernel}");
    }
}

/// `--linear-backend` is read as vLLM reads it.
#[test]
fn backend_names_are_normalized() {
    let mut request = Request::new(Environment::cuda(100), false);
    request.linear_backend = "FlashInfer-Cutlass";
    let found = init_nvfp4_linear_kernel(&request).kernel.unwrap();
    assert_eq!(found.name, "FlashInferCutlassNvFp4LinearKernel");
}

#[test]
fn optional_packages() {
    let mut environment = Environment::cuda(120);
    let native = Kernel::of("B12xNvFp4LinearKernel").unwrap();
    assert!(native.is_supported(&environment).is_err());
    environment.b12x = true;
    assert_eq!(native.is_supported(&environment), Ok(()));
    let fbgemm = Kernel::of("FbgemmNvFp4LinearKernel").unwrap();
    assert!(fbgemm.is_supported(&environment).is_err());
    environment.fbgemm = true;
    assert_eq!(fbgemm.is_supported(&environment), Ok(()));
    let humming = Kernel::of("HummingNvFp4LinearKernel").unwrap();
    environment.humming = true;
    assert_eq!(humming.is_supported(&environment), Ok(()));
    environment.compute_capability = Some(70);
    assert_eq!(humming.is_supported(&environment), Err("Humming only supported on SM75+"));
}

#[test]
fn quant_keys() {
    let file = golden::json("quant_keys.json");
    check_fields(
        &file,
        &["str_kNvfp4Dynamic", "str_kNvfp4Static", "str_kNvfp4DynamicToken", "mismatch_error", "input_quant_keys"],
    );
    let keys = [
        ("str_kNvfp4Dynamic", QuantKey::NVFP4_DYNAMIC),
        ("str_kNvfp4Static", QuantKey::NVFP4_STATIC),
        ("str_kNvfp4DynamicToken", QuantKey::NVFP4_DYNAMIC_TOKEN),
    ];
    for (field, key) in keys {
        assert_eq!(json!(key.to_string()), file[field]);
    }
    let mismatch = Error::QuantKey {
        expected: QuantKey::NVFP4_DYNAMIC.to_string(),
        found: QuantKey::NVFP4_STATIC.to_string(),
    };
    assert_eq!(json!(mismatch.to_string()), file["mismatch_error"]);

    let expected = file["input_quant_keys"].as_object().unwrap();
    assert_eq!(expected.len(), REQUIREMENTS.len());
    for (name, key) in expected {
        let found = Kernel::of(name).unwrap().input_quant_key;
        assert_eq!(&json!(found.map_or("None".to_string(), |key| key.to_string())), key, "{name}");
        // Ours accept what vLLM's accept.
        let ours = REQUIREMENTS.iter().find(|row| row.vllm_class == name).unwrap();
        assert_eq!(ours.input_quant_key, found, "{name}");
    }
}

/// `{"shape": …, "stride": …, "dtype": …}`.
fn tensor(info: &TensorInfo) -> Value {
    json!({ "shape": info.shape, "stride": info.strides, "dtype": info.dtype.to_string() })
}

/// `[shape, dtype]`, for tensors that are recorded without strides: they are row-major.
fn contiguous(info: &TensorInfo) -> Value {
    let mut stride = 1;
    for (extent, found) in info.shape.iter().zip(&info.strides).rev() {
        assert_eq!(*found, stride, "{info:?}");
        stride *= extent;
    }
    json!([info.shape, info.dtype.to_string()])
}

fn operands(operands: &GemmOperands) -> Map<String, Value> {
    let fields =
        [("a", &operands.a), ("b", &operands.b), ("b_descale", &operands.b_descale), ("alpha", &operands.alpha)];
    fields.into_iter().map(|(name, info)| (name.to_string(), tensor(info))).collect()
}

/// A call as the recorder wrote it.
fn recorded(call: &Call) -> Value {
    match call {
        Call::ScaledFp4Quant { input, swizzled, output, output_scale } => json!({
            "op": "_C.scaled_fp4_quant.out",
            "input": input.shape,
            "input_dtype": input.dtype.to_string(),
            "swizzled": swizzled,
            "output": contiguous(output),
            "output_scale": contiguous(output_scale),
        }),
        Call::NvFp4Quantize8x4 { input, output, output_scale } => json!({
            "op": "flashinfer.nvfp4_quantize(layout_8x4, do_shuffle=False)",
            "input": input.shape,
            "output": output.shape,
            "output_scale": output_scale.shape,
        }),
        Call::MmFp4 {
            operands: common,
            a_descale,
            out_dtype,
            use_8x4_sf_layout,
            backend,
            block_size,
            use_nvfp4,
        } => {
            let mut fields = operands(common);
            fields.insert("op".into(), json!("flashinfer.mm_fp4"));
            fields.insert("a_descale".into(), tensor(a_descale));
            fields.insert("out_dtype".into(), json!(out_dtype.to_string()));
            fields.insert("use_8x4_sf_layout".into(), json!(use_8x4_sf_layout));
            fields.insert("backend".into(), json!(backend));
            fields.insert("block_size".into(), json!(block_size));
            fields.insert("use_nvfp4".into(), json!(use_nvfp4));
            Value::Object(fields)
        }
        Call::MmBf16Fp4 { operands: common } => {
            let mut fields = operands(common);
            fields.insert("op".into(), json!("flashinfer.mm_bf16_fp4(backend=cute-dsl)"));
            Value::Object(fields)
        }
        other => panic!("{other:?}"),
    }
}

fn dtype(name: &str) -> TorchDType {
    [TorchDType::F16, TorchDType::Bf16, TorchDType::F32]
        .into_iter()
        .find(|dtype| dtype.to_string() == name)
        .unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn prepared_tensors_and_calls_of_the_flashinfer_kernels() {
    let file = golden::json("apply_trace.json");
    let (mut applied, mut refused) = (0, 0);
    for row in rows(&file) {
        let fields = ["kernel", "cc", "n", "k", "weight", "weight_scale", "weights_padding_cols", "apply"];
        check_fields(row, &[&fields[..], &["process_error"]].concat());
        let extent = |field: &str| row[field].as_u64().unwrap() as usize;
        let prepared =
            process_weights_after_loading(class(row), number(&row["cc"]).unwrap(), extent("n"), extent("k"));
        let layer = match prepared.unwrap() {
            Ok(layer) => layer,
            Err(exception) => {
                assert_eq!(Some(exception.to_string().as_str()), text(row, "process_error"), "{row}");
                refused += 1;
                continue;
            }
        };
        let header = format!("{} {} {}x{}", layer.kernel, row["cc"], layer.n, layer.k);
        assert_eq!(contiguous(&layer.weight), row["weight"], "{header}");
        let scale = &layer.weight_scale;
        assert_eq!(json!([scale.shape, scale.strides, scale.dtype.to_string()]), row["weight_scale"], "{header}");
        assert_eq!(json!(layer.weights_padding_cols), row["weights_padding_cols"], "{header}");

        let inputs = row["apply"].as_array().unwrap();
        assert!(!inputs.is_empty(), "{header}");
        for input in inputs {
            // A bias does not show in the calls: it is added afterwards.
            check_fields(input, &["x", "dtype", "bias", "out", "error", "calls"]);
            let x: Vec<usize> =
                input["x"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
            let Applied { calls, output } = apply_weights(&layer, &x, dtype(text(input, "dtype").unwrap()));
            let calls: Vec<_> = calls.iter().map(recorded).collect();
            assert_eq!(json!(calls), input["calls"], "{header}: {input}");
            match output {
                Ok(output) => assert_eq!(Some(&contiguous(&output)), input.get("out"), "{header}: {input}"),
                Err(exception) => {
                    assert_eq!(Some(exception.to_string().as_str()), text(input, "error"), "{header}: {input}");
                }
            }
            applied += 1;
        }
    }
    assert!(applied > 0 && refused > 0);
}

#[test]
fn other_inputs() {
    let b12x = Kernel::of("FlashInferB12xNvFp4LinearKernel").unwrap();
    let layer = process_weights_after_loading(b12x, 120, 32, 32).unwrap().unwrap();
    let error = |x: &[usize]| apply_weights(&layer, x, TorchDType::Bf16).output.unwrap_err().to_string();
    assert_eq!(error(&[2, 24]), "AssertionError: last dim has to be multiple of 16, but got 24.");
    assert!(error(&[]).starts_with("RuntimeError"));
    assert!(error(&[usize::MAX, 2, 32]).contains("overflowed"));
    // One dimension is one token; no tokens are no rows.
    assert_eq!(apply_weights(&layer, &[32], TorchDType::F16).output.unwrap().shape, [32]);
    assert_eq!(apply_weights(&layer, &[2, 0, 32], TorchDType::F16).output.unwrap().shape, [2, 0, 32]);

    let w4a16 = Kernel::of("FlashInferCuteDslNvFp4W4A16LinearKernel").unwrap();
    let error = process_weights_after_loading(w4a16, 90, 64, 64).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "NotImplementedError: cute-dsl w4a16 GEMM only supports SM100/103/107 and SM12x; got 9.0"
    );
    assert!(process_weights_after_loading(w4a16, 100, usize::MAX, 64).unwrap().is_err());
    let marlin = Kernel::of("MarlinNvFp4LinearKernel").unwrap();
    assert!(process_weights_after_loading(marlin, 90, 64, 64).is_none());
}
