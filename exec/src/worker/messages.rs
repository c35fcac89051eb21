//! Messages between pipeline ranks, and the names of those over groups.

use super::{Batches, Worker, place_of};
use crate::error::TaskError;
use crate::stage_module::StageModule;
use crate::transport::{MessageKind, Payload, Tag, Transport};
use pipewright_ir::action::{Action, Op};
use pipewright_ir::ids::{Rank, TaskId};
use pipewright_ir::schedule::Schedule;
use pipewright_ir::task::{Dep, Lane};
use std::collections::BTreeMap;
use std::time::Instant;

/// For each task behind which buckets of gradients are complete, those buckets.
pub(super) fn triggers(schedule: &Schedule, rank: Rank) -> BTreeMap<TaskId, Vec<TaskId>> {
    let mut triggers: BTreeMap<TaskId, Vec<TaskId>> = BTreeMap::new();
    for (id, task) in schedule.program(rank).filter(|(_, task)| task.action.op == Op::ReduceData) {
        if task.step.program().is_none() {
            continue;
        }
        let made: Vec<TaskId> =
            schedule.inputs(id).filter(|(_, dep)| *dep != Dep::Program).map(|(from, _)| from).collect();
        let early = made.iter().all(|from| schedule.task(*from).lane == Lane::Compute);
        if let Some(last) = made.into_iter().max().filter(|_| early) {
            triggers.entry(last).or_default().push(id);
        }
    }
    triggers
}

impl<M: StageModule, T: Transport, B: Batches + ?Sized> Worker<'_, M, T, B> {
    /// Takes the pending receives from one peer, in order, up to the one that `action` needs.
    pub(super) fn take_inputs(&mut self, action: Action) -> Result<(), (Action, TaskError)> {
        let receive = match action.op {
            Op::Forward => Op::RecvForward,
            Op::FullBackward | Op::BackwardInput => Op::RecvBackward,
            _ => return Ok(()),
        };
        let wanted = Action { op: receive, joins_previous: false, ..action };
        let schedule = self.context.schedule;
        let Some((last, _)) = self.pending.iter().copied().find(|(_, a)| *a == wanted) else { return Ok(()) };
        let queue = schedule.task(last).queue();
        let taken = |id: &TaskId| *id <= last && schedule.task(*id).queue() == queue;
        let (take, keep): (Vec<_>, Vec<_>) = self.pending.iter().copied().partition(|(id, _)| taken(id));
        self.pending = keep;
        take.into_iter().try_for_each(|(id, receive)| self.receive(id, receive).map_err(|reason| (receive, reason)))
    }

    /// Takes one message in. Its time runs from when it was sent, or from when this rank was ready for it.
    fn receive(&mut self, id: TaskId, action: Action) -> Result<(), TaskError> {
        let context = self.context;
        let (stage, microbatch) = place_of(action)?;
        let from = context.schedule.task(id).peer.ok_or(TaskError::Missing("the peer of a message"))?;
        let from = self.place.endpoint(from);
        let (kind, maker) = match action.op {
            Op::RecvForward => (MessageKind::Activation, context.schedule.placement().previous(stage)),
            _ => (MessageKind::Gradient, context.schedule.placement().next(stage)),
        };
        let maker = maker.ok_or(TaskError::Missing("the stage at the other end of a message"))?;
        let tag = Tag { kind, stage: maker, microbatch: Some(microbatch), step: self.step };
        let ready = Instant::now();
        let (tensor, sent) = self.noted(id, |worker| {
            let received = worker.transport.receive(from, tag, context.timeout)?;
            Ok((received.payload.into_tensor::<2>(&worker.device)?, received.sent))
        })?;
        let begin = ready.max(sent).saturating_duration_since(context.epoch).as_secs_f64();
        if let Some(note) = self.notes.last_mut() {
            note.span.start = begin.min(note.span.end);
        }
        let inbox = if kind == MessageKind::Activation { &mut self.hidden } else { &mut self.gradient };
        inbox.insert((stage, microbatch), tensor);
        Ok(())
    }

    pub(super) fn send(&mut self, action: Action, kind: MessageKind) -> Result<(), TaskError> {
        let (stage, microbatch) = place_of(action)?;
        let placement = self.context.schedule.placement();
        let to = if kind == MessageKind::Activation { placement.next(stage) } else { placement.previous(stage) };
        let to = to.and_then(|s| placement.rank_of(s)).ok_or(TaskError::Missing("the peer of a message"))?;
        let tensor =
            self.outgoing.remove(&(kind, stage, microbatch)).ok_or(TaskError::Missing("the tensor to send"))?;
        let tag = Tag { kind, stage, microbatch: Some(microbatch), step: self.step };
        Ok(self.transport.send(self.place.endpoint(to), tag, Payload::from_tensor(tensor)?)?)
    }

    /// The name of the `part`th message over a group of a task.
    pub(super) fn group_tag(&self, action: Action, task: TaskId, part: usize) -> Tag {
        let kind = MessageKind::Group(task.0, u32::try_from(part).unwrap_or(u32::MAX));
        Tag { kind, stage: action.stage, microbatch: action.microbatch, step: self.step }
    }
}
