//! The `tcgen05` family. Everything is done at once, in the order of issue.

use super::{
    State,
    address::Place,
    at,
    barrier::shared_space,
    lanes,
    warp::{Outcome, Step, Waiting, Warp},
};
use crate::{
    fault::{Cause, FaultKind},
    lower::{
        code::{Address, Space},
        tensor::{Multiply, Tensor, TensorA},
    },
    matrix::tcgen05_mma::{Cta as Participant, OperandA, Operands},
};

impl Warp {
    pub(super) fn tensor(&mut self, active: u32, tensor: &Tensor, state: &mut State<'_>) -> Outcome<Step> {
        if !state.grid.profile.tensor_memory {
            let message = format!("{} has no tensor memory", state.grid.profile.name);
            return Err(Cause::new(FaultKind::Unsupported, message).into());
        }
        match tensor {
            Tensor::Allocate { space, address, columns } => {
                self.whole(active, "tcgen05.alloc")?;
                let address = self.uniform_address(state, *address, active);
                let columns = self.uniform(state, *columns, active) as u32;
                let Some(allocated) = state.cta(self.rank)?.tensor.allocate(columns)? else {
                    return Ok(Step::Wait(Waiting::TensorMemory));
                };
                let space = if *space == Space::Generic { shared_space(address) } else { *space };
                self.store(state, 0, space, address, &allocated.to_le_bytes(), 4)?;
            }
            Tensor::Deallocate { address, columns } => {
                self.whole(active, "tcgen05.dealloc")?;
                let address = self.uniform(state, *address, active) as u32;
                let columns = self.uniform(state, *columns, active) as u32;
                state.cta(self.rank)?.tensor.deallocate(address, columns)?;
                state.events += 1;
            }
            Tensor::Relinquish => {
                self.whole(active, "tcgen05.relinquish_alloc_permit")?;
                state.cta(self.rank)?.tensor.relinquish_permit();
            }
            Tensor::Load { form, destinations, address, split } => {
                self.whole(active, "tcgen05.ld")?;
                let address = self.uniform_address(state, *address, active) as u32;
                let registers = form.load(&state.cta(self.rank)?.tensor, address, *split, self.index)?;
                for (&destination, register) in destinations.iter().zip(&registers) {
                    self.write(destination, active, &register.map(u64::from));
                }
            }
            Tensor::Store { form, values, address, split } => {
                self.whole(active, "tcgen05.st")?;
                let address = self.uniform_address(state, *address, active) as u32;
                let registers: Vec<_> =
                    values.iter().map(|&value| self.values(state, value).map(|value| value as u32)).collect();
                form.store(&mut state.cta(self.rank)?.tensor, address, *split, self.index, &registers)?;
            }
            Tensor::Copy { form, both, address, descriptor } => {
                for lane in lanes(active) {
                    let address = self.uniform_address(state, *address, 1 << lane) as u32;
                    let descriptor = self.uniform(state, *descriptor, 1 << lane);
                    for rank in self.pair(*both) {
                        let cta = at(lane, state.cta(rank))?;
                        let copied = form.execute(&mut cta.tensor, address, descriptor, &cta.shared);
                        at(lane, copied.map_err(Cause::from))?;
                    }
                }
            }
            Tensor::Multiply(multiply) => {
                for lane in lanes(active) {
                    at(lane, self.multiply(lane, multiply, state))?;
                }
            }
            Tensor::Commit { space, address, ctas } => {
                for lane in lanes(active) {
                    at(lane, self.commit(lane, *space, *address, *ctas, state))?;
                }
            }
        }
        Ok(Step::Next)
    }

    /// The CTAs of an instruction for one or for a pair of CTAs, the even one first.
    fn pair(&self, both: bool) -> Vec<usize> {
        if both { vec![self.rank & !1, self.rank | 1] } else { vec![self.rank] }
    }

    fn multiply(&mut self, lane: usize, multiply: &Multiply, state: &mut State<'_>) -> Result<(), Cause> {
        let mask = 1 << lane;
        let mut disable_output_lane = [0; 8];
        for (word, &source) in disable_output_lane.iter_mut().zip(&multiply.disable_output_lane) {
            *word = self.uniform(state, source, mask) as u32;
        }
        let address = |address: Address| self.uniform_address(state, address, mask) as u32;
        let operands = Operands {
            d: address(multiply.d),
            a: match &multiply.a {
                TensorA::Shared(descriptor) => OperandA::Shared(self.uniform(state, *descriptor, mask)),
                TensorA::Tensor(place) => OperandA::Tensor(address(*place)),
            },
            b: self.uniform(state, multiply.b, mask),
            instruction: self.uniform(state, multiply.instruction, mask) as u32,
            scales: multiply.scales.map(|scales| scales.map(address)),
            enable_input_d: self.uniform(state, multiply.enable_input_d, mask) & 1 == 1,
            scale_input_d: multiply.scale_input_d,
            disable_output_lane,
        };
        let ranks = self.pair(multiply.form.ctas() == 2);
        let count = state.ctas.len();
        let (first, last) = (ranks[0], ranks[ranks.len() - 1]);
        let participants = state.ctas.get_mut(first..=last).ok_or_else(|| {
            Cause::new(FaultKind::OutOfBounds, format!("CTA {last} of a cluster of {count}, for .cta_group::2"))
        })?;
        let mut participants: Vec<_> = participants
            .iter_mut()
            .map(|cta| Participant { shared: &cta.shared, memory: &mut cta.tensor })
            .collect();
        multiply.form.execute(&operands, &mut participants)?;
        Ok(())
    }

    fn commit(
        &mut self,
        lane: usize,
        space: Space,
        address: Address,
        ctas: Option<crate::lower::code::Source>,
        state: &mut State<'_>,
    ) -> Result<(), Cause> {
        let mask = 1 << lane;
        let address = self.uniform_address(state, address, mask);
        let space = match space {
            Space::Generic if address < super::address::SHARED_WINDOW => Space::SharedCluster,
            space => space,
        };
        let Place::Shared { rank, offset } = Place::resolve(space, address, self.rank)? else {
            return Err(Cause::new(
                FaultKind::OutOfBounds,
                format!("an mbarrier at {address:#x}, outside shared memory"),
            ));
        };
        let ranks = match ctas {
            Some(ctas) => lanes(self.uniform(state, ctas, mask) as u32 & 0xffff).collect(),
            None => vec![rank],
        };
        for rank in ranks {
            state.events += 1;
            state.mbarrier_at(rank, offset)?.arrive(1, false)?;
        }
        Ok(())
    }
}
