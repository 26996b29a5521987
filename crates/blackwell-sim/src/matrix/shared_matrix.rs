//! Matrices in shared memory as descriptors describe them: where each 16-byte chunk of an operand lies.
//!
//! Layouts (CuTe's canonical layouts for GMMA and UMMA; PTX ISA 9.7.15.5.1 and 9.7.16.5). LBO and SBO are the descriptor's leading and stride
//! byte offsets, a chunk is 16 bytes, a span the row of the swizzle (32, 64 or 128 bytes):
//!
//! | major | swizzle | chunk c of row or column i |
//! | --- | --- | --- |
//! | K | none | start + c·LBO + (i mod 8)·16 + (i / 8)·SBO |
//! | K | 32, 64, 128 | start + c·16 + (i mod 8)·span + (i / 8)·SBO; a chunk behind the end of its span is in the next one, LBO away |
//! | M or N | none | chunk j of the rows, index k: start + j·SBO + (k mod 8)·16 + (k / 8)·LBO |
//! | M or N | 32, 64, 128 | start + (j mod chunks a span)·16 + (j / chunks a span)·LBO + (k mod 8)·span + (k / 8)·SBO |
//! | M or N | 128, atoms of 32 | as before with k mod 4, k / 4 |
//!
//! The swizzle then permutes the bits of the address itself, so a start may point into a span.

use super::SharedRead;
use super::element::{Decoder, Element, Packing};
use crate::tensor_fault::TensorFault;

/// Which index runs through contiguous bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// k: «not transposed».
    K,
    /// The row of A or column of B: «transposed».
    MatrixRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SharedSwizzle {
    None,
    /// By chunks of 16 bytes, in rows of so many bytes.
    Chunks {
        span: u32,
    },
    /// In rows of 128 bytes, by 32 bytes.
    Atoms32,
}

impl SharedSwizzle {
    fn span(self) -> u32 {
        match self {
            Self::None => 16,
            Self::Chunks { span } => span,
            Self::Atoms32 => 128,
        }
    }

    fn apply(self, address: u32) -> u32 {
        match self {
            Self::None => address,
            Self::Chunks { span } => address ^ ((address >> 7 & (span / 16 - 1)) << 4),
            Self::Atoms32 => address ^ ((address >> 7 & 3) << 5),
        }
    }
}

/// What the leading-dimension field means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leading {
    /// Bytes.
    Offset(u32),
    /// The address where the next span begins.
    Address(u32),
}

/// A decoded matrix descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedMatrix {
    start: u32,
    leading: Leading,
    stride: u32,
    swizzle: SharedSwizzle,
}

/// A 14-bit field of a descriptor, in units of 16 bytes.
fn bytes_field(descriptor: u64, low: u32) -> u32 {
    ((descriptor >> low & 0x3fff) as u32) << 4
}

impl SharedMatrix {
    /// Decodes a descriptor of `wgmma` (PTX ISA 9.7.15.5.1.2.2).
    ///
    /// # Errors
    /// A base offset: a swizzle pattern that does not begin at a multiple of its size is not modelled.
    pub fn from_wgmma(descriptor: u64) -> Result<Self, TensorFault> {
        let swizzle = match descriptor >> 62 {
            0 => SharedSwizzle::None,
            1 => SharedSwizzle::Chunks { span: 128 },
            2 => SharedSwizzle::Chunks { span: 64 },
            _ => SharedSwizzle::Chunks { span: 32 },
        };
        check_base_offset(descriptor)?;
        Ok(Self {
            start: bytes_field(descriptor, 0),
            leading: Leading::Offset(bytes_field(descriptor, 16)),
            stride: bytes_field(descriptor, 32),
            swizzle,
        })
    }

    /// Decodes a descriptor of `tcgen05.mma` or `tcgen05.cp` (PTX ISA 9.7.16.4.1).
    ///
    /// # Errors
    /// The fixed fields are not as they must be, the swizzle does not exist, or a base offset, which is not modelled.
    pub fn from_tcgen05(descriptor: u64) -> Result<Self, TensorFault> {
        let bad = |what: &str| {
            Err(TensorFault::BadDescriptor(format!("shared memory descriptor {descriptor:#018x}: {what}")))
        };
        if descriptor >> 46 & 7 != 1 {
            return bad("bits 46-48 must be 0b001 (a descriptor for wgmma leaves them 0)");
        }
        if descriptor >> 53 & 0xff != 0 {
            return bad("bits 53-60 must be 0");
        }
        let swizzle = match descriptor >> 61 {
            0 => SharedSwizzle::None,
            1 => SharedSwizzle::Atoms32,
            2 => SharedSwizzle::Chunks { span: 128 },
            4 => SharedSwizzle::Chunks { span: 64 },
            6 => SharedSwizzle::Chunks { span: 32 },
            _ => return bad("swizzle modes 3, 5 and 7 do not exist"),
        };
        check_base_offset(descriptor)?;
        let leading = bytes_field(descriptor, 16);
        Ok(Self {
            start: bytes_field(descriptor, 0),
            leading: if descriptor >> 52 & 1 == 1 { Leading::Address(leading) } else { Leading::Offset(leading) },
            stride: bytes_field(descriptor, 32),
            swizzle,
        })
    }

