//! A run: one worker thread a rank, all steps, then everything they noted.
//!
//! One law: a worker that fails or panics ends the run for all, with an error that names rank, task and reason; the
//! first failure is the one reported.

use crate::error::{RunError, TaskError};
use crate::gate::Gate;
use crate::memory;
use crate::optimizer::OptimizerConfig;
use crate::pieces::{self, Piece};
use crate::stage_module::StageModule;
use crate::transport::threads::mesh;
use crate::transport::{AbortHandle, Transport, TransportError};
use crate::worker::{Batches, Context, Failure, Note, Worker};
use crate::world::Place;
use burn::tensor::Device;
use pipewright_ir::ids::{Rank, Stage};
use pipewright_ir::mesh::Mesh;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::segments::Programs;
use pipewright_ir::setup::Setup;
use pipewright_ir::timeline::{MemorySample, Source, Span, Timeline};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Values by Hugging Face name, flat row major.
pub type Named = Vec<(String, Vec<f32>)>;

/// How to run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Optimizer steps.
    pub steps: u64,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Whether every gradient and parameter of every step is kept, for comparison.
    pub keep_gradients: bool,
    /// How long a rank waits for a message before it gives the run up.
    pub timeout: Duration,
    /// Whether to count memory: this process's own, which is the ranks' on CPU and not on a GPU.
    pub count_memory: bool,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Run {
    /// Loss of each step: mean over all its tokens.
    pub losses: Vec<f64>,
    /// When every task ran, with counted memory where the binary counts it.
    pub timeline: Timeline,
    /// Norm of all gradients of each step, before they are clipped; empty where they are not.
    pub norms: Vec<f64>,
    /// Each step's gradients as the optimizer sees them, where they were kept, put together from all devices: a tensor of
    /// which devices hold different bits appears more than once.
    pub gradients: Vec<Named>,
    /// Parameters after each step, where they were kept, likewise.
    pub parameters: Vec<Named>,
}

impl Run {
    /// First start to last end of each step \[s\].
    pub fn step_seconds(&self) -> Vec<f64> {
        (0..self.timeline.steps()).map(|step| self.timeline.step(step).makespan()).collect()
    }
}

/// What a rank reports of one step.
struct StepReport {
    rank: Rank,
    step: u64,
    loss: Option<f64>,
    norm: Option<f64>,
    /// Of the device that stands for its pipeline rank.
    notes: Vec<Note>,
    gradients: Vec<Piece>,
    parameters: Vec<Piece>,
}

/// Builds the part of the model that a stage holds, on device number `usize` of the mesh.
pub trait Build<M>: Fn(Stage, usize, &Device) -> Result<M, String> + Sync {}

impl<M, F: Fn(Stage, usize, &Device) -> Result<M, String> + Sync> Build<M> for F {}

/// What is run: a schedule at the detail of segments and everything that it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The schedule.
    pub schedule: &'a Schedule,
    /// What its compute tasks are made of.
    pub programs: &'a Programs,
    /// The devices.
    pub mesh: &'a Mesh,
    /// Numbers and switches.
    pub setup: &'a Setup,
}

/// Runs a schedule with a device for every place of the mesh. `on_step` is told each finished step and its loss, in order.
///
/// # Errors
/// The first failure of any rank.
pub fn run<M: StageModule>(
    job: Job<'_>,
    devices: &[Device],
    build: &impl Build<M>,
    batches: &(impl Batches + ?Sized),
    options: &RunOptions,
    on_step: &mut dyn FnMut(u64, f64),
) -> Result<Run, RunError> {
    let schedule = job.schedule;
    let ranks = usize::try_from(job.mesh.devices()).unwrap_or(usize::MAX);
    if devices.len() != ranks {
        return Err(RunError::Devices { devices: devices.len(), ranks });
    }
    let context = Context {
        schedule,
        programs: job.programs,
        setup: job.setup,
        data_parallel: job.mesh.data.max(1),
        optimizer: &options.optimizer,
        batches,
        epoch: Instant::now(),
        timeout: options.timeout,
        keep_gradients: options.keep_gradients,
    };
    let gate = Gate::new(ranks);
    let first_error = Mutex::new(None);
    let (reports, inbox) = channel::<StepReport>();
    let mut collected = Collected::new(schedule, ranks, options);
    std::thread::scope(|scope| {
        for (transport, device) in mesh(ranks).into_iter().zip(devices) {
            let (rank, abort, reports) = (transport.rank(), transport.abort_handle(), reports.clone());
            let (context, gate, first_error) = (&context, &gate, &first_error);
            scope.spawn(move || {
                let place = Place::new(job.mesh, rank.index());
                let work = || work(context, gate, place, transport, device, build, options, &reports);
                let result = catch_unwind(AssertUnwindSafe(work))
                    .unwrap_or_else(|panic| Err(RunError::Panic { rank, message: panic_message(panic.as_ref()) }));
                if let Err(error) = result {
                    end_run(&abort, rank, error, first_error);
                }
            });
        }
        drop(reports);
        for report in inbox {
            collected.add(report, on_step);
        }
    });
    match first_error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(collected.finish()),
    }
}

/// Notes the failure that began it, and stops everyone else.
fn end_run(abort: &AbortHandle, rank: Rank, error: RunError, first: &Mutex<Option<RunError>>) {
    tracing::debug!(rank = rank.0, %error, "rank stops");
    abort.abort(rank, error.to_string());
    let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if first.as_ref().is_none_or(|known| is_consequence(known) && !is_consequence(&error)) {
        *first = Some(error);
    }
}

