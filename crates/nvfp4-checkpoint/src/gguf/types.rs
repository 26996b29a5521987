//! Types of GGUF's tensors.

use crate::TensorDType;
use nvfp4_core::gguf::{BLOCK_BYTES, BLOCK_VALUES, TYPE_ID};

/// A type of GGUF's tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GgufType {
    pub(crate) id: u32,
    pub(crate) name: &'static str,
    /// Values that share a block.
    values: usize,
    /// Bytes of a block.
    bytes: usize,
    /// The elements to show: bytes for types whose blocks are not elements.
    pub(crate) dtype: TensorDType,
}

/// Source: ggml's `ggml-common.h` and gguf 0.19 `GGML_QUANT_SIZES`.
const TYPES: &[GgufType] = &[
    plain(0, "F32", TensorDType::F32),
    plain(1, "F16", TensorDType::F16),
    blocks(2, "Q4_0", 32, 18),
    blocks(3, "Q4_1", 32, 20),
    blocks(6, "Q5_0", 32, 22),
    blocks(7, "Q5_1", 32, 24),
    blocks(8, "Q8_0", 32, 34),
    blocks(9, "Q8_1", 32, 36),
    blocks(10, "Q2_K", 256, 84),
    blocks(11, "Q3_K", 256, 110),
    blocks(12, "Q4_K", 256, 144),
    blocks(13, "Q5_K", 256, 176),
    blocks(14, "Q6_K", 256, 210),
    blocks(15, "Q8_K", 256, 292),
    blocks(16, "IQ2_XXS", 256, 66),
    blocks(17, "IQ2_XS", 256, 74),
    blocks(18, "IQ3_XXS", 256, 98),
    blocks(19, "IQ1_S", 256, 50),
    blocks(20, "IQ4_NL", 32, 18),
    blocks(21, "IQ3_S", 256, 110),
    blocks(22, "IQ2_S", 256, 82),
    blocks(23, "IQ4_XS", 256, 136),
    plain(24, "I8", TensorDType::I8),
    plain(25, "I16", TensorDType::I16),
    plain(26, "I32", TensorDType::I32),
    plain(27, "I64", TensorDType::I64),
    plain(28, "F64", TensorDType::F64),
    blocks(29, "IQ1_M", 256, 56),
    plain(30, "BF16", TensorDType::Bf16),
    blocks(34, "TQ1_0", 256, 54),
    blocks(35, "TQ2_0", 256, 66),
    blocks(39, "MXFP4", 32, 17),
    NVFP4,
    blocks(41, "Q1_0", 128, 18),
];

/// NVFP4.
pub(crate) const NVFP4: GgufType = blocks(TYPE_ID, "NVFP4", BLOCK_VALUES, BLOCK_BYTES);

const fn plain(id: u32, name: &'static str, dtype: TensorDType) -> GgufType {
    GgufType { id, name, values: 1, bytes: dtype.bits() / 8, dtype }
}

const fn blocks(id: u32, name: &'static str, values: usize, bytes: usize) -> GgufType {
    GgufType { id, name, values, bytes, dtype: TensorDType::U8 }
}

impl GgufType {
    /// The type of this number, if it is known.
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().copied().find(|t| t.id == id)
    }

    /// Values that share a block; rows are a multiple of it.
    pub(crate) const fn block_values(self) -> usize {
        self.values
    }

    /// Whether its elements stand alone.
    pub(crate) const fn is_plain(self) -> bool {
        self.values == 1
    }

    /// Bytes of a row; `None` if it is no whole number of blocks, or too many.
    pub(crate) const fn row_bytes(self, row: usize) -> Option<usize> {
        if !row.is_multiple_of(self.values) {
            return None;
        }
        (row / self.values).checked_mul(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (i, a) in TYPES.iter().enumerate() {
            assert_eq!(GgufType::from_id(a.id), Some(*a));
            assert!(TYPES[..i].iter().all(|b| b.id < a.id && b.name != a.name), "{}", a.name);
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!((NVFP4.row_bytes(128), NVFP4.row_bytes(96)), (Some(72), None));
        let wide = GgufType::from_id(28).unwrap();
        assert_eq!(wide.row_bytes(usize::MAX / 4), None, "overflows");
        assert_eq!(GgufType::from_id(30).unwrap().row_bytes(3), Some(6));
        assert_eq!(GgufType::from_id(4), None, "was removed from ggml");
    }
}
