//! Where lanes that part at a branch meet again: immediate post-dominators.

use super::code::{Instruction, Operation, Position};

/// Sets `reconverge` of every branch.
pub(super) fn set_reconvergence(instructions: &mut [Instruction]) {
    let end = instructions.len();
    let successors: Vec<Vec<Position>> = (0..end).map(|position| successors(instructions, position)).collect();
    let immediate = post_dominators(&successors);
    for (position, instruction) in instructions.iter_mut().enumerate() {
        match &mut instruction.operation {
            Operation::Branch { reconverge, .. } | Operation::BranchIndexed { reconverge, .. } => {
                *reconverge = immediate[position];
            }
            _ => {}
        }
    }
}

fn successors(instructions: &[Instruction], position: Position) -> Vec<Position> {
    let instruction = &instructions[position];
    let mut next = match &instruction.operation {
        Operation::Branch { target, .. } => vec![*target],
        Operation::BranchIndexed { targets, .. } => targets.clone(),
        Operation::Exit | Operation::Trap(_) => vec![instructions.len()],
        _ => return vec![position + 1],
    };
    if instruction.guard.is_some() {
        next.push(position + 1);
    }
    next
}

/// The immediate post-dominator of every node; the end is node `successors.len()`. Nodes that do not reach the end get the end.
/// (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm, on the reversed graph.)
fn post_dominators(successors: &[Vec<Position>]) -> Vec<Position> {
    let end = successors.len();
    let mut predecessors = vec![Vec::new(); end + 1];
    for (node, next) in successors.iter().enumerate() {
        for &next in next {
            predecessors[next.min(end)].push(node);
        }
    }
    let order = post_order(&predecessors, end);
    let mut number = vec![usize::MAX; end + 1];
    for (index, &node) in order.iter().enumerate() {
        number[node] = index;
    }
    const UNKNOWN: usize = usize::MAX;
    let mut immediate = vec![UNKNOWN; end + 1];
    immediate[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &node in order.iter().rev().filter(|&&node| node != end) {
            let mut new = UNKNOWN;
            for &next in &successors[node] {
                let next = next.min(end);
                if immediate[next] == UNKNOWN {
                    continue;
                }
                if new == UNKNOWN {
                    new = next;
                    continue;
                }
                let mut other = next;
                while new != other {
                    while number[new] < number[other] {
                        new = immediate[new];
                    }
                    while number[other] < number[new] {
                        other = immediate[other];
                    }
                }
            }
            if new != UNKNOWN && immediate[node] != new {
                immediate[node] = new;
                changed = true;
            }
        }
    }
    immediate.truncate(end);
    immediate.iter_mut().filter(|node| **node == UNKNOWN).for_each(|node| *node = end);
    immediate
}

/// Nodes reachable over `edges` from `root`, each behind those that it reaches first.
fn post_order(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; edges.len()];
    let mut stack = vec![(root, 0)];
    seen[root] = true;
    while let Some((node, next)) = stack.last_mut() {
        match edges[*node].get(*next) {
            Some(&child) => {
                *next += 1;
                if !seen[child] {
                    seen[child] = true;
                    stack.push((child, 0));
                }
            }
            None => {
                order.push(*node);
                stack.pop();
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_meet_behind_their_arms() {
        // 0: if → 3; 1, 2 → 4; 3; 4: loop → 0 or 5; 5 ends; 6 spins for ever
        let graph = [vec![1, 3], vec![2], vec![4], vec![4], vec![0, 5], vec![7], vec![6]];
        assert_eq!(post_dominators(&graph), [4, 2, 4, 4, 5, 7, 7]);
    }

    #[test]
    fn an_exit_in_one_arm_leaves_the_end() {
        let graph = [vec![1, 2], vec![3], vec![3]];
        assert_eq!(post_dominators(&graph), [3, 3, 3]);
    }
}
