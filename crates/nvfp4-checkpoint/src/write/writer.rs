//! A checkpoint written tensor by tensor, with little memory.

use super::{
    TensorSpec, WriteError,
    output_directory::OutputDirectory,
    shards::{self, Place},
};
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Hugging Face's default size of a file.
pub const DEFAULT_SHARD_BYTES: u64 = 5_000_000_000;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// How a checkpoint is written.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Bytes of tensor data in one file; a larger tensor gets a file of its own. Default [`DEFAULT_SHARD_BYTES`].
    pub shard_bytes: u64,
    /// Whether the target may be a checkpoint that exists, which is then replaced when the new one is complete.
    /// Default: no. Everything in the old directory is deleted; one that holds files but no safetensors or GGUF
    /// file is not taken for a checkpoint and refused.
    pub replace: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { shard_bytes: DEFAULT_SHARD_BYTES, replace: false }
    }
}

/// Writes a checkpoint directory that is either complete or absent.
///
/// All tensors are declared at the start; their bytes may come in any order, from several threads, a piece at a
/// time. Nothing but the headers is kept in memory. [`finish`](Self::finish) gives the directory its name; dropping
/// the writer before that (on an error, say) removes what was written.
#[derive(Debug)]
pub struct CheckpointWriter {
    directory: OutputDirectory,
    names: HashMap<String, usize>,
    tensors: Vec<Tensor>,
    files: Vec<ShardFile>,
    total_bytes: u64,
}

#[derive(Debug)]
struct ShardFile {
    path: PathBuf,
    file: Mutex<File>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    place: Place,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    Begun,
    Complete,
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct WriteSummary {
    /// Tensors.
    pub tensors: usize,
    /// Safetensors files.
    pub files: usize,
    /// Bytes of tensor data.
    pub tensor_bytes: u64,
}

impl CheckpointWriter {
    /// Begins a checkpoint that will appear as the directory `target`, with these tensors. The headers carry the
    /// metadata `format: pt`, as transformers demands.
    pub fn create(target: &Path, tensors: &[TensorSpec], options: &WriteOptions) -> Result<Self, WriteError> {
        let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let plan = shards::plan(tensors, options.shard_bytes, &metadata)?;
        let directory = OutputDirectory::create(target, options.replace)?;
        let mut files = Vec::with_capacity(plan.shards.len());
        for shard in &plan.shards {
            let path = directory.path().join(&shard.name);
            let mut file = directory.create_file(Path::new(&shard.name))?;
            file.write_all(&shard.header).map_err(WriteError::io("write", &path))?;
            files.push(ShardFile { path, file: Mutex::new(file) });
        }
        let writer = Self {
            directory,
            names: tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect(),
            tensors: tensors
                .iter()
                .zip(plan.places)
                .map(|(t, place)| Tensor { name: t.name.clone(), place, state: Mutex::new(State::Absent) })
                .collect(),
            files,
            total_bytes: plan.total_bytes,
        };
        if let Some(index) = plan.index {
            writer.write_file("model.safetensors.index.json", index.as_bytes())?;
        }
        Ok(writer)
    }

    /// Begins a tensor. Each can be written once.
    pub fn tensor(&self, name: &str) -> Result<TensorWriter<'_>, WriteError> {
        let fault = |what| WriteError::Undeclared { tensor: name.to_string(), what };
        let tensor = self.names.get(name).and_then(|&i| self.tensors.get(i)).ok_or(fault("was not declared"))?;
        let file = self.files.get(tensor.place.shard).ok_or(fault("has no file"))?;
        let mut state = lock(&tensor.state);
        if *state != State::Absent {
            return Err(fault("is written twice"));
        }
        *state = State::Begun;
        Ok(TensorWriter { tensor, file, written: 0 })
    }

    /// Writes a whole tensor.
    pub fn write_tensor(&self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let mut tensor = self.tensor(name)?;
        tensor.write(bytes)?;
        tensor.finish()
    }

    /// Writes another file of the model directory. `path` is relative to the directory.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), WriteError> {
        let path = path.as_ref();
        let mut file = self.directory.create_file(path)?;
        file.write_all(bytes).map_err(WriteError::io("write", &self.directory.path().join(path)))
    }

    /// Copies another file of the model directory. `path` is relative to the directory.
    pub fn copy_file(&self, from: &Path, path: impl AsRef<Path>) -> Result<(), WriteError> {
        let path = path.as_ref();
        let mut input = File::open(from).map_err(WriteError::io("open", from))?;
        let mut output = self.directory.create_file(path)?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let n = match input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(WriteError::io("read", from)(e)),
            };
            output
                .write_all(buffer.get(..n).unwrap_or(&buffer))
                .map_err(WriteError::io("write", &self.directory.path().join(path)))?;
        }
    }

    /// Checks that every tensor is complete, flushes the files to disk, and makes the directory appear.
    pub fn finish(self) -> Result<WriteSummary, WriteError> {
        if let Some(tensor) = self.tensors.iter().find(|t| *lock(&t.state) != State::Complete) {
            return Err(WriteError::Incomplete { tensor: tensor.name.clone() });
        }
        let summary =
            WriteSummary { tensors: self.tensors.len(), files: self.files.len(), tensor_bytes: self.total_bytes };
        drop(self.files);
        self.directory.commit()?;
        Ok(summary)
    }
}

/// Writes the bytes of one tensor, in order, in pieces of any size.
#[derive(Debug)]
pub struct TensorWriter<'a> {
    tensor: &'a Tensor,
    file: &'a ShardFile,
    written: u64,
}

impl TensorWriter<'_> {
    /// Appends bytes (little-endian elements, row-major).
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let written = self.written + bytes.len() as u64;
        if written > self.tensor.place.len {
            return Err(self.wrong_size(written));
        }
        let mut file = lock(&self.file.file);
        file.seek(SeekFrom::Start(self.tensor.place.offset + self.written))
            .and_then(|_| file.write_all(bytes))
            .map_err(|e| WriteError::Tensor {
                tensor: self.tensor.name.clone(),
                path: self.file.path.clone(),
                source: e,
            })?;
        self.written = written;
        Ok(())
    }

    /// Declares the tensor complete; an error if bytes are missing.
    pub fn finish(self) -> Result<(), WriteError> {
        if self.written != self.tensor.place.len {
            return Err(self.wrong_size(self.written));
        }
        *lock(&self.tensor.state) = State::Complete;
        Ok(())
    }

    fn wrong_size(&self, found: u64) -> WriteError {
        WriteError::WrongSize { tensor: self.tensor.name.clone(), expected: self.tensor.place.len, found }
    }
}

/// The lock, also if another thread panicked while it held it: each use leaves a valid state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
