//! The vendor's host code, compiled on demand.

use super::launches::parse;
use nvfp4_testkit::random::Rng;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Random questions: orders, valid tactics for problems of any shape, launches of kernels that can run theirs.
pub(crate) fn questions(seed: u64, count: usize) -> Vec<String> {
    use nvfp4_trtllm::{choice::Problem, tactic::TACTICS};
    let mut random = Rng::new(seed);
    let mut all = vec!["order 8x4".to_string(), "order 128x4".to_string()];
    while all.len() < count {
        let mut pick = |choices: &[usize]| choices[random.below(choices.len())];
        let m = pick(&[1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 100, 127, 128, 129, 300, 1024, 4096, 8192]);
        let n = pick(&[16, 32, 32, 32, 128, 128, 128]);
        let k = pick(&[16, 64, 64, 64, 256, 512, 512, 1024]);
        let n = n * (1 + random.below(220));
        let k = k * (1 + random.below(60));
        let index = random.below(TACTICS.len());
        let tactic = &TACTICS[index];
        match Problem::new(m, n, k) {
            Ok(problem) if tactic.is_valid(problem) => {
                all.push(format!("launch {} {m} {n} {k}", tactic.index));
            }
            _ => {
                let layout = if random.below(2) == 0 { "8x4" } else { "128x4" };
                all.push(format!("tactics {layout} {m} {n} {k}"));
            }
        }
    }
    all
}

/// The compiled oracle.
pub(crate) struct Oracle {
    folder: tempfile::TempDir,
}

impl Oracle {
    /// Compiles it with the headers beside the vendor's cubins and those of CUDA.
    pub(crate) fn compile(vendor: &Path, cuda: &Path) -> Self {
        let made = tempfile::tempdir().unwrap();
        // One header includes another by the path that it has in another package.
        let forward = made.path().join("flashinfer/trtllm/gemm/trtllmGen_gemm_export");
        fs::create_dir_all(&forward).unwrap();
        fs::write(forward.join("GemmOptions.h"), "#include \"trtllmGen_gemm_export/GemmOptions.h\"\n").unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launches/oracle.cpp");
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
        let status = Command::new(compiler)
            .args(["-std=c++17", "-O0", "-w", "-DTLLM_GEN_EXPORT_INTERFACE", "-DTLLM_GEN_EXPORT_FLASHINFER"])
            .args(["-DTLLM_ENABLE_CUDA", "-DTLLM_GEN_GEMM_CUBIN_PATH=\"none\""])
            .arg("-I")
            .arg(vendor)
            .arg("-I")
            .arg(made.path())
            .arg("-I")
            .arg(cuda)
            .arg(source)
            .arg("-o")
            .arg(made.path().join("oracle"))
            .status()
            .unwrap();
        assert!(status.success(), "compiling the oracle: {status}");
        Self { folder: made }
    }

    /// Its answers.
    pub(crate) fn ask(&self, questions: &[String]) -> Vec<String> {
        let (input, output) = (self.folder.path().join("questions"), self.folder.path().join("answers"));
        fs::write(&input, questions.join("\n") + "\n").unwrap();
        let status = Command::new(self.folder.path().join("oracle"))
            .arg(&output)
            .stdin(fs::File::open(&input).unwrap())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        let answers = parse(&fs::read_to_string(&output).unwrap());
        assert_eq!(answers.iter().map(|(q, _)| q).collect::<Vec<_>>(), questions.iter().collect::<Vec<_>>());
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}
