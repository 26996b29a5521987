//! Operands of a warp: their values, and writing results.

use super::{
    State,
    address::{RANK_SHIFT, RESERVED_SHARED},
    lanes,
    warp::Warp,
};
use crate::lower::code::{Address, Compute, Destination, LANES, LaneMask, LaneValues, Source, Special};

impl Warp {
    /// The values of an operand.
    pub(super) fn values(&self, state: &State<'_>, source: Source) -> LaneValues {
        let mut values = [0; LANES];
        match source {
            Source::Register(slot) => return self.registers[slot as usize],
            Source::Immediate(value) => values.fill(value),
            Source::Special(special) => self.special(state, special, &mut values),
            Source::StaticShared(offset) => values.fill(self.shared_address(RESERVED_SHARED + offset)),
            Source::DynamicShared(offset) => {
                values.fill(self.shared_address(state.grid.dynamic_shared().wrapping_add(offset)));
            }
            Source::Global { index, offset } => {
                let base = state.grid.globals.get(index as usize).copied().unwrap_or(0);
                values.fill(base.wrapping_add_signed(offset));
            }
        }
        values
    }

    fn shared_address(&self, offset: u32) -> u64 {
        (self.rank as u64) << RANK_SHIFT | u64::from(offset)
    }

    /// The value of an operand that is the same for all of `mask`: that of its first lane.
    pub(super) fn uniform(&self, state: &State<'_>, source: Source, mask: u32) -> u64 {
        self.values(state, source)[(mask.trailing_zeros() as usize).min(LANES - 1)]
    }

    /// The addresses of an operand.
    pub(super) fn addresses(&self, state: &State<'_>, address: Address) -> LaneValues {
        self.values(state, address.base).map(|base| base.wrapping_add_signed(address.offset))
    }

    pub(super) fn uniform_address(&self, state: &State<'_>, address: Address, mask: u32) -> u64 {
        self.uniform(state, address.base, mask).wrapping_add_signed(address.offset)
    }

    pub(super) fn compute(
        &mut self,
        state: &State<'_>,
        mask: u32,
        destination: Destination,
        sources: &[Source],
        compute: &Compute,
    ) {
        const ZERO: LaneValues = [0; LANES];
        let mut buffers = [ZERO; 4];
        for (buffer, &source) in buffers.iter_mut().zip(sources) {
            if !matches!(source, Source::Register(_)) {
                *buffer = self.values(state, source);
            }
        }
        let mut operands: [&LaneValues; 4] = [&ZERO; 4];
        for ((operand, buffer), &source) in operands.iter_mut().zip(&buffers).zip(sources) {
            *operand = match source {
                Source::Register(slot) => &self.registers[slot as usize],
                _ => buffer,
            };
        }
        let mut out = ZERO;
        compute(&operands, &mut out);
        self.write(destination, mask, &out);
    }

    /// Writes a register of the lanes of `mask`.
    pub(super) fn write(&mut self, destination: Destination, mask: u32, values: &LaneValues) {
        let register = &mut self.registers[destination.slot as usize];
        if mask == u32::MAX {
            for (to, &value) in register.iter_mut().zip(values) {
                *to = value & destination.mask;
            }
        } else {
            for lane in lanes(mask) {
                register[lane] = values[lane] & destination.mask;
            }
        }
    }

    /// As [`Self::write`], if there is something to write to.
    pub(super) fn write_some(&mut self, destination: Option<Destination>, mask: u32, values: &LaneValues) {
        if let Some(destination) = destination {
            self.write(destination, mask, values);
        }
    }

    fn special(&self, state: &State<'_>, special: Special, values: &mut LaneValues) {
        let grid = &state.grid;
        let launch = grid.launch;
        let cta = state.ctas.get(self.rank).map_or([0; 3], |cta| cta.index);
        let threads: u64 = launch.threads();
        let uniform = match special {
            Special::Thread(axis) => {
                for (value, thread) in values.iter_mut().zip(&self.threads) {
                    *value = u64::from(thread[axis]);
                }
                return;
            }
            Special::Lane => {
                values.iter_mut().enumerate().for_each(|(lane, value)| *value = lane as u64);
                return;
            }
            Special::LaneMask(which) => {
                for (lane, value) in values.iter_mut().enumerate() {
                    let own = 1u32 << lane;
                    *value = u64::from(match which {
                        LaneMask::Equal => own,
                        LaneMask::Below => own - 1,
                        LaneMask::NotAbove => own | (own - 1),
                        LaneMask::Above => !(own | (own - 1)),
                        LaneMask::NotBelow => !(own - 1),
                    });
                }
                return;
            }
            Special::ThreadCount(axis) => launch.block[axis].into(),
            Special::Cta(axis) => cta[axis].into(),
            Special::CtaCount(axis) => launch.grid[axis].into(),
            Special::Cluster(axis) => state.cluster[axis].into(),
            Special::ClusterCount(axis) => grid.clusters()[axis].into(),
            Special::CtaInCluster(axis) => (cta[axis] % launch.cluster[axis].max(1)).into(),
            Special::CtasOfCluster(axis) => launch.cluster[axis].into(),
            Special::CtaRank => self.rank as u64,
            Special::CtaRanks => launch.cluster_ctas(),
            Special::Warp => self.index.into(),
            Special::Warps => threads.div_ceil(LANES as u64),
            Special::Multiprocessor => {
                let [x, y, z] = cta.map(u64::from);
                let [width, height, _] = launch.grid.map(u64::from);
                (x + width * (y + height * z)) % u64::from(grid.profile.sm_count.max(1))
            }
            Special::Multiprocessors => grid.profile.sm_count.into(),
            Special::DynamicSharedBytes => launch.dynamic_shared.into(),
            Special::TotalSharedBytes => u64::from(launch.dynamic_shared) + u64::from(grid.code.static_shared),
            Special::Clock => state.instructions,
            Special::IsExplicitCluster => (launch.cluster_ctas() > 1).into(),
        };
        values.fill(uniform);
    }
}
