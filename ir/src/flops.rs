//! How much a training step computes, and how fast that is.
//!
//! - *Model FLOPs*: the multiplications of forward and backward of the unsplit model, every (query, key) pair counted,
//!   masked or not. For a GPT `72 B L s h^2 (1 + s / 6h + V / 12hL)` (Narayanan et al. 2021, section 5.1, without the
//!   quarter for recomputation).
//! - *Hardware FLOPs*: what the devices multiply: recomputation too, and what tensor parallelism computes on every rank.
//!   With full recomputation of a GPT `96 B L s h^2 (1 + s / 6h + V / 16hL)`.
//! - *MFU*, *HFU*: model or hardware FLOPs / (time x devices x peak) (Chowdhery et al. 2022, appendix B; Korthikanti et
//!   al. 2022, section 6.3).
//!
//! One law: model FLOPs are those of the shape, hardware FLOPs the sum over the kernels that the costs come from.

use crate::action::Op;
use crate::mesh::Mesh;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::segments::{Body, Phase, Placed, Programs};

/// Floating-point operations by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flops {
    /// F.
    pub forward: f64,
    /// Forward again, in backward.
    pub recompute: f64,
    /// Gradients of inputs.
    pub input: f64,
    /// Gradients of weights.
    pub weight: f64,
}

impl Flops {
    /// Without recomputation.
    pub fn model(&self) -> f64 {
        self.forward + self.input + self.weight
    }

    /// All of it.
    pub fn hardware(&self) -> f64 {
        self.model() + self.recompute
    }

    /// Those of some steps.
    pub fn of(programs: &Programs, placed: &[Placed]) -> Self {
        let mut flops = Self::default();
        placed.iter().for_each(|placed| flops.count(programs, placed.step));
        flops
    }

    fn count(&mut self, programs: &Programs, step: u32) {
        let Some(step) = programs.step(step) else { return };
        if let Body::Run(steps) = &step.body {
            steps.iter().for_each(|part| self.count(programs, part.step));
        }
        let slot = match step.phase {
            Phase::Forward => &mut self.forward,
            Phase::Recompute => &mut self.recompute,
            Phase::Input => &mut self.input,
            Phase::Weight => &mut self.weight,
        };
        *slot += step.work().flops;
    }

    fn add(&mut self, other: Self, times: f64) {
        self.forward += other.forward * times;
        self.recompute += other.recompute * times;
        self.input += other.input * times;
        self.weight += other.weight * times;
    }
}

/// What one rank of each axis computes for one microbatch, over all stages.
pub fn of_microbatch(programs: &Programs) -> Flops {
    let mut flops = Flops::default();
    for stage in &programs.stages {
        flops.add(Flops::of(programs, &stage.forward), 1.0);
        flops.add(Flops::of(programs, &stage.backward), 1.0);
    }
    flops
}

/// What all devices of a mesh compute in one step of a schedule at the detail of stages.
pub fn of_step(schedule: &Schedule, programs: &Programs, mesh: &Mesh) -> Flops {
    let lists = |op: Op, stage: usize| {
        let stage = programs.stages.get(stage)?;
        Some(match op {
            Op::Forward => Flops::of(programs, &stage.forward),
            Op::FullBackward => Flops::of(programs, &stage.backward),
            Op::BackwardInput => Flops::of(programs, &stage.input),
            Op::BackwardWeight => Flops::of(programs, &stage.weight),
            _ => return None,
        })
    };
    const OPS: [Op; 4] = [Op::Forward, Op::FullBackward, Op::BackwardInput, Op::BackwardWeight];
    let mut counts = vec![[0.0_f64; OPS.len()]; programs.stages.len()];
    for (_, task) in schedule.tasks() {
        let op = OPS.iter().position(|op| *op == task.action.op);
        if let (Some(op), Some(counts)) = (op, counts.get_mut(task.action.stage.index())) {
            counts[op] += 1.0;
        }
    }
    let slices = f64::from(schedule.cells().slices().max(1));
    let copies = [mesh.tensor, mesh.context, mesh.data].map(|n| f64::from(n.max(1))).iter().product::<f64>();
    let mut flops = Flops::default();
    for (stage, counts) in counts.iter().enumerate() {
        for (op, count) in OPS.iter().zip(counts).filter(|(_, count)| **count > 0.0) {
            flops.add(lists(*op, stage).unwrap_or_default(), count * copies / slices);
        }
    }
    flops
}

impl Plan {
    /// Model FLOPs of one step of all replicas: forward and backward of the unsplit model. `None` without a model or a
    /// sequence length.
    pub fn model_flops(&self) -> Option<f64> {
        let model = self.model.as_ref().filter(|_| self.batch.seq_length > 0)?;
        let flops =
            model.model_flops(model.whole(), self.batch.microbatch_tokens(), u64::from(self.batch.seq_length)) as f64;
        let microbatches = [self.batch.microbatches, self.batch.rounds, self.mesh.data].map(|n| f64::from(n.max(1)));
        Some(flops * microbatches.iter().product::<f64>())
    }
}

/// How fast a step is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Time of a step \[s\].
    pub step_seconds: f64,
    /// Tokens of a step, over all replicas.
    pub tokens: f64,
    /// Devices.
    pub devices: f64,
    /// Model FLOPs of a step, over all devices.
    pub model_flops: f64,
    /// Hardware FLOPs of a step, over all devices.
    pub hardware_flops: f64,
    /// Peak of one device in the format that training uses \[FLOP/s\].
    pub peak_flops: f64,
}

impl Throughput {
    /// Of a plan whose step takes `step_seconds`, from its schedule at the detail of stages; `None` without a model or a
    /// cluster.
    pub fn of(plan: &Plan, schedule: &Schedule, programs: &Programs, step_seconds: f64) -> Option<Self> {
        let gpu = &plan.cluster.as_ref()?.hardware.gpu;
        Some(Self {
            step_seconds,
            tokens: plan.batch.tokens() as f64 * f64::from(plan.mesh.data.max(1)),
            devices: plan.mesh.devices() as f64,
            model_flops: plan.model_flops()?,
            hardware_flops: of_step(schedule, programs, &plan.mesh).hardware(),
            peak_flops: gpu.peak_flops.of(plan.setup.dtype).unwrap_or(gpu.peak_flops.fp32.value),
        })
    }

    /// Tokens a second, of all devices.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens / self.step_seconds
    }

    /// Model TFLOP/s of one device.
    pub fn tflops_per_gpu(&self) -> f64 {
        self.model_flops / self.step_seconds / self.devices / 1e12
    }

    /// Hardware TFLOP/s of one device.
    pub fn hardware_tflops_per_gpu(&self) -> f64 {
        self.hardware_flops / self.step_seconds / self.devices / 1e12
    }

    /// Model FLOPs utilisation.
    pub fn mfu(&self) -> f64 {
        self.model_flops / (self.step_seconds * self.devices * self.peak_flops)
    }

    /// Hardware FLOPs utilisation.
    pub fn hfu(&self) -> f64 {
        self.hardware_flops / (self.step_seconds * self.devices * self.peak_flops)
    }
}
