//! What `doctor` says of this machine.

use crate::run::{command, finish, list, nvfp4, text};
use nvfp4::Registry;

#[test]
fn every_backend_has_an_answer() {
    let report = nvfp4(["doctor", "--json"]).ended(0).json();
    assert_eq!(report["usable"], true);
    let names: Vec<_> = list(&report, "backends").iter().map(|backend| text(backend, "name")).collect();
    assert_eq!(names, Registry::installed().ids().map(|id| id.as_str()).collect::<Vec<_>>());
    for backend in list(&report, "backends") {
        if backend["name"] == "cpu" {
            assert_eq!(backend["works"], true);
        } else {
            assert_eq!(backend["works"], false);
            let expected: &[&str] = match (text(backend, "name"), cfg!(feature = "trtllm")) {
                ("trtllm", false) => &["feature"],
                // With its packs here, what is left is that this device is a CPU.
                ("trtllm", true) => &["kernel_pack", "device"],
                _ => &["not_released"],
            };
            assert!(expected.contains(&text(backend, "reason_kind")), "{backend}");
        }
    }
    let cpu = &report["cpu"];
    assert_eq!(text(cpu, "name"), nvfp4::host_cpu().name);
    assert!(cpu["threads"].as_u64().unwrap() >= 1);
    assert!(text(&report["cuda"], "note").contains("CPU only"));

    let run = nvfp4(["doctor"]).ended(0);
    for name in names {
        assert!(run.stdout.contains(name), "{}", run.stdout);
    }
}

#[test]
fn the_environment_is_told_and_judged() {
    let run = |variable: &str, value: &str| finish(command().args(["doctor", "--json"]).env(variable, value));
    let report = run("NVFP4_DISABLE", "cpu").ended(1).json();
    assert_eq!(report["usable"], false);
    assert!(list(&report, "environment").iter().any(|v| v["name"] == "NVFP4_DISABLE" && v["value"] == "cpu"));
    assert_eq!(run("NVFP4_BACKEND", "cutlass").ended(1).json()["usable"], false);
    let report = run("NVFP4_BACKEND", "cpuu").ended(1).json();
    assert!(text(&report, "environment_error").contains("cpuu"));
    assert_eq!(run("NVFP4_DISABLE", "cutlass,b12x").ended(0).json()["usable"], true);
}

#[test]
fn threads_are_those_asked_for() {
    let report = nvfp4(["doctor", "--json", "--threads", "3"]).ended(0).json();
    assert_eq!(report["cpu"]["threads"], 3);
    nvfp4(["doctor", "--threads", "0"]).ended(2);
}
