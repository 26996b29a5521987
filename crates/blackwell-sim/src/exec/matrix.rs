//! `mma.sync`, `wgmma`, `movmatrix`.

use super::{
    State,
    warp::{Outcome, Warp},
};
use crate::{
    lower::{
        code::Source,
        matrix::{Matrix, Scale, WarpgroupA},
    },
    matrix::{
        LaneRegister,
        ldmatrix::transpose,
        mma_sync::{Operands, ScaleOperand},
        wgmma::{OperandA, Operands as WarpgroupOperands},
    },
};

impl Warp {
    fn register(&self, state: &State<'_>, source: Source) -> LaneRegister {
        self.values(state, source).map(|value| value as u32)
    }

    fn fragment<const N: usize>(&self, state: &State<'_>, sources: &[Source]) -> [LaneRegister; N] {
        let mut registers = [[0; 32]; N];
        for (register, &source) in registers.iter_mut().zip(sources) {
            *register = self.register(state, source);
        }
        registers
    }

    pub(super) fn matrix(&mut self, active: u32, matrix: &Matrix, state: &State<'_>) -> Outcome<()> {
        self.whole(active, "a matrix instruction")?;
        match matrix {
            Matrix::Sync { form, d, a, b, c, scales } => {
                let scale = |scale: &Scale| ScaleOperand {
                    data: self.register(state, scale.data),
                    byte: self.uniform(state, scale.byte, active) as u32,
                    thread: self.uniform(state, scale.thread, active) as u32,
                };
                let operands = Operands {
                    a: self.fragment(state, a),
                    b: self.fragment(state, b),
                    c: self.fragment(state, c),
                    scales: scales.as_ref().map(|scales| scales.each_ref().map(scale)),
                };
                let results = form.execute(&operands)?;
                for (&destination, register) in d.iter().zip(&results) {
                    self.write(destination, active, &register.map(u64::from));
                }
            }
            Matrix::Warpgroup { form, d, a, b, scale_d, negate, transpose } => {
                let own = self.index as usize % 4;
                let registers;
                let a = match a {
                    WarpgroupA::Descriptor(descriptor) => {
                        OperandA::Shared(self.uniform(state, *descriptor, active))
                    }
                    WarpgroupA::Registers(sources) => {
                        let mut all = [[[0; 32]; 4]; 4];
                        all[own] = self.fragment(state, sources);
                        registers = all;
                        OperandA::Registers(&registers)
                    }
                };
                let operands = WarpgroupOperands {
                    a,
                    b: self.uniform(state, *b, active),
                    scale_d: self.uniform(state, *scale_d, active) & 1 == 1,
                    negate: *negate,
                    transpose: *transpose,
                };
                // Each warp computes the group's product and keeps its own rows.
                let mut results: [Vec<LaneRegister>; 4] = core::array::from_fn(|warp| match warp == own {
                    true => {
                        d.iter().map(|&register| self.register(state, Source::Register(register.slot))).collect()
                    }
                    false => vec![[0; 32]; d.len()],
                });
                if let Some(cta) = state.ctas.get(self.rank) {
                    let [first, second, third, fourth] = &mut results;
                    form.execute(&operands, &cta.shared, [first, second, third, fourth])?;
                }
                for (&destination, register) in d.iter().zip(&results[own]) {
                    self.write(destination, active, &register.map(u64::from));
                }
            }
            Matrix::Transpose { destination, value } => {
                let value = self.register(state, *value);
                self.write(*destination, active, &transpose(&value).map(u64::from));
            }
        }
        Ok(())
    }
}
