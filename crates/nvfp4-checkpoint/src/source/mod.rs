//! Tensors in files, memory-mapped: safetensors (one file or shards) and GGUF.

mod gguf;
mod safetensors;

use crate::{Error, TensorDType};
use memmap2::Mmap;
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
};

/// Where a tensor's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Index of the file.
    file: usize,
    /// First byte in the file.
    start: usize,
    /// One past the last byte.
    end: usize,
}

/// One tensor of a [`Source`]. Its bytes lie in a mapped file: little-endian, of any alignment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TensorView<'a> {
    /// Name.
    pub name: &'a str,
    /// Element type. GGUF's NVFP4 rows are [`TensorDType::U8`], with the bytes of a row as last dimension.
    pub dtype: TensorDType,
    /// Shape, the slowest dimension first.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
    /// The file that holds it.
    pub path: &'a Path,
}

impl TensorView<'_> {
    /// Elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The one element of a 0-dimensional or `[1]` f32 tensor; others are an error that says what was found.
    pub fn scalar(&self) -> Result<f32, Error> {
        let fault = |fault: String| Error::Tensor { path: self.path.into(), tensor: self.name.into(), fault };
        if self.dtype != TensorDType::F32 {
            return Err(fault(format!("expected one F32 value, found {}", self.dtype)));
        }
        match <[u8; 4]>::try_from(self.bytes) {
            Ok(bytes) => Ok(f32::from_le_bytes(bytes)),
            Err(_) => Err(fault(format!("expected one F32 value, found shape {:?}", self.shape))),
        }
    }

    /// The elements of an f32, f16 or bf16 tensor, widened to f32.
    pub fn floats(&self) -> Result<Vec<f32>, Error> {
        let bytes = self.bytes;
        Ok(match self.dtype {
            TensorDType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            TensorDType::F16 => bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
            TensorDType::Bf16 => {
                bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
            }
            found => {
                return Err(Error::Tensor {
                    path: self.path.into(),
                    tensor: self.name.into(),
                    fault: format!("expected F32, F16 or BF16, found {found}"),
                });
            }
        })
    }
}

/// Where a tensor is and what it is.
#[derive(Clone, PartialEq, Debug)]
struct Entry {
    dtype: TensorDType,
    shape: Vec<usize>,
    /// Values of a row, for GGUF's NVFP4 tensors.
    nvfp4_row: Option<usize>,
    span: Span,
}

/// A mapped file. What is mapped must not be truncated while it is in use: another process that does so ends this one with
/// a bus error (the price of not reading 70 GB into memory; checkpoints are not changed in place).
#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl Mapped {
    fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let meta = file.metadata().map_err(|e| Error::io(path, e))?;
        if !meta.is_file() {
            return Err(Error::io(path, "not a regular file"));
        }
        if meta.len() == 0 {
            return Ok(Self { path: path.into(), map: None });
        }
        let map = crate::mapping::map(&file).map_err(|e| Error::io(path, e))?;
        Ok(Self { path: path.into(), map: Some(map) })
    }

    fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

/// The tensors of a checkpoint, whatever files they are in.
#[derive(Debug)]
pub struct Source {
    files: Vec<Mapped>,
    entries: BTreeMap<String, Entry>,
    metadata: HashMap<String, String>,
    gguf: bool,
}

/// Name of the index of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

