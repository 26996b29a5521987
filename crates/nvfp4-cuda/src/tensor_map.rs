//! Tensor maps: how the bulk copy engine addresses a tensor.

use crate::{device::Device, error::CudaError};
use cudarc::driver::sys;
use nvfp4_core::Error;

/// Type of the elements that are copied. The numbers are those of `CUtensorMapDataType` (cuda.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ElementType {
    /// Bytes.
    U8 = 0,
    /// Two bytes.
    U16 = 1,
    /// f16.
    F16 = 6,
    /// bf16.
    Bf16 = 9,
    /// 16 packed 4-bit values in 8 bytes; in shared memory too. Devices of compute capability 10.0 and later.
    U4Align8B = 13,
}

impl ElementType {
    /// The number in a map's bits, and the bits of an element.
    const fn packed(self) -> (u32, u64) {
        match self {
            Self::U8 => (0, 8),
            Self::U16 => (1, 16),
            Self::F16 => (6, 16),
            Self::Bf16 => (10, 16),
            Self::U4Align8B => (11, 4),
        }
    }
}

/// How 16-byte chunks are permuted in shared memory, within rows of 32, 64 or 128 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swizzle {
    /// Not at all.
    None = 0,
    /// Rows of 32 bytes.
    B32 = 1,
    /// Rows of 64 bytes.
    B64 = 2,
    /// Rows of 128 bytes.
    B128 = 3,
}

/// Most dimensions of a tensor map.
pub const MAX_RANK: usize = 5;

/// What a tensor map says: a box of a tensor is copied to or from shared memory; outside the tensor reads are zero and
/// writes do nothing. Element strides are 1, there is no interleaving, L2 sectors are promoted to 128 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorMapSpec {
    /// Type of the elements.
    pub element: ElementType,
    /// Dimensions in use.
    pub rank: usize,
    /// Device address of the tensor; a multiple of 16.
    pub address: u64,
    /// Elements along each dimension, the contiguous one first.
    pub dims: [u64; MAX_RANK],
    /// Bytes from one element to the next along dimensions 1, 2 …; multiples of 16.
    pub strides: [u64; MAX_RANK - 1],
    /// Elements of the box along each dimension; at most 256.
    pub tile: [u32; MAX_RANK],
    /// Layout in shared memory.
    pub swizzle: Swizzle,
}

/// A tensor map as kernels take it: 128 bytes, by value.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorMap(pub [u8; 128]);

impl TensorMap {
    /// All zero, for parameters that a kernel does not read.
    pub const UNUSED: Self = Self([0; 128]);
}

impl TensorMapSpec {
    /// A map over the dimensions of `dims`.
    ///
    /// Slices that are too long or do not fit together give a map that [`encode`](Self::encode) refuses.
    pub fn new(
        element: ElementType,
        address: u64,
        dims: &[u64],
        strides: &[u64],
        tile: &[u32],
        swizzle: Swizzle,
    ) -> Self {
        let fits = dims.len() <= MAX_RANK && strides.len() + 1 == dims.len() && tile.len() == dims.len();
        let mut spec = Self {
            element,
            rank: if fits { dims.len() } else { 0 },
            address,
            dims: [0; MAX_RANK],
            strides: [0; MAX_RANK - 1],
            tile: [0; MAX_RANK],
            swizzle,
        };
        spec.dims.iter_mut().zip(dims).for_each(|(to, from)| *to = *from);
        spec.strides.iter_mut().zip(strides).for_each(|(to, from)| *to = *from);
        spec.tile.iter_mut().zip(tile).for_each(|(to, from)| *to = *from);
        spec
    }

