//! Point-to-point messages between stages on different ranks.
//!
//! The pass walks all ranks forward together. The moment an action gets its place, its send is appended to its own rank
//! and the matching receive to the peer. Sends and receives of all ranks thus stand in one global order, and of that
//! order the earliest unfinished message is always at the head on both sides: the program cannot deadlock, not even
//! with sends that wait for their receive.

use crate::action::{Action, Op};
use crate::cells::Cells;
use crate::ids::Rank;
use crate::order::PipelineOrder;
use crate::placement::Placement;

/// Inserts `SEND_F`/`RECV_F` after forwards and `SEND_B`/`RECV_B` after backwards wherever the neighbouring stage lives
/// on another rank. Actions that can never run (their input is never made, or only after them) are appended with their
/// receives before and their sends after them, for the law to explain.
pub fn add_send_recv(order: &PipelineOrder) -> PipelineOrder {
    let mut pass = Pass::new(order);
    let mut left: Vec<&[Action]> = order.ranks.iter().map(Vec::as_slice).collect();
    loop {
        let mut progress = false;
        for (r, left) in left.iter_mut().enumerate() {
            // A compound action waits for all its inputs and goes as one.
            let parts = 1 + left.iter().skip(1).take_while(|a| a.joins_previous).count();
            let Some((cell, rest)) = left.split_at_checked(parts) else { continue };
            if pass.ready(cell) {
                pass.place(Rank::at(r), cell);
                *left = rest;
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    for (r, left) in left.into_iter().enumerate() {
        for cell in left.chunk_by(|_, next| next.joins_previous) {
            pass.place_stuck(Rank::at(r), cell);
        }
    }
    PipelineOrder { ranks: pass.ranks, ..order.clone() }
}

/// A message that an action causes: the send, the receive, and the receiver.
struct Message {
    send: Action,
    receive: Action,
    to: Rank,
}

struct Pass<'a> {
    placement: &'a Placement,
    cells: Cells,
    ranks: Vec<Vec<Action>>,
    /// (stage, microbatch) whose forward, or whose input gradient, has its place.
    forward_done: Vec<bool>,
    backward_done: Vec<bool>,
}

impl<'a> Pass<'a> {
    fn new(order: &'a PipelineOrder) -> Self {
        let cells = order.cells();
        Self {
            placement: &order.placement,
            cells,
            ranks: order.ranks.iter().map(|actions| Vec::with_capacity(actions.len() * 3)).collect(),
            forward_done: vec![false; cells.len()],
            backward_done: vec![false; cells.len()],
        }
    }

    /// Whether what the parts take from a neighbouring stage has its place already, or is made by a part before.
    fn ready(&self, parts: &[Action]) -> bool {
        parts.iter().enumerate().all(|(i, action)| {
            let Some(microbatch) = action.microbatch else { return true };
            let forward = action.op == Op::Forward;
            let (neighbour, done) = match action.op {
                Op::Forward => (self.placement.previous(action.stage), &self.forward_done),
                op if op.makes_input_gradient() => (self.placement.next(action.stage), &self.backward_done),
                _ => return true,
            };
            let Some(neighbour) = neighbour else { return true };
            let makes = |a: &Action| if forward { a.op == Op::Forward } else { a.op.makes_input_gradient() };
            self.cells.index(neighbour, microbatch).is_none_or(|cell| done[cell])
                || parts[..i].iter().any(|a| a.stage == neighbour && a.microbatch == Some(microbatch) && makes(a))
        })
    }

    fn place(&mut self, rank: Rank, parts: &[Action]) {
        self.ranks[rank.index()].extend(parts);
        for action in parts {
            if let Some(cell) = action.microbatch.and_then(|m| self.cells.index(action.stage, m)) {
                match action.op {
                    Op::Forward => self.forward_done[cell] = true,
                    op if op.makes_input_gradient() => self.backward_done[cell] = true,
                    _ => {}
                }
            }
            if let Some(message) = self.message(rank, *action) {
                self.ranks[rank.index()].push(message.send);
                if let Some(actions) = self.ranks.get_mut(message.to.index()) {
                    actions.push(message.receive);
                }
            }
        }
    }

    /// Places an action that never became ready: receives, the action with all its parts, sends.
    fn place_stuck(&mut self, rank: Rank, parts: &[Action]) {
        for action in parts {
            let (from, op) = match action.op {
                Op::Forward => (self.placement.upstream(action.stage, true), Op::RecvForward),
                op if op.makes_input_gradient() => (self.placement.upstream(action.stage, false), Op::RecvBackward),
                _ => continue,
            };
            let actions = &mut self.ranks[rank.index()];
            if let (Some(_), Some(microbatch)) = (from.filter(|(_, from)| *from != rank), action.microbatch) {
                let receive = Action::new(action.stage, op, microbatch);
                if !actions.contains(&receive) {
                    actions.push(receive);
                }
            }
        }
        self.ranks[rank.index()].extend(parts);
        let sends: Vec<Action> = parts.iter().filter_map(|a| Some(self.message(rank, *a)?.send)).collect();
        self.ranks[rank.index()].extend(sends);
    }

    fn message(&self, rank: Rank, action: Action) -> Option<Message> {
        let microbatch = action.microbatch?;
        let (to_stage, send, receive) = match action.op {
            Op::Forward => (self.placement.next(action.stage)?, Op::SendForward, Op::RecvForward),
            Op::FullBackward | Op::BackwardInput => {
                (self.placement.previous(action.stage)?, Op::SendBackward, Op::RecvBackward)
            }
            _ => return None,
        };
        let to = self.placement.rank_of(to_stage)?;
        (to != rank).then(|| Message {
            send: Action::new(action.stage, send, microbatch),
            receive: Action::new(to_stage, receive, microbatch),
            to,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::{ScheduleParams, find};

    #[test]
    fn two_ranks_of_1f1b_are_lowered_as_pytorch_lowers_them() {
        let order = find("1f1b").unwrap().order(&ScheduleParams::new(2, 2, 1)).unwrap();
        let csv = add_send_recv(&order).to_csv(true);
        assert_eq!(
            csv,
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"
        );
    }

    #[test]
    fn neighbours_on_one_rank_need_no_message() {
        let order = find("interleaved-1f1b").unwrap().order(&ScheduleParams::new(1, 2, 2)).unwrap();
        assert!(!add_send_recv(&order).has(|op| !op.is_compute()));
    }
}