impl Source {
    /// Opens a directory (with an index, one `model.safetensors`, or one other safetensors file), a safetensors file, an
    /// index, or a GGUF file. Headers are checked in full; tensor values are not looked at.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if meta.is_dir() {
            return Self::open_directory(path);
        }
        if path.to_string_lossy().ends_with(".index.json") {
            return Self::open_index(path);
        }
        let file = Mapped::open(path)?;
        if gguf::is_gguf(file.bytes()) || path.extension().is_some_and(|e| e == "gguf") {
            let (entries, metadata) = gguf::parse(path, file.bytes())?;
            return Ok(Self { files: vec![file], entries, metadata, gguf: true });
        }
        Self::from_files(vec![file], None)
    }

    fn open_directory(directory: &Path) -> Result<Self, Error> {
        let index = directory.join(INDEX);
        if index.is_file() {
            return Self::open_index(&index);
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(|e| Error::io(directory, e))? {
            let path = entry.map_err(|e| Error::io(directory, e))?.path();
            if path.extension().is_some_and(|e| e == "safetensors" || e == "gguf") && path.is_file() {
                found.push(path);
            }
        }
        found.sort();
        let model = directory.join("model.safetensors");
        match found.as_slice() {
            _ if found.contains(&model) => Self::open(&model),
            [only] => Self::open(only),
            [] => Err(Error::container(
                directory,
                format!("no checkpoint here: expected model.safetensors, {INDEX} or a .gguf file"),
            )),
            several => Err(Error::container(
                directory,
                format!(
                    "{} weight files ({} …) and neither model.safetensors nor {INDEX}: open one of them by name",
                    several.len(),
                    several[0].file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
                ),
            )),
        }
    }

    fn open_index(index: &Path) -> Result<Self, Error> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = std::fs::read(index).map_err(|e| Error::io(index, e))?;
        let parsed: Index = serde_json::from_slice(&text)
            .map_err(|e| Error::container(index, format!("not an index of shards: {e}")))?;
        let directory = index.parent().unwrap_or(Path::new("."));
        let mut shards: Vec<&String> = parsed.weight_map.values().collect();
        shards.sort();
        shards.dedup();
        let mut files = Vec::new();
        for shard in shards {
            let plain = !shard.is_empty() && Path::new(shard).file_name().is_some_and(|n| n == shard.as_str());
            if !plain {
                return Err(Error::container(index, format!("shard `{shard}` is not a plain file name")));
            }
            let path = directory.join(shard);
            files.push(Mapped::open(&path).map_err(|e| match e {
                Error::Io { path, reason } => Error::container(
                    index,
                    format!("names shard `{}`, which cannot be read: {reason}", path.display()),
                ),
                other => other,
            })?);
        }
        Self::from_files(files, Some((index, &parsed.weight_map)))
    }

    /// Joins the headers of safetensors files; with an index, checks that it and the shards agree.
    fn from_files(files: Vec<Mapped>, index: Option<(&Path, &BTreeMap<String, String>)>) -> Result<Self, Error> {
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        let mut metadata = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            let header = safetensors::parse(&file.path, file.bytes(), number)?;
            metadata.extend(header.metadata);
            for (name, entry) in header.entries {
                if let Some(other) = entries.get(&name) {
                    let first =
                        files.get(other.span.file).map_or_else(String::new, |f| f.path.display().to_string());
                    return Err(Error::Tensor {
                        path: file.path.clone(),
                        tensor: name,
                        fault: format!("is also in `{first}`"),
                    });
                }
                entries.insert(name, entry);
            }
        }
        if let Some((index, map)) = index {
            let file_of = |entry: &Entry| {
                let path = files.get(entry.span.file).and_then(|f| f.path.file_name());
                path.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
            };
            for (name, shard) in map {
                let fault = match entries.get(name) {
                    None => format!("says that `{name}` is in {shard}, where it is not"),
                    Some(entry) if file_of(entry) != *shard => {
                        format!("says that `{name}` is in {shard}, it is in {}", file_of(entry))
                    }
                    Some(_) => continue,
                };
                return Err(Error::container(index, fault));
            }
            if let Some((name, entry)) = entries.iter().find(|(name, _)| !map.contains_key(*name)) {
                return Err(Error::container(
                    index,
                    format!("does not name tensor `{name}`, which is in {}", file_of(entry)),
                ));
            }
        }
        Ok(Self { files, entries, metadata, gguf: false })
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.entries.get_key_value(name).and_then(|(name, entry)| self.view(name, entry))
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.entries.iter().filter_map(|(name, entry)| self.view(name, entry))
    }

    /// The tensors whose names start with `prefix`, by name.
    pub(crate) fn tensors_under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = TensorView<'a>> {
        let from = self.entries.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.take_while(move |(name, _)| name.starts_with(prefix))
            .filter_map(|(name, entry)| self.view(name, entry))
    }

    /// Free-form metadata: safetensors' `__metadata__`, or the string values of GGUF.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// True if the source is a GGUF file.
    pub const fn is_gguf(&self) -> bool {
        self.gguf
    }

    /// Values of a row of a GGUF NVFP4 tensor; `None` for other tensors.
    pub(crate) fn nvfp4_row(&self, name: &str) -> Option<usize> {
        self.entries.get(name)?.nvfp4_row
    }

    /// The files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> Option<TensorView<'a>> {
        // Every span was checked against its file when the header was read.
        let file = self.files.get(entry.span.file)?;
        let bytes = file.bytes().get(entry.span.start..entry.span.end)?;
        Some(TensorView { name, dtype: entry.dtype, shape: &entry.shape, bytes, path: &file.path })
    }
}
