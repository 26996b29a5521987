//! What form an image has and how long it is. The driver's loaders are given an address and no length.

use super::ImageError;
use object::{
    LittleEndian,
    elf::{ELFMAG, EM_CUDA, FileHeader64, PT_NULL, SHT_NOBITS, SHT_NULL},
    read::elf::{FileHeader, ProgramHeader, SectionHeader},
};

/// First word of a fat binary.
pub const FAT_BINARY_MAGIC: u32 = 0xba55_ed50;
/// First word of the structure that the CUDA runtime wraps around a fat binary: magic, version, pointer to the fat binary.
pub const FAT_BINARY_WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// Bytes of an ELF file header, the longest header that is needed to go on.
pub const HEADER_BYTES: usize = 64;

/// The form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// PTX text, ended by a zero byte.
    Ptx,
    /// Several images for several devices.
    FatBinary,
    /// An ELF file with machine code.
    Cubin,
}

impl Form {
    /// The form of an image that starts with these bytes; four tell.
    ///
    /// # Errors
    /// It is none of the forms.
    pub fn of(start: &[u8]) -> Result<Self, ImageError> {
        let unknown = || ImageError::Unknown { start: start[..start.len().min(16)].to_vec() };
        let word = start.first_chunk::<4>().ok_or_else(unknown)?;
        if u32::from_le_bytes(*word) == FAT_BINARY_MAGIC {
            return Ok(Self::FatBinary);
        }
        if *word == ELFMAG {
            return Ok(Self::Cubin);
        }
        let text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        if word.iter().all(text) { Ok(Self::Ptx) } else { Err(unknown()) }
    }
}

/// How far an image is known to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// It is that long, bytes.
    Whole(usize),
    /// Its length is not known yet; it has at least that many bytes, and they tell more.
    AtLeast(usize),
}

/// How long a fat binary or cubin is, from a prefix of it of at least [`HEADER_BYTES`] bytes.
///
/// # Errors
/// The prefix is too short, or its numbers make no sense.
pub fn extent(prefix: &[u8]) -> Result<Extent, ImageError> {
    match Form::of(prefix)? {
        Form::FatBinary => {
            let header = super::fat_binary::Header::read(prefix)?;
            Ok(Extent::Whole(header.length))
        }
        Form::Cubin => {
            let tables = cubin_tables(prefix)?;
            if prefix.len() < tables {
                Ok(Extent::AtLeast(tables))
            } else {
                Ok(Extent::Whole(cubin_length(prefix)?))
            }
        }
        Form::Ptx => Err(damaged("PTX text ends at its zero byte, not at a length")),
    }
}

fn damaged(reason: impl ToString) -> ImageError {
    ImageError::Damaged { what: "the headers", reason: reason.to_string() }
}

/// The file header of a cubin, checked.
pub(crate) fn file_header(bytes: &[u8]) -> Result<&FileHeader64<LittleEndian>, ImageError> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(damaged)?;
    let machine = header.e_machine(LittleEndian);
    match machine == EM_CUDA {
        true => Ok(header),
        false => Err(damaged(format!("the machine is {}, not {EM_CUDA} (CUDA)", machine))),
    }
}

/// Where the tables of sections and segments end.
fn cubin_tables(prefix: &[u8]) -> Result<usize, ImageError> {
    let header = file_header(prefix)?;
    let end = |offset: u64, size: u16, count: u16| offset.checked_add(u64::from(size) * u64::from(count));
    let sections =
        end(header.e_shoff(LittleEndian), header.e_shentsize(LittleEndian), header.e_shnum(LittleEndian));
    let segments =
        end(header.e_phoff(LittleEndian), header.e_phentsize(LittleEndian), header.e_phnum(LittleEndian));
    let most = sections.max(segments).filter(|_| sections.is_some() && segments.is_some());
    most.and_then(|most| usize::try_from(most).ok()).ok_or_else(|| damaged("a table lies outside every file"))
}

/// Bytes of a cubin whose headers are in `bytes`: the end of its last table, section or segment.
///
/// # Errors
/// The headers are damaged or lie outside `bytes`.
pub fn cubin_length(bytes: &[u8]) -> Result<usize, ImageError> {
    let header = file_header(bytes)?;
    let mut length = cubin_tables(bytes)? as u64;
    for section in header.section_headers(LittleEndian, bytes).map_err(damaged)? {
        let kind = section.sh_type(LittleEndian);
        if kind != SHT_NOBITS && kind != SHT_NULL {
            length = length.max(section.sh_offset(LittleEndian).saturating_add(section.sh_size(LittleEndian)));
        }
    }
    for segment in header.program_headers(LittleEndian, bytes).map_err(damaged)? {
        if segment.p_type(LittleEndian) != PT_NULL {
            length = length.max(segment.p_offset(LittleEndian).saturating_add(segment.p_filesz(LittleEndian)));
        }
    }
    usize::try_from(length).map_err(damaged)
}
