//! What the elements and scales of matrix operands are worth.

use crate::number::FloatFormat;
use crate::number::float_format::decode_ue8m0;

/// The type of an element of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are PTX's types")]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    E2m3,
    E3m2,
    E2m1,
    S8,
    U8,
}

impl Element {
    /// The element that PTX names `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "e2m3" => Self::E2m3,
            "e3m2" => Self::E3m2,
            "e2m1" => Self::E2m1,
            "s8" => Self::S8,
            "u8" => Self::U8,
            _ => return None,
        })
    }

    /// Bits of an element by itself.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::E2m3 | Self::E3m2 => 6,
            Self::E2m1 => 4,
        }
    }

    /// The float format, if it is one.
    pub const fn format(self) -> Option<FloatFormat> {
        Some(match self {
            Self::F16 => FloatFormat::F16,
            Self::Bf16 => FloatFormat::BF16,
            Self::Tf32 => FloatFormat::TF32,
            Self::E4m3 => FloatFormat::E4M3,
            Self::E5m2 => FloatFormat::E5M2,
            Self::E2m3 => FloatFormat::E2M3,
            Self::E3m2 => FloatFormat::E3M2,
            Self::E2m1 => FloatFormat::E2M1,
            Self::S8 | Self::U8 => return None,
        })
    }

    /// Whether it is an 8-, 6- or 4-bit float, the types that kinds `f8f6f4` and `mxf8f6f4` mix.
    pub const fn is_narrow_float(self) -> bool {
        matches!(self, Self::E4m3 | Self::E5m2 | Self::E2m3 | Self::E3m2 | Self::E2m1)
    }

    /// The value of the element in the low bits of `code`; higher bits are ignored.
    pub fn decode(self, code: u32) -> f64 {
        match (self.format(), self) {
            (Some(format), _) => format.decode(code),
            (None, Self::S8) => f64::from(code as u8 as i8),
            (None, _) => f64::from(code as u8),
        }
    }
}

/// How elements lie in the bytes of a register, shared memory or tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Next to each other, the first in the low bits.
    Dense,
    /// Each in a byte: 6-bit elements in its low bits, 4-bit elements in bits 2–5. This is what a warp's registers and tensor memory
    /// hold for kinds `f8f6f4` and `mxf8f6f4`.
    Bytes,
    /// 16 elements in 16 bytes, packed at the front of them with padding behind: 4-bit elements in 8 bytes, 6-bit elements in
    /// 12. This is what shared memory holds for kinds `f8f6f4` and `mxf8f6f4`, put there by tensor maps of the `align16b` types.
    PaddedGroups,
}

/// Decodes operand elements of one type; 8-bit and narrower types go through a table.
pub struct Decoder {
    element: Element,
    table: Option<Box<[f64; 256]>>,
    packing: Packing,
}

impl Decoder {
    /// A decoder of elements packed as `packing` says; types of 8 bits and more are always dense.
    pub fn new(element: Element, packing: Packing) -> Self {
        let table =
            (element.bits() <= 8).then(|| Box::new(core::array::from_fn(|code| element.decode(code as u32))));
        let packing = if element.bits() < 8 { packing } else { Packing::Dense };
        Self { element, table, packing }
    }

    /// Bits between the starts of two elements, on average.
    pub fn stride_bits(&self) -> u32 {
        if self.packing == Packing::Dense { self.element.bits() } else { 8 }
    }

    /// Elements in 16 bytes.
    pub fn per_chunk(&self) -> usize {
        (128 / self.stride_bits()) as usize
    }

    /// Bytes at the front of a 16-byte chunk that hold data; padding behind them is not read.
    pub fn chunk_bytes(&self) -> usize {
        match self.packing {
            Packing::PaddedGroups => self.element.bits() as usize * 2,
            Packing::Dense | Packing::Bytes => 16,
        }
    }

    /// Decodes the elements of 16 bytes into the front of `values`, as many as [`Self::per_chunk`] (or as `values` holds).
    pub fn chunk(&self, bytes: &[u8; 16], values: &mut [f64]) {
        let word = u128::from_le_bytes(*bytes);
        let (stride, offset) = match self.packing {
            Packing::Dense | Packing::PaddedGroups => (self.element.bits(), 0),
            Packing::Bytes => (8, if self.element == Element::E2m1 { 2 } else { 0 }),
        };
        let mask = u32::MAX >> (32 - self.element.bits());
        for (index, value) in values.iter_mut().take(self.per_chunk()).enumerate() {
            let code = (word >> (index as u32 * stride + offset)) as u32 & mask;
            *value = match &self.table {
                Some(table) => table[code as u8 as usize],
                None => self.element.decode(code),
            };
        }
    }
}

/// The type of a block scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// A power of two: 2^(code − 127); 255 is NaN.
    Ue8m0,
    /// e4m3 without a sign: the top bit is ignored.
    Ue4m3,
}

impl ScaleFormat {
    /// The format that PTX names `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ue8m0" => Some(Self::Ue8m0),
            "ue4m3" => Some(Self::Ue4m3),
            _ => None,
        }
    }

    /// The value of a scale.
    pub fn decode(self, code: u8) -> f64 {
        match self {
            Self::Ue8m0 => decode_ue8m0(code),
            Self::Ue4m3 => FloatFormat::E4M3.decode(u32::from(code & 0x7f)),
        }
    }
}

/// The type of an accumulator element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are PTX's types")]
pub enum Accumulator {
    F16,
    F32,
    S32,
}

impl Accumulator {
    /// The accumulator that PTX names `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "f16" => Some(Self::F16),
            "f32" => Some(Self::F32),
            "s32" => Some(Self::S32),
            _ => None,
        }
    }

    /// The value of an element in the low bits of `word`.
    pub fn decode(self, word: u32) -> f64 {
        match self {
            Self::F16 => FloatFormat::F16.decode(word),
            Self::F32 => f64::from(f32::from_bits(word)),
            Self::S32 => f64::from(word as i32),
        }
    }

    /// `value` rounded to nearest even as an element. An integer beyond 32 bits wraps, or clamps if `saturate`.
    pub fn encode(self, value: f64, saturate: bool) -> u32 {
        use crate::number::{Overflow, Rounding};
        match self {
            Self::F16 => FloatFormat::F16.encode(value, Rounding::NearestEven, Overflow::Infinity),
            Self::F32 if value.is_nan() => FloatFormat::F32.nan_bits(),
            Self::F32 => (value as f32).to_bits(),
            Self::S32 if saturate => value as i32 as u32,
            Self::S32 => value as i64 as u32,
        }
    }
}
