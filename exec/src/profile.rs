//! `profile`: what each task costs on the device at hand.
//!
//! One law: it measures stages by themselves, never a schedule, so that a prediction made from it can be wrong.
//!
//! In each round every rank first works alone, in turn, then as many as there are cores work together: a machine shares
//! memory bandwidth and clock among its ranks, and how much that costs is measured too. Alone and together alternate,
//! so that a machine whose speed drifts slows both.

use crate::error::{RunError, TaskError};
use crate::gate::Gate;
use crate::memory;
use crate::optimizer::OptimizerConfig;
use crate::reference::walk;
use crate::run::{Build, panic_message};
use crate::stage_module::{Feed, StageModule};
use crate::transport::threads::mesh;
use crate::transport::{AbortHandle, MessageKind, Payload, Tag, Transport, TransportError};
use crate::update;
use crate::worker::{Batches, slice_range, synchronize};
use burn::tensor::{Device, Distribution, Tensor};
use pipewright_ir::cost_table::{LayoutCosts, Measured, MessageCosts, SlicedCosts, SplitCosts, StageCosts};
use pipewright_ir::ids::{LayerRange, Microbatch, Rank, Stage};
use pipewright_ir::placement::Placement;
use pipewright_ir::segments::{Programs, StageProgram};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct ProfileOptions {
    /// Rounds thrown away first.
    pub warmup: u32,
    /// Rounds measured; a round is four microbatches forward and backward, the same again for each other way of running
    /// a microbatch that the layout asks for, and an optimizer step.
    pub rounds: u32,
    /// Ranks that may work at once.
    pub cores: u32,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
}

/// Microbatches of a round, each way.
const MICROBATCHES: u32 = 4;
/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;

/// A way of cutting the model.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    /// Stage -> rank.
    pub placement: &'a Placement,
    /// Layers of each stage.
    pub layers: &'a [LayerRange],
    /// Shape of a stage's output `[B, S, H]`.
    pub hidden: [usize; 3],
    /// Vocabulary, for the size of the logits; 0 where the last stage makes none.
    pub vocab: u64,
    /// Whether I and W are measured apart too.
    pub split: bool,
    /// What its stages compute.
    pub programs: &'a Programs,
    /// The numbers of sequence slices in which a microbatch is measured too.
    pub slices: Vec<u16>,
}

/// What was measured of the stages of one layout. Measurements at different times add up.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// By the number of the stage: its copies in two pipes are measured as one.
    stages: BTreeMap<u32, StageSamples>,
    /// What ranks held beside parameters, optimizer state and the probes' own tensors \[B\].
    overheads: Vec<u64>,
}

impl Samples {
    /// Adds the measurements of another time.
    pub fn extend(&mut self, other: Samples) {
        self.overheads.extend(other.overheads);
        for (stage, samples) in other.stages {
            self.add(stage, samples);
        }
    }

    fn add(&mut self, stage: u32, samples: StageSamples) {
        match self.stages.entry(stage) {
            Entry::Vacant(slot) => {
                slot.insert(samples);
            }
            Entry::Occupied(mut known) => known.get_mut().samples.extend(samples.samples),
        }
    }

    /// The costs of every stage.
    pub fn costs(&self, layout: &Layout<'_>) -> LayoutCosts {
        let mut overheads = self.overheads.clone();
        overheads.sort_unstable();
        LayoutCosts {
            rank_overhead: overheads.get(overheads.len() / 2).copied().unwrap_or(0),
            stages: self.stages.iter().map(|(stage, samples)| samples.costs(Stage::new(*stage), layout)).collect(),
        }
    }

    /// How many ranks worked together, and how much longer each stage's forward and backward took than alone.
    pub fn slowdowns(&self) -> Vec<(usize, f64)> {
        self.stages.values().filter_map(StageSamples::slowdown).collect()
    }
}

/// How much longer a task takes for each further rank at work, from the slowdowns of all layouts.
pub fn contention(slowdowns: &[(usize, f64)]) -> f64 {
    let further: Vec<f64> = slowdowns.iter().map(|(ranks, times)| (times - 1.0) / (*ranks as f64 - 1.0)).collect();
    Measured::of(&further).median.max(0.0)
}

