//! Bulk copies, tensor copies, cluster launch control. All are done at once; their barriers hear of it at once.

use super::{
    State,
    access::check_alignment,
    address::Place,
    at, lanes,
    warp::{Outcome, Warp},
};
use crate::{
    fault::{Cause, FaultKind},
    lower::{
        asynchronous::{Asynchronous, Bulk, TensorCopy},
        code::Space,
    },
    tensor_map::{TENSOR_MAP_BYTES, TensorMap},
};

impl Warp {
    pub(super) fn asynchronous(
        &mut self,
        active: u32,
        operation: &Asynchronous,
        state: &mut State<'_>,
    ) -> Outcome<()> {
        for lane in lanes(active) {
            let result = match operation {
                Asynchronous::Bulk(bulk) => self.bulk(lane, bulk, state),
                Asynchronous::TensorCopy(copy) => self.tensor_copy(lane, copy, state),
                Asynchronous::CopyArrive { address } => {
                    let address = self.uniform_address(state, *address, 1 << lane);
                    state
                        .mbarrier(super::barrier::shared_space(address), address, self.rank)
                        .and_then(|barrier| barrier.arrive(1, false))
                }
                Asynchronous::Store { address, bytes, values, barrier } => {
                    let address = self.uniform_address(state, *address, 1 << lane);
                    let barrier = self.uniform_address(state, *barrier, 1 << lane);
                    let mut data = Vec::new();
                    for &value in values {
                        let value = self.uniform(state, value, 1 << lane).to_le_bytes();
                        data.extend_from_slice(&value[..*bytes as usize]);
                    }
                    self.store(state, lane, Space::SharedCluster, address, &data, data.len())
                        .and_then(|()| self.complete(state, barrier, &[self.rank], false, false, data.len() as u32))
                }
                Asynchronous::TryCancel { address, barrier, every_cta } => {
                    let address = self.uniform_address(state, *address, 1 << lane);
                    let barrier = self.uniform_address(state, *barrier, 1 << lane);
                    self.try_cancel(address, barrier, *every_cta, state)
                }
            };
            at(lane, result)?;
        }
        Ok(())
    }

    /// The ranks that a copy goes to, and the offset in each.
    fn targets(
        &self,
        state: &State<'_>,
        space: Space,
        address: u64,
        mask: Option<u32>,
    ) -> Result<(Vec<usize>, u32), Cause> {
        let Place::Shared { rank, offset } = Place::resolve(space, address, self.rank)? else {
            return Err(Cause::new(FaultKind::OutOfBounds, format!("{address:#x} is not in shared memory")));
        };
        let ranks = match mask {
            None => vec![rank],
            Some(mask) => lanes(mask).collect(),
        };
        if let Some(rank) = ranks.iter().find(|&&rank| rank >= state.ctas.len()) {
            let count = state.ctas.len();
            return Err(Cause::new(FaultKind::OutOfBounds, format!("CTA {rank} of a cluster of {count}")));
        }
        Ok((ranks, offset))
    }

    /// Tells barriers of bytes that were written to `ranks`.
    fn complete(
        &self,
        state: &mut State<'_>,
        barrier: u64,
        ranks: &[usize],
        multicast: bool,
        pair: bool,
        bytes: u32,
    ) -> Result<(), Cause> {
        check_alignment("mbarrier operation", barrier, 8, 8)?;
        let Place::Shared { rank: named, offset } = Place::resolve(Space::SharedCluster, barrier, self.rank)?
        else {
            return Err(Cause::new(FaultKind::OutOfBounds, format!("{barrier:#x} is not in shared memory")));
        };
        for &rank in ranks {
            // With a pair, the barrier's own parity says which of the two CTAs hears of it.
            let target = match (multicast, pair) {
                (false, _) => named,
                (true, false) => rank,
                (true, true) => (rank & !1) | (named & 1),
            };
            state.events += 1;
            state.mbarrier_at(target, offset)?.transact(-i64::from(bytes))?;
        }
        Ok(())
    }

