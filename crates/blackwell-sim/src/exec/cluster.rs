//! A cluster: its warps take turns in one thread of the host.

use super::{
    Failure, Grid, State,
    cta::{ClusterBarrier, Cta, NamedBarrier},
    lanes,
    shared::SharedMemory,
    warp::{Waiting, Warp},
};
use crate::{
    fault::{Cause, Fault, FaultKind},
    lower::code::LANES,
    matrix::tensor_memory::TensorMemory,
    memory::{DeviceMemory, DeviceView},
};
use std::{fmt::Write, sync::atomic::Ordering};

/// How often waits end by the hardware's time limit before a standstill counts as a deadlock.
const RELEASES: u32 = 8;
/// Rounds of all warps before another cluster has its turn.
const ROUNDS: u32 = 64;
/// Instructions of warps without any effect that others can see, before a kernel counts as hanging.
const IDLE_LIMIT: u64 = 1 << 28;

/// A cluster that is running.
pub(crate) struct Cluster<'a> {
    state: State<'a>,
    warps: Vec<Warp>,
    /// Instructions and events, of this and other clusters, when something last happened.
    last_events: (u64, u64),
    last_instructions: u64,
    releases: u32,
}

/// What a turn of a cluster led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// It did something that others can see.
    Working,
    /// It only looks at memory.
    Idle,
}

impl<'a> Cluster<'a> {
    /// The cluster of that number.
    pub(crate) fn new(grid: Grid<'a>, memory: &'a DeviceMemory, number: u64) -> Self {
        let index = grid.cluster_index(number);
        let launch = grid.launch;
        let threads = launch.threads() as u32;
        let shared = grid.dynamic_shared() - super::address::RESERVED_SHARED + launch.dynamic_shared;
        let ctas: Vec<Cta> = (0..launch.cluster_ctas())
            .map(|rank| {
                let within = super::split(rank, launch.cluster);
                Cta {
                    index: core::array::from_fn(|axis| index[axis] * launch.cluster[axis] + within[axis]),
                    shared: SharedMemory::new(shared),
                    tensor: TensorMemory::new(),
                    barriers: [NamedBarrier::default(); super::cta::NAMED_BARRIERS],
                    live: threads,
                }
            })
            .collect();
        let warps = (0..ctas.len())
            .flat_map(|rank| (0..threads.div_ceil(LANES as u32)).map(move |warp| (rank, warp)))
            .map(|(rank, warp)| Warp::new(&grid, rank, warp))
            .collect();
        let state = State {
            grid,
            view: DeviceView::new(memory),
            cluster: index,
            ctas,
            cluster_barrier: ClusterBarrier::default(),
            events: 0,
            instructions: 0,
        };
        Self { state, warps, last_events: (0, 0), last_instructions: 0, releases: 0 }
    }

    /// Runs the cluster for a while.
    ///
    /// # Errors
    /// A fault of one of its threads, or a deadlock. The kernel's name is left empty.
    pub(crate) fn turn(&mut self) -> Result<Progress, Fault> {
        let before = self.state.events;
        for _ in 0..ROUNDS {
            if self.warps.iter().all(Warp::is_done) {
                self.check_end()?;
                self.state.grid.events.fetch_add(1, Ordering::Relaxed);
                return Ok(Progress::Done);
            }
            let mut ran = false;
            let events = self.state.events;
            for index in 0..self.warps.len() {
                ran |= self.run_warp(index, false)?;
            }
            if self.state.events != events {
                self.releases = 0;
            }
            if !ran && self.state.events == events {
                self.standstill()?;
            }
        }
        let changed = self.state.events != before;
        if changed {
            self.state.grid.events.fetch_add(1, Ordering::Relaxed);
        }
        let events = (self.state.events, self.state.grid.events.load(Ordering::Relaxed));
        if events != self.last_events {
            self.last_events = events;
            self.last_instructions = self.state.instructions;
        } else if self.state.instructions - self.last_instructions > IDLE_LIMIT {
            return Err(self.hang(FaultKind::Timeout, "threads run without any effect"));
        }
        Ok(if changed { Progress::Working } else { Progress::Idle })
    }

    fn run_warp(&mut self, index: usize, release: bool) -> Result<bool, Fault> {
        let warp = &mut self.warps[index];
        warp.run(&mut self.state, release).map_err(|failure| self.fault(index, failure))
    }

    /// Nobody can go on: waits for mbarriers end by their time limit, a few times.
    fn standstill(&mut self) -> Result<(), Fault> {
        let waits_for_mbarrier =
            |warp: &Warp| warp.groups.iter().any(|group| matches!(group.waiting, Some(Waiting::Mbarrier { .. })));
        if self.releases >= RELEASES || !self.warps.iter().any(waits_for_mbarrier) {
            return Err(self.hang(FaultKind::Deadlock, "no thread can go on"));
        }
        self.releases += 1;
        for index in 0..self.warps.len() {
            self.run_warp(index, true)?;
        }
        Ok(())
    }