/// Measures every stage of `layout`, with a device a rank.
///
/// # Errors
/// The first failure of any stage.
pub fn layout<M: StageModule>(
    layout: &Layout<'_>,
    devices: &[Device],
    build: &impl Build<M>,
    batches: &(impl Batches + ?Sized),
    options: &ProfileOptions,
) -> Result<Samples, RunError> {
    let mut samples = Samples::default();
    let ranks: Vec<Rank> = (0..devices.len()).map(Rank::at).collect();
    for wave in ranks.chunks(options.cores.max(1) as usize) {
        let shared =
            Wave { layout, gate: Gate::new(wave.len()), abort: AbortHandle::new(|| {}), ranks: wave.len(), options };
        let results: Vec<Result<Samples, RunError>> = std::thread::scope(|scope| {
            let spawn = |(turn, rank): (usize, &Rank)| {
                let (rank, shared) = (*rank, &shared);
                scope.spawn(move || {
                    let profile = || shared.profile_rank(turn, rank, &devices[rank.index()], build, batches);
                    let result = catch_unwind(AssertUnwindSafe(profile))
                        .unwrap_or_else(|panic| Err(RunError::Panic { rank, message: panic_message(panic.as_ref()) }));
                    if let Err(error) = &result {
                        shared.abort.abort(rank, error.to_string());
                    }
                    result
                })
            };
            let handles: Vec<_> = wave.iter().enumerate().map(spawn).collect();
            let panicked = |rank: &Rank| Err(RunError::Panic { rank: *rank, message: "while profiling".to_owned() });
            handles.into_iter().zip(wave).map(|(h, rank)| h.join().unwrap_or_else(|_| panicked(rank))).collect()
        });
        for result in results {
            samples.extend(result?);
        }
    }
    Ok(samples)
}

/// Ranks that are measured at the same time.
struct Wave<'a> {
    layout: &'a Layout<'a>,
    gate: Gate,
    abort: AbortHandle,
    ranks: usize,
    options: &'a ProfileOptions,
}

