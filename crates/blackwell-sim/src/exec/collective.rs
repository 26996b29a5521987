//! `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`, `bar.warp.sync`.

use super::{
    State, lanes,
    warp::{Outcome, Step, Waiting, Warp},
};
use crate::{
    fault::{Cause, FaultKind},
    lower::{
        code::{LANES, LaneValues},
        collective::{Action, Collective, Reduction, ShuffleMode, VoteMode},
    },
    number::{
        FloatFormat,
        arithmetic::{Extremum, extremum},
    },
};

impl Warp {
    pub(super) fn collective(
        &mut self,
        group: usize,
        active: u32,
        collective: &Collective,
        state: &State<'_>,
    ) -> Outcome<Step> {
        let mut present = active;
        if let Some(members) = collective.members {
            let named = self.uniform(state, members, active) as u32;
            if active & !named != 0 {
                let message = format!("lanes {active:#010x} execute it, but its member mask is {named:#010x}");
                return Err(Cause::new(FaultKind::Convergence, message).into());
            }
            let members = named & self.live;
            // Others that wait at this very instruction take part from where they are.
            let position = self.groups[group].position;
            let companions: Vec<usize> = (0..self.groups.len())
                .filter(|&other| other != group && self.groups[other].position == position)
                .filter(|&other| matches!(self.groups[other].waiting, Some(Waiting::Lanes { .. })))
                .collect();
            for &other in &companions {
                if let Some(Waiting::Lanes { present: lanes, .. }) = self.groups[other].waiting {
                    present |= lanes;
                }
            }
            if members & !present != 0 {
                return Ok(Step::Wait(Waiting::Lanes { members, present: active }));
            }
            for other in companions {
                self.groups[other].waiting = None;
                self.groups[other].position += 1;
            }
        }
        self.act(present, &collective.action, state);
        Ok(Step::Next)
    }

    fn act(&mut self, present: u32, action: &Action, state: &State<'_>) {
        let mut out = [0; LANES];
        match action {
            Action::Shuffle { mode, destination, predicate, value, lane, clamp } => {
                let (values, selectors, clamps) =
                    (self.values(state, *value), self.values(state, *lane), self.values(state, *clamp));
                let mut flags = [0; LANES];
                for own in lanes(present) {
                    let source = shuffle_source(*mode, own, selectors[own] as u32, clamps[own] as u32);
                    flags[own] = u64::from(source.is_some());
                    out[own] = values[source.unwrap_or(own)];
                }
                self.write_some(*destination, present, &out);
                self.write_some(*predicate, present, &flags);
            }
            Action::Vote { mode, destination, value } => {
                let values = self.values(state, *value);
                let votes = lanes(present).fold(0u32, |votes, lane| votes | ((values[lane] & 1) as u32) << lane);
                out.fill(match mode {
                    VoteMode::All => u64::from(votes == present),
                    VoteMode::Any => u64::from(votes != 0),
                    VoteMode::Uniform => u64::from(votes == 0 || votes == present),
                    VoteMode::Ballot => votes.into(),
                });
                self.write_some(*destination, present, &out);
            }
            Action::Match { all, destination, predicate, value } => {
                let values = self.values(state, *value);
                let equal = |own: usize| {
                    lanes(present)
                        .filter(|&lane| values[lane] == values[own])
                        .fold(0u32, |mask, lane| mask | 1 << lane)
                };
                let mut flags = [0; LANES];
                for lane in lanes(present) {
                    let same = equal(lane);
                    flags[lane] = u64::from(same == present);
                    out[lane] = if *all && same != present { 0 } else { same.into() };
                }
                self.write_some(*destination, present, &out);
                self.write_some(*predicate, present, &flags);
            }
            Action::Reduce { operation, destination, value } => {
                let values = self.values(state, *value);
                out.fill(reduce(*operation, &values, present).into());
                self.write_some(*destination, present, &out);
            }
            Action::Elect { destination, predicate } => {
                let leader = present.trailing_zeros() as usize;
                let mut flags = [0; LANES];
                flags[leader.min(LANES - 1)] = 1;
                out.fill(leader as u64);
                self.write_some(*destination, present, &out);
                self.write_some(*predicate, present, &flags);
            }
            Action::ActiveMask(destination) => {
                out.fill(present.into());
                self.write_some(*destination, present, &out);
            }
            Action::Meet => {}
        }
    }
}

/// The lane that a shuffle reads; `None` if it is outside the segment (PTX ISA, `shfl.sync`).
fn shuffle_source(mode: ShuffleMode, lane: usize, selector: u32, clamp: u32) -> Option<usize> {
    let lane = lane as u32;
    let (selector, limit, segments) = (selector & 31, clamp & 31, clamp >> 8 & 31);
    let most = (lane & segments) | (limit & !segments);
    let least = lane & segments;
    let (source, inside) = match mode {
        ShuffleMode::Up => {
            let source = i64::from(lane) - i64::from(selector);
            (source, source >= i64::from(most))
        }
        ShuffleMode::Down => (i64::from(lane + selector), lane + selector <= most),
        ShuffleMode::Butterfly => (i64::from(lane ^ selector), lane ^ selector <= most),
        ShuffleMode::Index => {
            let source = least | (selector & !segments);
            (i64::from(source), source <= most)
        }
    };
    inside.then_some(source as usize & 31)
}

fn reduce(operation: Reduction, values: &LaneValues, present: u32) -> u32 {
    let values = lanes(present).map(|lane| values[lane] as u32);
    let combine = |a: u32, b: u32| match operation {
        Reduction::Add => a.wrapping_add(b),
        Reduction::Min { signed: true } => (a as i32).min(b as i32) as u32,
        Reduction::Max { signed: true } => (a as i32).max(b as i32) as u32,
        Reduction::Min { signed: false } => a.min(b),
        Reduction::Max { signed: false } => a.max(b),
        Reduction::And => a & b,
        Reduction::Or => a | b,
        Reduction::Xor => a ^ b,
        Reduction::Float { larger, absolute, nan } => {
            let clear = |bits: u32| if absolute { bits & 0x7fff_ffff } else { bits };
            let kind = Extremum { larger, propagate_nan: nan, xor_sign: false, flush: false };
            extremum(FloatFormat::F32, clear(a), clear(b), kind)
        }
    };
    values.reduce(combine).unwrap_or(0)
}
