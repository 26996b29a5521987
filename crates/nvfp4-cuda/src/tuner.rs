//! Choices that were measured on the device, and a file that keeps them.
//!
//! Nothing here runs by itself: a plan asks [`Tuner::get`], which looks into a table, and only an explicit call of
//! [`Tuner::tune`] measures. A backend names its configurations by text; the tuner knows no more of them.

use nvfp4_core::Error;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};

/// Version of the file's form.
const SCHEMA: u32 = 1;
/// A configuration replaces the default only if it takes at most this part of its time: less is noise.
const GAIN: f64 = 0.98;

/// What a measured choice holds for. A choice is used only where all of it is equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningKey {
    /// The backend.
    pub backend: String,
    /// Name and compute capability of the device.
    pub device: String,
    /// CUDA version of the driver, e.g. 13000.
    pub driver: u32,
    /// Hash that stands for the kernels, e.g. of the pack's manifest.
    pub pack: String,
    /// Rows up to which it holds: the [bucket](row_bucket) of a call's rows.
    pub m: usize,
    /// Output features, with padding.
    pub n: usize,
    /// Input features, with padding.
    pub k: usize,
    /// Element types and what else tells two layers apart.
    pub layer: String,
}

/// The rows that a call with `m` rows is tuned for: the next power of two, at least 1.
pub const fn row_bucket(m: usize) -> usize {
    match m.checked_next_power_of_two() {
        Some(bucket) => bucket,
        None => usize::MAX,
    }
}

/// What was measured for a key.
#[derive(Clone, PartialEq, Debug)]
pub struct Tuned {
    /// The configuration that plans get from now on.
    pub chosen: String,
    /// Seconds that each took; the default first. Those that failed are not in it.
    pub seconds: Vec<(String, f64)>,
    /// Configurations that failed, and why.
    pub failed: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: TuningKey,
    chosen: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    entries: Vec<Entry>,
}

/// Measured choices, in memory and, if it was [opened](Self::open), in a file. `Send + Sync`.
#[derive(Debug, Default)]
pub struct Tuner {
    choices: RwLock<BTreeMap<TuningKey, String>>,
    path: Option<PathBuf>,
    warning: Option<String>,
}

impl Tuner {
    /// A tuner without a file.
    pub fn new() -> Self {
        Self::default()
    }

    /// The choices in a file, which each tuning is written to. A file that is not there is made then. One that is damaged
    /// or of another version is left out, with a [warning](Self::warning), and replaced then.
    pub fn open(path: &Path) -> Self {
        let (choices, warning) = match read(path) {
            Ok(choices) => (choices, None),
            Err(reason) => (BTreeMap::new(), Some(format!("{}: not used: {reason}", path.display()))),
        };
        Self { choices: RwLock::new(choices), path: Some(path.into()), warning }
    }

    /// Why the file's choices are not used; `None` if they are. For the program to show once.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The measured choice, if there is one. A look into a table: no file, no device.
    pub fn get(&self, key: &TuningKey) -> Option<String> {
        self.choices.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Measures `default` and every one of `candidates` with `seconds`, and remembers the fastest; the default stays unless
    /// another is clearly faster. A candidate that fails is left out.
    ///
    /// Errors: the default fails, or the file cannot be written (what was there stays, and the choice is not remembered).
    pub fn tune(
        &self,
        key: &TuningKey,
        default: &str,
        candidates: &[String],
        mut seconds: impl FnMut(&str) -> Result<f64, Error>,
    ) -> Result<Tuned, Error> {
        let of_default = seconds(default)?;
        let mut tuned =
            Tuned { chosen: default.into(), seconds: vec![(default.into(), of_default)], failed: Vec::new() };
        let mut best = of_default * GAIN;
        for candidate in candidates.iter().filter(|name| *name != default) {
            match seconds(candidate) {
                Ok(found) => {
                    tuned.seconds.push((candidate.clone(), found));
                    if found < best {
                        (best, tuned.chosen) = (found, candidate.clone());
                    }
                }
                Err(error) => tuned.failed.push((candidate.clone(), error.to_string())),
            }
        }
        let mut choices = self.choices.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = choices.clone();
        next.insert(key.clone(), tuned.chosen.clone());
        if let Some(path) = &self.path {
            write(path, &next).map_err(|e| Error::Backend {
                backend: "cuda",
                message: format!("{}: the measured choice cannot be kept: {e}", path.display()),
            })?;
        }
        *choices = next;
        Ok(tuned)
    }
}

/// The choices in a file; none if there is no file.
fn read(path: &Path) -> Result<BTreeMap<TuningKey, String>, String> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(e.to_string()),
    };
    let file: File = serde_json::from_slice(&text).map_err(|e| format!("not a file of measured choices: {e}"))?;
    if file.schema != SCHEMA {
        return Err(format!("version {}, this build reads {SCHEMA}", file.schema));
    }
    Ok(file.entries.into_iter().map(|entry| (entry.key, entry.chosen)).collect())
}

