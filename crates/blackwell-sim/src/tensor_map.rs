//! Tensor maps: the 128-byte descriptors by which bulk tensor copies (TMA) find tiles of a tensor in global memory.
//!
//! The layout of the bits was read off a driver by encoding one parameter at a time, and off the maps that NVIDIA's CuTe DSL packs for
//! Blackwell kernels. 32-bit words, little-endian:
//!
//! | word | content |
//! | --- | --- |
//! | 0–1 | global address |
//! | 2 | bits 0–1: generation (0 Hopper, 2 Blackwell); 4–6: rank − 1; 7–10: element type; 11–12: interleave; 13–14: swizzle; 15: fill with NaN; 17–18: L2 promotion; 21: the tensor has at least 128 KiB |
//! | 3–6 | strides of dimensions 1–4, in 16 bytes |
//! | 7 | bits 32–35 of those strides, four bits a dimension |
//! | 8–12 | dimensions 0–4, less one |
//! | 13 | bits 0–14: element strides less one, three bits a dimension; 24–31: box of dimension 0 less one |
//! | 14 | bytes: boxes of dimensions 1–4, less one |
//! | 16, 18 | derived by the driver: bytes of a box; bytes after which the swizzle repeats |
//!
//! Hardware reads the first 64 bytes only; the CuTe DSL leaves the rest undefined.

mod encode;
mod tile;

pub use encode::{Generation, TiledParameters};
pub use tile::Piece;

use crate::tensor_fault::TensorFault;

/// Bytes of a tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// The type of a tensor's elements, as a tensor map knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the plain ones are PTX's types")]
pub enum TensorElement {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    Bf16,
    /// 4-bit elements, as packed in shared memory as in global (`16U4_ALIGN8B`).
    U4,
    /// 16 4-bit elements into 16 bytes of shared memory: 8 bytes of data, then padding (`16U4_ALIGN16B`).
    U4Padded,
    /// 16 6-bit elements into 16 bytes of shared memory: 12 bytes of data, then padding (`16U6_ALIGN16B`).
    U6Padded,
}

/// Every element type with its code in the map and in `CUtensorMapDataType`.
const ELEMENTS: [(TensorElement, u32, u32); 13] = [
    (TensorElement::U8, 0, 0),
    (TensorElement::U16, 1, 1),
    (TensorElement::U32, 2, 2),
    (TensorElement::S32, 3, 3),
    (TensorElement::U64, 4, 4),
    (TensorElement::S64, 5, 5),
    (TensorElement::F16, 6, 6),
    (TensorElement::F32, 7, 7),
    (TensorElement::F64, 9, 8),
    (TensorElement::Bf16, 10, 9),
    (TensorElement::U4, 11, 13),
    (TensorElement::U4Padded, 12, 14),
    (TensorElement::U6Padded, 13, 15),
];

impl TensorElement {
    /// The type with this value of `CUtensorMapDataType`. `None` for values that do not exist and for the types that change data on
    /// the way (`FLOAT32_FTZ`, `TFLOAT32`, `TFLOAT32_FTZ`), which are not modelled.
    pub fn from_driver(value: u32) -> Option<Self> {
        ELEMENTS.into_iter().find(|&(_, _, driver)| driver == value).map(|(element, ..)| element)
    }

    fn from_code(code: u32) -> Option<Self> {
        ELEMENTS.into_iter().find(|&(_, map, _)| map == code).map(|(element, ..)| element)
    }

    fn code(self) -> u32 {
        ELEMENTS.into_iter().find(|&(element, ..)| element == self).map_or(0, |(_, code, _)| code)
    }

    /// Bits of an element in global memory.
    pub const fn bits(self) -> u32 {
        match self {
            Self::U4 | Self::U4Padded => 4,
            Self::U6Padded => 6,
            Self::U8 => 8,
            Self::U16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::F32 => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Bits that an element takes in shared memory, padding included.
    pub const fn shared_bits(self) -> u32 {
        match self {
            Self::U4Padded | Self::U6Padded => 8,
            _ => self.bits(),
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::Bf16)
    }
}

/// How a tile's rows are permuted in shared memory: 16-byte chunks are exchanged by the low address bits of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Not at all.
    None,
    /// Address bit 4 is exclusive-or'd with bit 7.
    Bytes32,
    /// Bits 4–5 with bits 7–8.
    Bytes64,
    /// Bits 4–6 with bits 7–9.
    Bytes128,
}

impl Swizzle {
    /// The swizzle with this value of `CUtensorMapSwizzle`. `None` also for the 128-byte swizzles of 32- and 64-byte atoms, whose
    /// code in the map is not known.
    pub fn from_driver(value: u32) -> Option<Self> {
        [Self::None, Self::Bytes32, Self::Bytes64, Self::Bytes128].get(value as usize).copied()
    }

