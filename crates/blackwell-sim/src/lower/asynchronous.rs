//! Bulk copies, plain and by tensor map, and cluster launch control.

use super::{
    Lowerer, Result,
    code::{Address, Destination, Operation, Source, Space},
    lanes,
    modifiers::Modifiers,
};
use crate::ptx::{Instruction, Operand, ScalarType};

/// An instruction that hardware completes later; here it is done at once.
pub(crate) enum Asynchronous {
    Bulk(Bulk),
    TensorCopy(TensorCopy),
    /// `cp.async.mbarrier.arrive.noinc`: the copies before it are done, so it arrives.
    CopyArrive {
        address: Address,
    },
    /// `st.async`.
    Store {
        address: Address,
        bytes: u32,
        values: Vec<Source>,
        barrier: Address,
    },
    TryCancel {
        address: Address,
        barrier: Address,
        every_cta: bool,
    },
}

/// `cp.async.bulk` between shared and global memory or two CTAs' shared memories.
pub(crate) struct Bulk {
    pub(crate) to: (Space, Address),
    pub(crate) from: (Space, Address),
    pub(crate) bytes: Source,
    pub(crate) barrier: Option<Address>,
    pub(crate) multicast: Option<Source>,
}

/// `cp.async.bulk.tensor`.
pub(crate) struct TensorCopy {
    /// From global to shared memory.
    pub(crate) load: bool,
    pub(crate) map: Address,
    pub(crate) coordinates: Vec<Source>,
    /// One column and four rows.
    pub(crate) rows_apart: bool,
    pub(crate) space: Space,
    pub(crate) shared: Address,
    pub(crate) barrier: Option<Address>,
    pub(crate) multicast: Option<Source>,
    /// `.cta_group::2`: the barrier may be the other CTA's of the pair.
    pub(crate) pair: bool,
}

