//! One device: runs the program of its pipeline rank task by task and writes down when.
//!
//! One law: the worker decides nothing. It walks its program in order and does what each task says. Messages are posted
//! where they stand and taken in where the first task stands that needs them; receives from one peer in their order.

mod actions;
mod messages;
mod step_end;

use crate::collectives::Posted;
use crate::data::TextData;
use crate::error::TaskError;
use crate::memory;
use crate::optimizer::OptimizerConfig;
use crate::stage_module::StageModule;
use crate::transport::{MessageKind, Transport};
use crate::world::Place;
use burn::tensor::{Device, Tensor};
use pipewright_ir::action::{Action, Op};
use pipewright_ir::ids::{Microbatch, Stage, TaskId};
use pipewright_ir::schedule::Schedule;
use pipewright_ir::segments::{BlockKind, Operand, Programs};
use pipewright_ir::setup::Setup;
use pipewright_ir::timeline::{MemorySample, Span};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Where the microbatches of a step come from.
pub trait Batches: Sync {
    /// Tokens and targets `[B, S]`, flat, of a microbatch of a step, counted over all replicas.
    fn microbatch(&self, step: u64, microbatch: u64) -> (Vec<u32>, Vec<u32>);

    /// Sequences `B` of a microbatch.
    fn sequences(&self) -> u64;

    /// Tokens `S` of a sequence.
    fn seq_length(&self) -> usize;

    /// Tokens of a whole step of so many microbatches, over which the loss is averaged.
    fn step_tokens(&self, microbatches: u64) -> u64 {
        microbatches * self.sequences() * self.seq_length() as u64
    }
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
    fn microbatch(&self, step: u64, microbatch: u64) -> (Vec<u32>, Vec<u32>) {
        let (tokens, targets) = self.text.batch(step, microbatch, self.micro_batch_size);
        let unsigned = |values: Vec<i32>| values.into_iter().map(i32::cast_unsigned).collect();
        (unsigned(tokens), unsigned(targets))
    }

    fn sequences(&self) -> u64 {
        self.micro_batch_size as u64
    }

    fn seq_length(&self) -> usize {
        self.text.seq_length()
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
    /// What its compute tasks are made of.
    pub(crate) programs: &'a Programs,
    pub(crate) setup: &'a Setup,
    /// Data-parallel replicas.
    pub(crate) data_parallel: u32,
    pub(crate) optimizer: &'a OptimizerConfig,
    pub(crate) batches: &'a B,
    pub(crate) epoch: Instant,
    pub(crate) timeout: Duration,
    pub(crate) keep_gradients: bool,
}

/// A message of a program that is on its way.
struct OnItsWay {
    task: TaskId,
    action: Action,
    /// The place in the program of the first step that waits for it.
    joined: usize,
    layer: u32,
    operand: Operand,
    posted: Posted,
    /// When.
    since: f64,
}

/// A reduction at the end of a step whose own part is sent, but the others' not yet taken in.
struct Reduction {
    task: TaskId,
    action: Action,
    what: Reduced,
    since: f64,
}

/// What is reduced.
#[expect(clippy::large_enum_variant, reason = "a few at the end of a step")]
enum Reduced {
    /// Gradients of a stage with those of its copy, or of a tied embedding with its other one.
    Pair,
    /// Gradients of some blocks over the replicas.
    Blocks(Vec<(usize, Posted)>),
    /// Gradients of what tensor-parallel ranks have copies of.
    Tensor(Option<Posted>),
    /// Weights of all blocks, of which each replica has updated a share.
    Gather(Vec<(usize, Posted)>),
}

pub(crate) struct Worker<'a, M: StageModule, T: Transport, B: Batches + ?Sized> {
    context: &'a Context<'a, B>,
    place: Place,
    device: Device,
    transport: T,
    pub(crate) stages: BTreeMap<Stage, M>,
    step: u64,
    reductions: Vec<Reduction>,
    on_their_way: Vec<OnItsWay>,
    /// ZeRO-3: scattered gradients that nothing but the end of the step waits for.
    scattered: Vec<OnItsWay>,
    /// ZeRO-3: the block whose weights the action at hand has gathered.
    gathered: Option<(Stage, BlockKind, u32)>,
    /// Buckets of gradients that can be sent when a task is done, and those that have been.
    triggers: BTreeMap<TaskId, Vec<TaskId>>,
    sent_early: BTreeMap<TaskId, (Vec<(usize, Posted)>, f64)>,
    /// Receives of the program that were not taken yet, in program order.
    pending: Vec<(TaskId, Action)>,
    /// What came by message or from a stage on this rank: stage outputs by the stage that takes them, then gradients.
    hidden: BTreeMap<(Stage, Microbatch), Tensor<2>>,
    gradient: BTreeMap<(Stage, Microbatch), Tensor<2>>,
    /// What is to be sent, by the stage that made it.
    outgoing: BTreeMap<(MessageKind, Stage, Microbatch), Tensor<2>>,
    /// Sum of the losses of the step's microbatches; only a device of a last stage has one.
    pub(crate) loss: Option<f64>,
    /// Norm of all gradients of the step, where they are clipped.
    pub(crate) norm: Option<f64>,
    pub(crate) gradients: Vec<crate::pieces::Piece>,
    pub(crate) notes: Vec<Note>,
    /// Bytes of this rank's slot that are not of this run.
    foreign: u64,
}

