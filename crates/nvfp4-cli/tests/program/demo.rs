//! The demo, end to end.

use crate::run::{command, finish, list, number, nvfp4, text};
use std::collections::BTreeMap;

#[test]
fn the_demo_runs_six_real_layers_in_both_schemes() {
    let report = nvfp4(["demo", "--json", "--rounds", "1"]).ended(0).json();
    assert_eq!(report["tokens"], 636);
    assert!(report["checkpoint"].is_null());
    for scheme in ["w4a16", "w4a4"] {
        assert_eq!(report[scheme]["chosen"], "cpu");
        assert_eq!(text(&report[scheme], "runs_as").to_lowercase(), scheme);
        let refused = list(&report[scheme], "candidates").iter().filter(|c| c["verdict"] == "rejected");
        assert!(refused.clone().all(|c| !text(c, "reason").is_empty()));
        assert_eq!(refused.count(), 6, "every GPU backend is explained");
    }

    let mut errors: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for row in list(&report, "layers") {
        let (layer, scheme) = (text(row, "layer"), text(row, "scheme"));
        let error = number(row, "relative_error");
        errors.entry(layer).or_default().insert(scheme, error);
        // Rounding to the grid of NVFP4 costs a tenth of the norm of a weight; outputs vary with their inputs.
        let weight_error = number(row, "weight_relative_error");
        assert!((0.08..0.12).contains(&weight_error), "{layer}: {weight_error}");
        assert!((0.005..0.2).contains(&error), "{layer} {scheme}: {error}");
        assert!(number(row, "cosine") > 0.98, "{layer} {scheme}");
        assert_eq!(row["backend"], "cpu");
        // 4.5 of 16 bits, and two global scales.
        let (before, after) = (number(row, "bytes_before"), number(row, "bytes_after"));
        assert_eq!(before, 2.0 * number(row, "n") * number(row, "k"));
        assert!((after - before * 4.5 / 16.0).abs() <= 8.0, "{before} -> {after}");
        let timings = list(row, "timings");
        assert_eq!(timings.iter().map(|t| number(t, "m")).collect::<Vec<_>>(), [636.0, 1.0]);
        for timing in timings {
            let speedup = number(timing, "f32_seconds") / number(timing, "seconds");
            assert!(speedup.is_finite() && speedup > 0.0);
            assert!((number(timing, "speedup") - speedup).abs() < 1e-9 * speedup);
        }
    }
    assert_eq!(errors.len(), 6);
    for (layer, schemes) in errors {
        assert!(schemes["W4A4"] > schemes["W4A16"], "{layer}: quantized activations cost accuracy: {schemes:?}");
    }
}

#[test]
fn a_kept_checkpoint_is_whole_and_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    for format in ["modelopt", "compressed-tensors"] {
        let kept = directory.path().join(format);
        let out = kept.to_str().unwrap();
        let run = nvfp4(["demo", "--rounds", "1", "--out", out, "--format", format]).ended(0);
        assert!(run.stdout.contains("intermediate.dense") && run.stdout.contains(out), "{}", run.stdout);
        assert_eq!(run.stderr, "");
        let report = nvfp4(["verify", out, "--json"]).ended(0).json();
        assert_eq!(list(&report, "layers").len(), 6);
        assert_eq!(report["errors"], 0);
        nvfp4(["demo", "--rounds", "1", "--out", out]).ended(3).says(&[out, "exists"]);
        nvfp4(["verify", out]).ended(0);
    }
}

#[test]
fn a_backend_that_cannot_run_is_never_replaced() {
    nvfp4(["demo", "--backend", "cutlass"]).ended(1).says(&["cutlass"]);
    nvfp4(["demo", "--disable", "cpu"]).ended(1).says(&["no backend", "disabled by --disable"]);
    finish(command().arg("demo").env("NVFP4_BACKEND", "trtllm")).ended(1).says(&["trtllm"]);
    finish(command().arg("demo").env("NVFP4_BACKEND", "cpuu")).ended(2).says(&["NVFP4_BACKEND", "cpuu", "cutlass"]);
}
