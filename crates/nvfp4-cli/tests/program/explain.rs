//! What would run on GPUs that are not here.

use crate::run::{command, finish, list, nvfp4, text};
use nvfp4::{ActivationScheme, KNOWN_GPUS, NvFp4LinearLayerConfig, Policy, requirements::REQUIREMENTS, vllm};
use serde_json::Value;

fn explain(gpu: &str, more: &[&str]) -> (i32, Value) {
    let run = nvfp4(["explain", "--gpu", gpu, "--n", "4096", "--k", "14336", "--json"].iter().chain(more));
    (run.code, run.json())
}

const SCHEMES: [(&str, ActivationScheme); 4] = [
    ("w4a16", ActivationScheme::Unquantized),
    ("w4a4", ActivationScheme::Nvfp4Static),
    ("w4a4-dynamic-tensor", ActivationScheme::Nvfp4DynamicPerTensor),
    ("w4a4-dynamic-token", ActivationScheme::Nvfp4DynamicPerToken),
];

#[test]
fn answers_are_those_of_the_library_for_every_known_gpu() {
    let mut answered = 0;
    for known in KNOWN_GPUS {
        let gpu = known.names[0];
        for (scheme, activation) in SCHEMES {
            let config = NvFp4LinearLayerConfig::w4a4(4096, 14336).with_activation(activation);
            let device = nvfp4::gpu(gpu).unwrap();
            let expected = nvfp4::explain(&device, &config, &Policy::default()).if_all_were_installed;
            let (code, report) = explain(gpu, &["--scheme", scheme, "--assume-built", "--compare", "vllm"]);
            assert_eq!(code, i32::from(expected.is_err()), "{gpu} {scheme}");
            let answer = &report["with_every_backend"];
            assert_eq!(answer["chosen"].as_str(), expected.as_ref().ok().map(|d| d.chosen.as_str()));
            assert_eq!(list(answer, "candidates").len(), 7, "every backend is named");
            for candidate in list(answer, "candidates").iter().filter(|c| c["verdict"] == "rejected") {
                assert!(!text(candidate, "reason").is_empty() && !text(candidate, "reason_kind").is_empty());
            }
            // Nothing of this runs here.
            assert!(report["this_build"]["chosen"].is_null());
            assert_eq!(explain(gpu, &["--scheme", scheme]).0, 1);

            let environment = vllm::Environment::cuda(known.compute_capability.number());
            let request = vllm::Request::new(environment, !activation.is_quantized());
            let selection = vllm::init_nvfp4_linear_kernel(&request);
            assert_eq!(report["vllm"]["kernel"].as_str(), selection.kernel.ok().map(|kernel| kernel.name));
            answered += 1;
        }
    }
    assert!(answered > 40);
}

#[test]
fn the_choice_can_be_steered() {
    let built = |more: &[&str]| {
        let (code, report) = explain("sm_120", &[more, &["--assume-built"]].concat());
        (code, report["with_every_backend"].clone())
    };
    let (code, ranked) = built(&[]);
    assert_eq!((code, text(&ranked, "chosen"), text(&ranked, "source")), (0, "b12x", "ranked"));
    let (_, preferred) = built(&["--prefer", "trtllm,cudnn"]);
    assert_eq!((text(&preferred, "chosen"), text(&preferred, "source")), ("cudnn", "preferred"));
    let (_, forced) = built(&["--backend", "cutlass"]);
    assert_eq!((text(&forced, "chosen"), text(&forced, "source")), ("cutlass", "forced"));
    let (code, impossible) = built(&["--backend", "trtllm"]);
    assert_eq!((code, &impossible["chosen"]), (1, &Value::Null));
    assert!(text(&impossible, "error").contains("trtllm"));
    let (_, other) = built(&["--disable", "b12x"]);
    assert_eq!(text(&other, "chosen"), "cutlass");
    let disabled = list(&other, "candidates").iter().find(|c| c["backend"] == "b12x").unwrap();
    assert_eq!(disabled["reason_kind"], "disabled");
    let (_, weight_only) = built(&["--numerics", "weight-only"]);
    assert_eq!((text(&weight_only, "chosen"), text(&weight_only, "runs_as")), ("w4a16", "W4A16"));
    let (_, per_row) = built(&["--per-row", "--dtype", "f32"]);
    let kinds: Vec<_> = list(&per_row, "candidates").iter().map(|c| &c["reason_kind"]).collect();
    assert!(kinds.contains(&&Value::from("dtype")), "{kinds:?}");
}

