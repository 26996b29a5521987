//! Parting, meeting and ending of lanes.

use super::{
    State,
    warp::{Group, Node, Outcome, ROOT, Step, Warp},
};
use crate::lower::code::{Operation, Position};

/// Instructions that a group executes before others have their turn.
const TURN: u32 = 20_000;

impl Warp {
    /// Runs every group until it waits or has had its turn. Returns whether anything was executed. With `release`, waits for mbarriers
    /// end without their condition, as the hardware's time limit makes them.
    pub(super) fn run(&mut self, state: &mut State<'_>, release: bool) -> Outcome<bool> {
        let mut progress = false;
        let mut index = 0;
        while index < self.groups.len() {
            let (removed, ran) = self.run_group(index, state, release)?;
            progress |= ran;
            if !removed {
                index += 1;
            }
        }
        Ok(progress)
    }

    /// Runs a group; whether it is gone, and whether it executed anything.
    fn run_group(&mut self, index: usize, state: &mut State<'_>, mut release: bool) -> Outcome<(bool, bool)> {
        let code = state.grid.code;
        let mut ran = false;
        for _ in 0..TURN {
            if self.meet(index) {
                return Ok((true, true));
            }
            let Group { position, mask, .. } = self.groups[index];
            let Some(instruction) = code.instructions.get(position) else {
                self.end(index, mask, state);
                return Ok((true, true));
            };
            self.position = position;
            let mut active = mask;
            if let Some(guard) = instruction.guard {
                let flags = &self.registers[guard.slot as usize];
                let set = (0..32).fold(0u32, |set, lane| set | ((flags[lane] & 1) as u32) << lane);
                active &= if guard.negated { !set } else { set };
            }
            if active == 0 {
                self.groups[index].position += 1;
                ran = true;
                continue;
            }
            state.instructions += 1;
            match &instruction.operation {
                Operation::Branch { target, reconverge } => self.branch(index, active, *target, *reconverge),
                Operation::BranchIndexed { index: selector, targets, reconverge } => {
                    let selectors = self.values(state, *selector);
                    self.branch_indexed(index, active, &selectors, targets, *reconverge)?;
                }
                Operation::Exit => {
                    if self.end(index, active, state) {
                        return Ok((true, true));
                    }
                    self.groups[index].position += 1;
                }
                operation => match self.execute(index, active, operation, state, release)? {
                    Step::Next => {
                        let group = &mut self.groups[index];
                        group.position += 1;
                        group.waiting = None;
                        release = false;
                    }
                    Step::Wait(waiting) => {
                        self.groups[index].waiting = Some(waiting);
                        return Ok((false, ran));
                    }
                },
            }
            ran = true;
        }
        Ok((false, true))
    }

    fn branch(&mut self, index: usize, taken: u32, target: Position, reconverge: Position) {
        let group = &mut self.groups[index];
        let stay = group.mask & !taken;
        if stay == 0 {
            group.position = target;
            return;
        }
        let node = self.part(index, reconverge);
        let group = &mut self.groups[index];
        group.mask = stay;
        group.position += 1;
        self.groups.push(Group { position: target, mask: taken, node, waiting: None, token: None });
    }

    fn branch_indexed(
        &mut self,
        index: usize,
        active: u32,
        selectors: &[u64; 32],
        targets: &[Position],
        reconverge: Position,
    ) -> Outcome<()> {
        let selected = |position: usize| {
            super::lanes(active)
                .filter(|&lane| selectors[lane] as u32 as usize == position)
                .fold(0u32, |mask, lane| mask | 1 << lane)
        };
        let arms: Vec<(u32, Position)> = targets
            .iter()
            .enumerate()
            .map(|(arm, &target)| (selected(arm), target))
            .filter(|arm| arm.0 != 0)
            .collect();
        let reached = arms.iter().fold(0, |mask, arm| mask | arm.0);
        if let Some(lane) = super::lanes(active & !reached).next() {
            let cause = crate::fault::Cause::new(
                crate::fault::FaultKind::OutOfBounds,
                format!("brx.idx with index {} of {} targets", selectors[lane], targets.len()),
            );
            return super::at(lane, Err(cause));
        }
        let group = &mut self.groups[index];
        if let [(mask, target)] = arms[..]
            && mask == group.mask
        {
            group.position = target;
            return Ok(());
        }
        let stay = group.mask & !reached;
        let node = self.part(index, reconverge);
        let mut arms = arms.into_iter();
        let group = &mut self.groups[index];
        if stay != 0 {
            group.mask = stay;
            group.position += 1;
        } else if let Some((mask, target)) = arms.next() {
            group.mask = mask;
            group.position = target;
        }
        for (mask, position) in arms {
            self.groups.push(Group { position, mask, node, waiting: None, token: None });
        }
        Ok(())
    }

    /// The node at which the lanes of a group that part now will meet; the group belongs to it from now on.
    fn part(&mut self, index: usize, reconverge: Position) -> usize {
        let Group { mask, node: parent, .. } = self.groups[index];
        if self.nodes[parent].reconverge == reconverge && parent != ROOT {
            return parent;
        }
        let new = Node { expected: mask, arrived: 0, reconverge, parent };
        let node = match self.free_nodes.pop() {
            Some(node) => {
                self.nodes[node] = new;
                node
            }
            None => {
                self.nodes.push(new);
                self.nodes.len() - 1
            }
        };
        self.groups[index].node = node;
        node
    }

    /// Has a group arrive where its lanes meet, if it is there. True if it is gone: others are still to come.
    fn meet(&mut self, index: usize) -> bool {
        loop {
            let Group { position, mask, node, .. } = self.groups[index];
            if node == ROOT || self.nodes[node].reconverge != position {
                return false;
            }
            let meeting = &mut self.nodes[node];
            meeting.arrived |= mask;
            if meeting.arrived != meeting.expected {
                self.groups.swap_remove(index);
                return true;
            }
            let (mask, parent) = (meeting.arrived, meeting.parent);
            self.free_nodes.push(node);
            self.groups[index] = Group { position, mask, node: parent, waiting: None, token: None };
        }
    }

    /// Ends lanes of a group. True if the group is gone.
    fn end(&mut self, index: usize, lanes: u32, state: &mut State<'_>) -> bool {
        self.live &= !lanes;
        state.events += 1;
        if let Some(cta) = state.ctas.get_mut(self.rank) {
            cta.live -= lanes.count_ones();
        }
        let mut node = self.groups[index].node;
        let mut met = Vec::new();
        while node != ROOT {
            let meeting = &mut self.nodes[node];
            meeting.expected &= !lanes;
            if meeting.expected == 0 {
                self.free_nodes.push(node);
            } else if meeting.arrived == meeting.expected {
                met.push(node);
            }
            node = self.nodes[node].parent;
        }
        for node in met {
            let Node { arrived: mask, reconverge: position, parent, .. } = self.nodes[node];
            self.free_nodes.push(node);
            self.groups.push(Group { position, mask, node: parent, waiting: None, token: None });
        }
        self.groups[index].mask &= !lanes;
        let gone = self.groups[index].mask == 0;
        if gone {
            self.groups.swap_remove(index);
        }
        gone
    }
}
