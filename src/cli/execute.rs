//! From a scenario to a job for the executor.

use super::args::{Device as DeviceArg, ExecuteArgs};
use super::failure::Failure;
use super::load::Loaded;
use super::progress;
use pipewright::exec::data::{BYTE_VOCAB, TextData};
use pipewright::exec::device::{self, Device, DeviceKind};
use pipewright::exec::gpt::GptStage;
use pipewright::exec::memory;
use pipewright::exec::optimizer::OptimizerConfig;
use pipewright::exec::profile::{self, Layout, ProfileOptions};
use pipewright::exec::reference::{self, Reference};
use pipewright::exec::run::{self, Run, RunOptions};
use pipewright::exec::worker::TextBatches;
use pipewright::ir::cost_table::CostTable;
use pipewright::ir::ids::{LayerRange, Stage};
use pipewright::ir::model::{ModelShape, StagePart};
use pipewright::ir::plan::Plan;
use pipewright::ir::scenario::{DeviceName, Dtype, Optimizer, OptimizerName, Recompute, SequenceParallel};
use pipewright::ir::schedule::Schedule;
use std::time::Duration;

/// How long a rank waits for a message before it gives the run up [s].
const TIMEOUT: Duration = Duration::from_secs(600);

/// Everything the executor needs but the schedule.
pub(crate) struct Job {
    pub(crate) shape: ModelShape,
    pub(crate) kind: DeviceKind,
    pub(crate) steps: u64,
    pub(crate) optimizer: OptimizerConfig,
    batches: TextBatches,
    seed: u64,
    share: bool,
}

impl Job {
    /// The job of a scenario; options override it.
    pub(crate) fn of(loaded: &Loaded, args: &ExecuteArgs) -> Result<Self, Failure> {
        let Some(execute) = &loaded.scenario.execute else {
            let message = "the scenario does not say how to execute".to_owned();
            let help = "add \"execute\": { \"steps\": 20, \"data\": \"data/text.txt\" } beside a \"model\"";
            return Err(Failure::Usage { message, help: help.to_owned() });
        };
        refuse_unsupported(loaded)?;
        let Some(plan) = loaded.plans.first() else {
            return Err(Failure::Usage { message: "no schedule is named".to_owned(), help: String::new() });
        };
        let Some(shape) = plan.model.clone() else {
            let help = "for example \"model\": { \"num_layers\": 8, \"hidden_size\": 256, \"num_attention_heads\": 8 }";
            return Err(loaded.fault("execute", "execute::model", "there is no model to execute".to_owned(), help));
        };
        if shape.vocab_size < BYTE_VOCAB {
            let message = format!("a vocabulary of {} cannot hold the {BYTE_VOCAB} bytes of a text", shape.vocab_size);
            return Err(loaded.fault("model.vocab_size", "execute::vocabulary", message, "use 256 or more"));
        }
        if plan.batch.seq_length == 0 {
            let message = "execution needs the length of a sequence".to_owned();
            return Err(loaded.fault(
                "training",
                "execute::sequence",
                message,
                "set training.seq_length, for example to 128",
            ));
        }
        let seed = execute.seed.unwrap_or(0);
        let path = loaded.path(&execute.data);
        let text = TextData::read(&path, plan.batch.seq_length as usize, seed).map_err(|error| {
            let help =
                "any text file of more than training.seq_length bytes will do; paths are relative to the scenario";
            loaded.fault("execute.data", "execute::data", error.to_string(), help)
        })?;
        let kind = match (args.device, execute.device.unwrap_or_default()) {
            (Some(DeviceArg::Cpu), _) | (None, DeviceName::Cpu) => DeviceKind::Cpu,
            (Some(DeviceArg::Cuda), _) | (None, DeviceName::Cuda) => DeviceKind::Cuda,
        };
        if kind == DeviceKind::Cpu {
            // A step frees and allocates the same large blocks again and again.
            memory::keep_freed_memory();
        }
        Ok(Self {
            shape,
            kind,
            steps: u64::from(args.steps.unwrap_or(execute.steps).max(1)),
            optimizer: optimizer(loaded, execute.optimizer.as_ref())?,
            batches: TextBatches { text, micro_batch_size: plan.batch.micro_batch_size as usize },
            seed,
            share: args.share_devices,
        })
    }

