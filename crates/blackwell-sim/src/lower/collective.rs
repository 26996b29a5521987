//! Instructions of which a warp's lanes take part together.

use super::{
    Lowerer, Result,
    code::{Destination, Operation, Source},
    modifiers::Modifiers,
};
use crate::ptx::{Instruction, Operand, ScalarType};

/// An instruction that the lanes of a mask execute together.
pub(crate) struct Collective {
    /// The lanes; `None` for whoever is there.
    pub(crate) members: Option<Source>,
    pub(crate) action: Action,
}

/// What the lanes do.
pub(crate) enum Action {
    Shuffle {
        mode: ShuffleMode,
        destination: Option<Destination>,
        predicate: Option<Destination>,
        value: Source,
        lane: Source,
        clamp: Source,
    },
    Vote {
        mode: VoteMode,
        destination: Option<Destination>,
        value: Source,
    },
    Match {
        all: bool,
        destination: Option<Destination>,
        predicate: Option<Destination>,
        value: Source,
    },
    Reduce {
        operation: Reduction,
        destination: Option<Destination>,
        value: Source,
    },
    Elect {
        destination: Option<Destination>,
        predicate: Option<Destination>,
    },
    ActiveMask(Option<Destination>),
    /// `bar.warp.sync`.
    Meet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// The operation of a `redux`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Add,
    Min {
        signed: bool,
    },
    Max {
        signed: bool,
    },
    And,
    Or,
    Xor,
    /// Of f32.
    Float {
        larger: bool,
        absolute: bool,
        nan: bool,
    },
}

impl Lowerer<'_> {
    /// Lowers a collective instruction; `None` if it is none.
    pub(super) fn collective(&mut self, instruction: &Instruction) -> Result<Option<Operation>> {
        let mods = Modifiers::new(instruction);
        let line = instruction.line;
        let b32 = ScalarType::B32;
        let (members, action) = match (instruction.opcode.as_str(), mods.first()) {
            ("shfl", Some("sync")) => {
                let mode = match mods.all().get(1) {
                    Some(&"up") => ShuffleMode::Up,
                    Some(&"down") => ShuffleMode::Down,
                    Some(&"bfly") => ShuffleMode::Butterfly,
                    Some(&"idx") => ShuffleMode::Index,
                    _ => return Err(self.unsupported(instruction, "mode")),
                };
                let (destination, predicate) = self.pair_of_destinations(instruction)?;
                let value = self.source(instruction, 1, b32)?;
                let lane = self.source(instruction, 2, b32)?;
                let clamp = self.source(instruction, 3, b32)?;
                (Some(4), Action::Shuffle { mode, destination, predicate, value, lane, clamp })
            }
            ("vote", Some("sync")) => {
                let mode = match mods.all().get(1) {
                    Some(&"all") => VoteMode::All,
                    Some(&"any") => VoteMode::Any,
                    Some(&"uni") => VoteMode::Uniform,
                    Some(&"ballot") => VoteMode::Ballot,
                    _ => return Err(self.unsupported(instruction, "mode")),
                };
                let value = self.source(instruction, 1, ScalarType::Pred)?;
                (Some(2), Action::Vote { mode, destination: self.destination(instruction, 0)?, value })
            }
            ("match", _) => {
                let (destination, predicate) = self.pair_of_destinations(instruction)?;
                let value = self.source(instruction, 1, ScalarType::B64)?;
                (Some(2), Action::Match { all: mods.has("all"), destination, predicate, value })
            }
            ("redux", Some("sync")) => {
                let signed = mods.ty().is_some_and(ScalarType::is_signed);
                let float = mods.ty() == Some(ScalarType::F32);
                let operation = match mods.all().get(1) {
                    Some(name @ (&"min" | &"max")) if float => {
                        Reduction::Float { larger: *name == "max", absolute: mods.has("abs"), nan: mods.has("NaN") }
                    }
                    Some(&"add") => Reduction::Add,
                    Some(&"min") => Reduction::Min { signed },
                    Some(&"max") => Reduction::Max { signed },
                    Some(&"and") => Reduction::And,
                    Some(&"or") => Reduction::Or,
                    Some(&"xor") => Reduction::Xor,
                    _ => return Err(self.unsupported(instruction, "operation")),
                };
                let value = self.source(instruction, 1, b32)?;
                (Some(2), Action::Reduce { operation, destination: self.destination(instruction, 0)?, value })
            }
            ("elect", _) => {
                let (destination, predicate) = self.pair_of_destinations(instruction)?;
                (Some(1), Action::Elect { destination, predicate })
            }
            ("activemask", _) => (None, Action::ActiveMask(self.destination(instruction, 0)?)),
            ("bar", Some("warp")) => (Some(0), Action::Meet),
            _ => return Ok(None),
        };
        let members = match members {
            None => None,
            Some(index) => Some(self.lower_source(line, self.operand(instruction, index)?, b32)?),
        };
        Ok(Some(Operation::Collective(Collective { members, action })))
    }

    /// `d|p`, either of which may be `_`.
    fn pair_of_destinations(
        &self,
        instruction: &Instruction,
    ) -> Result<(Option<Destination>, Option<Destination>)> {
        let (first, second) = self.pair(instruction, 0)?;
        let lower = |operand: &Operand| self.lower_destination(instruction.line, operand);
        Ok((lower(first)?, second.map(lower).transpose()?.flatten()))
    }
}