impl Wave<'_> {
    /// All stages of one rank: in its turn alone, then with the others.
    fn profile_rank<M: StageModule, B: Batches + ?Sized>(
        &self,
        turn: usize,
        rank: Rank,
        device: &Device,
        build: &impl Build<M>,
        batches: &B,
    ) -> Result<Samples, RunError> {
        let _charged = memory::enter_rank(rank);
        let foreign = memory::live(memory::slot_of(rank));
        let mut overheads = Vec::new();
        let mut probes = Vec::new();
        for stage in self.layout.placement.stages_of(rank) {
            let module = build(stage, rank.index(), device).map_err(|reason| RunError::Build {
                rank,
                stage: stage.number(),
                reason,
            })?;
            probes.push(Probe::new(self.layout, stage, rank, device, module, self.options.optimizer));
        }
        for round in 0..self.options.warmup + self.options.rounds {
            for phase in 0..=self.ranks {
                self.gate.wait(&self.abort);
                if self.abort.cause().is_some() {
                    return Ok(Samples::default());
                }
                let together = phase == self.ranks;
                if phase != turn && !together || together && self.ranks == 1 {
                    continue;
                }
                if !together && round >= self.options.warmup {
                    let known: u64 = probes.iter().map(Probe::resting_bytes).sum();
                    overheads.push(memory::live(memory::slot_of(rank)).saturating_sub(foreign + known));
                }
                for probe in &mut probes {
                    let task = format!("profile of stage {}", probe.stage);
                    let failed = |reason| RunError::Task { rank, task, step: u64::from(round), reason };
                    let at_work = if together { self.ranks } else { 1 };
                    let samples = probe.round(self.layout, batches, u64::from(round), at_work).map_err(failed)?;
                    if round >= self.options.warmup {
                        probe.samples.samples.extend(samples);
                    }
                }
            }
        }
        let mut samples = Samples { overheads, ..Samples::default() };
        for probe in probes {
            samples.add(probe.stage.number(), probe.samples);
        }
        Ok(samples)
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    kind: Kind,
    /// Ranks at work at the same time, this one included.
    at_work: usize,
    seconds: f64,
    /// Live bytes before, most while it ran, after \[B\].
    memory: [u64; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Forward,
    Backward,
    BackwardInput,
    BackwardWeight,
    /// Of a microbatch in so many slices, one of them.
    SliceForward(u16, u16),
    SliceBackward(u16, u16),
    Optimizer,
}

/// What was measured of one stage.
#[derive(Clone, Debug)]
struct StageSamples {
    parameters: u64,
    state_bytes: u64,
    samples: Vec<Sample>,
}

impl StageSamples {
    fn of(&self, kind: Kind, together: bool) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.kind == kind && (s.at_work > 1) == together)
    }

    fn time(&self, kind: Kind, together: bool) -> Measured {
        Measured::of(&self.of(kind, together).map(|s| s.seconds).collect::<Vec<_>>())
    }

    /// The median of a size over all measurements \[B\].
    fn bytes(&self, kind: Kind, size: fn(&[u64; 3]) -> u64) -> u64 {
        let mut sizes: Vec<u64> = self.of(kind, false).map(|s| size(&s.memory)).collect();
        sizes.sort_unstable();
        sizes.get(sizes.len() / 2).copied().unwrap_or(0)
    }

    /// What a task leaves behind, beside what it needs only while it runs and what it gives on \[B\].
    fn left(&self, kind: Kind) -> u64 {
        self.bytes(kind, |[before, _, after]| after.saturating_sub(*before))
    }

    fn workspace_after(&self, kind: Kind) -> u64 {
        self.bytes(kind, |[_, peak, after]| peak.saturating_sub(*after))
    }

    fn workspace_before(&self, kind: Kind) -> u64 {
        self.bytes(kind, |[before, peak, _]| peak.saturating_sub(*before))
    }

    fn slowdown(&self) -> Option<(usize, f64)> {
        let at_work = self.samples.iter().map(|s| s.at_work).max().filter(|n| *n > 1)?;
        let both = |together| self.time(Kind::Forward, together).median + self.time(Kind::Backward, together).median;
        Some((at_work, both(true) / both(false)))
    }

    fn costs(&self, stage: Stage, layout: &Layout<'_>) -> StageCosts {
        let (first, last) = (layout.placement.is_first(stage), layout.placement.is_last(stage));
        let hidden_bytes = layout.hidden.iter().map(|n| *n as u64).product::<u64>() * FP32;
        let tokens = layout.hidden.iter().take(2).map(|n| *n as u64).product::<u64>();
        let kept = self.left(Kind::Forward);
        let logits = |kept: u64| if last { (tokens * layout.vocab * FP32).min(kept) } else { 0 };
        // The gradient of the input is a buffer of its own.
        let input_gradient = if first { 0 } else { hidden_bytes };
        let layers = layout.layers.get(stage.index()).copied().unwrap_or_default();
        let activations = kept - logits(kept);
        let split = layout.split.then(|| {
            // Before I there are what F kept and the gradient of the output, after it what W needs and the gradient of
            // the input.
            let output_gradient = if last { 0 } else { hidden_bytes };
            let grown = self.left(Kind::BackwardInput);
            let freed = self.bytes(Kind::BackwardInput, |[before, _, after]| before.saturating_sub(*after));
            let kept = (kept + output_gradient + grown).saturating_sub(freed + input_gradient);
            let added = kept.saturating_sub(activations);
            SplitCosts {
                backward_input: self.time(Kind::BackwardInput, false),
                backward_weight: self.time(Kind::BackwardWeight, false),
                kept,
                input_workspace: self.workspace_before(Kind::BackwardInput).saturating_sub(input_gradient + added),
                weight_workspace: self.workspace_before(Kind::BackwardWeight),
            }
        });
        let sliced = layout.slices.iter().map(|k| {
            let (forward, backward) = (|j| Kind::SliceForward(*k, j), |j| Kind::SliceBackward(*k, j));
            let kept: u64 = (0..*k).map(|j| self.left(forward(j))).sum();
            let gradient = |j| {
                let share = slice_range(layout.hidden[1], *k, Microbatch::new(0).sliced(j)).len() as u64;
                input_gradient / (layout.hidden[1] as u64).max(1) * share
            };
            let over = |j| self.workspace_before(backward(j)).saturating_sub(gradient(j));
            SlicedCosts {
                forward: (0..*k).map(|j| self.time(forward(j), false)).collect(),
                backward: (0..*k).map(|j| self.time(backward(j), false)).collect(),
                activations: kept - logits(kept),
                forward_workspace: (0..*k).map(|j| self.workspace_after(forward(j))).max().unwrap_or(0),
                backward_workspace: (0..*k).map(over).max().unwrap_or(0),
            }
        });
        StageCosts {
            layers: [layers.start, layers.end],
            forward: self.time(Kind::Forward, false),
            backward: self.time(Kind::Backward, false),
            optimizer: self.time(Kind::Optimizer, false),
            activations,
            logits: logits(kept),
            forward_workspace: self.workspace_after(Kind::Forward),
            backward_workspace: self.workspace_before(Kind::Backward).saturating_sub(input_gradient),
            optimizer_workspace: self.workspace_before(Kind::Optimizer),
            parameters: self.parameters * FP32,
            gradients: self.parameters * FP32,
            optimizer_state: self.state_bytes,
            split,
            sliced: sliced.collect(),
        }
    }
}

