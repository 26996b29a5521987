//! Barriers: named ones, the cluster's, and mbarriers.

use super::{
    Lowerer, Result,
    code::{Address, Destination, Operation, Source, Space},
    modifiers::Modifiers,
};
use crate::ptx::{Instruction, ScalarType};

/// A barrier instruction.
pub(crate) enum Barrier {
    /// `bar`, `barrier`.
    Named {
        /// Goes on without waiting.
        arrive_only: bool,
        barrier: Source,
        count: Option<Source>,
        reduction: Option<BarrierReduction>,
    },
    ClusterArrive,
    ClusterWait,
    Init {
        address: Address,
        count: Source,
    },
    Invalidate {
        address: Address,
    },
    Arrive(Arrive),
    /// `mbarrier.expect_tx`, `mbarrier.complete_tx`.
    Transactions {
        space: Space,
        address: Address,
        bytes: Source,
        complete: bool,
    },
    Wait {
        /// Its phase is over, or that phase whose parity is given.
        address: Address,
        space: Space,
        by_parity: bool,
        phase: Source,
        predicate: Destination,
    },
    PendingCount {
        destination: Destination,
        state: Source,
    },
}

/// `barrier.red`.
pub(crate) struct BarrierReduction {
    pub(crate) operation: BarrierVote,
    pub(crate) value: Source,
    pub(crate) destination: Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierVote {
    And,
    Or,
    Count,
}

/// `mbarrier.arrive` and its relatives.
pub(crate) struct Arrive {
    pub(crate) space: Space,
    pub(crate) address: Address,
    pub(crate) state: Option<Destination>,
    pub(crate) count: Source,
    /// Bytes that are expected, added first.
    pub(crate) expect: Option<Source>,
    /// The expected count of later phases falls too.
    pub(crate) drop: bool,
}

impl Lowerer<'_> {
    /// Lowers a barrier instruction; `None` if it is none.
    pub(super) fn barrier(&mut self, instruction: &Instruction) -> Result<Option<Operation>> {
        let mods = Modifiers::new(instruction);
        let barrier = match (instruction.opcode.as_str(), mods.first()) {
            ("barrier", Some("cluster")) => match mods.all().get(1) {
                Some(&"arrive") => Barrier::ClusterArrive,
                Some(&"wait") => Barrier::ClusterWait,
                _ => return Err(self.unsupported(instruction, "form")),
            },
            ("bar" | "barrier", _) => self.named_barrier(instruction, &mods)?,
            ("mbarrier", Some(form)) => self.mbarrier(instruction, &mods, form)?,
            _ => return Ok(None),
        };
        Ok(Some(Operation::Barrier(barrier)))
    }

    fn named_barrier(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<Barrier> {
        let u32 = ScalarType::U32;
        let operands = instruction.operands.len();
        if !mods.has("red") {
            let barrier = self.source(instruction, 0, u32)?;
            let count = if operands > 1 { Some(self.source(instruction, 1, u32)?) } else { None };
            return Ok(Barrier::Named { arrive_only: mods.has("arrive"), barrier, count, reduction: None });
        }
        let operation = match () {
            () if mods.has("and") => BarrierVote::And,
            () if mods.has("or") => BarrierVote::Or,
            () => BarrierVote::Count,
        };
        let Some(destination) = self.destination(instruction, 0)? else {
            return Err(self.unsupported(instruction, "result `_`"));
        };
        let barrier = self.source(instruction, 1, u32)?;
        let count = if operands > 3 { Some(self.source(instruction, 2, u32)?) } else { None };
        let value = self.source(instruction, operands - 1, ScalarType::Pred)?;
        let reduction = Some(BarrierReduction { operation, value, destination });
        Ok(Barrier::Named { arrive_only: false, barrier, count, reduction })
    }

    fn mbarrier(&mut self, instruction: &Instruction, mods: &Modifiers<'_>, form: &str) -> Result<Barrier> {
        let u32 = ScalarType::U32;
        let space = mods.space();
        Ok(match form {
            "init" => {
                Barrier::Init { address: self.address(instruction, 0)?, count: self.source(instruction, 1, u32)? }
            }
            "inval" => Barrier::Invalidate { address: self.address(instruction, 0)? },
            "expect_tx" | "complete_tx" => Barrier::Transactions {
                space,
                address: self.address(instruction, 0)?,
                bytes: self.source(instruction, 1, u32)?,
                complete: form == "complete_tx",
            },
            "arrive" | "arrive_drop" => {
                // `state, [address], count`; the state is left out for a barrier of another CTA.
                let has_state = !matches!(self.operand(instruction, 0)?, crate::ptx::Operand::Address { .. });
                let first = usize::from(has_state);
                let state = if has_state { self.destination(instruction, 0)? } else { None };
                let operand = match instruction.operands.len() > first + 1 {
                    true => Some(self.source(instruction, first + 1, u32)?),
                    false => None,
                };
                let expects = mods.has("expect_tx");
                let one = Source::Immediate(1);
                Barrier::Arrive(Arrive {
                    space,
                    address: self.address(instruction, first)?,
                    state,
                    count: if expects { one } else { operand.unwrap_or(one) },
                    expect: if expects { operand } else { None },
                    drop: form == "arrive_drop",
                })
            }
            "try_wait" | "test_wait" => {
                let Some(predicate) = self.destination(instruction, 0)? else {
                    return Err(self.unsupported(instruction, "result `_`"));
                };
                let by_parity = mods.has("parity");
                let phase = self.source(instruction, 2, if by_parity { u32 } else { ScalarType::B64 })?;
                Barrier::Wait { address: self.address(instruction, 1)?, space, by_parity, phase, predicate }
            }
            "pending_count" => {
                let Some(destination) = self.destination(instruction, 0)? else {
                    return Err(self.unsupported(instruction, "result `_`"));
                };
                Barrier::PendingCount { destination, state: self.source(instruction, 1, ScalarType::B64)? }
            }
            _ => return Err(self.unsupported(instruction, "form")),
        })
    }
}