    /// Every CTA must have given back its tensor memory.
    fn check_end(&self) -> Result<(), Fault> {
        for cta in &self.state.ctas {
            let columns = cta.tensor.allocated_columns();
            if columns > 0 {
                let message = format!("the CTA ended with {columns} columns of tensor memory allocated");
                return Err(self.place(Cause::new(FaultKind::TensorMemory, message), 0, cta.index, None));
            }
        }
        Ok(())
    }

    fn fault(&self, warp: usize, failure: Failure) -> Fault {
        let warp = &self.warps[warp];
        let instructions = &self.state.grid.code.instructions;
        let line = instructions.get(warp.position).map_or(0, |instruction| instruction.line);
        let cta = self.state.ctas.get(warp.rank).map_or([0; 3], |cta| cta.index);
        let lane = failure.lane.or_else(|| lanes(warp.live).next());
        self.place(failure.cause, line, cta, lane.map(|lane| warp.threads[lane]))
    }

    fn place(&self, cause: Cause, line: u32, cta: [u32; 3], thread: Option<[u32; 3]>) -> Fault {
        Fault { kind: cause.kind, message: cause.message, kernel: String::new(), line, cta, thread }
    }

    /// A fault with what every warp and barrier is doing.
    fn hang(&self, kind: FaultKind, what: &str) -> Fault {
        let mut message = what.to_owned();
        let line = |position: usize| {
            self.state.grid.code.instructions.get(position).map_or(0, |instruction| instruction.line)
        };
        let mut first = None;
        for warp in &self.warps {
            for group in &warp.groups {
                let at = line(group.position);
                first.get_or_insert((at, warp.rank, warp.threads[(group.mask.trailing_zeros() as usize).min(31)]));
                let _ = write!(
                    message,
                    "\n  CTA {} warp {} lanes {:#010x}, line {at}: ",
                    warp.rank, warp.index, group.mask
                );
                let _ = match &group.waiting {
                    None => write!(message, "running"),
                    Some(waiting) => self.describe(&mut message, waiting, warp.rank),
                };
            }
            for node in warp.nodes.iter().skip(1).filter(|node| node.arrived != 0 && node.arrived != node.expected)
            {
                let missing = node.expected & !node.arrived;
                let _ = write!(
                    message,
                    "\n  CTA {} warp {} lanes {:#010x}, line {}: wait for lanes {missing:#010x} of their branch",
                    warp.rank,
                    warp.index,
                    node.arrived & warp.live,
                    line(node.reconverge)
                );
            }
        }
        for (rank, cta) in self.state.ctas.iter().enumerate() {
            for (offset, barrier) in &cta.shared.barriers {
                let _ = write!(message, "\n  CTA {rank} mbarrier {offset:#x}: {barrier}");
            }
        }
        let (line, rank, thread) = first.unwrap_or((0, 0, [0; 3]));
        let cta = self.state.ctas.get(rank).map_or([0; 3], |cta| cta.index);
        self.place(Cause::new(kind, message), line, cta, Some(thread))
    }

    fn describe(&self, message: &mut String, waiting: &Waiting, own: usize) -> std::fmt::Result {
        let cta = |rank: usize| self.state.ctas.get(rank);
        match waiting {
            Waiting::Named { barrier } => {
                let found =
                    cta(own).and_then(|cta| cta.barriers.get(*barrier as usize)).copied().unwrap_or_default();
                let live = cta(own).map_or(0, |cta| cta.live);
                let count = found.count.unwrap_or(live);
                write!(message, "waits at barrier {barrier}, where {} of {count} threads are", found.arrived)
            }
            Waiting::Cluster => {
                let live: u32 = self.state.ctas.iter().map(|cta| cta.live).sum();
                let arrived = self.state.cluster_barrier.arrived;
                write!(message, "waits at the cluster's barrier, where {arrived} of {live} threads are")
            }
            Waiting::Mbarrier { rank, offset, phase, by_parity } => {
                let what =
                    if *by_parity { format!("parity {}", phase & 1) } else { format!("phase {}", phase >> 20) };
                write!(message, "waits for {what} of mbarrier {offset:#x} of CTA {rank}")
            }
            Waiting::Lanes { members, present } => {
                write!(message, "waits for lanes {:#010x} to execute the same instruction", members & !present)
            }
            Waiting::TensorMemory => write!(message, "waits for tensor memory"),
        }
    }
}
