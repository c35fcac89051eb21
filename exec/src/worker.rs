//! One rank: runs its program task by task and writes down when.
//!
//! One law: the worker decides nothing. It walks its program in order and does what each task says. Receives from one
//! peer are taken in their order, when the first task that needs one of them comes.

use crate::data::TextData;
use crate::error::TaskError;
use crate::memory;
use crate::parameters::ParameterError;
use crate::stage_module::StageModule;
use crate::stage_runner::{Input, Output, StageRunner};
use crate::transport::{MessageKind, Payload, Tag, Transport};
use burn::tensor::{Device, Int, Tensor};
use pipewright_ir::action::{Action, Op};
use pipewright_ir::ids::{Microbatch, Rank, Stage, TaskId};
use pipewright_ir::schedule::Schedule;
use pipewright_ir::timeline::{MemorySample, Span};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Where the microbatches of a step come from. Shapes `[B, S]`.
pub trait Batches: Sync {
    /// Tokens and targets of a microbatch of a step.
    fn microbatch(&self, step: u64, microbatch: u32, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>);

    /// Tokens of a whole step of so many microbatches, over which the loss is averaged.
    fn step_tokens(&self, microbatches: u32) -> u64;
}

/// Microbatches of a text.
#[derive(Clone, Debug)]
pub struct TextBatches {
    /// The text.
    pub text: TextData,
    /// Sequences `B` of a microbatch.
    pub micro_batch_size: usize,
}

impl Batches for TextBatches {
    fn microbatch(&self, step: u64, microbatch: u32, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        self.text.batch_tensors(step, u64::from(microbatch), self.micro_batch_size, device)
    }

    fn step_tokens(&self, microbatches: u32) -> u64 {
        u64::from(microbatches) * (self.micro_batch_size * self.text.seq_length()) as u64
    }
}

/// What a worker noted of one task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) task: TaskId,
    pub(crate) span: Span,
    pub(crate) memory: MemorySample,
}

/// A task that failed.
pub(crate) struct Failure {
    pub(crate) task: Action,
    pub(crate) reason: TaskError,
}

/// What stays the same over a run.
pub(crate) struct Context<'a, B: Batches + ?Sized> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) batches: &'a B,
    pub(crate) epoch: Instant,
    pub(crate) timeout: Duration,
    pub(crate) keep_gradients: bool,
}

pub(crate) struct Worker<'a, M: StageModule, T: Transport, B: Batches + ?Sized> {
    context: &'a Context<'a, B>,
    rank: Rank,
    device: Device,
    transport: T,
    pub(crate) stages: BTreeMap<Stage, StageRunner<M>>,
    step: u64,
    /// Reductions whose own part is sent, but the other's not yet taken in.
    reductions: Vec<(TaskId, Action)>,
    /// Receives of the program that were not taken yet, in program order.
    pending: Vec<(TaskId, Action)>,
    /// What came by message or from a stage on this rank: stage outputs by the stage that takes them, then gradients.
    hidden: BTreeMap<(Stage, Microbatch), Tensor<3>>,
    gradient: BTreeMap<(Stage, Microbatch), Tensor<3>>,
    /// What is to be sent, by the stage that made it.
    outgoing: BTreeMap<(MessageKind, Stage, Microbatch), Tensor<3>>,
    /// Sum of the losses of the step's microbatches; only the rank of a last stage has one.
    pub(crate) loss: Option<f64>,
    pub(crate) gradients: Vec<(String, Vec<f32>)>,
    pub(crate) notes: Vec<Note>,
    /// Bytes of this rank's slot that are not of this run.
    foreign: u64,
}

impl<'a, M: StageModule, T: Transport, B: Batches + ?Sized> Worker<'a, M, T, B> {
    pub(crate) fn new(
        context: &'a Context<'a, B>,
        device: Device,
        transport: T,
        stages: BTreeMap<Stage, StageRunner<M>>,
        foreign: u64,
    ) -> Self {
        Self {
            context,
            rank: transport.rank(),
            device,
            transport,
            stages,
            step: 0,
            reductions: Vec::new(),
            pending: Vec::new(),
            hidden: BTreeMap::new(),
            gradient: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            loss: None,
            gradients: Vec::new(),
            notes: Vec::new(),
            foreign,
        }
    }