impl Lowerer<'_> {
    /// Lowers an asynchronous copy; `None` if the instruction is none.
    pub(super) fn asynchronous(&mut self, instruction: &Instruction) -> Result<Option<Operation>> {
        let mods = Modifiers::new(instruction);
        let operation = match (instruction.opcode.as_str(), mods.all()) {
            ("cp", ["async", "bulk", "tensor", ..]) => {
                Asynchronous::TensorCopy(self.tensor_copy(instruction, &mods)?)
            }
            ("cp", ["async", "bulk", ..]) => Asynchronous::Bulk(self.bulk(instruction, &mods)?),
            ("cp", ["async", "mbarrier", "arrive", rest @ ..]) => {
                let address = self.address(instruction, 0)?;
                if !rest.contains(&"noinc") {
                    return Err(self.unsupported(instruction, "form without .noinc"));
                }
                Asynchronous::CopyArrive { address }
            }
            ("st", ["async", ..]) if mods.has("mbarrier::complete_tx::bytes") => {
                let ty = mods.ty().ok_or_else(|| self.unsupported(instruction, "type"))?;
                Asynchronous::Store {
                    address: self.address(instruction, 0)?,
                    bytes: ty.bits() / 8,
                    values: self.vector_sources(instruction, 1, ty)?,
                    barrier: self.address(instruction, 2)?,
                }
            }
            ("clusterlaunchcontrol", ["try_cancel", ..]) => Asynchronous::TryCancel {
                address: self.address(instruction, 0)?,
                barrier: self.address(instruction, 1)?,
                every_cta: mods.has("multicast::cluster::all"),
            },
            ("clusterlaunchcontrol", ["query_cancel", ..]) => {
                return self.query_cancel(instruction, &mods).map(Some);
            }
            _ => return Ok(None),
        };
        Ok(Some(Operation::Asynchronous(operation)))
    }

    fn bulk(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<Bulk> {
        let spaces: Vec<Space> = mods.all().iter().filter_map(|&name| space(name)).collect();
        let [to, from] = spaces[..] else { return Err(self.unsupported(instruction, "state spaces")) };
        let signals = mods.has("mbarrier::complete_tx::bytes");
        if mods.has("cp_mask") || mods.has("ignore_oob") {
            return Err(self.unsupported(instruction, "byte mask"));
        }
        let multicast = match mods.has("multicast::cluster") {
            true => Some(self.source(instruction, 4, ScalarType::U16)?),
            false => None,
        };
        Ok(Bulk {
            to: (to, self.address(instruction, 0)?),
            from: (from, self.address(instruction, 1)?),
            bytes: self.source(instruction, 2, ScalarType::U32)?,
            barrier: if signals { Some(self.address(instruction, 3)?) } else { None },
            multicast,
        })
    }

    fn tensor_copy(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<TensorCopy> {
        let spaces: Vec<Space> = mods.all().iter().filter_map(|&name| space(name)).collect();
        let [to, from] = spaces[..] else { return Err(self.unsupported(instruction, "state spaces")) };
        if mods.all().iter().any(|name| name.starts_with("im2col")) {
            return Err(self.unsupported(instruction, "im2col"));
        }
        let load = from == Space::Global;
        let (tensor, shared) = if load { (1, 0) } else { (0, 1) };
        let Operand::TensorCoordinates { map, coordinates } = self.operand(instruction, tensor)? else {
            return Err(self.invalid(instruction.line, "a tensor copy without coordinates"));
        };
        let coordinates = coordinates
            .iter()
            .map(|coordinate| self.lower_source(instruction.line, coordinate, ScalarType::S32))
            .collect::<Result<Vec<_>>>()?;
        let multicast = match mods.has("multicast::cluster") {
            true => Some(self.source(instruction, 3, ScalarType::U16)?),
            false => None,
        };
        Ok(TensorCopy {
            load,
            map: self.lower_address(instruction.line, map)?,
            coordinates,
            rows_apart: mods.has("tile::gather4") || mods.has("tile::scatter4"),
            space: if load { to } else { from },
            shared: self.address(instruction, shared)?,
            barrier: if load { Some(self.address(instruction, 2)?) } else { None },
            multicast,
            pair: mods.has("cta_group::2"),
        })
    }

    /// Reads the answer of a `try_cancel`, whose form is this module's own: bit 0 says that a cluster was taken, bits 32–63, 64–95 and
    /// 96–127 are its first CTA's x, y and z.
    fn query_cancel(&mut self, instruction: &Instruction, mods: &Modifiers<'_>) -> Result<Operation> {
        let answer = self.wide_sources(instruction, 1, ScalarType::B128)?;
        let [low, high] = answer[..] else { return Err(self.unsupported(instruction, "operand")) };
        let part = |axis: usize| match axis {
            0 => (low, 32),
            1 => (high, 0),
            _ => (high, 32),
        };
        let destinations: Vec<(Option<Destination>, (Source, u32))> = if mods.has("is_canceled") {
            vec![(self.destination(instruction, 0)?, (low, 0))]
        } else if mods.has("get_first_ctaid") {
            let Operand::Vector(elements) = self.operand(instruction, 0)? else {
                return Err(self.unsupported(instruction, "operand"));
            };
            let elements = elements.iter().take(3).enumerate();
            elements
                .map(|(axis, element)| Ok((self.lower_destination(instruction.line, element)?, part(axis))))
                .collect::<Result<Vec<_>>>()?
        } else {
            let axis = ["x", "y", "z"]
                .into_iter()
                .position(|axis| mods.has(&format!("get_first_ctaid::{axis}")))
                .ok_or_else(|| self.unsupported(instruction, "form"))?;
            vec![(self.destination(instruction, 0)?, part(axis))]
        };
        let mut written = destinations.into_iter().filter_map(|(to, part)| Some((to?, part)));
        let Some((last, (source, shift))) = written.next() else {
            return Err(self.unsupported(instruction, "result `_`"));
        };
        for (destination, (source, shift)) in written {
            self.compute(instruction.line, destination, vec![source], lanes::one(move |a| a >> shift));
        }
        Ok(Operation::Compute {
            destination: last,
            sources: vec![source],
            compute: lanes::one(move |a| a >> shift),
        })
    }
}

fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared::cta" => Space::SharedCta,
        "shared::cluster" => Space::SharedCluster,
        _ => return None,
    })
}
