//! R06 to R09 and R11: whatever crosses to another rank is sent and received once, in step.

use super::table::Table;
use super::{Report, Rule};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Rank, Stage, TaskId};
use std::collections::BTreeMap;

pub(super) fn check(table: &Table<'_>, report: &mut Report<'_>) {
    for (stage, microbatch) in table.cells() {
        let next = table.draft.placement.next(stage);
        forward(table, stage, next, microbatch, report);
        backward(table, stage, next, microbatch, report);
    }
    channel_order(table, report);
    collectives(table, report);
}

/// The output of `stage` goes to `next`.
fn forward(table: &Table<'_>, stage: Stage, next: Option<Stage>, microbatch: Microbatch, report: &mut Report<'_>) {
    let message = Message {
        maker: table.get(Op::Forward, stage, microbatch),
        send: (Action::new(stage, Op::SendForward, microbatch), table.get(Op::SendForward, stage, microbatch)),
        receive: next
            .map(|to| (Action::new(to, Op::RecvForward, microbatch), table.get(Op::RecvForward, to, microbatch))),
        user: next.and_then(|to| table.get(Op::Forward, to, microbatch)),
    };
    if next.is_some() {
        message.check(table, crosses(table, Some(stage), next), report);
    } else {
        no_other_end(table, Op::SendForward, stage, microbatch, report);
    }
    if stage.0 == 0 {
        no_other_end(table, Op::RecvForward, stage, microbatch, report);
    }
}

/// The gradient of the input of `next` goes to `stage`.
fn backward(table: &Table<'_>, stage: Stage, next: Option<Stage>, microbatch: Microbatch, report: &mut Report<'_>) {
    if let Some(from) = next {
        let message = Message {
            maker: table.input_gradient(from, microbatch),
            send: (Action::new(from, Op::SendBackward, microbatch), table.get(Op::SendBackward, from, microbatch)),
            receive: Some((
                Action::new(stage, Op::RecvBackward, microbatch),
                table.get(Op::RecvBackward, stage, microbatch),
            )),
            user: table.input_gradient(stage, microbatch),
        };
        message.check(table, crosses(table, next, Some(stage)), report);
    } else {
        no_other_end(table, Op::RecvBackward, stage, microbatch, report);
    }
    if stage.0 == 0 {
        no_other_end(table, Op::SendBackward, stage, microbatch, report);
    }
}

/// The two ranks that a message between two stages joins, if they differ.
fn crosses(table: &Table<'_>, from: Option<Stage>, to: Option<Stage>) -> Option<(Rank, Rank)> {
    let rank = |stage: Option<Stage>| table.draft.placement.rank_of(stage?);
    Some((rank(from)?, rank(to)?)).filter(|(from, to)| from != to)
}

/// The pipeline has no neighbour on this side.
fn no_other_end(table: &Table<'_>, op: Op, stage: Stage, microbatch: Microbatch, report: &mut Report<'_>) {
    if let Some(id) = table.get(op, stage, microbatch) {
        let message = format!("{} has no stage at its other end", Action::new(stage, op, microbatch));
        report.add(Rule::MessagePairs, message, "remove it", &[id]);
    }
}

struct Message {
    maker: Option<TaskId>,
    send: (Action, Option<TaskId>),
    receive: Option<(Action, Option<TaskId>)>,
    user: Option<TaskId>,
}

impl Message {
    fn check(&self, table: &Table<'_>, crossing: Option<(Rank, Rank)>, report: &mut Report<'_>) {
        let (send_action, send) = self.send;
        let (receive_action, receive) = self.receive.map_or((send_action, None), |(action, id)| (action, id));
        let Some((from, to)) = crossing else {
            for id in send.into_iter().chain(receive) {
                let message =
                    format!("{} joins stages of one rank, which need no message", table.draft.task(id).action);
                report.add(Rule::MessagePairs, message, "remove it", &[id]);
            }
            return;
        };
        for (action, id, rank, other) in [(send_action, send, from, receive), (receive_action, receive, to, send)] {
            if id.is_none() {
                let message = format!("{action} is missing on rank {rank}");
                let evidence: Vec<_> = other.into_iter().collect();
                report.add(Rule::MessagePairs, message, format!("add {action} to rank {rank}"), &evidence);
            }
        }
        if let (Some(send), Some(receive)) = (send, receive) {
            let (sent, received) = (table.draft.task(send).payload, table.draft.task(receive).payload);
            if sent != received {
                let message = format!("{send_action} sends {sent} bytes, but {receive_action} expects {received}");
                report.add(Rule::MessageSize, message, "make both sizes equal", &[send, receive]);
            }
        }
        for (first, second) in [(self.maker, send), (receive, self.user)] {
            let (Some(first), Some(second)) = (first, second) else { continue };
            if !table.before(first, second) {
                let [a, b] = [first, second].map(|id| table.draft.task(id).action);
                let message = format!("{b} stands before {a}, whose tensor it needs");
                report.add(Rule::MessagePlace, message, format!("move {a} before {b}"), &[second, first]);
            }
        }
    }
}