/// One stage under measurement.
struct Probe<M: StageModule> {
    stage: Stage,
    rank: Rank,
    device: Device,
    module: M,
    optimizer: OptimizerConfig,
    optimizer_steps: u64,
    /// A `[B S, H]` tensor that stands for the input, and for the gradient of the output.
    hidden: Tensor<2>,
    first: bool,
    last: bool,
    samples: StageSamples,
}

impl<M: StageModule> Probe<M> {
    fn new(
        layout: &Layout<'_>,
        stage: Stage,
        rank: Rank,
        device: &Device,
        module: M,
        optimizer: OptimizerConfig,
    ) -> Self {
        let parameters = module.blocks().iter().flat_map(|block| &block.parameters).map(|p| p.len() as u64).sum();
        let state_bytes = parameters * optimizer.state_bytes_per_parameter();
        Self {
            stage,
            rank,
            device: device.clone(),
            module,
            optimizer,
            optimizer_steps: 0,
            hidden: {
                let [b, s, h] = layout.hidden;
                Tensor::random([b * s, h], Distribution::Normal(0.0, 1.0), device)
            },
            first: layout.placement.is_first(stage),
            last: layout.placement.is_last(stage),
            samples: StageSamples { parameters, state_bytes, samples: Vec::new() },
        }
    }

    /// What the stage and this probe hold between two steps, as far as it is known by name \[B\].
    fn resting_bytes(&self) -> u64 {
        let hidden: u64 = self.hidden.dims().iter().map(|n| *n as u64).product();
        (self.samples.parameters + hidden) * FP32 + self.samples.state_bytes
    }

