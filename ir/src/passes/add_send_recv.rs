//! Point-to-point messages between stages on different ranks.
//!
//! The pass walks all ranks forward together. The moment an action gets its place, its send is appended to its own rank
//! and the matching receive to the peer. Sends and receives of all ranks thus stand in one global order, and of that
//! order the earliest unfinished message is always at the head on both sides: the program cannot deadlock, not even
//! with sends that wait for their receive.

use crate::action::{Action, Op};
use crate::ids::{Microbatch, Rank};
use crate::order::PipelineOrder;
use crate::placement::Placement;

/// Inserts `SEND_F`/`RECV_F` after forwards and `SEND_B`/`RECV_B` after backwards wherever the neighbouring stage lives
/// on another rank. Actions that can never run (their input is never made, or only after them) are appended with their
/// receives before and their sends after them, for the law to explain.
pub fn add_send_recv(order: &PipelineOrder) -> PipelineOrder {
    let mut pass = Pass::new(order);
    let mut next = vec![0; order.ranks.len()];
    loop {
        let mut progress = false;
        for (r, actions) in order.ranks.iter().enumerate() {
            let Some(action) = actions.get(next[r]) else { continue };
            if pass.ready(action) {
                pass.place(Rank::at(r), *action);
                next[r] += 1;
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    for (r, actions) in order.ranks.iter().enumerate() {
        for action in actions.get(next[r]..).unwrap_or_default() {
            pass.place_stuck(Rank::at(r), *action);
        }
    }
    PipelineOrder { microbatches: order.microbatches, placement: order.placement.clone(), ranks: pass.ranks }
}

/// A message that an action causes: the send, the receive, and the receiver.
struct Message {
    send: Action,
    receive: Action,
    to: Rank,
}

struct Pass<'a> {
    placement: &'a Placement,
    microbatches: u32,
    ranks: Vec<Vec<Action>>,
    /// (stage, microbatch) whose forward, or whose input gradient, has its place.
    forward_done: Vec<bool>,
    backward_done: Vec<bool>,
}

impl<'a> Pass<'a> {
    fn new(order: &'a PipelineOrder) -> Self {
        let cells = order.placement.stages() as usize * order.microbatches as usize;
        Self {
            placement: &order.placement,
            microbatches: order.microbatches,
            ranks: order.ranks.iter().map(|actions| Vec::with_capacity(actions.len() * 3)).collect(),
            forward_done: vec![false; cells],
            backward_done: vec![false; cells],
        }
    }

    fn cell(&self, stage: crate::ids::Stage, microbatch: Microbatch) -> Option<usize> {
        let inside = stage.0 < self.placement.stages() && microbatch.0 < self.microbatches;
        inside.then(|| stage.index() * self.microbatches as usize + microbatch.index())
    }

    /// Whether what the action takes from a neighbouring stage has its place already.
    fn ready(&self, action: &Action) -> bool {
        let Some(microbatch) = action.microbatch else { return true };
        let (neighbour, done) = match action.op {
            Op::Forward => (self.placement.previous(action.stage), &self.forward_done),
            Op::FullBackward | Op::BackwardInput => (self.placement.next(action.stage), &self.backward_done),
            _ => return true,
        };
        neighbour.and_then(|s| self.cell(s, microbatch)).is_none_or(|cell| done[cell])
    }

    fn place(&mut self, rank: Rank, action: Action) {
        self.ranks[rank.index()].push(action);
        let Some(microbatch) = action.microbatch else { return };
        if let Some(cell) = self.cell(action.stage, microbatch) {
            match action.op {
                Op::Forward => self.forward_done[cell] = true,
                Op::FullBackward | Op::BackwardInput => self.backward_done[cell] = true,
                _ => {}
            }
        }
        if let Some(message) = self.message(rank, action) {
            self.ranks[rank.index()].push(message.send);
            if let Some(actions) = self.ranks.get_mut(message.to.index()) {
                actions.push(message.receive);
            }
        }
    }

    /// Places an action that never became ready: receive, action, send.
    fn place_stuck(&mut self, rank: Rank, action: Action) {
        let neighbour = match action.op {
            Op::Forward => self.placement.upstream(action.stage, true).map(|(_, r)| (r, Op::RecvForward)),
            Op::FullBackward | Op::BackwardInput => {
                self.placement.upstream(action.stage, false).map(|(_, r)| (r, Op::RecvBackward))
            }
            _ => None,
        };
        let actions = &mut self.ranks[rank.index()];
        if let (Some((from, op)), Some(microbatch)) = (neighbour, action.microbatch)
            && from != rank
        {
            let receive = Action::new(action.stage, op, microbatch);
            if !actions.contains(&receive) {
                actions.push(receive);
            }
        }
        actions.push(action);
        if let Some(message) = self.message(rank, action) {
            self.ranks[rank.index()].push(message.send);
        }
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