    /// Runs the whole program of one step.
    pub(crate) fn run_step(&mut self, step: u64) -> Result<(), Failure> {
        self.step = step;
        self.loss = None;
        self.gradients.clear();
        self.notes.clear();
        let schedule = self.context.schedule;
        for (id, task) in schedule.program(self.rank) {
            let action = task.action;
            if action.op.is_receive() {
                self.pending.push((id, action));
                continue;
            }
            self.take_inputs(action).map_err(|(task, reason)| Failure { task, reason })?;
            if action.op.is_collective() {
                // A collective runs beside compute: whoever needs its result waits for it.
                self.begin_reduction(action).map_err(|reason| Failure { task: action, reason })?;
                self.reductions.push((id, action));
                continue;
            }
            self.noted(id, |worker| worker.run_task(action)).map_err(|reason| Failure { task: action, reason })?;
        }
        self.finish_reductions().map_err(|(task, reason)| Failure { task, reason })
    }

    /// Runs one task between two looks at the clock and at memory.
    fn noted<R>(&mut self, task: TaskId, run: impl FnOnce(&mut Self) -> Result<R, TaskError>) -> Result<R, TaskError> {
        let slot = memory::slot_of(self.rank);
        let before = memory::live(slot).saturating_sub(self.foreign);
        memory::reset_peak(slot);
        let start = self.context.epoch.elapsed().as_secs_f64();
        let result = run(self)?;
        synchronize(&self.device);
        let span = Span { start, end: self.context.epoch.elapsed().as_secs_f64() };
        let peak = memory::peak(slot).saturating_sub(self.foreign);
        let after = memory::live(slot).saturating_sub(self.foreign);
        self.notes.push(Note { task, span, memory: MemorySample { before, peak, after } });
        Ok(result)
    }

    /// Takes the pending receives from one peer, in order, up to the one that `action` needs.
    fn take_inputs(&mut self, action: Action) -> Result<(), (Action, TaskError)> {
        let receive = match action.op {
            Op::Forward => Op::RecvForward,
            Op::FullBackward | Op::BackwardInput => Op::RecvBackward,
            // The copies of a tied embedding are summed after those of their stages.
            Op::ReduceTied if self.reductions.iter().any(|(_, a)| a.op == Op::ReduceGrad) => {
                return self.finish_reductions();
            }
            Op::OptimizerStep => return self.finish_reductions(),
            _ => return Ok(()),
        };
        let wanted = Action { op: receive, joins_previous: false, ..action };
        let schedule = self.context.schedule;
        let Some((last, _)) = self.pending.iter().copied().find(|(_, a)| *a == wanted) else { return Ok(()) };
        let queue = schedule.task(last).queue();
        let taken = |id: &TaskId| *id <= last && schedule.task(*id).queue() == queue;
        let (take, keep): (Vec<_>, Vec<_>) = self.pending.iter().copied().partition(|(id, _)| taken(id));
        self.pending = keep;
        for (id, receive) in take {
            self.receive(id, receive).map_err(|reason| (receive, reason))?;
        }
        Ok(())
    }

    /// Takes one message in. Its time runs from when it was sent, or from when this rank was ready for it.
    fn receive(&mut self, id: TaskId, action: Action) -> Result<(), TaskError> {
        let context = self.context;
        let microbatch = action.microbatch.ok_or(TaskError::Missing("the microbatch of a message"))?;
        let from = context.schedule.task(id).peer.ok_or(TaskError::Missing("the peer of a message"))?;
        let (kind, maker) = match action.op {
            Op::RecvForward => (MessageKind::Activation, context.schedule.placement().previous(action.stage)),
            _ => (MessageKind::Gradient, context.schedule.placement().next(action.stage)),
        };
        let maker = maker.ok_or(TaskError::Missing("the stage at the other end of a message"))?;
        let tag = Tag { kind, stage: maker, microbatch: Some(microbatch), step: self.step };
        let ready = Instant::now();
        let (tensor, sent) = self.noted(id, |worker| {
            let received = worker.transport.receive(from, tag, context.timeout)?;
            Ok((received.payload.into_tensor::<3>(&worker.device)?, received.sent))
        })?;
        let begin = ready.max(sent).saturating_duration_since(context.epoch).as_secs_f64();
        if let Some(note) = self.notes.last_mut() {
            note.span.start = begin.min(note.span.end);
        }
        let inbox = if kind == MessageKind::Activation { &mut self.hidden } else { &mut self.gradient };
        inbox.insert((action.stage, microbatch), tensor);
        Ok(())
    }

