//! What `cuTensorMapEncodeTiled` does: checks parameters by the driver's documented rules and packs them.

use super::{Interleave, Swizzle, TENSOR_MAP_BYTES, TensorElement};
use crate::tensor_fault::TensorFault;

/// Which GPU's driver encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// Compute capability 9: no packed 4- and 6-bit types.
    Hopper,
    /// Compute capability 10 and later.
    Blackwell,
}

/// The parameters of `cuTensorMapEncodeTiled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledParameters {
    /// Type of the elements.
    pub element: TensorElement,
    /// Address of element (0, 0, …).
    pub address: u64,
    /// Elements of each dimension, innermost first; their number is the rank.
    pub dims: Vec<u64>,
    /// Bytes from one index of a dimension to the next, of dimensions 1 and up.
    pub strides: Vec<u64>,
    /// Elements of a tile in each dimension, before element strides.
    pub box_dims: Vec<u32>,
    /// Every how manieth element of the box is copied, in each dimension.
    pub element_strides: Vec<u32>,
    /// The interleave of image channels.
    pub interleave: Interleave,
    /// How the tile is permuted in shared memory.
    pub swizzle: Swizzle,
    /// L2 promotion: 0 none, 1 64 bytes, 2 128 bytes, 3 256 bytes.
    pub l2_promotion: u32,
    /// Elements outside the tensor are NaN rather than zero.
    pub nan_fill: bool,
}

