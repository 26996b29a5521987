//! The instruction descriptor of `tcgen05.mma` (PTX ISA 9.7.16.4.2): shapes and types of the matrices.

use super::element::{Accumulator, Element, ScaleFormat};
use crate::tensor_fault::TensorFault;

/// The `.kind` of a `tcgen05.mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are PTX's kinds")]
pub enum Kind {
    F16,
    Tf32,
    F8f6f4,
    I8,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

impl Kind {
    /// The kind that a `kind::…` modifier names.
    pub fn from_modifier(modifier: &str) -> Option<Self> {
        Some(match modifier.strip_prefix("kind::")? {
            "f16" => Self::F16,
            "tf32" => Self::Tf32,
            "f8f6f4" => Self::F8f6f4,
            "i8" => Self::I8,
            "mxf8f6f4" => Self::Mxf8f6f4,
            "mxf4" => Self::Mxf4,
            "mxf4nvf4" => Self::Mxf4nvf4,
            _ => return None,
        })
    }

    /// Whether the kind scales blocks of A and B.
    pub const fn is_block_scaled(self) -> bool {
        matches!(self, Self::Mxf8f6f4 | Self::Mxf4 | Self::Mxf4nvf4)
    }

    /// Whether 4- and 6-bit elements lie in padded groups in shared memory and in bytes in tensor memory.
    pub const fn mixes_widths(self) -> bool {
        matches!(self, Self::F8f6f4 | Self::Mxf8f6f4)
    }
}

/// A decoded instruction descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionDescriptor {
    /// Rows of D, of both CTAs together.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Type of A's elements.
    pub a: Element,
    /// Type of B's elements.
    pub b: Element,
    /// Type of D's elements.
    pub d: Accumulator,
    /// Whether A and B are negated.
    pub negate: [bool; 2],
    /// Whether A and B are M- and N-major in shared memory.
    pub transpose: [bool; 2],
    /// Whether integers clamp instead of wrapping.
    pub saturate: bool,
    /// The type of the block scales, and the byte within the word at which those of A and B begin.
    pub scales: Option<(ScaleFormat, [usize; 2])>,
}

impl InstructionDescriptor {
    /// Decodes a descriptor for an instruction of `kind`.
    ///
    /// # Errors
    /// A reserved bit is set, or a field has a value that the kind does not have. Sparse A is not modelled.
    pub fn decode(kind: Kind, bits: u32) -> Result<Self, TensorFault> {
        let field = |low: u32, width: u32| bits >> low & ((1 << width) - 1);
        let bad = |what: String| {
            Err(TensorFault::BadDescriptor(format!("instruction descriptor {bits:#010x} ({kind:?}): {what}")))
        };
        if field(2, 1) == 1 {
            return bad("sparse A is not modelled".into());
        }
        let reserved = match kind {
            Kind::F16 | Kind::Tf32 | Kind::F8f6f4 | Kind::I8 => 1 << 6 | 1 << 23 | 1 << 29,
            Kind::Mxf8f6f4 => 0b1011 | 1 << 6 | 0b111 << 24 | 1 << 31,
            Kind::Mxf4 | Kind::Mxf4nvf4 => 0b1011 | 1 << 6 | 1 << 12 | 0b111 << 24,
        };
        if bits & reserved != 0 {
            return bad(format!("reserved bits {:#x} are set", bits & reserved));
        }
        let Some([a, b]) = [field(7, 3), field(10, 3)]
            .map(|code| element(kind, code))
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .and_then(|both| <[Element; 2]>::try_from(both).ok())
        else {
            return bad(format!("element types {} and {} are not of this kind", field(7, 3), field(10, 3)));
        };
        let d = match (kind, field(4, 2)) {
            _ if kind.is_block_scaled() => Accumulator::F32,
            (Kind::F16 | Kind::F8f6f4, 0) => Accumulator::F16,
            (Kind::F16 | Kind::F8f6f4 | Kind::Tf32, 1) => Accumulator::F32,
            (Kind::I8, 2) => Accumulator::S32,
            (_, code) => return bad(format!("type {code} of D is not of this kind")),
        };
        if d == Accumulator::F16 && [a, b].contains(&Element::Bf16) {
            return bad("D of f16 with A or B of bf16".into());
        }
        if kind == Kind::F16 && a != b {
            return bad("A and B of kind f16 must have one type".into());
        }
        let transpose = [field(15, 1) == 1, field(16, 1) == 1];
        if transpose.contains(&true) && [a, b].iter().any(|element| element.bits() < 8) {
            return bad("elements narrower than a byte cannot be transposed".into());
        }
        let negate = [field(13, 1) == 1, field(14, 1) == 1];
        if kind == Kind::I8 && negate.contains(&true) {
            return bad("integers cannot be negated".into());
        }
        let scales = kind.is_block_scaled().then(|| {
            let format = if field(23, 1) == 1 { ScaleFormat::Ue8m0 } else { ScaleFormat::Ue4m3 };
            (format, [field(29, 2) as usize, field(4, 2) as usize])
        });
        if let Some((ScaleFormat::Ue4m3, _)) = scales
            && kind != Kind::Mxf4nvf4
        {
            return bad("ue4m3 scales are of kind mxf4nvf4 only".into());
        }
        let k = match kind {
            Kind::F16 => 16,
            Kind::Tf32 => 8,
            Kind::F8f6f4 | Kind::I8 | Kind::Mxf8f6f4 => 32,
            Kind::Mxf4 | Kind::Mxf4nvf4 if field(31, 1) == 1 => 96,
            Kind::Mxf4 | Kind::Mxf4nvf4 => 64,
        };
        let saturate = kind == Kind::I8 && field(3, 1) == 1;
        Ok(Self {
            m: field(24, 5) as usize * 16,
            n: field(17, 6) as usize * 8,
            k,
            a,
            b,
            d,
            negate,
            transpose,
            saturate,
            scales,
        })
    }
}

/// The element type with a code of the descriptor's `atype` and `btype` fields.
fn element(kind: Kind, code: u32) -> Option<Element> {
    Some(match (kind, code) {
        (Kind::F16, 0) => Element::F16,
        (Kind::F16, 1) => Element::Bf16,
        (Kind::Tf32, 2) => Element::Tf32,
        (Kind::I8, 0) => Element::U8,
        (Kind::I8, 1) => Element::S8,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 0) => Element::E4m3,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 1) => Element::E5m2,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 3) => Element::E2m3,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 4) => Element::E3m2,
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 5) => Element::E2m1,
        (Kind::Mxf4 | Kind::Mxf4nvf4, 1) => Element::E2m1,
        _ => return None,
    })
}