/// Whether a rank failed only because another one had: ranks report in any order.
fn is_consequence(error: &RunError) -> bool {
    let RunError::Task { reason: TaskError::Transport(reason), .. } = error else { return false };
    matches!(reason, TransportError::Aborted { .. } | TransportError::PeerGone { .. })
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// The life of one device.
#[expect(clippy::too_many_arguments, reason = "a thread's whole world, given once")]
fn work<M: StageModule, T: Transport, B: Batches + ?Sized>(
    context: &Context<'_, B>,
    gate: &Gate,
    place: Place,
    transport: T,
    device: &Device,
    build: &impl Build<M>,
    options: &RunOptions,
    reports: &Sender<StepReport>,
) -> Result<(), RunError> {
    let (rank, abort) = (transport.rank(), transport.abort_handle());
    let _charged = memory::enter_rank(rank);
    let foreign = memory::live(memory::slot_of(rank));
    let (shares, share) = (place.replicas() as usize, place.replica() as usize);
    let zero = context.setup.zero_stage;
    let mut stages = BTreeMap::new();
    for stage in context.schedule.placement().stages_of(place.rank()) {
        let mut module = build(stage, rank.index(), device).map_err(|reason| RunError::Build {
            rank,
            stage: stage.number(),
            reason,
        })?;
        if zero > 0 && shares > 1 {
            let parameters = module.blocks_mut().iter_mut().flat_map(|block| &mut block.parameters);
            parameters.for_each(|parameter| parameter.share_out(shares, share, zero == 3));
        }
        stages.insert(stage, module);
    }
    // Of ranks that compute the same loss one reports it.
    let reports_loss = place.tensor_rank() == 0;
    let representative = place.is_representative();
    let mut worker = Worker::new(context, place, device.clone(), transport, stages, foreign);
    for step in 0..options.steps {
        gate.wait(&abort);
        let failed = |Failure { task, reason }| RunError::Task { rank, task: task.to_string(), step, reason };
        worker.run_step(step).map_err(failed)?;
        tracing::debug!(rank = rank.0, step, tasks = worker.notes.len(), loss = worker.loss, "step done");
        let kept = |module: &M| pieces::parameters(module.blocks());
        let parameters =
            if options.keep_gradients { worker.stages.values().flat_map(kept).collect() } else { Vec::new() };
        let report = StepReport {
            rank,
            step,
            loss: worker.loss.filter(|_| reports_loss),
            norm: worker.norm,
            notes: if representative { worker.notes.clone() } else { Vec::new() },
            gradients: std::mem::take(&mut worker.gradients),
            parameters,
        };
        // The receiver outlives all workers.
        let _ = reports.send(report);
    }
    Ok(())
}

/// Puts the reports of all devices together.
struct Collected {
    devices: usize,
    tasks: usize,
    spans: Vec<Span>,
    memory: Vec<MemorySample>,
    /// What the devices with a last stage have of each step's loss.
    losses: Vec<BTreeMap<Rank, f64>>,
    norms: Vec<f64>,
    /// What the devices hold of steps that are not yet complete.
    pieces: BTreeMap<usize, BTreeMap<Rank, [Vec<Piece>; 2]>>,
    gradients: Vec<Named>,
    parameters: Vec<Named>,
    keeps: bool,
    reported: Vec<usize>,
    next: usize,
}

impl Collected {
    fn new(schedule: &Schedule, devices: usize, options: &RunOptions) -> Self {
        let steps = usize::try_from(options.steps).unwrap_or(usize::MAX);
        let tasks = schedule.len();
        Self {
            devices,
            tasks,
            spans: vec![Span::default(); tasks * steps],
            memory: if options.count_memory && memory::is_counting() {
                vec![MemorySample::default(); tasks * steps]
            } else {
                Vec::new()
            },
            losses: vec![BTreeMap::new(); steps],
            norms: Vec::new(),
            pieces: BTreeMap::new(),
            gradients: Vec::new(),
            parameters: Vec::new(),
            keeps: options.keep_gradients,
            reported: vec![0; steps],
            next: 0,
        }
    }

    fn add(&mut self, report: StepReport, on_step: &mut dyn FnMut(u64, f64)) {
        let step = usize::try_from(report.step).unwrap_or(usize::MAX);
        for note in report.notes {
            let at = step * self.tasks + note.task.index();
            if let Some(span) = self.spans.get_mut(at) {
                *span = note.span;
            }
            if let Some(memory) = self.memory.get_mut(at) {
                *memory = note.memory;
            }
        }
        if let (Some(slot), Some(loss)) = (self.losses.get_mut(step), report.loss) {
            slot.insert(report.rank, loss);
        }
        if report.rank == Rank(0) {
            self.norms.extend(report.norm);
        }
        if self.keeps {
            self.pieces.entry(step).or_default().insert(report.rank, [report.gradients, report.parameters]);
        }
        if let Some(count) = self.reported.get_mut(step) {
            *count += 1;
        }
        while self.reported.get(self.next) == Some(&self.devices) {
            if let Some(pieces) = self.pieces.remove(&self.next) {
                self.gradients.push(pieces::assemble(pieces.values().flat_map(|[gradients, _]| gradients)));
                self.parameters.push(pieces::assemble(pieces.values().flat_map(|[_, parameters]| parameters)));
            }
            on_step(self.next as u64, sum(&self.losses[self.next]));
            self.next += 1;
        }
    }

    fn finish(self) -> Run {
        let timeline = Timeline { source: Source::Measured, tasks: self.tasks, spans: self.spans, memory: self.memory };
        Run {
            losses: self.losses.iter().map(sum).collect(),
            norms: self.norms,
            timeline,
            gradients: self.gradients,
            parameters: self.parameters,
        }
    }
}

/// In the order of the ranks, not of their reports.
fn sum(losses: &BTreeMap<Rank, f64>) -> f64 {
    losses.values().sum()
}
