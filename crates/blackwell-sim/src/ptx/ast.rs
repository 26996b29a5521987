//! The syntax tree of PTX text.

use std::fmt;

/// A PTX module.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// `.version`: major and minor.
    pub version: (u32, u32),
    /// The architecture of `.target`, e.g. `sm_100a`.
    pub target: String,
    /// What else `.target` lists, e.g. `debug`.
    pub target_options: Vec<String>,
    /// Bits of an address; 32 if the module does not say.
    pub address_size: u32,
    /// Variables of the module.
    pub variables: Vec<Variable>,
    /// Kernels and device functions, declared or defined.
    pub functions: Vec<Function>,
}

/// What a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// `.entry`: a kernel.
    Entry,
    /// `.func`.
    Device,
}

/// A kernel or device function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// Return values.
    pub returns: Vec<Variable>,
    /// Parameters in their order.
    pub params: Vec<Variable>,
    /// Directives between the parameters and the body.
    pub directives: Directives,
    /// The body; `None` for a declaration.
    pub body: Option<Vec<Statement>>,
    /// Line of `.entry` or `.func`, counted from 1.
    pub line: u32,
}

/// What a function demands of its launch. Sizes that the text leaves out are 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// `.reqntid`: threads of a CTA, exactly.
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`: threads of a CTA, at most.
    pub maxntid: Option<[u32; 3]>,
    /// `.minnctapersm`: CTAs that a multiprocessor must be able to hold.
    pub minnctapersm: Option<u32>,
    /// `.maxnreg`: registers of a thread, at most.
    pub maxnreg: Option<u32>,
    /// `.reqnctapercluster`: CTAs of a cluster, exactly.
    pub reqnctapercluster: Option<[u32; 3]>,
    /// `.maxclusterrank`: CTAs of a cluster, at most.
    pub maxclusterrank: Option<u32>,
    /// `.explicitcluster`: launched with a cluster size.
    pub explicitcluster: bool,
    /// `.blocksareclusters`: the grid counts clusters, not CTAs.
    pub blocksareclusters: bool,
    /// `.noreturn`.
    pub noreturn: bool,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpace {
    /// `.param`.
    Param,
    /// `.shared`.
    Shared,
    /// `.global`.
    Global,
    /// `.const`.
    Const,
    /// `.local`.
    Local,
    /// `.reg`.
    Reg,
}

/// A variable, parameter or return value.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its state space.
    pub space: StateSpace,
    /// Type of an element.
    pub ty: ScalarType,
    /// Scalars in an element: 1, 2 or 4.
    pub vector: u32,
    /// Alignment in bytes as declared; 0 if the text leaves it to the element's size.
    pub align: u64,
    /// Its name.
    pub name: String,
    /// Elements, over all dimensions; `Some(0)` for `[]`, `None` if it is no array.
    pub array: Option<u64>,
    /// `.extern`: defined elsewhere, or dynamic shared memory.
    pub is_extern: bool,
    /// Initial values, nested lists flattened.
    pub initial: Vec<Initializer>,
}

/// An initial value.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// An integer.
    Integer(i128),
    /// `0f…`: bits of an f32.
    Float32(u32),
    /// `0d…` or decimal: bits of an f64.
    Float64(u64),
    /// Address of a variable or function.
    Address {
        /// Its name.
        name: String,
        /// Bytes to add.
        offset: i64,
        /// `generic(name)`: the generic address.
        generic: bool,
    },
}

impl Initializer {
    /// The bits of an element of type `ty`; `None` for an address, and for a float literal of an element that is no f32, f64 or
    /// untyped value as wide as the literal.
    #[must_use]
    pub fn bits(&self, ty: ScalarType) -> Option<u128> {
        let bits = ty.bits();
        match (self, ty) {
            (Self::Integer(value), _) => Some(*value as u128 & u128::MAX.checked_shr(128 - bits).unwrap_or(0)),
            (Self::Float32(value), ScalarType::F64) => {
                Some(u128::from(f64::from(f32::from_bits(*value)).to_bits()))
            }
            (Self::Float64(value), ScalarType::F32) => Some(u128::from((f64::from_bits(*value) as f32).to_bits())),
            (Self::Float32(value), ScalarType::F32 | ScalarType::B32) => Some(u128::from(*value)),
            (Self::Float64(value), ScalarType::F64 | ScalarType::B64) => Some(u128::from(*value)),
            _ => None,
        }
    }
}

/// Defines [`ScalarType`] with names and widths, so that the three cannot disagree.
macro_rules! scalar_types {
    ($($variant:ident $name:literal $bits:literal,)*) => {
        /// A type: `.u32` is `U32`. The types of conversions' operands, which no variable can have, are among them.
        #[allow(missing_docs, reason = "the variants are PTX's type names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ScalarType { $($variant,)* }

        impl ScalarType {
            /// Bits of the register or memory that holds it. A 4- or 6-bit float alone counts 8 bits, `.e2m1x2` 8 bits together, the
            /// other pairs 16. A predicate has 1.
            #[must_use]
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// The name in PTX, without the dot.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of this name, without the dot.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

scalar_types! {
    B8 "b8" 8, B16 "b16" 16, B32 "b32" 32, B64 "b64" 64, B128 "b128" 128,
    U8 "u8" 8, U16 "u16" 16, U32 "u32" 32, U64 "u64" 64,
    S8 "s8" 8, S16 "s16" 16, S32 "s32" 32, S64 "s64" 64,
    U16x2 "u16x2" 32, S16x2 "s16x2" 32,
    F16 "f16" 16, F16x2 "f16x2" 32, BF16 "bf16" 16, BF16x2 "bf16x2" 32,
    F32 "f32" 32, F32x2 "f32x2" 64, F64 "f64" 64, TF32 "tf32" 32, Pred "pred" 1,
    E4M3 "e4m3" 8, E5M2 "e5m2" 8, E2M3 "e2m3" 8, E3M2 "e3m2" 8, E2M1 "e2m1" 8, UE8M0 "ue8m0" 8,
    E4M3x2 "e4m3x2" 16, E5M2x2 "e5m2x2" 16, E2M3x2 "e2m3x2" 16, E3M2x2 "e3m2x2" 16, E2M1x2 "e2m1x2" 8,
    UE8M0x2 "ue8m0x2" 16,
    E4M3x4 "e4m3x4" 32, E5M2x4 "e5m2x4" 32, E2M3x4 "e2m3x4" 32, E3M2x4 "e3m2x4" 32, E2M1x4 "e2m1x4" 16,
}

impl ScalarType {
    /// Whether it is a signed integer (or a pair of them).
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64 | Self::S16x2)
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ".{}", self.name())
    }
}

/// What a body consists of. `.pragma`, `.loc` and other remarks for the compiler or a debugger are read and left out.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// A label and its line.
    Label(String, u32),
    /// `.reg` with a scalar type.
    Registers {
        /// Their type.
        ty: ScalarType,
        /// The register's name; with a count, what the names begin with.
        prefix: String,
        /// `%r<5>`: the registers `%r0` to `%r4`.
        count: Option<u32>,
    },
    /// A variable; also registers with a vector type.
    Variable(Variable),
    /// An instruction.
    Instruction(Instruction),
    /// `{ … }`: a scope of names.
    Block(Vec<Statement>),
    /// `label: .branchtargets …;`
    BranchTargets {
        /// The list's name.
        label: String,
        /// Labels, in the order of the index.
        targets: Vec<String>,
    },
    /// `label: .callprototype (…) _ (…);`
    CallPrototype {
        /// The prototype's name.
        label: String,
        /// Return values.
        returns: Vec<Variable>,
        /// Parameters.
        params: Vec<Variable>,
    },
}

/// A guard predicate: `@%p` or `@!%p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub register: String,
    /// Whether the instruction runs where the predicate is false.
    pub negated: bool,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Line of the opcode, counted from 1.
    pub line: u32,
    /// The guard.
    pub guard: Option<Guard>,
    /// Up to the first dot: `mma`, `cp`, `tcgen05`.
    pub opcode: String,
    /// What follows, without dots; `shared::cta` is one modifier.
    pub modifiers: Vec<String>,
    /// Operands in their order.
    pub operands: Vec<Operand>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, special register (`%tid.x`), part of a register (`%r1.b0`), label, variable or `_`.
    Name(String),
    /// An integer as it is written: `0xffffffff` is 4294967295, `-1` is -1.
    Integer(i128),
    /// `0f…`: bits of an f32.
    Float32(u32),
    /// `0d…` or decimal: bits of an f64.
    Float64(u64),
    /// `[base+offset]`; without brackets, a variable's address and a constant. `[16]` has no base.
    Address {
        /// Register or variable.
        base: Option<Box<Operand>>,
        /// Bytes to add.
        offset: i64,
    },
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`.
    Not(Box<Operand>),
    /// `[map, {c0, c1}]`.
    TensorCoordinates {
        /// Address of the tensor map: a name, or an address with an offset.
        map: Box<Operand>,
        /// Coordinates, innermost dimension first.
        coordinates: Vec<Operand>,
    },
    /// All operands of `call`.
    Call {
        /// Where the results go.
        returns: Vec<Operand>,
        /// Function name, or the register that holds its address.
        function: Box<Operand>,
        /// Arguments.
        arguments: Vec<Operand>,
        /// Prototype or list of targets of an indirect call.
        prototype: Option<String>,
    },
}