#[test]
fn driver_and_library_versions_count() {
    let row = REQUIREMENTS.iter().find(|row| row.cudnn.is_some()).unwrap();
    let kind = |more: &[&str]| {
        let (_, report) = explain("sm_100", &[more, &["--assume-built"]].concat());
        let candidates = list(&report["with_every_backend"], "candidates").to_vec();
        candidates.iter().find(|c| c["backend"] == row.id.as_str()).unwrap()["reason_kind"].clone()
    };
    assert_eq!(kind(&[]), Value::Null);
    assert_eq!(kind(&["--driver-cuda", "11.0"]), "driver");
    assert_eq!(kind(&["--driver-cuda", "13.0"]), "library", "a device that is here, and no cuDNN");
    assert_eq!(kind(&["--driver-cuda", "13.0", "--cudnn", "8.9.7"]), "library");
    assert_eq!(kind(&["--driver-cuda", "13.0", "--cudnn", "9.19"]), Value::Null);
    nvfp4(["explain", "--cpu", "--n", "16", "--k", "16", "--cudnn", "9.19"]).ended(2);
}

#[test]
fn the_cpu_runs_every_scheme() {
    for (scheme, _) in SCHEMES {
        let arguments = ["explain", "--cpu", "--n", "8", "--k", "48", "--scheme", scheme, "--per-row", "--json"];
        let report = nvfp4(arguments).ended(0).json();
        assert_eq!(report["this_build"]["chosen"], "cpu");
        assert!(report["device"]["compute_capability"].is_null());
    }
    let run = nvfp4(["explain", "--cpu", "--n", "8", "--k", "48", "--compare", "vllm"]).ended(0);
    assert!(
        run.stdout.contains("This build: cpu") && run.stdout.contains("vLLM 0.33.0: ValueError"),
        "{}",
        run.stdout
    );
}

#[test]
fn the_environment_counts_and_arguments_override_it() {
    let run = |backend: &str, more: &[&str]| {
        let arguments = ["explain", "--gpu", "B200", "--n", "128", "--k", "128", "--assume-built", "--json"];
        finish(command().args(arguments.iter().chain(more)).env("NVFP4_BACKEND", backend))
    };
    assert_eq!(run("cudnn", &[]).ended(0).json()["with_every_backend"]["chosen"], "cudnn");
    assert_eq!(run("cudnn", &["--backend", "trtllm"]).ended(0).json()["with_every_backend"]["chosen"], "trtllm");
    run("nonsense", &[]).ended(2).says(&["NVFP4_BACKEND", "nonsense", "b12x"]);
}

#[test]
fn impossible_questions_are_usage_errors() {
    let ask = |more: &[&str]| nvfp4(["explain"].iter().chain(more));
    ask(&["--gpu", "RTX 6000", "--n", "16", "--k", "16"]).ended(2).says(&["RTX 6000", "RTX 5090", "sm_121"]);
    ask(&["--gpu", "B200", "--n", "16", "--k", "24"]).ended(2).says(&["multiple of 16", "24"]);
    ask(&["--gpu", "B200", "--n", "0", "--k", "16"]).ended(2).says(&["--n"]);
    ask(&["--gpu", "B200", "--n", "16", "--k", "16", "--backend", "cutlas"]).ended(2).says(&["cutlas", "cutlass"]);
    ask(&["--gpu", "B200", "--cpu", "--n", "16", "--k", "16"]).ended(2);
    ask(&["--n", "16", "--k", "16"]).ended(2);
    ask(&["--gpu", "B200", "--n", "16"]).ended(2);
    ask(&["--gpu", "B200", "--n", "16", "--k", "16", "--backend", "cudnn", "--prefer", "cutlass"]).ended(2);
}
