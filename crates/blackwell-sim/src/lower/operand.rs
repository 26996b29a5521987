//! Operands: registers, literals, addresses of variables, special registers, vectors.

use super::{
    Entry, Lowerer, Result,
    code::{Address, Destination, LaneMask, Source, Space, Special},
    modifiers::Modifiers,
};
use crate::ptx::{Initializer, Instruction, Operand, ScalarType, StateSpace};

/// The bits of a register of type `ty`; all of them for the halves of a 128-bit one.
pub(super) fn mask(ty: ScalarType) -> u64 {
    u64::MAX >> 64u32.saturating_sub(ty.bits().min(64))
}

impl Lowerer<'_> {
    pub(super) fn operand<'i>(&self, instruction: &'i Instruction, index: usize) -> Result<&'i Operand> {
        instruction.operands.get(index).ok_or_else(|| {
            self.invalid(instruction.line, format!("`{}` lacks operand {index}", instruction.opcode))
        })
    }

    /// Operand `index` as a value of type `ty`.
    pub(super) fn source(&mut self, instruction: &Instruction, index: usize, ty: ScalarType) -> Result<Source> {
        let operand = self.operand(instruction, index)?;
        self.lower_source(instruction.line, operand, ty)
    }

    pub(super) fn lower_source(&mut self, line: u32, operand: &Operand, ty: ScalarType) -> Result<Source> {
        match operand {
            Operand::Name(name) => self.named_source(line, name, 0),
            Operand::Integer(_) | Operand::Float32(_) | Operand::Float64(_) => {
                Ok(Source::Immediate(immediate(operand, ty)))
            }
            Operand::Address { base: Some(base), offset } => match base.as_ref() {
                Operand::Name(name) => self.named_source(line, name, *offset),
                _ => Err(self.invalid(line, "an address of something that has none")),
            },
            Operand::Not(inner) => {
                let inner = self.lower_source(line, inner, ty)?;
                Ok(self.computed(line, vec![inner], super::lanes::one(|a| a ^ 1)))
            }
            _ => Err(self.invalid(line, "a vector or pair where one value is needed")),
        }
    }

    /// The value of a register, or the address of a variable, plus `offset`.
    fn named_source(&mut self, line: u32, name: &str, offset: i64) -> Result<Source> {
        if let Some(special) = special(name) {
            return Ok(special);
        }
        if self.find(name).is_none() {
            self.use_module_variable(name);
        }
        let place = |base: u32| base.wrapping_add(offset as u32);
        match self.find(name) {
            Some(&Entry::Register { slot, .. }) if offset == 0 => Ok(Source::Register(slot)),
            Some(&(Entry::Param(base) | Entry::Local(base))) => Ok(Source::Immediate(u64::from(place(base)))),
            Some(&Entry::Shared(base)) => Ok(Source::StaticShared(place(base))),
            Some(Entry::DynamicShared) => Ok(Source::DynamicShared(offset as u32)),
            _ => match self.globals.indices.get(name) {
                Some(&index) => Ok(Source::Global { index, offset }),
                None => Err(self.invalid(line, format!("nothing declares `{name}`"))),
            },
        }
    }

    /// Gives a shared variable of the module a place in the kernel that uses it.
    fn use_module_variable(&mut self, name: &str) {
        let module = self.module;
        let shared = |space| space == StateSpace::Shared;
        if let Some(variable) =
            module.variables.iter().find(|variable| variable.name == name && shared(variable.space))
        {
            let entry = match self.shared.get(name) {
                Some(&offset) => Entry::Shared(offset),
                None => self.new_shared(variable),
            };
            if let Entry::Shared(offset) = entry {
                self.shared.insert(name.to_owned(), offset);
            }
            if let Some(outermost) = self.scopes.first_mut() {
                outermost.insert(name.to_owned(), entry);
            }
        }
    }

    /// Whether operand `index` is a predicate register.
    pub(super) fn is_predicate(&self, instruction: &Instruction, index: usize) -> Result<bool> {
        Ok(match self.operand(instruction, index)? {
            Operand::Name(name) => matches!(self.find(name), Some(Entry::Register { ty: ScalarType::Pred, .. })),
            Operand::Not(_) => true,
            _ => false,
        })
    }

    /// Type of the register that operand `index` is.
    pub(super) fn register_type(&self, operand: &Operand) -> Option<ScalarType> {
        match operand {
            Operand::Name(name) => match self.find(name) {
                Some(&Entry::Register { ty, .. }) => Some(ty),
                _ => None,
            },
            _ => None,
        }
    }

    /// Where operand `index` is written; `None` for `_`.
    pub(super) fn destination(&self, instruction: &Instruction, index: usize) -> Result<Option<Destination>> {
        self.lower_destination(instruction.line, self.operand(instruction, index)?)
    }

    pub(super) fn lower_destination(&self, line: u32, operand: &Operand) -> Result<Option<Destination>> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(None),
            Operand::Name(name) => match self.find(name) {
                Some(&Entry::Register { slot, ty }) => Ok(Some(Destination { slot, mask: mask(ty) })),
                _ => Err(self.invalid(line, format!("`{name}` is no register"))),
            },
            _ => Err(self.invalid(line, "a result that is no register")),
        }
    }

    /// A destination of type `ty`: two for 128 bits.
    pub(super) fn wide_destination(
        &self,
        instruction: &Instruction,
        operand: &Operand,
        ty: ScalarType,
    ) -> Result<Vec<Option<Destination>>> {
        let first = self.lower_destination(instruction.line, operand)?;
        if ty.bits() != 128 {
            return Ok(vec![first]);
        }
        Ok(vec![first, first.map(|first| Destination { slot: first.slot + 1, ..first })])
    }

    /// Where operand `index`, a vector or not, puts values; two places for each element of 128 bits.
    pub(super) fn wide_destinations(
        &self,
        instruction: &Instruction,
        index: usize,
        ty: ScalarType,
    ) -> Result<Vec<Option<Destination>>> {
        let operand = self.operand(instruction, index)?;
        let elements =
            if let Operand::Vector(elements) = operand { elements } else { std::slice::from_ref(operand) };
        let mut destinations = Vec::new();
        for element in elements {
            destinations.extend(self.wide_destination(instruction, element, ty)?);
        }
        Ok(destinations)
    }

    /// The values of operand `index`, a vector or not; two of each element of 128 bits.
    pub(super) fn wide_sources(
        &mut self,
        instruction: &Instruction,
        index: usize,
        ty: ScalarType,
    ) -> Result<Vec<Source>> {
        let sources = self.vector_sources(instruction, index, ty)?;
        if ty.bits() != 128 {
            return Ok(sources);
        }
        sources
            .into_iter()
            .flat_map(|source| match source {
                Source::Register(slot) => [Ok(source), Ok(Source::Register(slot + 1))],
                Source::Immediate(_) => [Ok(source), Ok(Source::Immediate(0))],
                _ => [Err(self.unsupported(instruction, "128-bit operand")), Ok(source)],
            })
            .collect()
    }

    /// The elements of operand `index`; the operand itself if it is no vector.
    pub(super) fn vector_sources(
        &mut self,
        instruction: &Instruction,
        index: usize,
        ty: ScalarType,
    ) -> Result<Vec<Source>> {
        match self.operand(instruction, index)? {
            Operand::Vector(elements) => {
                elements.iter().map(|element| self.lower_source(instruction.line, element, ty)).collect()
            }
            single => Ok(vec![self.lower_source(instruction.line, single, ty)?]),
        }
    }

    /// As [`Self::vector_sources`], of a result none of whose elements is `_`.
    pub(super) fn vector_destinations(
        &self,
        instruction: &Instruction,
        index: usize,
        ty: ScalarType,
    ) -> Result<Vec<Destination>> {
        let operand = self.operand(instruction, index)?;
        let elements = match operand {
            Operand::Vector(elements) => elements.as_slice(),
            single => std::slice::from_ref(single),
        };
        elements
            .iter()
            .map(|element| {
                self.lower_destination(instruction.line, element)?
                    .map(|destination| Destination { mask: destination.mask & mask(ty), ..destination })
                    .ok_or_else(|| self.unsupported(instruction, "result `_`"))
            })
            .collect()
    }

    /// Operand `index` as an address.
    pub(super) fn address(&mut self, instruction: &Instruction, index: usize) -> Result<Address> {
        let operand = self.operand(instruction, index)?;
        self.lower_address(instruction.line, operand)
    }

    pub(super) fn lower_address(&mut self, line: u32, operand: &Operand) -> Result<Address> {
        match operand {
            Operand::Address { base: None, offset } => {
                Ok(Address { base: Source::Immediate(*offset as u64), offset: 0 })
            }
            Operand::Address { base: Some(base), offset } => {
                Ok(Address { base: self.lower_source(line, base, ScalarType::B64)?, offset: *offset })
            }
            Operand::Name(_) => Ok(Address { base: self.lower_source(line, operand, ScalarType::B64)?, offset: 0 }),
            _ => Err(self.invalid(line, "an operand that is no address")),
        }
    }

    /// An address and its space: parameters of device functions live in local memory.
    pub(super) fn spaced_address(
        &mut self,
        instruction: &Instruction,
        index: usize,
        mods: &Modifiers<'_>,
    ) -> Result<(Space, Address)> {
        let address = self.address(instruction, index)?;
        let mut space = mods.space();
        if let (Space::Param, Operand::Address { base: Some(base), .. }) =
            (space, self.operand(instruction, index)?)
            && let Operand::Name(name) = base.as_ref()
            && let Some(Entry::Local(_)) = self.find(name)
        {
            space = Space::Local;
        }
        Ok((space, address))
    }
}