    /// Some microbatches each way and an optimizer step, with `at_work` ranks working.
    fn round<B: Batches + ?Sized>(
        &mut self,
        layout: &Layout<'_>,
        batches: &B,
        round: u64,
        at_work: usize,
    ) -> Result<Vec<Sample>, TaskError> {
        let mut samples = Vec::new();
        // Two microbatches in flight, as in the steady state of 1F1B: with one alone, backward would find everything
        // that forward kept still in the caches.
        for next in 0..=MICROBATCHES {
            if next < MICROBATCHES {
                samples.push(self.forward(layout, Kind::Forward, batches, round, Microbatch::new(next), 1)?);
            }
            let Some(before) = next.checked_sub(1) else { continue };
            let sample = self.backward(layout, Kind::Backward, Microbatch::new(before), 1)?;
            // The first backward of a step also makes the gradient buffers; the schedule accounts for those apart.
            if before > 0 {
                samples.push(sample);
            }
        }
        // W comes another microbatch later.
        for next in (0..MICROBATCHES + 2).filter(|_| layout.split) {
            if next < MICROBATCHES {
                samples.push(self.forward(layout, Kind::Forward, batches, round, Microbatch::new(next), 1)?);
            }
            if let Some(before) = next.checked_sub(1).filter(|before| *before < MICROBATCHES) {
                samples.push(self.backward(layout, Kind::BackwardInput, Microbatch::new(before), 1)?);
            }
            if let Some(before) = next.checked_sub(2).map(Microbatch::new) {
                let run = |probe: &mut Self| {
                    let program = probe.program(layout)?;
                    walk(&mut probe.module, layout.programs, &program.weight, before)?;
                    probe.module.end_weight(before)
                };
                samples.push(self.timed(Kind::BackwardWeight, run)?.0);
            }
        }
        for k in &layout.slices {
            for next in 0..=MICROBATCHES {
                for j in (0..*k).filter(|_| next < MICROBATCHES) {
                    let slice = Microbatch::new(next).sliced(j);
                    samples.push(self.forward(layout, Kind::SliceForward(*k, j), batches, round, slice, *k)?);
                }
                let Some(before) = next.checked_sub(1).map(Microbatch::new) else { continue };
                for j in (0..*k).rev() {
                    samples.push(self.backward(layout, Kind::SliceBackward(*k, j), before.sliced(j), *k)?);
                }
            }
        }
        self.optimizer_steps += 1;
        let (config, step) = (self.optimizer, self.optimizer_steps);
        let run = |probe: &mut Self| update::update(probe.module.blocks_mut(), &config, step);
        samples.push(self.timed(Kind::Optimizer, run)?.0);
        samples.iter_mut().for_each(|sample| sample.at_work = at_work);
        Ok(samples)
    }

    fn program<'p>(&self, layout: &Layout<'p>) -> Result<&'p StageProgram, TaskError> {
        layout.programs.stages.get(self.stage.index()).ok_or(TaskError::Missing("the program of the stage"))
    }

    /// F of a microbatch, or of one of its `slices`.
    fn forward<B: Batches + ?Sized>(
        &mut self,
        layout: &Layout<'_>,
        kind: Kind,
        batches: &B,
        round: u64,
        microbatch: Microbatch,
        slices: u16,
    ) -> Result<Sample, TaskError> {
        let hidden = (!self.first).then(|| self.hidden_of(layout, microbatch, slices));
        let run = |probe: &mut Self| {
            let (mut tokens, mut targets) = (None, None);
            if probe.first || probe.last {
                let (x, y) = batches.microbatch(round, u64::from(microbatch.number()));
                (tokens, targets) = (probe.first.then_some(x), probe.last.then_some(y));
            }
            let (sequences, number) = (batches.sequences(), u64::from(microbatch.number()));
            let feed = Feed {
                step: round,
                sequences: number * sequences..(number + 1) * sequences,
                slice: slice_range(layout.hidden[1], slices, microbatch),
                tokens,
                targets,
                hidden,
                step_tokens: batches.step_tokens(MICROBATCHES.into()),
            };
            probe.module.begin_forward(microbatch, feed)?;
            let program = probe.program(layout)?;
            walk(&mut probe.module, layout.programs, &program.forward, microbatch)?;
            probe.module.end_forward(microbatch)
        };
        // The output goes to the next stage.
        Ok(self.timed(kind, run)?.0)
    }

    /// B or I of a microbatch, or of one of its `slices`.
    fn backward(
        &mut self,
        layout: &Layout<'_>,
        kind: Kind,
        microbatch: Microbatch,
        slices: u16,
    ) -> Result<Sample, TaskError> {
        let gradient = (!self.last).then(|| self.hidden_of(layout, microbatch, slices) * 1e-4);
        let split = kind == Kind::BackwardInput;
        let run = |probe: &mut Self| {
            probe.module.begin_backward(microbatch, gradient, split)?;
            let program = probe.program(layout)?;
            let list = if split { &program.input } else { &program.backward };
            walk(&mut probe.module, layout.programs, list, microbatch)?;
            probe.module.end_backward(microbatch, split)
        };
        Ok(self.timed(kind, run)?.0)
    }

    /// What stands for the input of a microbatch, or of one of its `slices`, in memory of its own.
    fn hidden_of(&self, layout: &Layout<'_>, microbatch: Microbatch, slices: u16) -> Tensor<2> {
        let [b, s, h] = layout.hidden;
        match slice_range(s, slices, microbatch) {
            range if range.len() == s => self.hidden.clone(),
            range => {
                let rows = b * range.len();
                self.hidden.clone().reshape([b, s, h]).slice([0..b, range, 0..h]).reshape([rows, h]) * 1.0
            }
        }
    }

    fn timed<R>(
        &mut self,
        kind: Kind,
        run: impl FnOnce(&mut Self) -> Result<R, TaskError>,
    ) -> Result<(Sample, R), TaskError> {
        let slot = memory::slot_of(self.rank);
        let before = memory::live(slot);
        memory::reset_peak(slot);
        let begin = Instant::now();
        let result = run(self)?;
        synchronize(&self.device);
        let seconds = begin.elapsed().as_secs_f64();
        let memory = [before, memory::peak(slot), memory::live(slot)];
        Ok((Sample { kind, at_work: 1, seconds, memory }, result))
    }
}