    /// Where byte `address` of a tile goes; the pattern is anchored at multiples of 1024 bytes (512, 256 for the smaller ones).
    pub const fn apply(self, address: u32) -> u32 {
        let mask = match self {
            Self::None => 0,
            Self::Bytes32 => 1,
            Self::Bytes64 => 3,
            Self::Bytes128 => 7,
        };
        address ^ ((address >> 7 & mask) << 4)
    }

    /// Bytes of a row of the pattern; 16 without a swizzle.
    pub const fn span(self) -> u32 {
        match self {
            Self::None => 16,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// Whether the channels of an image are interleaved with its pixels, in units of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the driver's")]
pub enum Interleave {
    None,
    Bytes16,
    Bytes32,
}

impl Interleave {
    /// The interleave with this value of `CUtensorMapInterleave`.
    pub fn from_driver(value: u32) -> Option<Self> {
        [Self::None, Self::Bytes16, Self::Bytes32].get(value as usize).copied()
    }
}

/// A decoded tensor map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of element (0, 0, …).
    pub address: u64,
    /// Type of the elements.
    pub element: TensorElement,
    /// Number of dimensions, 1–5.
    pub rank: usize,
    /// Elements of each dimension, dimension 0 innermost; 1 beyond the rank.
    pub dims: [u64; 5],
    /// Bytes from one index of a dimension to the next, of dimensions 1–4.
    pub strides: [u64; 4],
    /// Elements of a tile in each dimension, before element strides; 1 beyond the rank.
    pub box_dims: [u32; 5],
    /// Every how manieth element of the box is copied.
    pub element_strides: [u32; 5],
    /// The interleave of image channels.
    pub interleave: Interleave,
    /// How the tile is permuted in shared memory.
    pub swizzle: Swizzle,
    /// Elements outside the tensor are NaN rather than zero.
    pub nan_fill: bool,
}

impl TensorMap {
    /// Decodes a map from its bytes (at least the first 64 are used).
    ///
    /// # Errors
    /// The bytes are no tiled map that is modelled: an unknown generation, element type or flag. An all-zero block and other garbage
    /// end here as a rule.
    pub fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<Self, TensorFault> {
        let word = |index: usize| {
            let at = 4 * index;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let flags = word(2);
        let field = |low: u32, bits: u32| flags >> low & ((1 << bits) - 1);
        let bad = |what: String| Err(TensorFault::BadTensorMap(format!("{what} (word 2 is {flags:#010x})")));
        if !matches!(field(0, 2), 0 | 2) {
            return bad(format!("generation {} is neither Hopper's 0 nor Blackwell's 2", field(0, 2)));
        }
        if flags & !FLAGS_KNOWN != 0 {
            return bad(format!("unknown bits {:#x} are set", flags & !FLAGS_KNOWN));
        }
        let rank = field(4, 3) as usize + 1;
        if rank > 5 {
            return bad(format!("rank {rank} is above 5"));
        }
        let Some(element) = TensorElement::from_code(field(7, 4)) else {
            return bad(format!("element type {} is not modelled", field(7, 4)));
        };
        let Some(interleave) = Interleave::from_driver(field(11, 2)) else {
            return bad(format!("interleave {} does not exist", field(11, 2)));
        };
        let Some(swizzle) = Swizzle::from_driver(field(13, 2)) else {
            return bad(format!("swizzle {} does not exist", field(13, 2)));
        };
        let boxes = word(14).to_le_bytes();
        let within = |dimension: usize| dimension < rank;
        let map = Self {
            address: u64::from(word(0)) | u64::from(word(1)) << 32,
            element,
            rank,
            dims: core::array::from_fn(|d| if within(d) { u64::from(word(8 + d)) + 1 } else { 1 }),
            strides: core::array::from_fn(|d| {
                let high = u64::from(word(7) >> (4 * d) & 0xf) << 32;
                if within(d + 1) { (high | u64::from(word(3 + d))) * 16 } else { 0 }
            }),
            box_dims: core::array::from_fn(|d| match d {
                0 => (word(13) >> 24) + 1,
                _ if within(d) => u32::from(boxes[d - 1]) + 1,
                _ => 1,
            }),
            element_strides: core::array::from_fn(|d| if within(d) { (word(13) >> (3 * d) & 7) + 1 } else { 1 }),
            interleave,
            swizzle,
            nan_fill: field(15, 1) == 1,
        };
        if map.address == 0 || !map.address.is_multiple_of(16) {
            return bad(format!("global address {:#x} is null or not a multiple of 16", map.address));
        }
        Ok(map)
    }

    /// Bytes of shared memory that a tile takes, elements outside the tensor and padding included: what a copy adds to a
    /// barrier's transaction count.
    pub fn box_bytes(&self) -> u32 {
        let elements: u32 = (0..5).map(|dimension| self.copied(dimension)).product();
        elements * self.element.shared_bits() / 8
    }

    /// Elements that a tile has in `dimension` once element strides are applied.
    fn copied(&self, dimension: usize) -> u32 {
        self.box_dims[dimension].div_ceil(self.element_strides[dimension])
    }
}

/// Bits of word 2 that have a meaning here.
const FLAGS_KNOWN: u32 = 0x0026_fff3;