    fn bulk(&mut self, lane: usize, bulk: &Bulk, state: &mut State<'_>) -> Result<(), Cause> {
        let mask = 1 << lane;
        let to = self.uniform_address(state, bulk.to.1, mask);
        let from = self.uniform_address(state, bulk.from.1, mask);
        let count = self.uniform(state, bulk.bytes, mask) as u32;
        for (what, value) in [("destination", to), ("source", from), ("size", u64::from(count))] {
            if !value.is_multiple_of(16) {
                let message = format!("cp.async.bulk with {what} {value:#x}; it must be a multiple of 16");
                return Err(Cause::new(FaultKind::Misaligned, message));
            }
        }
        let mut bytes = vec![0; count as usize];
        self.read(state, lane, bulk.from.0, from, &mut bytes, 16)?;
        if bulk.to.0 == Space::Global {
            return self.store(state, lane, bulk.to.0, to, &bytes, 16);
        }
        let multicast = bulk.multicast.map(|mask_source| self.uniform(state, mask_source, mask) as u32 & 0xffff);
        let (ranks, offset) = self.targets(state, bulk.to.0, to, multicast)?;
        for &rank in &ranks {
            state.cta(rank)?.shared.write(offset, &bytes)?;
        }
        if let Some(barrier) = bulk.barrier {
            let barrier = self.uniform_address(state, barrier, mask);
            self.complete(state, barrier, &ranks, multicast.is_some(), false, count)?;
        }
        Ok(())
    }

    fn tensor_copy(&mut self, lane: usize, copy: &TensorCopy, state: &mut State<'_>) -> Result<(), Cause> {
        let mask = 1 << lane;
        let map_address = self.uniform_address(state, copy.map, mask);
        let mut map = [0; TENSOR_MAP_BYTES];
        // The second half of a map is not looked at, and may be undefined.
        self.read(state, lane, Space::Generic, map_address, &mut map[..64], 64)?;
        let map = TensorMap::decode(&map)?;
        let coordinates: Vec<i32> =
            copy.coordinates.iter().map(|&coordinate| self.uniform(state, coordinate, mask) as i32).collect();
        let address = self.uniform_address(state, copy.shared, mask);
        let multicast = copy.multicast.map(|mask_source| self.uniform(state, mask_source, mask) as u32 & 0xffff);
        let (ranks, offset) = self.targets(state, copy.space, address, multicast)?;
        let pieces = match (copy.rows_apart, &coordinates[..]) {
            (true, &[column, a, b, c, d]) => map.gathered_rows(column, [a, b, c, d], offset)?,
            (true, _) => {
                let message = format!("{} coordinates for a copy of four rows, which has five", coordinates.len());
                return Err(Cause::new(FaultKind::TensorMap, message));
            }
            (false, _) => map.tile(&coordinates, offset)?,
        };
        let mut buffer = [0; 16];
        for piece in &pieces {
            let bytes = &mut buffer[..piece.bytes as usize];
            if copy.load {
                match piece.global {
                    Some(global) => state.view.read(global, bytes)?,
                    None => bytes.fill(0),
                }
                if piece.global.is_none() && map.nan_fill {
                    return Err(Cause::new(FaultKind::Unsupported, "filling with NaN outside the tensor"));
                }
                for &rank in &ranks {
                    state.cta(rank)?.shared.write(piece.shared, bytes)?;
                }
            } else if let Some(global) = piece.global {
                let rank = ranks.first().copied().unwrap_or(self.rank);
                state.cta(rank)?.shared.read(piece.shared, bytes)?;
                state.view.write(global, bytes)?;
            }
        }
        state.events += 1;
        if let Some(barrier) = copy.barrier {
            let barrier = self.uniform_address(state, barrier, mask);
            // Bytes count as the box has them, those outside the tensor too.
            let bytes = if copy.rows_apart { 4 * map.box_bytes() } else { map.box_bytes() };
            self.complete(state, barrier, &ranks, multicast.is_some(), copy.pair, bytes)?;
        }
        Ok(())
    }

    fn try_cancel(
        &mut self,
        address: u64,
        barrier: u64,
        every_cta: bool,
        state: &mut State<'_>,
    ) -> Result<(), Cause> {
        let mut answer = [0; 16];
        if let Some(cluster) = state.grid.take_cluster() {
            let index = state.grid.cluster_index(cluster);
            answer[0] = 1;
            for axis in 0..3 {
                let first = index[axis] * state.grid.launch.cluster[axis];
                answer[4 * axis + 4..4 * axis + 8].copy_from_slice(&first.to_le_bytes());
            }
        }
        check_alignment("clusterlaunchcontrol.try_cancel", address, 16, 16)?;
        let mask = every_cta.then(|| (1u32 << state.ctas.len()) - 1);
        let (ranks, offset) = self.targets(state, super::barrier::shared_space(address), address, mask)?;
        for &rank in &ranks {
            state.cta(rank)?.shared.write(offset, &answer)?;
        }
        self.complete(state, barrier, &ranks, every_cta, false, 16)
    }
}