/// Measures a message of shape `[B, S, H]` between two ranks that wait for each other.
///
/// # Errors
/// A rank that stopped.
pub fn message(hidden: [usize; 3], devices: &[Device; 2], rounds: u32) -> Result<MessageCosts, TransportError> {
    let ends: [_; 2] = match <[_; 2]>::try_from(mesh(2)) {
        Ok(ends) => ends,
        Err(_) => return Ok(MessageCosts::default()),
    };
    let [near, far] = ends;
    let tag = |step| Tag { kind: MessageKind::Activation, stage: Stage::new(0), microbatch: None, step };
    let timeout = Duration::from_secs(60);
    let rounds = u64::from(rounds);
    let bytes = hidden.iter().map(|n| *n as u64).product::<u64>() * FP32;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<Vec<f64>, TransportError> {
            let tensor = Tensor::<3>::random(hidden, Distribution::Normal(0.0, 1.0), &devices[0]);
            let mut send = Vec::new();
            for step in 0..rounds {
                // The receiver says when it is about to wait; a moment later it does.
                near.receive(Rank(1), tag(step), timeout)?;
                std::thread::sleep(Duration::from_millis(2));
                for part in 0..2 {
                    // Nothing else holds a stage's output when it is sent.
                    let copy = tensor.clone() * 1.0;
                    let begin = Instant::now();
                    near.send(Rank(1), tag(2 * step + part), Payload::from_tensor(copy)?)?;
                    send.push(begin.elapsed().as_secs_f64());
                }
            }
            Ok(send)
        });
        let (mut hop, mut receive) = (Vec::new(), Vec::new());
        for step in 0..rounds {
            far.send(Rank(0), tag(step), Payload::new(vec![1], vec![0.0])?)?;
            let waited = far.receive(Rank(0), tag(2 * step), timeout)?;
            let _tensor = waited.payload.into_tensor::<3>(&devices[1])?;
            hop.push(waited.sent.elapsed().as_secs_f64());
            std::thread::sleep(Duration::from_millis(2));
            let begin = Instant::now();
            let there = far.receive(Rank(0), tag(2 * step + 1), timeout)?;
            let _tensor = there.payload.into_tensor::<3>(&devices[1])?;
            receive.push(begin.elapsed().as_secs_f64());
        }
        // A sender that panicked dropped its endpoint, which the receives above report.
        let send = sender.join().unwrap_or_else(|_| Ok(Vec::new()))?;
        let receive = Measured::of(&receive);
        let hop: Vec<f64> = hop.iter().map(|t| (t - receive.median).max(0.0)).collect();
        Ok(MessageCosts { bytes, send: Measured::of(&send), hop: Measured::of(&hop), receive })
    })
}