    /// Where chunk `chunk` along k of row `row` lies in a K-major matrix.
    pub fn k_major_chunk(&self, row: u32, chunk: u32) -> u32 {
        let span = self.swizzle.span();
        let rows = row % 8 * span + row / 8 * self.stride;
        if self.swizzle == SharedSwizzle::None {
            return match self.leading {
                Leading::Offset(offset) => self.start + chunk * offset + rows,
                Leading::Address(next) if chunk > 0 => next + (chunk - 1) * 16 + rows,
                Leading::Address(_) => self.start + rows,
            };
        }
        let position = self.start % span + 16 * chunk;
        let base = match (position / span, self.leading) {
            (0, _) => self.start - self.start % span,
            (spans, Leading::Offset(offset)) => self.start - self.start % span + spans * offset,
            (spans, Leading::Address(next)) => next + (spans - 1) * span,
        };
        self.swizzle.apply(base + position % span + rows)
    }

    /// Where chunk `chunk` along the rows of index `k` lies in a matrix whose rows are contiguous.
    ///
    /// # Errors
    /// The leading-dimension field is an address, which such a matrix cannot use.
    pub fn row_major_chunk(&self, k: u32, chunk: u32) -> Result<u32, TensorFault> {
        let Leading::Offset(leading) = self.leading else {
            let what = "an absolute leading-dimension address in a transposed (M- or N-major) matrix";
            return Err(TensorFault::BadDescriptor(what.into()));
        };
        let span = self.swizzle.span();
        Ok(match self.swizzle {
            SharedSwizzle::None => self.start + chunk * self.stride + k % 8 * 16 + k / 8 * leading,
            SharedSwizzle::Chunks { .. } | SharedSwizzle::Atoms32 => {
                let rows = if self.swizzle == SharedSwizzle::Atoms32 { 4 } else { 8 };
                let across = chunk % (span / 16) * 16 + chunk / (span / 16) * leading;
                self.swizzle.apply(self.start + across + k % rows * span + k / rows * self.stride)
            }
        })
    }

    /// Whether the swizzle moves 32 bytes at a time.
    pub fn has_atoms_of_32(&self) -> bool {
        self.swizzle == SharedSwizzle::Atoms32
    }

    /// The matrix's values, `rows` × `k` row-major.
    ///
    /// # Errors
    /// A chunk is outside the CTA's shared memory or holds bytes that nothing wrote.
    pub(super) fn read(
        &self,
        shared: &dyn SharedRead,
        decoder: &Decoder,
        major: Major,
        rows: usize,
        k: usize,
    ) -> Result<Vec<f64>, TensorFault> {
        let per_chunk = decoder.per_chunk();
        let mut values = vec![0.0; rows * k];
        let mut bytes = [0; 16];
        let data = decoder.chunk_bytes();
        match major {
            Major::K => {
                for (row, values) in values.chunks_exact_mut(k).enumerate() {
                    for (chunk, values) in values.chunks_mut(per_chunk).enumerate() {
                        shared.read(self.k_major_chunk(row as u32, chunk as u32), &mut bytes[..data])?;
                        decoder.chunk(&bytes, values);
                    }
                }
            }
            Major::MatrixRow => {
                let mut column = vec![0.0; per_chunk];
                for index in 0..k {
                    for chunk in 0..rows.div_ceil(per_chunk) {
                        shared.read(self.row_major_chunk(index as u32, chunk as u32)?, &mut bytes[..data])?;
                        decoder.chunk(&bytes, &mut column);
                        let rows = values.chunks_exact_mut(k).skip(chunk * per_chunk);
                        rows.zip(&column).for_each(|(row, &value)| row[index] = value);
                    }
                }
            }
        }
        Ok(values)
    }
}

/// A decoder of shared memory operands: 4- and 6-bit elements of the mixed kinds lie in padded groups.
pub(super) fn shared_decoder(element: Element, padded: bool) -> Decoder {
    Decoder::new(element, if padded { Packing::PaddedGroups } else { Packing::Dense })
}

fn check_base_offset(descriptor: u64) -> Result<(), TensorFault> {
    match descriptor >> 49 & 7 {
        0 => Ok(()),
        offset => Err(TensorFault::BadDescriptor(format!(
            "shared memory descriptor {descriptor:#018x} has base offset {offset}: only swizzle patterns that begin at multiples of \
             their size (1024, 512, 256 bytes) are modelled"
        ))),
    }
}

/// `rows` × `columns` values, transposed.
pub(super) fn transposed(values: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    for (row, values) in values.chunks_exact(columns).enumerate().take(rows) {
        for (column, &value) in values.iter().enumerate() {
            out[column * rows + row] = value;
        }
    }
    out
}