    fn run_task(&mut self, action: Action) -> Result<(), TaskError> {
        match action.op {
            Op::Forward => self.forward(action),
            Op::FullBackward | Op::BackwardInput => self.backward(action),
            Op::BackwardWeight => {
                let (stage, microbatch) = place(action)?;
                self.runner(stage)?.backward_weight(microbatch)
            }
            Op::SendForward => self.send(action, MessageKind::Activation),
            Op::SendBackward => self.send(action, MessageKind::Gradient),
            Op::OptimizerStep => self.optimizer_step(action.stage),
            Op::RecvForward | Op::RecvBackward | Op::ReduceGrad | Op::ReduceTied => Ok(()),
            // A run has one replica and one tensor-parallel rank.
            Op::ReduceData | Op::ReduceTensor | Op::ClipGrad | Op::GatherParam => Ok(()),
        }
    }

    fn forward(&mut self, action: Action) -> Result<(), TaskError> {
        let (stage, microbatch) = place(action)?;
        let schedule = self.context.schedule;
        let placement = schedule.placement();
        let (first, last) = (placement.is_first(stage), placement.is_last(stage));
        let (mut tokens, mut targets, mut start) = (None, None, 0);
        if first || last {
            let sample = schedule.sample(stage, microbatch);
            let (x, y) = self.context.batches.microbatch(self.step, sample, &self.device);
            let seen = slice_range(x.dims()[1], schedule.cells().slices(), microbatch);
            start = seen.start;
            tokens = first.then(|| cut(x, &seen));
            targets = last.then(|| cut(y, &seen));
        }
        let input = match tokens {
            Some(tokens) => Input::Tokens(tokens, start),
            None => Input::Hidden(self.hidden.remove(&(stage, microbatch)).ok_or(TaskError::Missing("the input"))?),
        };
        let all_tokens = self.context.batches.step_tokens(schedule.microbatches());
        match self.runner(stage)?.forward(microbatch, input, targets, all_tokens)? {
            Output::Loss(loss) => *self.loss.get_or_insert(0.0) += f64::from(loss),
            Output::Hidden(hidden) => match placement.next(stage) {
                Some(next) if placement.rank_of(next) == Some(self.rank) => {
                    self.hidden.insert((next, microbatch), hidden);
                }
                _ => {
                    self.outgoing.insert((MessageKind::Activation, stage, microbatch), hidden);
                }
            },
        }
        Ok(())
    }

    /// B or I.
    fn backward(&mut self, action: Action) -> Result<(), TaskError> {
        let (stage, microbatch) = place(action)?;
        let gradient = self.gradient.remove(&(stage, microbatch));
        let runner = self.runner(stage)?;
        let input = match action.op {
            Op::BackwardInput => runner.backward_input(microbatch, gradient)?,
            _ => runner.backward(microbatch, gradient)?,
        };
        let placement = self.context.schedule.placement();
        if let (Some(input), Some(previous)) = (input, placement.previous(stage)) {
            if placement.rank_of(previous) == Some(self.rank) {
                self.gradient.insert((previous, microbatch), input);
            } else {
                self.outgoing.insert((MessageKind::Gradient, stage, microbatch), input);
            }
        }
        Ok(())
    }

    fn send(&mut self, action: Action, kind: MessageKind) -> Result<(), TaskError> {
        let (stage, microbatch) = place(action)?;
        let placement = self.context.schedule.placement();
        let to = if kind == MessageKind::Activation { placement.next(stage) } else { placement.previous(stage) };
        let to = to.and_then(|s| placement.rank_of(s)).ok_or(TaskError::Missing("the peer of a message"))?;
        let tensor =
            self.outgoing.remove(&(kind, stage, microbatch)).ok_or(TaskError::Missing("the tensor to send"))?;
        let tag = Tag { kind, stage, microbatch: Some(microbatch), step: self.step };
        Ok(self.transport.send(to, tag, Payload::from_tensor(tensor)?)?)
    }

    /// Sends this rank's part of a reduction, where the other part lives elsewhere.
    fn begin_reduction(&mut self, action: Action) -> Result<(), TaskError> {
        let (_, peer) = self.partner(action)?;
        if peer == self.rank {
            return Ok(());
        }
        let runner = self.runner(action.stage)?;
        let own = match action.op {
            Op::ReduceGrad => {
                let values = runner.flat_gradients()?;
                Payload::new(vec![values.len()], values)?
            }
            _ => Payload::from_tensor(runner.tied_gradient()?)?,
        };
        Ok(self.transport.send(peer, self.reduction_tag(action.op, action.stage), own)?)
    }

