//! R06 to R09 and R11: whatever crosses to another rank is sent and received once, in step.

use super::table::Table;
use super::{Report, Rule};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Rank, Stage, TaskId};
use crate::placement::Placement;
use crate::schedule::{Draft, same_collective};
use crate::task::Task;
use std::collections::BTreeMap;

pub(super) fn check(table: &Table<'_>, report: &mut Report<'_>) {
    for (stage, microbatch) in table.cells() {
        let next = table.draft.placement.next(stage);
        forward(table, stage, next, microbatch, report);
        backward(table, stage, next, microbatch, report);
    }
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
    if table.draft.placement.is_first(stage) {
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
    if table.draft.placement.is_first(stage) {
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
            let (sent, received) = (table.payload(send), table.payload(receive));
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
pub(super) struct Channels {
    ranks: usize,
    /// Channel -> the latest receive with its send.
    latest: Vec<Option<(TaskId, TaskId)>>,
}

impl Channels {
    pub(super) fn new(draft: &Draft) -> Self {
        let ranks = draft.programs.len();
        Self { ranks, latest: vec![None; ranks * ranks] }
    }

    /// Tasks come rank by rank in program order, so the receives of each channel come in order.
    pub(super) fn check(&mut self, table: &Table<'_>, receive: TaskId, task: &Task, report: &mut Report<'_>) {
        let (true, Some(from)) = (task.action.op.is_receive(), task.peer) else { return };
        let Some(send) = sent_as(table.draft, &task.action) else { return };
        let Some(slot) = self.latest.get_mut(from.index() * self.ranks + task.rank.index()) else { return };
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
pub(super) fn sent_as(draft: &Draft, receive: &Action) -> Option<TaskId> {
    let (op, stage) = match receive.op {
        Op::RecvForward => (Op::SendForward, draft.placement.previous(receive.stage)?),
        Op::RecvBackward => (Op::SendBackward, draft.placement.next(receive.stage)?),
        _ => return None,
    };
    draft.index.get(op, stage, receive.microbatch?)
}

/// R11: a reduction needs every holder of what it reduces, once, with one size.
fn collectives(table: &Table<'_>, report: &mut Report<'_>) {
    let placement = &table.draft.placement;
    let all = table.draft.index.collectives.iter().map(|id| (*id, table.draft.task(*id)));
    let members = |op| all.clone().filter(move |(_, t)| t.action.op == op);
    for op in [Op::ReduceGrad, Op::ReduceTied] {
        let Some((first, _)) = members(op).next() else { continue };
        // (rank, what is reduced there) -> the tasks that do it.
        let mut found: BTreeMap<(Rank, u32), Vec<TaskId>> = BTreeMap::new();
        for (id, task) in members(op) {
            let stage = task.action.stage;
            if placement.reduced_with(op, stage).is_none() {
                let (message, help) = match op {
                    Op::ReduceTied => (
                        format!("stage {stage} holds no copy of the tied embedding"),
                        format!("only stages 0 and {} do", placement.stages().saturating_sub(1)),
                    ),
                    _ => (format!("stage {stage} has no copy to reduce its gradients with"), "remove it".to_owned()),
                };
                report.add(Rule::Collective, message, help, &[id]);
            }
            found.entry((task.rank, what(op, stage))).or_default().push(id);
        }
        for stage in placement.all_stages().filter(|s| placement.reduced_with(op, *s).is_some()) {
            let Some(rank) = placement.rank_of(stage) else { continue };
            match found.remove(&(rank, what(op, stage))).as_deref() {
                // Seen already, with the other stage of this rank.
                None if found_before(placement, op, stage, rank) => {}
                Some([id]) => same_size(table, op, *id, report),
                Some(several) => {
                    let message =
                        format!("rank {rank} takes part in {} {} times", several_name(op, stage), several.len());
                    report.add(Rule::Collective, message, "keep one", several);
                }
                None => {
                    let message = format!(
                        "rank {rank} holds a copy of what {} reduces but takes no part in it",
                        several_name(op, stage)
                    );
                    let help = format!("add {} to rank {rank}", Action::whole_stage(stage, op));
                    report.add(Rule::Collective, message, help, &[first]);
                }
            }
        }
    }
}

/// The number that tells apart what a rank reduces: a stage's gradients, or the one tied embedding.
fn what(op: Op, stage: Stage) -> u32 {
    if op == Op::ReduceGrad { stage.number() } else { 0 }
}

/// The reduction in words.
fn several_name(op: Op, stage: Stage) -> String {
    if op == Op::ReduceGrad { format!("{} of stage {}", op.code(), stage.number()) } else { op.code().to_owned() }
}

/// Whether an earlier stage of the same rank stands for this one too.
fn found_before(placement: &Placement, op: Op, stage: Stage, rank: Rank) -> bool {
    let same = |s: &Stage| what(op, *s) == what(op, stage) && placement.reduced_with(op, *s).is_some();
    placement.stages_of(rank).take_while(|s| *s != stage).any(|s| same(&s))
}

/// The members of a reduction agree on the size: each with the first of them.
fn same_size(table: &Table<'_>, op: Op, id: TaskId, report: &mut Report<'_>) {
    let task = table.draft.task(id);
    let mut members = table.draft.index.collectives.iter().map(|member| (*member, table.draft.task(*member)));
    let Some((first, other)) = members.find(|(_, other)| same_collective(other, task)) else { return };
    if task.payload != other.payload {
        let message =
            format!("the members of {} disagree on its size: {} and {} bytes", op.code(), task.payload, other.payload);
        report.add(Rule::Collective, message, "make all sizes equal", &[first, id]);
    }
}