    /// A device for each rank.
    pub(crate) fn devices(&self, ranks: u32) -> Result<Vec<Device>, Failure> {
        device::open(self.kind, ranks as usize, self.share).map_err(|error| Failure::Execution(error.to_string()))
    }

    /// What it runs on, in words.
    pub(crate) fn device_name(&self) -> &'static str {
        match self.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        }
    }

    /// How many ranks can really work at once, where that is limited: cores of this machine.
    pub(crate) fn cores(&self) -> Option<u32> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (self.kind == DeviceKind::Cpu).then(|| u32::try_from(cores).unwrap_or(u32::MAX))
    }

    fn build(&self, part: StagePart, device: &Device) -> Result<GptStage, String> {
        GptStage::new(&self.shape, part, self.seed, device).map_err(|error| error.to_string())
    }

    /// Trains with a schedule. `keep` keeps every gradient, for comparison.
    pub(crate) fn run(&self, plan: &Plan, schedule: &Schedule, steps: u64, keep: bool) -> Result<Run, Failure> {
        let devices = self.devices(plan.ranks())?;
        let options = RunOptions { steps, optimizer: self.optimizer, keep_gradients: keep, timeout: TIMEOUT };
        let what = if keep { format!("verify {}", plan.name) } else { format!("run {}", plan.name) };
        let bar = progress::bar(&what, steps);
        let build = |stage: Stage, device: &Device| self.build(plan.part(stage), device);
        let mut on_step = |_, loss: f64| {
            bar.inc(1);
            bar.set_message(format!("loss {loss:.4}"));
        };
        let result = run::run::<GptStage>(schedule, &devices, &build, &self.batches, &options, &mut on_step);
        bar.finish_and_clear();
        result.map_err(|error| Failure::Execution(error.to_string()))
    }

    /// Trains on one device, keeping gradients of the first `keep` steps and the parameters after them.
    pub(crate) fn reference(&self, microbatches: u32, steps: u64, keep: u64) -> Result<Reference, Failure> {
        let device = self.devices(1)?.remove(0).autodiff();
        let whole = LayerRange { start: 0, end: self.shape.num_layers };
        let part = StagePart { layers: whole, embedding: true, head: true };
        let module = self.build(part, &device).map_err(Failure::Execution)?;
        let bar = progress::bar("one device", steps);
        let options = reference::Options { microbatches, steps, optimizer: self.optimizer, keep };
        let result = reference::train(module, &device, &self.batches, &options, &mut |_, _| bar.inc(1));
        bar.finish_and_clear();
        result.map_err(|error| Failure::Execution(format!("the run on one device failed: {error}")))
    }

    /// Measures the costs of every way in which the plans cut the model.
    pub(crate) fn profile(&self, plans: &[Plan]) -> Result<CostTable, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Execution(format!("the profile failed: {error}"));
        let cores = self.cores().unwrap_or(u32::MAX);
        let Some(first) = plans.first() else { return Ok(CostTable::default()) };
        let hidden = [first.batch.micro_batch_size, first.batch.seq_length, self.shape.hidden_size].map(|n| n as usize);
        let options = ProfileOptions { warmup: 2, rounds: 6, cores, optimizer: self.optimizer };
        let mut table = CostTable {
            schema_version: 1,
            device: device::describe(self.kind, &self.devices(first.ranks())?),
            cores,
            job: first.job.clone(),
            ..CostTable::default()
        };
        let bar = progress::bar("profile", plans.len() as u64);
        for plan in plans {
            if table.layout(&plan.layers).is_none() {
                let layout = Layout {
                    placement: plan.placement(),
                    layers: &plan.layers,
                    hidden,
                    vocab: u64::from(self.shape.vocab_size),
                };
                let build = |stage: Stage, device: &Device| self.build(plan.part(stage), device);
                let devices = self.devices(plan.ranks())?;
                let costs = profile::layout::<GptStage>(&layout, &devices, &build, &self.batches, &options);
                table.layouts.push(costs.map_err(|e| failed(&e))?);
            }
            bar.inc(1);
        }
        if let Some([a, b, ..]) = Some(self.devices(first.ranks())?.as_slice()).filter(|d| d.len() > 1) {
            table.message = profile::message(hidden, &[a.clone(), b.clone()], 50).map_err(|e| failed(&e))?;
        }
        bar.finish_and_clear();
        Ok(table)
    }
}