/// A literal's bits as a value of type `ty`.
pub(super) fn immediate(operand: &Operand, ty: ScalarType) -> u64 {
    let initial = match *operand {
        Operand::Integer(value) => Initializer::Integer(value),
        Operand::Float32(bits) => Initializer::Float32(bits),
        Operand::Float64(bits) => Initializer::Float64(bits),
        _ => return 0,
    };
    match (initial.bits(ty), initial) {
        (Some(bits), _) => bits as u64,
        (None, Initializer::Float32(bits)) => u64::from(bits),
        (None, Initializer::Float64(bits)) => bits,
        (None, _) => 0,
    }
}

fn special(name: &str) -> Option<Source> {
    let (register, part) = match name.rsplit_once('.') {
        Some((register, part @ ("x" | "y" | "z"))) => (register, "xyz".find(part)?),
        Some((_, "w")) if name.starts_with("%tid") || name.starts_with("%ctaid") => {
            return Some(Source::Immediate(0));
        }
        _ => (name, 0),
    };
    Some(Source::Special(match register {
        "%tid" => Special::Thread(part),
        "%ntid" => Special::ThreadCount(part),
        "%ctaid" => Special::Cta(part),
        "%nctaid" => Special::CtaCount(part),
        "%clusterid" => Special::Cluster(part),
        "%nclusterid" => Special::ClusterCount(part),
        "%cluster_ctaid" => Special::CtaInCluster(part),
        "%cluster_nctaid" => Special::CtasOfCluster(part),
        "%cluster_ctarank" => Special::CtaRank,
        "%cluster_nctarank" => Special::CtaRanks,
        "%is_explicit_cluster" => Special::IsExplicitCluster,
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LaneMask(LaneMask::Equal),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Below),
        "%lanemask_le" => Special::LaneMask(LaneMask::NotAbove),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Above),
        "%lanemask_ge" => Special::LaneMask(LaneMask::NotBelow),
        "%smid" => Special::Multiprocessor,
        "%nsmid" => Special::Multiprocessors,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        "%clock" | "%clock64" | "%clock_hi" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
        "%gridid" => return Some(Source::Immediate(0)),
        "WARP_SZ" => return Some(Source::Immediate(32)),
        _ => return None,
    }))
}