/// Replaces a file as a whole: it holds the old choices or the new ones, whatever happens.
fn write(path: &Path, choices: &BTreeMap<TuningKey, String>) -> std::io::Result<()> {
    let entries = choices.iter().map(|(key, chosen)| Entry { key: key.clone(), chosen: chosen.clone() });
    let text = serde_json::to_vec_pretty(&File { schema: SCHEMA, entries: entries.collect() })?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // A name of this process's own, so that two that tune at once do not write into each other's file.
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{}", std::process::id()));
    let staging = PathBuf::from(name);
    let written = std::fs::File::create(&staging).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&staging, path)
    });
    if written.is_err() {
        // The error that is reported is the one that matters.
        let _ = std::fs::remove_file(&staging);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(m: usize) -> TuningKey {
        TuningKey {
            backend: "gemm".into(),
            device: "B200 (sm_100)".into(),
            driver: 13000,
            pack: "00".into(),
            m: row_bucket(m),
            n: 256,
            k: 128,
            layer: "bf16".into(),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    /// Made-up times: `a` 10, `b` 9.9, `c` 7, `d` fails.
    fn times(name: &str) -> Result<f64, Error> {
        match name {
            "a" => Ok(10.0),
            "b" => Ok(9.9),
            "c" => Ok(7.0),
            _ => Err(Error::Invalid("does not run")),
        }
    }

    #[test]
    fn the_fastest_is_used_for_every_row_count_of_its_bucket() {
        let tuner = Tuner::new();
        assert_eq!(tuner.get(&key(100)), None);
        let tuned = tuner.tune(&key(100), "a", &names(&["a", "b", "c", "d"]), times).unwrap();
        assert_eq!(tuned.chosen, "c");
        assert_eq!(tuned.seconds.len(), 3);
        assert_eq!(tuned.failed, [("d".to_string(), "does not run".to_string())]);
        for m in [65, 77, 100, 127, 128] {
            assert_eq!(tuner.get(&key(m)).as_deref(), Some("c"), "{m}");
        }
        for m in [0, 1, 64, 129] {
            assert_eq!(tuner.get(&key(m)), None, "{m}");
        }
        let mut other = key(100);
        other.pack = "01".into();
        assert_eq!(tuner.get(&other), None, "other kernels");
    }

    #[test]
    fn never_slower_than_the_default_and_not_for_noise() {
        let tuner = Tuner::new();
        assert_eq!(tuner.tune(&key(1), "c", &names(&["a", "b"]), times).unwrap().chosen, "c");
        assert_eq!(tuner.tune(&key(1), "a", &names(&["b"]), times).unwrap().chosen, "a");
        assert!(tuner.tune(&key(2), "d", &names(&["a"]), times).is_err());
        assert_eq!(tuner.get(&key(2)), None);
    }

    /// Looking a choice up measures nothing, however often it is done.
    #[test]
    fn only_an_explicit_call_measures() {
        let tuner = Tuner::new();
        let mut calls = 0;
        tuner
            .tune(&key(1), "a", &names(&["a", "c"]), |name| {
                calls += 1;
                times(name)
            })
            .unwrap();
        for m in 0..1000 {
            let _ = tuner.get(&key(m));
        }
        assert_eq!(calls, 2);
    }

    #[test]
    fn choices_outlive_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("tuning.json");
        let tuner = Tuner::open(&path);
        assert_eq!(tuner.warning(), None);
        tuner.tune(&key(1), "a", &names(&["c"]), times).unwrap();
        tuner.tune(&key(2), "a", &names(&["b"]), times).unwrap();
        let again = Tuner::open(&path);
        assert_eq!((again.get(&key(1)).as_deref(), again.get(&key(2)).as_deref()), (Some("c"), Some("a")));
        let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn files_that_are_damaged_or_foreign_are_left_out_with_a_warning_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning.json");
        for text in ["", "{", "[1, 2]", r#"{"schema": 2, "entries": []}"#, r#"{"schema": 1, "entries": [{}]}"#] {
            std::fs::write(&path, text).unwrap();
            let tuner = Tuner::open(&path);
            let warning = tuner.warning().unwrap();
            assert!(warning.contains("tuning.json"), "{text}: {warning}");
            assert_eq!(tuner.get(&key(1)), None);
            tuner.tune(&key(1), "a", &names(&["c"]), times).unwrap();
            assert_eq!(Tuner::open(&path).get(&key(1)).as_deref(), Some("c"), "{text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_and_nothing_is_half_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        // The folder to write in is a file.
        let tuner = Tuner::open(&file.join("tuning.json"));
        let error = tuner.tune(&key(1), "a", &names(&["c"]), times).unwrap_err();
        assert!(error.to_string().contains("tuning.json"), "{error}");
        assert_eq!(tuner.get(&key(1)), None);
    }
}
