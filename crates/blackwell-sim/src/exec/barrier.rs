//! Named barriers, the cluster's barrier, mbarriers.

use super::{
    State,
    access::check_alignment,
    address::Place,
    at,
    cta::NAMED_BARRIERS,
    lanes,
    mbarrier::Mbarrier,
    warp::{Outcome, Step, Waiting, Warp},
};
use crate::{
    fault::{Cause, FaultKind},
    lower::{
        barrier::{Arrive, Barrier, BarrierReduction, BarrierVote},
        code::{LANES, Source, Space},
    },
};

impl State<'_> {
    /// The mbarrier at an address.
    pub(super) fn mbarrier(&mut self, space: Space, address: u64, own: usize) -> Result<&mut Mbarrier, Cause> {
        check_alignment("mbarrier operation", address, 8, 8)?;
        let Place::Shared { rank, offset } = Place::resolve(space, address, own)? else {
            return Err(Cause::new(
                FaultKind::OutOfBounds,
                format!("an mbarrier at {address:#x}, outside shared memory"),
            ));
        };
        self.events += 1;
        self.mbarrier_at(rank, offset)
    }

    /// The mbarrier of a CTA at an offset.
    pub(super) fn mbarrier_at(&mut self, rank: usize, offset: u32) -> Result<&mut Mbarrier, Cause> {
        self.cta(rank)?.shared.barriers.get_mut(&offset).ok_or_else(|| {
            Cause::new(
                FaultKind::Barrier,
                format!("shared offset {offset:#x} of CTA {rank} of the cluster holds no initialised mbarrier"),
            )
        })
    }
}

impl Warp {
    pub(super) fn barrier(
        &mut self,
        group: usize,
        active: u32,
        barrier: &Barrier,
        state: &mut State<'_>,
        release: bool,
    ) -> Outcome<Step> {
        match barrier {
            Barrier::Named { arrive_only, barrier, count, reduction } => {
                return self.named(group, active, *arrive_only, *barrier, *count, reduction.as_ref(), state);
            }
            Barrier::ClusterArrive => {
                for lane in lanes(active) {
                    self.cluster_arrivals[lane] = state.cluster_barrier.generation + 1;
                }
                state.cluster_barrier.arrived += active.count_ones();
                state.events += 1;
            }
            Barrier::ClusterWait => {
                let live: u32 = state.ctas.iter().map(|cta| cta.live).sum();
                let arrived = lanes(active).all(|lane| self.cluster_arrivals[lane] > 0);
                if !arrived {
                    let what = "barrier.cluster.wait without barrier.cluster.arrive before it";
                    return Err(Cause::new(FaultKind::Barrier, what).into());
                }
                state.cluster_barrier.settle(live);
                let generation = state.cluster_barrier.generation;
                if lanes(active).any(|lane| self.cluster_arrivals[lane] > generation) {
                    return Ok(Step::Wait(Waiting::Cluster));
                }
            }
            Barrier::Init { address, count } => {
                let (addresses, counts) = (self.addresses(state, *address), self.values(state, *count));
                for lane in lanes(active) {
                    let address = addresses[lane];
                    at(lane, check_alignment("mbarrier.init", address, 8, 8))?;
                    let barrier = at(lane, Mbarrier::new(counts[lane] as u32))?;
                    at(lane, self.store(state, lane, shared_space(address), address, &[0; 8], 8))?;
                    if let Place::Shared { offset, .. } =
                        at(lane, Place::resolve(shared_space(address), address, self.rank))?
                    {
                        let cta = at(lane, state.cta(self.rank))?;
                        cta.shared.barriers.insert(offset, barrier);
                    }
                }
            }
            Barrier::Invalidate { address } => {
                let addresses = self.addresses(state, *address);
                for lane in lanes(active) {
                    let address = addresses[lane];
                    at(lane, state.mbarrier(shared_space(address), address, self.rank))?;
                    if let Place::Shared { offset, .. } =
                        at(lane, Place::resolve(shared_space(address), address, self.rank))?
                    {
                        at(lane, state.cta(self.rank))?.shared.barriers.remove(&offset);
                    }
                }
            }
            Barrier::Arrive(arrive) => self.arrive(active, arrive, state)?,
            Barrier::Transactions { space, address, bytes, complete } => {
                let (addresses, bytes) = (self.addresses(state, *address), self.values(state, *bytes));
                for lane in lanes(active) {
                    let bytes = i64::from(bytes[lane] as u32);
                    let space = generic_or(*space, addresses[lane]);
                    let barrier = at(lane, state.mbarrier(space, addresses[lane], self.rank))?;
                    at(lane, barrier.transact(if *complete { -bytes } else { bytes }))?;
                }
            }
            Barrier::Wait { address, space, by_parity, phase, predicate } => {
                let (addresses, phases) = (self.addresses(state, *address), self.values(state, *phase));
                let mut over = [0; LANES];
                let events = state.events;
                for lane in lanes(active) {
                    let space = generic_or(*space, addresses[lane]);
                    let barrier = at(lane, state.mbarrier(space, addresses[lane], self.rank))?;
                    let phase = phases[lane];
                    over[lane] = u64::from(match by_parity {
                        true => barrier.parity_is_over(phase),
                        false => barrier.state_is_over(phase),
                    });
                }
                // Looking changes nothing.
                state.events = events;
                if !release && lanes(active).all(|lane| over[lane] == 0) {
                    let lane = active.trailing_zeros() as usize;
                    let (rank, offset) =
                        match Place::resolve(generic_or(*space, addresses[lane]), addresses[lane], self.rank)? {
                            Place::Shared { rank, offset } => (rank, offset),
                            _ => (self.rank, 0),
                        };
                    let (phase, by_parity) = (phases[lane], *by_parity);
                    return Ok(Step::Wait(Waiting::Mbarrier { rank, offset, phase, by_parity }));
                }
                self.write(*predicate, active, &over);
            }
            Barrier::PendingCount { destination, state: source } => {
                let counts = self.values(state, *source).map(Mbarrier::pending_of);
                self.write(*destination, active, &counts);
            }
        }
        Ok(Step::Next)
    }

