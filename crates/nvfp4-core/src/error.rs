//! What can be wrong with data given to this crate. Reasons why a backend cannot run a layer are
//! [`Unsupported`](crate::Unsupported) instead.

use crate::dtype::DType;
use alloc::{boxed::Box, string::String};

/// A fault in the data or the call. Every variant says what was found and what was expected.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A buffer or a dimension has the wrong size.
    #[error("{what}: expected {expected}, found {found}")]
    Size {
        /// The buffer or dimension, e.g. `packed weight bytes`.
        what: &'static str,
        /// Size that the shape asks for.
        expected: usize,
        /// Size that was given.
        found: usize,
    },
    /// A dimension is not a multiple of what the format or the layout needs.
    #[error("{what} must be a multiple of {multiple}, found {found}")]
    NotMultiple {
        /// The dimension, e.g. `k (input features)`.
        what: &'static str,
        /// Required divisor.
        multiple: usize,
        /// Value that was given.
        found: usize,
    },
    /// A dimension is zero where the format needs at least one element.
    #[error("{what} must not be zero")]
    Zero {
        /// The dimension.
        what: &'static str,
    },
    /// A size computation does not fit `usize`.
    #[error("{what}: size overflows usize")]
    Overflow {
        /// The size that was computed.
        what: &'static str,
    },
    /// A range of rows or columns lies outside the tensor or cuts a block.
    #[error("{what}: range {start}..{end} is not inside 0..{len} at a multiple of {multiple}")]
    Range {
        /// Rows or columns of what.
        what: &'static str,
        /// First index.
        start: usize,
        /// One past the last index.
        end: usize,
        /// Size of the dimension.
        len: usize,
        /// Legal boundaries are multiples of this.
        multiple: usize,
    },
    /// A global scale is zero, negative, NaN or infinite, or its reciprocal is.
    #[error("global scale must be positive and finite with a finite reciprocal, found {found}")]
    GlobalScale {
        /// Value that was given.
        found: f32,
    },
    /// A block scale byte is NaN (`0x7F`, `0xFF`) or has the sign bit set; the hardware reads scales as unsigned.
    #[error(
        "block scale at row {row}, column {column} is {byte:#04x} ({}); {count} such bytes in the tensor",
        if byte & 0x7f == 0x7f { "NaN" } else { "negative" }
    )]
    BlockScale {
        /// Row of the first bad byte.
        row: usize,
        /// Column (block along `k`) of the first bad byte.
        column: usize,
        /// The byte.
        byte: u8,
        /// Bad bytes in the whole tensor.
        count: usize,
    },
    /// An unquantized value is NaN or infinite where a finite one is needed.
    #[error("value at row {row}, column {column} is {found}, expected a finite number")]
    NotFinite {
        /// Row.
        row: usize,
        /// Column.
        column: usize,
        /// The value.
        found: f32,
    },
    /// An element type that this operation does not take.
    #[error("{what}: expected {expected}, found {found}")]
    DType {
        /// The operand.
        what: &'static str,
        /// Types that are taken.
        expected: &'static str,
        /// Type that was given.
        found: DType,
    },
    /// A pre-quantized activation does not have the key that its consumer asks for.
    #[error("QuantizedActivation key {found} != consumer kernel input_quant_key {expected}")]
    QuantKey {
        /// Key of the consumer.
        expected: String,
        /// Key of the activation.
        found: String,
    },
    /// Weights prepared for another layout, kernel or layer shape.
    #[error("weights are prepared as `{found}`, this kernel reads `{expected}`")]
    Layout {
        /// Layout that is needed.
        expected: String,
        /// Layout that was given.
        found: String,
    },
    /// A layout cannot hold the requested operation, e.g. padding with the 8x4 scale layout.
    #[error("{0}")]
    Invalid(&'static str),
    /// The layer is not one that this kernel can run.
    #[error("unsupported: {0}")]
    Unsupported(#[from] crate::Unsupported),
    /// A fault of the device or of a library under the kernel, in that library's words.
    #[error("{backend}: {message}")]
    Backend {
        /// Kernel name.
        backend: &'static str,
        /// What it said.
        message: String,
    },
    /// Any of the above, with the tensor it was found in.
    #[error("tensor `{tensor}`: {source}")]
    InTensor {
        /// Name of the tensor.
        tensor: String,
        /// The fault.
        source: Box<Error>,
    },
}

impl Error {
    /// Adds the name of the tensor in which the fault was found.
    pub fn in_tensor(self, tensor: impl Into<String>) -> Self {
        Self::InTensor { tensor: tensor.into(), source: Box::new(self) }
    }
}

/// `Ok` if `found == expected`.
pub(crate) fn check_size(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Size { what, expected, found }) }
}

/// `Ok` if `found` is a multiple of `multiple`.
pub(crate) fn check_multiple(what: &'static str, multiple: usize, found: usize) -> Result<(), Error> {
    if found.is_multiple_of(multiple) { Ok(()) } else { Err(Error::NotMultiple { what, multiple, found }) }
}

/// `a * b`, or the error that it does not fit.
pub(crate) fn checked_mul(what: &'static str, a: usize, b: usize) -> Result<usize, Error> {
    a.checked_mul(b).ok_or(Error::Overflow { what })
}

/// `a` rounded up to a multiple of `b`, or the error that it does not fit.
pub(crate) fn checked_round_up(what: &'static str, a: usize, b: usize) -> Result<usize, Error> {
    a.checked_next_multiple_of(b).ok_or(Error::Overflow { what })
}