/// Knobs of the scenario that this version predicts or plans but cannot execute.
fn refuse_unsupported(loaded: &Loaded) -> Result<(), Failure> {
    let (parallel, training) = (&loaded.scenario.parallel, &loaded.scenario.training);
    let more = |size: Option<u32>| size.is_some_and(|size| size > 1);
    let unsupported = [
        (more(parallel.tensor_model_parallel_size), "parallel.tensor_model_parallel_size", "tensor parallelism", "1"),
        (more(parallel.data_parallel_size), "parallel.data_parallel_size", "data parallelism", "1"),
        (more(parallel.context_parallel_size), "parallel.context_parallel_size", "context parallelism", "1"),
        (
            parallel.sequence_parallel.is_some_and(|kind| kind != SequenceParallel::None),
            "parallel.sequence_parallel",
            "sequence parallelism",
            "\"none\"",
        ),
        (parallel.zero_stage.is_some_and(|stage| stage > 0), "parallel.zero_stage", "ZeRO", "0"),
        (training.dtype.is_some_and(|dtype| dtype != Dtype::Fp32), "training.dtype", "16-bit training", "\"fp32\""),
        (
            training.recompute.is_some_and(|recompute| recompute != Recompute::None),
            "training.recompute",
            "recomputation",
            "\"none\"",
        ),
    ];
    match unsupported.into_iter().find(|(wanted, ..)| *wanted) {
        None => Ok(()),
        Some((_, path, what, use_instead)) => {
            let message = format!("{what} cannot be executed by this version");
            Err(loaded.fault(path, "execute::unsupported", message, format!("use {use_instead}, or only simulate")))
        }
    }
}

fn optimizer(loaded: &Loaded, written: Option<&Optimizer>) -> Result<OptimizerConfig, Failure> {
    let Some(written) = written else { return Ok(OptimizerConfig::adamw(3e-4)) };
    let number = |value: f64, key: &str| {
        if value.is_finite() && value >= 0.0 {
            return Ok(value);
        }
        let path = format!("execute.optimizer.{key}");
        let message = format!("{path} is {value}; it must be a finite number of at least 0");
        Err(loaded.fault(&path, "execute::optimizer", message, "use 0 or more"))
    };
    let lr = number(written.lr, "lr")?;
    let [beta1, beta2] = written.betas.unwrap_or([0.9, 0.999]);
    if ![beta1, beta2].iter().all(|beta| (0.0..1.0).contains(beta)) {
        let message = format!("the decay rates {beta1} and {beta2} must lie in [0, 1)");
        return Err(loaded.fault(
            "execute.optimizer.betas",
            "execute::optimizer",
            message,
            "the usual ones are [0.9, 0.999]",
        ));
    }
    Ok(match written.kind {
        OptimizerName::Adamw => OptimizerConfig::AdamW {
            lr,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: number(written.eps.unwrap_or(1e-8), "eps")? as f32,
            weight_decay: number(written.weight_decay.unwrap_or(0.01), "weight_decay")? as f32,
        },
        OptimizerName::Sgd => {
            OptimizerConfig::Sgd { lr, momentum: number(written.momentum.unwrap_or(0.0), "momentum")? }
        }
    })
}
