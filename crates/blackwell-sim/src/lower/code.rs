//! The compact form in which kernels run: register slots, resolved labels, decoded modifiers.

use super::{
    asynchronous::Asynchronous, barrier::Barrier, collective::Collective, matrix::Matrix, memory::MemoryOperation,
    tensor::Tensor,
};

/// Threads of a warp.
pub(crate) const LANES: usize = 32;

/// A value of every lane.
pub(crate) type LaneValues = [u64; LANES];

/// What an instruction computes on each lane by itself, for all lanes; up to four operands.
pub(crate) type Compute = Box<dyn Fn(&[&LaneValues; 4], &mut LaneValues) + Send + Sync>;

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    ThreadCount(usize),
    Cta(usize),
    CtaCount(usize),
    Cluster(usize),
    ClusterCount(usize),
    CtaInCluster(usize),
    CtasOfCluster(usize),
    CtaRank,
    CtaRanks,
    Lane,
    Warp,
    Warps,
    LaneMask(LaneMask),
    Multiprocessor,
    Multiprocessors,
    DynamicSharedBytes,
    TotalSharedBytes,
    Clock,
    IsExplicitCluster,
}

/// Which lanes a `%lanemask_…` register names, relative to the reading one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneMask {
    Equal,
    Below,
    NotAbove,
    Above,
    NotBelow,
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Register(u32),
    Immediate(u64),
    Special(Special),
    /// The shared address of so many bytes into the kernel's static shared memory.
    StaticShared(u32),
    /// As before, into its dynamic shared memory.
    DynamicShared(u32),
    /// The address of a variable of the module, plus an offset.
    Global {
        index: u32,
        offset: i64,
    },
}

/// A register that is written, and the bits that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) slot: u32,
    pub(crate) mask: u64,
}

/// `[base+offset]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) base: Source,
    pub(crate) offset: i64,
}

/// A state space of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    /// `.shared`, `.shared::cta`.
    SharedCta,
    /// `.shared::cluster`.
    SharedCluster,
    Local,
    Param,
}

/// `@p`, `@!p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) slot: u32,
    pub(crate) negated: bool,
}

/// An instruction's index; the number of instructions stands for the kernel's end.
pub(crate) type Position = usize;

/// What an instruction does.
pub(crate) enum Operation {
    Compute {
        destination: Destination,
        sources: Vec<Source>,
        compute: Compute,
    },
    Branch {
        target: Position,
        /// Where lanes that part here meet again.
        reconverge: Position,
    },
    /// `brx.idx`.
    BranchIndexed {
        index: Source,
        targets: Vec<Position>,
        reconverge: Position,
    },
    Exit,
    /// `trap` and what the kernel calls to stop itself; what it said.
    Trap(String),
    Memory(MemoryOperation),
    Collective(Collective),
    Barrier(Barrier),
    Asynchronous(Asynchronous),
    Matrix(Matrix),
    Tensor(Tensor),
}

/// An instruction.
pub(crate) struct Instruction {
    pub(crate) line: u32,
    pub(crate) guard: Option<Guard>,
    pub(crate) operation: Operation,
}

/// A kernel's body.
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    /// Register slots of a thread.
    pub(crate) slots: usize,
    /// Bytes of local memory of a thread.
    pub(crate) local_bytes: u32,
    /// Bytes of static shared memory.
    pub(crate) static_shared: u32,
    /// Alignment of the dynamic shared memory behind it.
    pub(crate) dynamic_alignment: u32,
}