impl<'a, M: StageModule, T: Transport, B: Batches + ?Sized> Worker<'a, M, T, B> {
    pub(crate) fn new(
        context: &'a Context<'a, B>,
        place: Place,
        device: Device,
        transport: T,
        stages: BTreeMap<Stage, M>,
        foreign: u64,
    ) -> Self {
        let triggers = messages::triggers(context.schedule, place.rank());
        Self {
            context,
            place,
            device,
            transport,
            stages,
            step: 0,
            reductions: Vec::new(),
            on_their_way: Vec::new(),
            scattered: Vec::new(),
            gathered: None,
            triggers,
            sent_early: BTreeMap::new(),
            pending: Vec::new(),
            hidden: BTreeMap::new(),
            gradient: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            loss: None,
            norm: None,
            gradients: Vec::new(),
            notes: Vec::new(),
            foreign,
        }
    }

    /// Runs the whole program of one step.
    pub(crate) fn run_step(&mut self, step: u64) -> Result<(), Failure> {
        self.step = step;
        (self.loss, self.norm) = (None, None);
        self.gradients.clear();
        self.notes.clear();
        let context = self.context;
        for (id, task) in context.schedule.program(self.place.rank()) {
            let action = task.action;
            if action.op.is_receive() {
                self.pending.push((id, action));
                continue;
            }
            if !task.step.continues {
                self.take_inputs(action).map_err(|(task, reason)| Failure { task, reason })?;
            }
            let done = match action.op {
                Op::Forward | Op::FullBackward | Op::BackwardInput | Op::BackwardWeight => self.step_of_action(id),
                Op::SendForward => self.noted(id, |worker| worker.send(action, MessageKind::Activation)),
                Op::SendBackward => self.noted(id, |worker| worker.send(action, MessageKind::Gradient)),
                _ => self.end_task(id),
            };
            done.map_err(|reason| Failure { task: action, reason })?;
        }
        let last = |action| move |reason| Failure { task: action, reason };
        let Some(action) = context.schedule.program(self.place.rank()).last().map(|(_, task)| task.action) else {
            return Ok(());
        };
        self.finish_reductions().map_err(last(action))
    }

    /// Runs one task between two looks at the clock and at memory.
    fn noted<R>(&mut self, task: TaskId, run: impl FnOnce(&mut Self) -> Result<R, TaskError>) -> Result<R, TaskError> {
        let slot = memory::slot_of(self.transport.rank());
        let before = memory::live(slot).saturating_sub(self.foreign);
        memory::reset_peak(slot);
        let start = self.now();
        let result = run(self)?;
        synchronize(&self.device);
        let span = Span { start, end: self.now() };
        let peak = memory::peak(slot).saturating_sub(self.foreign);
        let after = memory::live(slot).saturating_sub(self.foreign);
        self.notes.push(Note { task, span, memory: MemorySample { before, peak, after } });
        Ok(result)
    }

    /// Says of the task noted last that it began when its message was posted, or when its lane was free.
    fn began(&mut self, since: f64) {
        let schedule = self.context.schedule;
        let Some((last, before)) = self.notes.split_last_mut() else { return };
        let lane = schedule.task(last.task).lane;
        let of_lane = before.iter().rev().find(|note| schedule.task(note.task).lane == lane);
        let free = of_lane.map_or(0.0, |note| note.span.end);
        last.span.start = since.max(free).min(last.span.end);
    }

    fn now(&self) -> f64 {
        self.context.epoch.elapsed().as_secs_f64()
    }

    fn module(&mut self, stage: Stage) -> Result<&mut M, TaskError> {
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

/// Stage and microbatch of an action that has one.
fn place_of(action: Action) -> Result<(Stage, Microbatch), TaskError> {
    Ok((action.stage, action.microbatch.ok_or(TaskError::Missing("the microbatch"))?))
}
