//! Keys that say how a tensor is quantized, so that a producer and a consumer can agree. The structure and the
//! text form are vLLM's `QuantKey`.

use core::fmt;

/// Element type of quantized data or of a scale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum KeyDType {
    /// Packed e2m1 codes, two a byte.
    U8,
    /// e4m3 block scales.
    F8E4M3Fn,
    /// f32 global scales.
    F32,
}

/// The elements that share one scale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GroupShape {
    /// All of the tensor.
    PerTensor,
    /// One row (token).
    PerToken,
    /// `rows` × `cols` elements.
    Block {
        /// Rows of a group.
        rows: usize,
        /// Columns of a group.
        cols: usize,
    },
}

/// One level of scales.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScaleDesc {
    /// Element type of the scale.
    pub dtype: KeyDType,
    /// True if the scale is known when the weights are loaded.
    pub is_static: bool,
    /// What shares a scale.
    pub group_shape: GroupShape,
}

/// How a tensor is quantized. Two keys are interchangeable if and only if they are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuantKey {
    /// Element type of the data.
    pub dtype: KeyDType,
    /// Block scales.
    pub scale: ScaleDesc,
    /// Global scales.
    pub scale2: Option<ScaleDesc>,
    /// True if there is no zero point.
    pub symmetric: bool,
}

impl QuantKey {
    const fn nvfp4(static_block_scale: bool, scale2: ScaleDesc) -> Self {
        Self {
            dtype: KeyDType::U8,
            scale: ScaleDesc {
                dtype: KeyDType::F8E4M3Fn,
                is_static: static_block_scale,
                group_shape: GroupShape::Block { rows: 1, cols: crate::BLOCK_SIZE },
            },
            scale2: Some(scale2),
            symmetric: true,
        }
    }
    const STATIC_PER_TENSOR: ScaleDesc =
        ScaleDesc { dtype: KeyDType::F32, is_static: true, group_shape: GroupShape::PerTensor };

    /// NVFP4 weights (`kNvfp4Static`).
    pub const NVFP4_STATIC: Self = Self::nvfp4(true, Self::STATIC_PER_TENSOR);
    /// NVFP4 activations with a static global scale (`kNvfp4Dynamic`).
    pub const NVFP4_DYNAMIC: Self = Self::nvfp4(false, Self::STATIC_PER_TENSOR);
    /// NVFP4 activations with a global scale for each token (`kNvfp4DynamicToken`).
    pub const NVFP4_DYNAMIC_TOKEN: Self =
        Self::nvfp4(false, ScaleDesc { dtype: KeyDType::F32, is_static: false, group_shape: GroupShape::PerToken });
    /// NVFP4 activations whose one global scale is computed for each call (not in vLLM).
    pub const NVFP4_DYNAMIC_TENSOR: Self = Self::nvfp4(
        false,
        ScaleDesc { dtype: KeyDType::F32, is_static: false, group_shape: GroupShape::PerTensor },
    );
}

impl fmt::Display for KeyDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::F8E4M3Fn => "f8e4m3fn",
            Self::F32 => "f32",
        })
    }
}

impl fmt::Display for GroupShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerTensor => f.write_str("per_tensor"),
            Self::PerToken => f.write_str("per_token"),
            Self::Block { rows, cols } => write!(f, "GroupShape(row={rows}, col={cols})"),
        }
    }
}

impl fmt::Display for ScaleDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_static { "static" } else { "dynamic" };
        write!(f, "({},{state},{})", self.dtype, self.group_shape)
    }
}

impl fmt::Display for QuantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuantKey({},scale{}", self.dtype, self.scale)?;
        if let Some(scale2) = &self.scale2 {
            write!(f, ",scale2{scale2}")?;
        }
        write!(f, ",{})", if self.symmetric { "symmetric" } else { "asymmetric" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::ToString};

    #[test]
    fn keys_differ_and_say_how() {
        let keys = [
            QuantKey::NVFP4_STATIC,
            QuantKey::NVFP4_DYNAMIC,
            QuantKey::NVFP4_DYNAMIC_TOKEN,
            QuantKey::NVFP4_DYNAMIC_TENSOR,
        ];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a == b, i == j);
                assert_eq!(a.to_string() == b.to_string(), i == j, "{a} {b}");
            }
        }
    }

    #[test]
    fn other_keys_have_a_text() {
        let key = QuantKey { scale2: None, symmetric: false, ..QuantKey::NVFP4_STATIC };
        assert_eq!(format!("{key}"), "QuantKey(u8,scale(f8e4m3fn,static,GroupShape(row=1, col=16)),asymmetric)");
        assert_eq!(GroupShape::Block { rows: 2, cols: 3 }.to_string(), "GroupShape(row=2, col=3)");
    }
}