    /// The map, made here: 32-bit words as devices of compute capability 10.0 and later read them and as the CuTe DSL
    /// packs them, the last 64 bytes zero. No driver call; a few nanoseconds. Errors: what [`encode`](Self::encode)
    /// would refuse, and strides of 64 GiB and more.
    pub fn pack(&self) -> Result<TensorMap, Error> {
        let legal = (1..=MAX_RANK).contains(&self.rank)
            && self.address.is_multiple_of(16)
            && self.strides[..self.rank - 1].iter().all(|s| s.is_multiple_of(16) && *s < 1 << 36)
            && self.dims[..self.rank].iter().all(|d| (1..=1 << 32).contains(d))
            && self.tile[..self.rank].iter().all(|t| (1..=256).contains(t));
        let (element, bits) = self.element.packed();
        if !legal || !(u64::from(self.tile[0]) * bits).is_multiple_of(128) {
            return Err(Error::Invalid("a tensor that no tensor map describes: address, strides, extents or box"));
        }
        let mut words = [0u32; 32];
        words[0] = self.address as u32;
        words[1] = (self.address >> 32) as u32;
        // Bit 21 says that the tensor has 128 KiB or more.
        let outermost = self.rank - 1;
        let bytes = match outermost {
            0 => self.dims[0].saturating_mul(bits) / 8,
            _ => self.dims[outermost].saturating_mul(self.strides[outermost - 1]),
        };
        let large = u32::from(bytes >= 128 * 1024) << 21;
        let l2_promotion_128 = 2 << 17;
        words[2] =
            2 | large | (self.rank as u32 - 1) << 4 | element << 7 | (self.swizzle as u32) << 13 | l2_promotion_128;
        for (word, stride) in words[3..7].iter_mut().zip(&self.strides[..self.rank - 1]) {
            *word = (stride / 16) as u32;
        }
        for (word, dim) in words[8..13].iter_mut().zip(&self.dims[..self.rank]) {
            *word = (dim - 1) as u32;
        }
        words[13] = (self.tile[0] - 1) << 24;
        for (place, tile) in self.tile[1..self.rank].iter().enumerate() {
            words[14] |= (tile - 1) << (8 * place);
        }
        let mut bytes = [0; 128];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        Ok(TensorMap(bytes))
    }

    /// The map, made by the driver; a host computation of well under a microsecond, legal under stream capture.
    /// Errors: the driver refuses it, e.g. packed 4-bit elements before compute capability 10.0.
    pub fn encode(&self, device: &Device) -> Result<TensorMap, CudaError> {
        use sys::{
            CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill as Fill, CUtensorMapInterleave as Interleave,
            CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Raw,
        };
        device.bind()?;
        let element = match self.element {
            ElementType::U8 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            ElementType::U16 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            ElementType::F16 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            ElementType::Bf16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            ElementType::U4Align8B => DataType::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B,
        };
        let swizzle = match self.swizzle {
            Swizzle::None => Raw::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::B32 => Raw::CU_TENSOR_MAP_SWIZZLE_32B,
            Swizzle::B64 => Raw::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::B128 => Raw::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have room for the largest rank; the driver reads `rank` (strides: `rank - 1`) entries and
        // writes the map. The address is not read through.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                self.rank as u32,
                self.address as *mut _,
                self.dims.as_ptr(),
                self.strides.as_ptr(),
                self.tile.as_ptr(),
                [1; MAX_RANK].as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        crate::error::driver("cuTensorMapEncodeTiled", status.result())?;
        let mut bytes = [0; 128];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(map.opaque) {
            *to = word.to_ne_bytes();
        }
        Ok(TensorMap(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_do_not_fit_make_no_map() {
        let spec = |dims: &[u64], strides: &[u64], tile: &[u32]| {
            TensorMapSpec::new(ElementType::U8, 0, dims, strides, tile, Swizzle::None).rank
        };
        assert_eq!(spec(&[64, 8], &[64], &[16, 8]), 2);
        assert_eq!(spec(&[64, 8], &[64, 1], &[16, 8]), 0);
        assert_eq!(spec(&[64, 8], &[64], &[16]), 0);
        assert_eq!(spec(&[1; 6], &[16; 5], &[1; 6]), 0);
    }

    #[test]
    fn elements_have_the_numbers_of_cuda_h() {
        use sys::CUtensorMapDataType as DataType;
        assert_eq!(ElementType::U16 as u32, DataType::CU_TENSOR_MAP_DATA_TYPE_UINT16 as u32);
        assert_eq!(ElementType::F16 as u32, DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16 as u32);
        assert_eq!(ElementType::Bf16 as u32, DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 as u32);
        assert_eq!(ElementType::U4Align8B as u32, DataType::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B as u32);
    }
}
