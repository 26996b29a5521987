//! Help, and what scripts rely on.

use crate::run::{command, finish, nvfp4};

const COMMANDS: [&str; 9] =
    ["demo", "inspect", "quantize", "convert", "dequantize", "verify", "doctor", "explain", "bench"];

#[test]
fn every_command_has_help_with_an_example() {
    let help = nvfp4(["--help"]).ended(0).stdout;
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        for flag in ["-h", "--help"] {
            let help = nvfp4([command, flag]).ended(0).stdout;
            assert!(help.contains("Usage: nvfp4") && help.contains("--json"), "{help}");
            let examples = help.split_once("Examples:").unwrap_or_else(|| panic!("{command}: {help}")).1;
            assert!(examples.contains(&format!("nvfp4 {command}")), "{examples}");
        }
    }
    for text in
        ["Exit codes:", "\n  0  ", "\n  1  ", "\n  2  ", "\n  3  ", "NVFP4_BACKEND", "NVFP4_DISABLE", "NO_COLOR"]
    {
        assert!(help.contains(text), "{text}: {help}");
    }
}

/// The examples of the help are command lines that the program takes.
#[test]
fn examples_are_well_formed() {
    let directory = tempfile::tempdir().unwrap();
    let mut tried = 0;
    for name in COMMANDS {
        let help = nvfp4([name, "--help"]).ended(0).stdout;
        let examples = help.split_once("Examples:").unwrap().1;
        for line in examples.lines().filter_map(|line| line.trim().strip_prefix("nvfp4 ")) {
            // Those that run without a model are run elsewhere.
            if !["inspect", "quantize", "convert", "dequantize", "verify"].contains(&name) {
                continue;
            }
            let words = line.split_whitespace().map(|word| word.trim_matches('\''));
            let run = finish(command().args(words).current_dir(directory.path())).ended(3);
            assert!(run.stderr.starts_with("error: "), "{line}: {}", run.stderr);
            tried += 1;
        }
    }
    assert!(tried >= 10);
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(nvfp4(["--version"]).ended(0).stdout, format!("nvfp4 {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn nothing_but_text_is_printed_where_there_is_no_terminal() {
    for arguments in [&["doctor"][..], &["--help"], &["quantise"], &["demo", "--rounds", "1"]] {
        for no_color in [None, Some("1")] {
            let mut command = command();
            no_color.map(|value| command.env("NO_COLOR", value));
            let run = finish(command.args(arguments));
            assert!(!run.stdout.contains('\x1b') && !run.stderr.contains('\x1b'), "{run:?}");
        }
    }
}

#[test]
fn shells_get_a_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = nvfp4(["completions", shell]).ended(0).stdout;
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    nvfp4(["completions", "cmd"]).ended(2);
}
