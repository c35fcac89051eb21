//! F, B, I and W, step by step of their programs.

use super::{OnItsWay, Worker, place_of, slice_range};
use crate::collectives;
use crate::error::TaskError;
use crate::stage_module::{At, Feed, Output, StageModule, compute};
use crate::transport::{MessageKind, Transport};
use crate::worker::Batches;
use pipewright_ir::action::{Action, Op};
use pipewright_ir::ids::{Microbatch, Stage, TaskId};
use pipewright_ir::segments::{BlockKind, Body, Operand, Placed};
use pipewright_ir::task::Task;

impl<M: StageModule, T: Transport, B: Batches + ?Sized> Worker<'_, M, T, B> {
    /// One step of an action: compute, or a message.
    pub(super) fn step_of_action(&mut self, id: TaskId) -> Result<(), TaskError> {
        let task = *self.context.schedule.task(id);
        let (stage, microbatch) = place_of(task.action)?;
        let place = task.step.place as usize;
        if !task.step.continues {
            self.begin(task.action)?;
        }
        self.join(task.action, |joined| joined <= place)?;
        let step = task.step.program().and_then(|step| self.context.programs.step(step));
        let step = step.ok_or(TaskError::Missing("the program of an action"))?;
        if let Body::Communicate { operand, .. } = &step.body {
            self.post(id, &task, *operand)?;
        } else {
            self.compute(id, &task, stage, microbatch)?;
        }
        if !task.step.continued {
            // Whatever follows the action waits for the messages behind its last step.
            self.join(task.action, |joined| joined < Placed::NEVER as usize)?;
            self.release(None)?;
            self.end(task.action)?;
        }
        self.send_buckets(id)
    }

    fn compute(&mut self, id: TaskId, task: &Task, stage: Stage, microbatch: Microbatch) -> Result<(), TaskError> {
        let programs = self.context.programs;
        let index = task.step.program().ok_or(TaskError::Missing("the program of an action"))?;
        let layer = task.layers.start;
        let first = programs.parts(index).next().and_then(|step| step.operations.first());
        if let Some(operation) = first {
            self.release(Some((stage, operation.block(), layer)))?;
        }
        self.noted(id, |worker| compute(worker.module(stage)?, programs, index, layer, microbatch))
    }

    /// ZeRO-3: drops the weights of the block before, when another one is computed or none any more.
    fn release(&mut self, next: Option<(Stage, BlockKind, u32)>) -> Result<(), TaskError> {
        if self.context.setup.zero_stage < 3 || self.place.replicas() == 1 || self.gathered == next {
            return Ok(());
        }
        if let Some((stage, kind, layer)) = std::mem::replace(&mut self.gathered, next) {
            let index = self.block_index(stage, kind, layer)?;
            if let Some(block) = self.module(stage)?.blocks_mut().get_mut(index) {
                block.release();
            }
        }
        Ok(())
    }

    /// The number of a block among those of its stage.
    pub(super) fn block_index(&mut self, stage: Stage, kind: BlockKind, layer: u32) -> Result<usize, TaskError> {
        let blocks = self.module(stage)?.blocks();
        let found =
            blocks.iter().position(|block| block.kind == kind && (kind != BlockKind::Layer || block.layer == layer));
        found.ok_or(TaskError::Missing("the block"))
    }

    /// Hands out this device's part of a message of a program.
    fn post(&mut self, id: TaskId, task: &Task, operand: Operand) -> Result<(), TaskError> {
        let context = self.context;
        let (stage, microbatch) = place_of(task.action)?;
        let step = task.step.program().and_then(|step| context.programs.step(step));
        let step = step.ok_or(TaskError::Missing("the program of a message"))?;
        let collective = step.collective().ok_or(TaskError::Missing("a message"))?;
        let program = context.programs.stages.get(stage.index()).ok_or(TaskError::Missing("the stage's program"))?;
        let place = task.step.place as usize;
        let placed = program.list(task.action.op).and_then(|list| list.get(place));
        let placed = placed.ok_or(TaskError::Missing("the step of a program"))?;
        let joined = if placed.joined_after == Placed::NEVER {
            Placed::NEVER as usize
        } else {
            place.saturating_add(placed.joined_after as usize)
        };
        let layer = task.layers.start;
        let at = At { microbatch, phase: step.phase, layer };
        let device = self.device.clone();
        let tensor = match operand {
            Operand::Parameters(kind) => {
                let index = self.block_index(stage, kind, layer)?;
                let block = self.module(stage)?.blocks().get(index).ok_or(TaskError::Missing("the block"))?;
                block.main_pieces().ok_or(TaskError::Missing("the shares of the weights"))?
            }
            Operand::Gradients(kind) => {
                let index = self.block_index(stage, kind, layer)?;
                let block = self.module(stage)?.blocks_mut().get_mut(index);
                block.ok_or(TaskError::Missing("the block"))?.take_gradient_pieces(&device)
            }
            operand => self.module(stage)?.message(at, operand)?,
        };
        let kind = collectives::kind_of(collective.kind, operand);
        let tag = self.group_tag(task.action, id, 0);
        let since = self.now();
        let posted = collectives::post(&self.transport, self.place.members(collective.axis), kind, tag, tensor)?;
        let message = OnItsWay { task: id, action: task.action, joined, layer, operand, posted, since };
        if joined == Placed::NEVER as usize {
            // Gradients are added in the order of their microbatches; one scatter a block is on its way at most.
            self.finish_scattered(|other| {
                other.operand == operand && other.layer == layer && other.action.stage == stage
            })?;
            self.scattered.push(message);
        } else {
            self.on_their_way.push(message);
        }
        Ok(())
    }

    /// Takes in the messages of an action that are due.
    fn join(&mut self, action: Action, due: impl Fn(usize) -> bool) -> Result<(), TaskError> {
        let of = |message: &mut OnItsWay| message.action == action && due(message.joined);
        let messages: Vec<OnItsWay> = self.on_their_way.extract_if(.., of).collect();
        messages.into_iter().try_for_each(|message| self.take_in(message))
    }

    /// Takes in scattered gradients.
    pub(super) fn finish_scattered(&mut self, of: impl Fn(&OnItsWay) -> bool) -> Result<(), TaskError> {
        let messages: Vec<OnItsWay> = self.scattered.extract_if(.., |message| of(message)).collect();
        messages.into_iter().try_for_each(|message| self.take_in(message))
    }

    fn take_in(&mut self, message: OnItsWay) -> Result<(), TaskError> {
        let OnItsWay { task, action, layer, operand, posted, since, .. } = message;
        let (stage, microbatch) = place_of(action)?;
        let phase = self.context.schedule.task(task).step.program().and_then(|step| self.context.programs.step(step));
        let phase = phase.map(|step| step.phase).ok_or(TaskError::Missing("the program of a message"))?;
        self.noted(task, |worker| {
            let tensor = posted.finish(&worker.transport, &worker.device, worker.context.timeout)?;
            match operand {
                Operand::Parameters(kind) => {
                    let index = worker.block_index(stage, kind, layer)?;
                    let block = worker.module(stage)?.blocks_mut().get_mut(index);
                    block.ok_or(TaskError::Missing("the block"))?.set_from_pieces(&tensor);
                    Ok(())
                }
                Operand::Gradients(kind) => {
                    let index = worker.block_index(stage, kind, layer)?;
                    let block = worker.module(stage)?.blocks_mut().get_mut(index);
                    block.ok_or(TaskError::Missing("the block"))?.add_reduced(tensor);
                    Ok(())
                }
                operand => {
                    let at = At { microbatch, phase, layer };
                    worker.module(stage)?.deliver(at, operand, tensor)
                }
            }
        })?;
        self.began(since);
        Ok(())
    }

    /// What an action starts from.
    fn begin(&mut self, action: Action) -> Result<(), TaskError> {
        let (stage, microbatch) = place_of(action)?;
        match action.op {
            Op::Forward => {
                let context = self.context;
                let placement = context.schedule.placement();
                let (first, last) = (placement.is_first(stage), placement.is_last(stage));
                let microbatches = u64::from(context.schedule.microbatches());
                let replica = u64::from(self.place.data_rank());
                let sample = replica * microbatches + u64::from(context.schedule.sample(stage, microbatch));
                let (mut tokens, mut targets) = (None, None);
                if first || last {
                    let (x, y) = context.batches.microbatch(self.step, sample);
                    (tokens, targets) = (first.then_some(x), last.then_some(y));
                }
                let (sequences, seq_length) = (context.batches.sequences(), context.batches.seq_length());
                let replicas = u64::from(self.context.data_parallel);
                let feed = Feed {
                    step: self.step,
                    sequences: sample * sequences..(sample + 1) * sequences,
                    slice: slice_range(seq_length, context.schedule.cells().slices(), microbatch),
                    tokens,
                    targets,
                    hidden: self.hidden.remove(&(stage, microbatch)),
                    step_tokens: context.batches.step_tokens(microbatches * replicas),
                };
                self.module(stage)?.begin_forward(microbatch, feed)
            }
            Op::FullBackward | Op::BackwardInput => {
                let gradient = self.gradient.remove(&(stage, microbatch));
                let split = action.op == Op::BackwardInput;
                self.module(stage)?.begin_backward(microbatch, gradient, split)
            }
            _ => Ok(()),
        }
    }

    /// What an action leaves.
    fn end(&mut self, action: Action) -> Result<(), TaskError> {
        let (stage, microbatch) = place_of(action)?;
        let rank = self.place.rank();
        let placement = self.context.schedule.placement();
        match action.op {
            Op::Forward => match self.module(stage)?.end_forward(microbatch)? {
                Output::Loss(loss) => *self.loss.get_or_insert(0.0) += loss,
                Output::Hidden(hidden) => match placement.next(stage) {
                    Some(next) if placement.rank_of(next) == Some(rank) => {
                        self.hidden.insert((next, microbatch), hidden);
                    }
                    _ => {
                        self.outgoing.insert((MessageKind::Activation, stage, microbatch), hidden);
                    }
                },
            },
            Op::FullBackward | Op::BackwardInput => {
                let split = action.op == Op::BackwardInput;
                let input = self.module(stage)?.end_backward(microbatch, split)?;
                if let (Some(input), Some(previous)) = (input, placement.previous(stage)) {
                    if placement.rank_of(previous) == Some(rank) {
                        self.gradient.insert((previous, microbatch), input);
                    } else {
                        self.outgoing.insert((MessageKind::Gradient, stage, microbatch), input);
                    }
                }
            }
            _ => self.module(stage)?.end_weight(microbatch)?,
        }
        Ok(())
    }
}
