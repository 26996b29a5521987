//! Tensors in files, memory-mapped: safetensors (one file or shards) and GGUF.

mod faults;
mod files;
mod safetensors;

pub(crate) use faults::Faults;

use crate::{
    Error, TensorDType,
    gguf::{self, GgufType},
};
use files::Files;
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
    /// For tensors of a GGUF file: their type, and the values of a row.
    gguf: Option<(GgufType, usize)>,
    span: Span,
}

/// A mapped file; see [`Source`] for what that asks of others.
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
///
/// The files are memory-mapped, not read: a model of 70 GB opens at once, and only the pages that are used come into
/// memory. The price is that **the files must stay as they are while a `Source` (or a [`Checkpoint`](crate::Checkpoint),
/// or a layer that borrows from one) lives**, and no library can enforce it:
///
/// * A file that is *truncated* under the mapping leaves pages without anything behind them. Touching one ends the process
///   with a bus error (`SIGBUS`; on Windows the truncation itself fails). It is not an [`Error`] and cannot be caught here.
/// * A file that is *overwritten in place* changes the tensors, at any moment, also after they were checked. Layers that
///   own their bytes ([`NvFp4Weights::into_owned`](nvfp4_core::NvFp4Weights::into_owned)) no longer depend on the file.
/// * A file that is *deleted, or replaced by renaming* another over it, does no harm: the mapping keeps the old contents.
///   That is how this crate writes, and how download tools finish a file.
///
/// All lengths are checked against the length that the file had when it was opened. For files that others may change, copy
/// them first, or hold a lock that the others respect.
#[derive(Debug)]
pub struct Source {
    files: Vec<Mapped>,
    entries: BTreeMap<String, Entry>,
    metadata: HashMap<String, String>,
    gguf: bool,
}

impl Source {
    /// Opens a directory (with an index, one `model.safetensors`, or one other safetensors file), a safetensors file, an
    /// index, or a GGUF file. Headers are checked in full; tensor values are not looked at. The error is the first fault.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let mut faults = Faults::keeping(1);
        let source = Self::collect(path.as_ref(), &mut faults);
        match (source, faults.into_kept().pop()) {
            (_, Some(fault)) => Err(fault),
            (Some(source), None) => Ok(source),
            (None, None) => Err(Error::container(path.as_ref(), "no tensors can be read from it")),
        }
    }

    /// As [`open`](Self::open), with all faults that do not hide each other. `None` if there is nothing to be read.
    pub(crate) fn collect(path: &Path, faults: &mut Faults) -> Option<Self> {
        let files = match Files::find(path, faults) {
            Ok(files) => files,
            Err(fault) => {
                faults.push(fault);
                return None;
            }
        };
        match files {
            Files::Gguf(file) => {
                let header = gguf::parse(&file.path, file.bytes(), faults)?;
                Some(Self::from_gguf(file, header))
            }
            Files::Safetensors(files) => Some(Self::from_safetensors(files, None, faults)),
            Files::Shards { files, index, weight_map } => {
                Some(Self::from_safetensors(files, Some((&index, &weight_map)), faults))
            }
        }
    }

    fn from_gguf(file: Mapped, header: gguf::Header) -> Self {
        let entries = header.tensors.into_iter().map(|(name, tensor)| {
            let gguf::Tensor { kind, mut shape, bytes } = tensor;
            let row = shape.last().copied().unwrap_or(1);
            // What has no elements is shown as bytes.
            if let (false, Some(last)) = (kind.is_plain(), shape.last_mut()) {
                *last = kind.row_bytes(row).unwrap_or(0);
            }
            let span = Span { file: 0, start: bytes.start, end: bytes.end };
            (name, Entry { dtype: kind.dtype, shape, gguf: Some((kind, row)), span })
        });
        Self { entries: entries.collect(), files: vec![file], metadata: header.metadata, gguf: true }
    }

    /// Joins the headers of safetensors files; with an index, checks that it and the shards agree.
    fn from_safetensors(
        files: Vec<Mapped>,
        index: Option<(&Path, &BTreeMap<String, String>)>,
        faults: &mut Faults,
    ) -> Self {
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        let mut metadata = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            let Some(header) = safetensors::parse(&file.path, file.bytes(), number, faults) else { continue };
            metadata.extend(header.metadata);
            for (name, entry) in header.entries {
                if let Some(other) = entries.get(&name) {
                    let first =
                        files.get(other.span.file).map_or_else(String::new, |f| f.path.display().to_string());
                    faults.push(Error::Tensor {
                        path: file.path.clone(),
                        tensor: name,
                        fault: format!("is also in `{first}`"),
                    });
                    continue;
                }
                entries.insert(name, entry);
            }
        }
        // An index cannot be held against headers that are not whole.
        if let Some((index, map)) = index
            && faults.count() == 0
        {
            let file_of = |entry: &Entry| {
                let path = files.get(entry.span.file).and_then(|f| f.path.file_name());
                path.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
            };
            for (name, shard) in map {
                match entries.get(name) {
                    None => faults.push(Error::container(
                        index,
                        format!("says that `{name}` is in {shard}, where it is not"),
                    )),
                    Some(entry) if file_of(entry) != *shard => faults.push(Error::container(
                        index,
                        format!("says that `{name}` is in {shard}, it is in {}", file_of(entry)),
                    )),
                    Some(_) => {}
                }
            }
            for (name, entry) in entries.iter().filter(|(name, _)| !map.contains_key(*name)) {
                let fault = format!("does not name tensor `{name}`, which is in {}", file_of(entry));
                faults.push(Error::container(index, fault));
            }
        }
        Self { files, entries, metadata, gguf: false }
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

    /// The type of a tensor of a GGUF file, and the values of its rows; `None` in other files.
    pub(crate) fn gguf_type(&self, name: &str) -> Option<(GgufType, usize)> {
        self.entries.get(name)?.gguf
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
