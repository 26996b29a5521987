//! One instruction.

use super::{
    Failure, State,
    warp::{Outcome, Step, Warp},
};
use crate::{
    fault::{Cause, FaultKind},
    lower::code::Operation,
};

impl Warp {
    /// Executes an instruction that is no branch for the lanes `active` of a group.
    pub(super) fn execute(
        &mut self,
        group: usize,
        active: u32,
        operation: &Operation,
        state: &mut State<'_>,
        release: bool,
    ) -> Outcome<Step> {
        match operation {
            Operation::Compute { destination, sources, compute } => {
                self.compute(state, active, *destination, sources, compute);
                Ok(Step::Next)
            }
            Operation::Memory(operation) => self.access(active, operation, state).map(|()| Step::Next),
            Operation::Collective(collective) => self.collective(group, active, collective, state),
            Operation::Barrier(barrier) => self.barrier(group, active, barrier, state, release),
            Operation::Asynchronous(operation) => self.asynchronous(active, operation, state).map(|()| Step::Next),
            Operation::Matrix(matrix) => self.matrix(active, matrix, state).map(|()| Step::Next),
            Operation::Tensor(tensor) => self.tensor(active, tensor, state),
            Operation::Trap(message) => Err(Failure {
                cause: Cause::new(FaultKind::Trap, message.clone()),
                lane: super::lanes(active).next(),
            }),
            // Control flow is the caller's.
            Operation::Branch { .. } | Operation::BranchIndexed { .. } | Operation::Exit => Ok(Step::Next),
        }
    }

    /// Fails unless all live lanes of the warp execute an instruction together.
    pub(super) fn whole(&self, active: u32, what: &str) -> Outcome<()> {
        if active == self.live {
            return Ok(());
        }
        let message = format!(
            "{what} by the lanes {active:#010x} of a warp whose lanes {:#010x} must execute it together",
            self.live
        );
        Err(Cause::new(FaultKind::Convergence, message).into())
    }
}