    fn arrive(&mut self, active: u32, arrive: &Arrive, state: &mut State<'_>) -> Outcome<()> {
        let addresses = self.addresses(state, arrive.address);
        let counts = self.values(state, arrive.count);
        let expected = arrive.expect.map(|bytes| self.values(state, bytes));
        let mut states = [0; LANES];
        for lane in lanes(active) {
            let space = generic_or(arrive.space, addresses[lane]);
            let barrier = at(lane, state.mbarrier(space, addresses[lane], self.rank))?;
            states[lane] = barrier.state();
            if let Some(expected) = &expected {
                at(lane, barrier.transact(i64::from(expected[lane] as u32)))?;
            }
            at(lane, barrier.arrive(counts[lane] as u32, arrive.drop))?;
        }
        self.write_some(arrive.state, active, &states);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
    fn named(
        &mut self,
        group: usize,
        active: u32,
        arrive_only: bool,
        barrier: Source,
        count: Option<Source>,
        reduction: Option<&BarrierReduction>,
        state: &mut State<'_>,
    ) -> Outcome<Step> {
        let number = self.uniform(state, barrier, active) as u32;
        let count = count.map(|count| self.uniform(state, count, active) as u32);
        let votes = reduction.map(|reduction| self.values(state, reduction.value));
        // The last warp of a CTA counts whole, and so do lanes that have ended.
        let threads = if active == self.live && count.is_some() { LANES as u32 } else { active.count_ones() };
        let cta = state.cta(self.rank)?;
        let live = cta.live;
        let Some(barrier) = cta.barriers.get_mut(number as usize) else {
            let what = format!("barrier {number}; a CTA has {NAMED_BARRIERS}");
            return Err(Cause::new(FaultKind::Barrier, what).into());
        };
        let generation = match self.groups[group].token {
            Some(generation) => generation,
            None => {
                if let Some(count) = count
                    && (count == 0 || !count.is_multiple_of(LANES as u32))
                {
                    let what =
                        format!("barrier {number} for {count} threads; it must be a multiple of the warp's 32");
                    return Err(Cause::new(FaultKind::Barrier, what).into());
                }
                if barrier.arrived > 0 && barrier.count != count {
                    let name = |count: Option<u32>| count.map_or("all".into(), |count| count.to_string());
                    let what = format!(
                        "barrier {number} for {} threads, while others wait there for {}",
                        name(count),
                        name(barrier.count)
                    );
                    return Err(Cause::new(FaultKind::Barrier, what).into());
                }
                barrier.count = count;
                barrier.arrived += threads;
                if let Some(count) = count
                    && barrier.arrived > count
                {
                    let what =
                        format!("{} threads arrived at barrier {number}, which is for {count}", barrier.arrived);
                    return Err(Cause::new(FaultKind::Barrier, what).into());
                }
                if let Some(votes) = votes {
                    barrier.votes += lanes(active).filter(|&lane| votes[lane] & 1 == 1).count() as u32;
                }
                barrier.generation
            }
        };
        barrier.settle(live);
        let open = barrier.generation > generation;
        let (yes, all) = (barrier.last_votes, barrier.last_arrived);
        let first = self.groups[group].token.is_none();
        state.events += u64::from(first || open);
        if !open && !arrive_only {
            self.groups[group].token = Some(generation);
            return Ok(Step::Wait(Waiting::Named { barrier: number }));
        }
        self.groups[group].token = None;
        if let Some(reduction) = reduction {
            let result = match reduction.operation {
                BarrierVote::And => u64::from(yes == all),
                BarrierVote::Or => u64::from(yes > 0),
                BarrierVote::Count => yes.into(),
            };
            self.write(reduction.destination, active, &[result; LANES]);
        }
        Ok(Step::Next)
    }
}

/// The space of an mbarrier's address where the instruction names none: generic addresses lie in the window, others are shared.
pub(super) fn shared_space(address: u64) -> Space {
    if address < super::address::SHARED_WINDOW { Space::SharedCta } else { Space::Generic }
}

/// `space`, unless it is generic and the address is not.
fn generic_or(space: Space, address: u64) -> Space {
    if space == Space::Generic { shared_space(address) } else { space }
}