    fn finish_reductions(&mut self) -> Result<(), (Action, TaskError)> {
        for (id, action) in std::mem::take(&mut self.reductions) {
            self.noted(id, |worker| worker.reduce(action)).map_err(|reason| (action, reason))?;
        }
        Ok(())
    }

    /// Sums the gradients of two stages and gives both the sum. Adding two numbers gives the same bits in either order,
    /// so both ranks have the same sum.
    fn reduce(&mut self, action: Action) -> Result<(), TaskError> {
        let (stage, (partner, peer)) = (action.stage, self.partner(action)?);
        let here = peer == self.rank;
        let tag = self.reduction_tag(action.op, partner);
        let received = (!here).then(|| self.transport.receive(peer, tag, self.context.timeout)).transpose()?;
        let device = self.device.clone();
        if action.op == Op::ReduceGrad {
            let mut sum = self.runner(stage)?.flat_gradients()?;
            let other = match received {
                Some(received) => received.payload.values().to_vec(),
                None => self.runner(partner)?.flat_gradients()?,
            };
            if sum.len() != other.len() {
                return Err(ParameterError::Copies { own: sum.len(), other: other.len() }.into());
            }
            sum.iter_mut().zip(other).for_each(|(a, b)| *a += b);
            if here {
                self.runner(partner)?.set_flat_gradients(&sum, &device)?;
            }
            return self.runner(stage)?.set_flat_gradients(&sum, &device);
        }
        let other = match received {
            Some(received) => received.payload.into_tensor::<2>(&device)?,
            None => self.runner(partner)?.tied_gradient()?,
        };
        let sum = self.runner(stage)?.tied_gradient()? + other;
        if here {
            self.runner(partner)?.set_tied_gradient(sum.clone())?;
        }
        self.runner(stage)?.set_tied_gradient(sum)
    }

    /// The stage that a reduction sums with, and its rank.
    fn partner(&self, action: Action) -> Result<(Stage, Rank), TaskError> {
        let placement = self.context.schedule.placement();
        let partner = placement.reduced_with(action.op, action.stage);
        let found = partner.and_then(|stage| Some((stage, placement.rank_of(stage)?)));
        found.ok_or(TaskError::Missing("the other copy of the gradients"))
    }

    fn reduction_tag(&self, op: Op, stage: Stage) -> Tag {
        let kind = if op == Op::ReduceGrad { MessageKind::StageGradients } else { MessageKind::TiedGradient };
        Tag { kind, stage, microbatch: None, step: self.step }
    }

    fn optimizer_step(&mut self, stage: Stage) -> Result<(), TaskError> {
        if self.context.keep_gradients {
            let gradients = self.runner(stage)?.gradients()?;
            self.gradients.extend(gradients);
        }
        self.runner(stage)?.step()
    }

    fn runner(&mut self, stage: Stage) -> Result<&mut StageRunner<M>, TaskError> {
        self.stages.get_mut(&stage).ok_or(TaskError::Missing("the stage"))
    }
}

/// Waits until a device has done what it was given: a GPU takes work in and returns before it is done.
pub(crate) fn synchronize(device: &Device) {
    if device.sync().is_err() {
        // Whatever the device failed at comes back as an error or a panic where its result is read.
        tracing::debug!("the device could not be synchronised");
    }
}

/// The tokens of a slice among `tokens`, as even as can be, the extra ones first; all of a whole microbatch.
pub(crate) fn slice_range(tokens: usize, slices: u16, microbatch: Microbatch) -> Range<usize> {
    let (slices, slice) = (usize::from(slices.max(1)), usize::from(microbatch.slice().unwrap_or(0)));
    let from = |slice: usize| slice * (tokens / slices) + slice.min(tokens % slices);
    from(slice)..from(slice + 1)
}

/// Some columns of `[B, S]`.
pub(crate) fn cut(tokens: Tensor<2, Int>, columns: &Range<usize>) -> Tensor<2, Int> {
    let [b, s] = tokens.dims();
    if columns.len() == s { tokens } else { tokens.slice([0..b, columns.clone()]) }
}

fn place(action: Action) -> Result<(Stage, Microbatch), TaskError> {
    Ok((action.stage, action.microbatch.ok_or(TaskError::Missing("the microbatch"))?))
}
