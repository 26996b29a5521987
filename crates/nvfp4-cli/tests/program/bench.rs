//! Small benchmarks.

use crate::run::{list, number, nvfp4, text};

#[test]
fn every_shape_and_scheme_is_timed() {
    let arguments = ["bench", "--n", "96,40", "--k", "64,128", "--m", "1,5", "--rounds", "1", "--json"];
    let report = nvfp4(arguments.iter().chain(&["--scheme", "w4a16,w4a4,w4a4-dynamic-token"])).ended(0).json();
    assert!(number(&report, "read_bytes_per_second") > 0.0);
    let rows = list(&report, "results");
    assert_eq!(rows.len(), 2 * 2 * 3);
    for row in rows {
        let shape = [number(row, "n"), number(row, "k")];
        assert!(shape == [96.0, 64.0] || shape == [40.0, 128.0]);
        let (seconds, f32_seconds) = (number(row, "seconds"), number(row, "f32_seconds"));
        assert!(seconds > 0.0 && f32_seconds > 0.0);
        assert!((number(row, "speedup") - f32_seconds / seconds).abs() < 1e-9 * number(row, "speedup"));
        assert!(number(row, "gflops") > 0.0 && number(row, "of_memory") > 0.0);
        let bytes = shape[0] * shape[1] * 4.5 / 8.0 + 4.0;
        assert_eq!(number(row, "weight_bytes"), bytes);
        let error = number(row, "relative_error");
        let range = if text(row, "scheme") == "W4A16" { 0.05..0.15 } else { 0.08..0.2 };
        assert!(range.contains(&error), "{row}");
    }
    let run = nvfp4(["bench", "--n", "32", "--k", "32", "--m", "1", "--rounds", "1", "--dtype", "f32"]).ended(0);
    assert!(run.stdout.contains("W4A16") && run.stdout.contains("W4A4"), "{}", run.stdout);
}

#[test]
fn impossible_shapes_are_usage_errors() {
    nvfp4(["bench", "--n", "32,64", "--k", "32"]).ended(2).says(&["--n has 2"]);
    nvfp4(["bench", "--n", "32", "--k", "40"]).ended(2).says(&["multiple of 16"]);
    nvfp4(["bench", "--n", "32", "--k", "32", "--m", "0"]).ended(2).says(&["--m"]);
    nvfp4(["bench", "--n", "32", "--k", "32", "--rounds", "0"]).ended(2);
    let huge = "9223372036854775808";
    nvfp4(["bench", "--n", huge, "--k", "32", "--m", "1"]).ended(2).says(&["too large"]);
    nvfp4(["bench", "--n", "32", "--k", "32", "--m", huge]).ended(2).says(&["too large"]);
    nvfp4(["bench", "--n", "32", "--k", "32", "--disable", "cpu"]).ended(1).says(&["no backend"]);
}
