//! The floating-point types of activations, outputs and unquantized weights.

use core::fmt;
use half::{bf16, f16};

/// Element type of an activation, an output, a bias or an unquantized weight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// `value` rounded to this type (nearest, ties to even), as f32.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_f32(),
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::F32 => value,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        })
    }
}

/// Elements in host memory, typed at run time.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum FloatSlice<'a> {
    /// bfloat16 elements.
    Bf16(&'a [bf16]),
    /// Half-precision elements.
    F16(&'a [f16]),
    /// Single-precision elements.
    F32(&'a [f32]),
}

impl<'a> FloatSlice<'a> {
    /// Element type.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::Bf16(_) => DType::Bf16,
            Self::F16(_) => DType::F16,
            Self::F32(_) => DType::F32,
        }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(s) => s.len(),
            Self::F16(s) => s.len(),
            Self::F32(s) => s.len(),
        }
    }

    /// True if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as f32 (exact), or `None` past the end.
    pub fn get(&self, i: usize) -> Option<f32> {
        match self {
            Self::Bf16(s) => s.get(i).map(|v| v.to_f32()),
            Self::F16(s) => s.get(i).map(|v| v.to_f32()),
            Self::F32(s) => s.get(i).copied(),
        }
    }

    /// The elements `range`, or `None` if it reaches past the end.
    pub fn slice(&self, range: core::ops::Range<usize>) -> Option<FloatSlice<'a>> {
        Some(match self {
            Self::Bf16(s) => FloatSlice::Bf16(s.get(range)?),
            Self::F16(s) => FloatSlice::F16(s.get(range)?),
            Self::F32(s) => FloatSlice::F32(s.get(range)?),
        })
    }

    /// Widens the elements into `out` (exact); stops at the shorter of the two.
    pub fn widen_into(&self, out: &mut [f32]) {
        match self {
            Self::Bf16(s) => out.iter_mut().zip(*s).for_each(|(o, v)| *o = v.to_f32()),
            Self::F16(s) => out.iter_mut().zip(*s).for_each(|(o, v)| *o = v.to_f32()),
            Self::F32(s) => out.iter_mut().zip(*s).for_each(|(o, v)| *o = *v),
        }
    }
}

impl<'a> From<&'a [bf16]> for FloatSlice<'a> {
    fn from(s: &'a [bf16]) -> Self {
        Self::Bf16(s)
    }
}
impl<'a> From<&'a [f16]> for FloatSlice<'a> {
    fn from(s: &'a [f16]) -> Self {
        Self::F16(s)
    }
}
impl<'a> From<&'a [f32]> for FloatSlice<'a> {
    fn from(s: &'a [f32]) -> Self {
        Self::F32(s)
    }
}

/// Writable elements in host memory, typed at run time.
#[derive(PartialEq, Debug)]
#[non_exhaustive]
pub enum FloatSliceMut<'a> {
    /// bfloat16 elements.
    Bf16(&'a mut [bf16]),
    /// Half-precision elements.
    F16(&'a mut [f16]),
    /// Single-precision elements.
    F32(&'a mut [f32]),
}

impl FloatSliceMut<'_> {
    /// Element type.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::Bf16(_) => DType::Bf16,
            Self::F16(_) => DType::F16,
            Self::F32(_) => DType::F32,
        }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(s) => s.len(),
            Self::F16(s) => s.len(),
            Self::F32(s) => s.len(),
        }
    }

    /// True if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same elements, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> FloatSliceMut<'_> {
        match self {
            Self::Bf16(s) => FloatSliceMut::Bf16(s),
            Self::F16(s) => FloatSliceMut::F16(s),
            Self::F32(s) => FloatSliceMut::F32(s),
        }
    }
}

impl<'a> From<&'a mut [bf16]> for FloatSliceMut<'a> {
    fn from(s: &'a mut [bf16]) -> Self {
        Self::Bf16(s)
    }
}
impl<'a> From<&'a mut [f16]> for FloatSliceMut<'a> {
    fn from(s: &'a mut [f16]) -> Self {
        Self::F16(s)
    }
}
impl<'a> From<&'a mut [f32]> for FloatSliceMut<'a> {
    fn from(s: &'a mut [f32]) -> Self {
        Self::F32(s)
    }
}
