//! Fat binaries: several images for several devices in one.
//!
//! The container is not documented. It was read off what `fatbinary` of CUDA 13.0 writes, little-endian: a header (magic `u32`, version
//! `u16`, its own bytes `u16`, bytes of all entries `u64`), then entries. Of an entry these fields are used:
//!
//! | offset | type | content |
//! | --- | --- | --- |
//! | 0 | `u16` | kind: 1 PTX, 2 cubin |
//! | 4 | `u32` | bytes of this header |
//! | 8 | `u64` | bytes of the contents, padded |
//! | 16 | `u32` | bytes of the contents if they are compressed |
//! | 28 | `u32` | architecture, e.g. 100 |
//! | 40 | `u64` | flags: `0x2000` compressed as one LZ4 block, `0x8000` compressed as a Zstandard frame |
//! | 56 | `u64` | bytes of the contents before compression |

use super::{ImageError, extent::FAT_BINARY_MAGIC};
use crate::profile::Profile;
use std::{borrow::Cow, io::Read};

/// Bytes of the fields of a header.
const HEADER_FIELDS: usize = 16;
/// Bytes of an entry's fields.
const ENTRY_FIELDS: usize = 64;
const COMPRESSED_LZ4: u64 = 0x2000;
const COMPRESSED_ZSTD: u64 = 0x8000;
/// Longest contents that are unpacked: far above any module, far below what a forged length could ask for.
const MOST_UNPACKED: u64 = 1 << 30;

/// The header of a fat binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Offset of the first entry.
    pub entries: usize,
    /// Bytes of the whole fat binary.
    pub length: usize,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// Machine code.
    Cubin,
    /// Something else, such as intermediate code for link-time optimization.
    Other(u16),
}

/// An entry of a fat binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it holds.
    pub kind: EntryKind,
    /// Its architecture, e.g. 100.
    pub architecture: u32,
    flags: u64,
    unpacked: u64,
    stored: &'a [u8],
}

fn damaged(reason: String) -> ImageError {
    ImageError::Damaged { what: "the fat binary", reason }
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], ImageError> {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or_else(|| damaged(format!("it ends at byte {}, within a header", bytes.len())))
}

fn index(value: u64) -> Result<usize, ImageError> {
    usize::try_from(value).map_err(|_| damaged(format!("a length of {value} bytes")))
}

impl Header {
    /// Reads the header.
    ///
    /// # Errors
    /// Not a fat binary, or one that ends within its header.
    pub fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        let magic = u32::from_le_bytes(field(bytes, 0)?);
        if magic != FAT_BINARY_MAGIC {
            return Err(damaged(format!("it starts with {magic:#x}, not {FAT_BINARY_MAGIC:#x}")));
        }
        let entries = usize::from(u16::from_le_bytes(field(bytes, 6)?));
        let length = index(u64::from_le_bytes(field(bytes, 8)?))?;
        if entries < HEADER_FIELDS {
            return Err(damaged(format!("a header of {entries} bytes; it has at least {HEADER_FIELDS}")));
        }
        let length = entries.checked_add(length).ok_or_else(|| damaged(format!("{length} bytes of entries")))?;
        Ok(Self { entries, length })
    }
}

/// The entries of a fat binary.
///
/// # Errors
/// The container is damaged.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, ImageError> {
    let header = Header::read(bytes)?;
    let bytes = bytes
        .get(..header.length)
        .ok_or_else(|| damaged(format!("it has {} bytes, its header says {}", bytes.len(), header.length)))?;
    let (mut at, mut entries) = (header.entries, Vec::new());
    while at < bytes.len() {
        let rest = &bytes[at..];
        let header_bytes = u32::from_le_bytes(field(rest, 4)?) as usize;
        let padded = index(u64::from_le_bytes(field(rest, 8)?))?;
        if header_bytes < ENTRY_FIELDS {
            return Err(damaged(format!(
                "an entry's header of {header_bytes} bytes; it has at least {ENTRY_FIELDS}"
            )));
        }
        let end = header_bytes.checked_add(padded).filter(|&end| end <= rest.len());
        let end = end.ok_or_else(|| damaged(format!("the entry at {at} reaches past the end")))?;
        let flags = u64::from_le_bytes(field(rest, 40)?);
        let mut stored = &rest[header_bytes..end];
        if flags & (COMPRESSED_LZ4 | COMPRESSED_ZSTD) != 0 {
            let length = u32::from_le_bytes(field(rest, 16)?) as usize;
            stored = stored.get(..length).ok_or_else(|| {
                damaged(format!("the entry at {at} has {padded} bytes, of which {length} are compressed contents"))
            })?;
        }
        entries.push(Entry {
            kind: match u16::from_le_bytes(field(rest, 0)?) {
                1 => EntryKind::Ptx,
                2 => EntryKind::Cubin,
                other => EntryKind::Other(other),
            },
            architecture: u32::from_le_bytes(field(rest, 28)?),
            flags,
            unpacked: u64::from_le_bytes(field(rest, 56)?),
            stored,
        });
        at += end;
    }
    Ok(entries)
}

impl Entry<'_> {
    /// The contents, unpacked.
    ///
    /// # Errors
    /// The compressed data is damaged or has another length than the entry says.
    pub fn contents(&self) -> Result<Cow<'_, [u8]>, ImageError> {
        let compression = self.flags & (COMPRESSED_LZ4 | COMPRESSED_ZSTD);
        if compression == 0 {
            return Ok(Cow::Borrowed(self.stored));
        }
        if self.unpacked > MOST_UNPACKED {
            return Err(damaged(format!("an entry of {} bytes; the most are {MOST_UNPACKED}", self.unpacked)));
        }
        let length = index(self.unpacked)?;
        let wrong = |reason: String| damaged(format!("compressed contents: {reason}"));
        let contents = if compression == COMPRESSED_LZ4 {
            lz4_flex::block::decompress(self.stored, length).map_err(|e| wrong(e.to_string()))?
        } else {
            let mut contents = Vec::new();
            let decoder = ruzstd::decoding::StreamingDecoder::new(self.stored).map_err(|e| wrong(e.to_string()))?;
            decoder.take(self.unpacked + 1).read_to_end(&mut contents).map_err(|e| wrong(e.to_string()))?;
            contents
        };
        match contents.len() == length {
            true => Ok(Cow::Owned(contents)),
            false => Err(wrong(format!("{} bytes, the entry says {length}", contents.len()))),
        }
    }

    /// True if machine code of the entry's architecture is for the device.
    pub fn runs_on(&self, profile: &Profile) -> bool {
        let (major, minor) = profile.capability;
        self.architecture == major * 10 + minor
    }

    /// Kind and architecture, for messages.
    pub fn describe(&self) -> String {
        match self.kind {
            EntryKind::Ptx => format!("PTX for {}", self.architecture),
            EntryKind::Cubin => format!("machine code for {}", self.architecture),
            EntryKind::Other(kind) => format!("an entry of kind {kind} for {}", self.architecture),
        }
    }
}
