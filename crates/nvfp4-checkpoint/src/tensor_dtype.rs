//! Element types of stored tensors.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $bits:literal,)*) => {
        /// Element type of a stored tensor: those of the safetensors format, in its order (`safetensors` 0.8).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum TensorDType {
            $($(#[$doc])* $variant,)*
        }

        impl TensorDType {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in a safetensors header, e.g. `F8_E4M3`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bits per element.
            pub const fn bits(self) -> usize {
                match self { $(Self::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    /// Boolean, a byte each.
    Bool "BOOL" 8,
    /// 4-bit float, two in a byte.
    F4 "F4" 4,
    /// 6-bit float e2m3.
    F6E2M3 "F6_E2M3" 6,
    /// 6-bit float e3m2.
    F6E3M2 "F6_E3M2" 6,
    /// Unsigned byte.
    U8 "U8" 8,
    /// Signed byte.
    I8 "I8" 8,
    /// 8-bit float e5m2.
    F8E5M2 "F8_E5M2" 8,
    /// 8-bit float e4m3 (the `fn` kind).
    F8E4M3 "F8_E4M3" 8,
    /// 8-bit exponent e8m0.
    F8E8M0 "F8_E8M0" 8,
    /// 8-bit float e4m3fnuz.
    F8E4M3Fnuz "F8_E4M3FNUZ" 8,
    /// 8-bit float e5m2fnuz.
    F8E5M2Fnuz "F8_E5M2FNUZ" 8,
    /// Signed 16-bit integer.
    I16 "I16" 16,
    /// Unsigned 16-bit integer.
    U16 "U16" 16,
    /// IEEE half precision.
    F16 "F16" 16,
    /// bfloat16.
    Bf16 "BF16" 16,
    /// Signed 32-bit integer.
    I32 "I32" 32,
    /// Unsigned 32-bit integer.
    U32 "U32" 32,
    /// IEEE single precision.
    F32 "F32" 32,
    /// Complex number of two singles.
    C64 "C64" 64,
    /// IEEE double precision.
    F64 "F64" 64,
    /// Signed 64-bit integer.
    I64 "I64" 64,
    /// Unsigned 64-bit integer.
    U64 "U64" 64,
}

impl TensorDType {
    /// The type of this name in a safetensors header.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.name() == name)
    }

    /// The type of unquantized elements, or `None` for the others.
    pub const fn as_float(self) -> Option<nvfp4_core::DType> {
        match self {
            Self::Bf16 => Some(nvfp4_core::DType::Bf16),
            Self::F16 => Some(nvfp4_core::DType::F16),
            Self::F32 => Some(nvfp4_core::DType::F32),
            _ => None,
        }
    }
}

impl From<nvfp4_core::DType> for TensorDType {
    fn from(dtype: nvfp4_core::DType) -> Self {
        match dtype {
            nvfp4_core::DType::Bf16 => Self::Bf16,
            nvfp4_core::DType::F16 => Self::F16,
            // `DType` may grow; every type that this crate meets is one of three.
            _ => Self::F32,
        }
    }
}

impl fmt::Display for TensorDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