impl TiledParameters {
    /// The map's bytes.
    ///
    /// # Errors
    /// A parameter breaks a rule of the CUDA driver API (`cuTensorMapEncodeTiled`); the message names parameter, value and rule.
    pub fn encode(&self, generation: Generation) -> Result<[u8; TENSOR_MAP_BYTES], TensorFault> {
        self.check(generation).map_err(TensorFault::BadTensorMap)?;
        let rank = self.dims.len();
        let mut words = [0u32; TENSOR_MAP_BYTES / 4];
        words[0] = self.address as u32;
        words[1] = (self.address >> 32) as u32;
        words[2] = u32::from(generation == Generation::Blackwell) << 1
            | (rank as u32 - 1) << 4
            | self.element.code() << 7
            | (self.interleave as u32) << 11
            | (self.swizzle as u32) << 13
            | u32::from(self.nan_fill) << 15
            | self.l2_promotion << 17
            | u32::from(self.tensor_bytes() >= LARGE_TENSOR) << 21;
        for (index, stride) in self.strides.iter().take(rank - 1).enumerate() {
            words[3 + index] = (stride / 16) as u32;
            words[7] |= ((stride >> 36) as u32) << (4 * index);
        }
        for (index, dim) in self.dims.iter().enumerate() {
            words[8 + index] = (dim - 1) as u32;
        }
        let mut box_bytes = u64::from(self.element.shared_bits());
        for (index, (&size, &step)) in self.box_dims.iter().zip(&self.element_strides).enumerate() {
            words[13] |= (step - 1) << (3 * index);
            match index {
                0 => words[13] |= (size - 1) << 24,
                _ => words[14] |= (size - 1) << (8 * (index - 1)),
            }
            box_bytes *= u64::from(size.div_ceil(step));
        }
        words[16] = (box_bytes / 8) as u32;
        words[18] = if self.swizzle == Swizzle::None { 16 } else { 8 * self.swizzle.span() };
        let mut bytes = [0; TENSOR_MAP_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Bytes from the first element to the last, as CuTe's cosize counts them.
    fn tensor_bytes(&self) -> u64 {
        let inner = self.dims[0] * u64::from(self.element.bits()) / 8;
        self.dims.iter().skip(1).zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<u64>() + inner
    }

    fn check(&self, generation: Generation) -> Result<(), String> {
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) {
            return Err(format!("tensorRank is {rank}; it must be 1 to 5"));
        }
        for (name, length, expected) in [
            ("globalStrides", self.strides.len(), rank - 1),
            ("boxDim", self.box_dims.len(), rank),
            ("elementStrides", self.element_strides.len(), rank),
        ] {
            if length != expected {
                return Err(format!("{name} has {length} entries; a tensor of rank {rank} needs {expected}"));
            }
        }
        if self.interleave != Interleave::None && rank < 3 {
            return Err(format!("tensorRank is {rank}; an interleaved tensor needs at least 3"));
        }
        let padded = matches!(self.element, TensorElement::U4Padded | TensorElement::U6Padded);
        if generation == Generation::Hopper && (padded || self.element == TensorElement::U4) {
            return Err(format!(
                "tensorDataType {:?} needs compute capability 10; this device has 9",
                self.element
            ));
        }
        if self.l2_promotion > 3 {
            return Err(format!("l2Promotion is {}; it must be 0 to 3", self.l2_promotion));
        }
        if self.nan_fill && !self.element.is_float() {
            return Err(format!("oobFill is NaN; tensorDataType {:?} has none", self.element));
        }
        let alignment = if padded || self.interleave == Interleave::Bytes32 { 32 } else { 16 };
        if self.address == 0 || !self.address.is_multiple_of(alignment) {
            return Err(format!(
                "globalAddress {:#x} must be a multiple of {alignment} and not null",
                self.address
            ));
        }
        for (index, &stride) in self.strides.iter().enumerate() {
            if !stride.is_multiple_of(alignment) || stride >= 1 << 40 {
                return Err(format!(
                    "globalStrides[{index}] is {stride}; it must be a multiple of {alignment} below 2^40"
                ));
            }
        }
        self.check_dims(padded)?;
        self.check_boxes(padded)
    }

    fn check_dims(&self, padded: bool) -> Result<(), String> {
        for (index, &dim) in self.dims.iter().enumerate() {
            if !(1..=1 << 32).contains(&dim) {
                return Err(format!("globalDim[{index}] is {dim}; it must be 1 to 2^32"));
            }
        }
        let multiple = match self.element {
            _ if padded => 128,
            TensorElement::U4 => 2,
            _ => 1,
        };
        if !self.dims[0].is_multiple_of(multiple) {
            let element = self.element;
            return Err(format!(
                "globalDim[0] is {}; for {element:?} it must be a multiple of {multiple}",
                self.dims[0]
            ));
        }
        Ok(())
    }

    fn check_boxes(&self, padded: bool) -> Result<(), String> {
        for (index, (&size, &step)) in self.box_dims.iter().zip(&self.element_strides).enumerate() {
            if !(1..=256).contains(&size) {
                return Err(format!("boxDim[{index}] is {size}; it must be 1 to 256"));
            }
            if !(1..=8).contains(&step) {
                return Err(format!("elementStrides[{index}] is {step}; it must be 1 to 8"));
            }
        }
        let inner = self.box_dims[0];
        if padded && inner != 128 {
            return Err(format!("boxDim[0] is {inner}; for {:?} it must be 128", self.element));
        }
        let inner_bits = inner * self.element.shared_bits();
        if self.interleave == Interleave::None && !inner_bits.is_multiple_of(128) {
            return Err(format!(
                "boxDim[0] is {inner} elements, {inner_bits} bits; it must be a multiple of 16 bytes"
            ));
        }
        let span = self.swizzle.span();
        if self.interleave == Interleave::None && self.swizzle != Swizzle::None && inner_bits > 8 * span {
            return Err(format!("boxDim[0] is {} bytes; {:?} allows at most {span}", inner_bits / 8, self.swizzle));
        }
        if self.interleave == Interleave::Bytes32 && self.swizzle != Swizzle::Bytes32 {
            return Err(format!("swizzle is {:?}; a 32-byte interleave needs the 32-byte swizzle", self.swizzle));
        }
        Ok(())
    }
}

/// Bytes of a tensor from which on bit 21 of word 2 is set: what CUTLASS's host code and the CuTe DSL's packed maps agree on.
const LARGE_TENSOR: u64 = 128 << 10;