/// R08: on each channel (from, to) the receives come in the order of the sends.
fn channel_order(table: &Table<'_>, report: &mut Report<'_>) {
    // Tasks run rank by rank in program order, so walking the receives of a rank visits each of its channels in order.
    let ranks = table.draft.programs.len();
    let mut latest: Vec<Option<(TaskId, TaskId)>> = vec![None; ranks * ranks];
    for (receive, task) in table.draft.tasks().filter(|(_, t)| t.action.op.is_receive()) {
        let Some(send) = sent_as(table, &task.action) else { continue };
        let from = table.draft.task(send).rank;
        let Some(slot) = latest.get_mut(from.index() * ranks + task.rank.index()) else { continue };
        if let Some((earlier_receive, earlier_send)) = slot.filter(|(_, earlier)| *earlier > send) {
            let [a, b] = [earlier_receive, receive].map(|id| table.draft.task(id).action);
            let message =
                format!("rank {} receives {a} before {b}, but rank {from} sends them the other way round", task.rank);
            let help = "receive messages of one channel in the order they are sent";
            report.add(Rule::ChannelOrder, message, help, &[earlier_send, send, earlier_receive, receive]);
        }
        *slot = Some((receive, send));
    }
}

/// The send that a receive takes.
pub(super) fn sent_as(table: &Table<'_>, receive: &Action) -> Option<TaskId> {
    let (op, stage) = match receive.op {
        Op::RecvForward => (Op::SendForward, table.draft.placement.previous(receive.stage)?),
        Op::RecvBackward => (Op::SendBackward, table.draft.placement.next(receive.stage)?),
        _ => return None,
    };
    table.get(op, stage, receive.microbatch?)
}

/// R11: a tied reduction needs both ends, with one size.
fn collectives(table: &Table<'_>, report: &mut Report<'_>) {
    let mut members: BTreeMap<Rank, Vec<TaskId>> = BTreeMap::new();
    for (id, task) in table.draft.tasks().filter(|(_, t)| t.action.op == Op::ReduceTied) {
        members.entry(task.rank).or_default().push(id);
    }
    let tasks: Vec<TaskId> = members.values().flatten().copied().collect();
    let Some(first) = tasks.first() else { return };
    let placement = &table.draft.placement;
    for id in &tasks {
        let stage = table.draft.task(*id).action.stage;
        if stage != Stage(0) && stage != placement.last() {
            let message = format!("stage {stage} holds no copy of the tied embedding");
            let help = format!("only stages 0 and {} do", placement.last());
            report.add(Rule::Collective, message, help, &[*id]);
        }
    }
    for stage in [Stage(0), placement.last()] {
        let Some(rank) = placement.rank_of(stage) else { continue };
        match members.get(&rank).map(Vec::as_slice) {
            Some([id]) => {
                let [own, other] = [*id, *first].map(|id| table.draft.task(id).payload);
                if own != other {
                    let message = format!("the members of REDUCE_TIED disagree on its size: {own} and {other} bytes");
                    report.add(Rule::Collective, message, "make all sizes equal", &[*first, *id]);
                }
            }
            Some(several) => {
                let message = format!("rank {rank} takes part in REDUCE_TIED {} times", several.len());
                report.add(Rule::Collective, message, "keep one", several);
            }
            None => {
                let message =
                    format!("rank {rank} holds a copy of the tied embedding but takes no part in REDUCE_TIED");
                report.add(Rule::Collective, message, format!("add {stage}REDUCE_TIED to rank {rank}"), &tasks);
            }
        }
    }
}
