//! From a scenario to a job for the executor.

use super::args::{Device as DeviceArg, ExecuteArgs};
use super::failure::Failure;
use super::load::Loaded;
use super::predict::{MAX_SPANS, sound};
use super::progress;
use pipewright::exec::data::{BYTE_VOCAB, TextData};
use pipewright::exec::device::{self, Device, DeviceKind};
use pipewright::exec::memory;
use pipewright::exec::optimizer::OptimizerConfig;
use pipewright::exec::profile::{self, Layout, ProfileOptions, Samples};
use pipewright::exec::reference::{self, Reference};
use pipewright::exec::run::{self, Named, Run, RunOptions};
use pipewright::exec::transformer::{self, StageSpec, Transformer};
use pipewright::exec::worker::TextBatches;
use pipewright::ir::action::Op;
use pipewright::ir::cost_table::{CostTable, MessageCosts};
use pipewright::ir::ids::Stage;
use pipewright::ir::model::ModelShape;
use pipewright::ir::plan::Plan;
use pipewright::ir::scenario::{DeviceName, Dtype, Optimizer, OptimizerName};
use pipewright::ir::schedule::Schedule;
use pipewright::ir::segments::Programs;
use pipewright::ir::workload::Workload;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a rank waits for a message before it gives the run up \[s\].
const TIMEOUT: Duration = Duration::from_secs(600);

/// Everything the executor needs but the schedule.
pub(crate) struct Job {
    pub(crate) shape: ModelShape,
    pub(crate) kind: DeviceKind,
    pub(crate) steps: u64,
    pub(crate) optimizer: OptimizerConfig,
    text: TextData,
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
        if execute.steps == 0 {
            return Err(loaded.fault(
                "execute.steps",
                "execute::steps",
                "execute.steps is 0".to_owned(),
                "use 1 or more",
            ));
        }
        let Some(plan) = loaded.plans.first() else {
            return Err(Failure::Usage { message: "no schedule is named".to_owned(), help: String::new() });
        };
        loaded.plans.iter().try_for_each(|plan| refuse_unsupported(loaded, plan))?;
        let Some(shape) = plan.model.clone() else {
            let help = "for example \"model\": { \"num_layers\": 8, \"hidden_size\": 256, \"num_attention_heads\": 8 }";
            return Err(loaded.fault("execute", "execute::model", "there is no model to execute".to_owned(), help));
        };
        if let Err(error) = transformer::check_shape(&shape) {
            return Err(loaded.fault("model", "execute::model", error.to_string(), "only simulate it"));
        }
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
        let alike = |other: &&Plan| other.model == plan.model && other.batch.seq_length == plan.batch.seq_length;
        if let Some(other) = loaded.plans.iter().find(|other| !alike(other)) {
            let message =
                format!("{} and {} differ in the model or in the length of its sequences", plan.name, other.name);
            let help =
                "what is executed together trains one model; choose a variant's schedule, or give it a file of its own";
            return Err(loaded.fault("variants", "execute::variants", message, help));
        }
        loaded.plans.iter().try_for_each(|plan| refuse_too_large(loaded, plan, &shape))?;
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
            steps: u64::from(args.steps.unwrap_or(execute.steps)),
            optimizer: optimizer(loaded, execute.optimizer.as_ref())?,
            text,
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

    /// Whether a plan's ranks must take turns on too few cores.
    pub(crate) fn oversubscribed(&self, plan: &Plan) -> bool {
        plan.mesh.devices() > u64::from(self.shared_cores())
    }

    /// [`Job::cores`] as a number: one that never limits where there is no limit.
    fn shared_cores(&self) -> u32 {
        self.cores().unwrap_or(u32::MAX)
    }

    /// Shape of a stage's output `[B, S, H]`.
    fn hidden(&self, plan: &Plan) -> [usize; 3] {
        [plan.batch.micro_batch_size, plan.batch.seq_length, self.shape.hidden_size].map(|n| n as usize)
    }

    /// What the stages of a plan compute, with I and W apart where any plan that cuts the model alike asks for it.
    fn programs(&self, plan: &Plan, plans: &[Plan]) -> Programs {
        let split = |other: &&Plan| other.order.has(|op| op == Op::BackwardWeight);
        let alike = plans.iter().filter(|other| other.layers == plan.layers);
        alike.clone().find(split).unwrap_or(plan).programs().unwrap_or_default()
    }

    /// How a plan cuts the model, for the profile, and what of a microbatch the plans that cut it alike ask for.
    fn layout<'p>(&self, plan: &'p Plan, plans: &[Plan], programs: &'p Programs) -> Layout<'p> {
        let alike = || plans.iter().filter(|other| other.layers == plan.layers);
        let slices: BTreeSet<u16> = alike().map(|other| other.order.slices).filter(|slices| *slices > 1).collect();
        Layout {
            placement: plan.placement(),
            layers: &plan.layers,
            hidden: self.hidden(plan),
            vocab: u64::from(self.shape.vocab_size),
            split: alike().any(|other| other.order.has(|op| op == Op::BackwardWeight)),
            programs,
            slices: slices.into_iter().collect(),
        }
    }

    /// The part of the model that device `device` of a plan's mesh holds of a stage.
    fn build(&self, plan: &Plan, stage: Stage, device: usize, on: &Device) -> Result<Transformer, String> {
        let numbers = [self.seed, plan.batch.micro_batch_size.into(), plan.batch.seq_length.into()];
        let (part, mesh) = (plan.part(stage), &plan.mesh);
        let spec = StageSpec::of(&self.shape, part, stage.index(), &plan.setup, mesh, device as u64, numbers);
        Transformer::new(spec, on).map_err(|error| error.to_string())
    }

    fn batches(&self, plan: &Plan) -> TextBatches {
        TextBatches { text: self.text.clone(), micro_batch_size: plan.batch.micro_batch_size as usize }
    }

    /// Trains with a schedule. `keep` keeps every gradient, for comparison.
    pub(crate) fn run(&self, plan: &Plan, cut: &Executable, steps: u64, keep: bool) -> Result<Run, Failure> {
        let Executable { programs, schedule } = cut;
        let steps_held = MAX_SPANS / schedule.len().max(1);
        if steps > steps_held as u64 {
            let message = format!("a timeline of {steps} steps of {} tasks is too large to keep", schedule.len());
            return Err(Failure::Usage { message, help: format!("use {steps_held} steps or fewer") });
        }
        let devices = self.devices(u32::try_from(plan.mesh.devices()).unwrap_or(u32::MAX))?;
        let options = RunOptions {
            steps,
            optimizer: self.optimizer,
            keep_gradients: keep,
            timeout: TIMEOUT,
            count_memory: self.kind == DeviceKind::Cpu,
        };
        let what = if keep { format!("verify {}", plan.name) } else { format!("run {}", plan.name) };
        let bar = progress::bar(&what, steps);
        let build = |stage: Stage, device: usize, on: &Device| self.build(plan, stage, device, on);
        let mut on_step = |_, loss: f64| {
            bar.inc(1);
            bar.set_message(format!("loss {loss:.4}"));
        };
        let job = run::Job { schedule, programs, mesh: &plan.mesh, setup: &plan.setup };
        let result = run::run(job, &devices, &build, &self.batches(plan), &options, &mut on_step);
        bar.finish_and_clear();
        result.map_err(|error| Failure::Execution(error.to_string()))
    }

    /// Trains on one device with the batch of a plan, keeping gradients of the first `keep` steps and the parameters after
    /// them.
    pub(crate) fn reference(&self, plan: &Plan, steps: u64, keep: u64) -> Result<Reference, Failure> {
        self.follow(plan, steps, keep, &[])
    }

    /// [`Job::reference`], each step from the parameters that a run had after the step before.
    pub(crate) fn follow(&self, plan: &Plan, steps: u64, keep: u64, after: &[Named]) -> Result<Reference, Failure> {
        let device = self.devices(1)?.remove(0);
        let sizes = [plan.batch.micro_batch_size, plan.batch.seq_length].map(|n| n as usize);
        let (module, programs) = transformer::on_one_device(&self.shape, &plan.setup, self.seed, sizes, &device)
            .map_err(|error| Failure::Execution(error.to_string()))?;
        let bar = progress::bar("one device", steps);
        let options = reference::Options {
            microbatches: microbatches(plan),
            steps,
            optimizer: self.optimizer,
            clip_grad: plan.setup.clip_grad,
            keep,
        };
        let batches = self.batches(plan);
        let result = reference::follow(module, &programs, &device, &batches, &options, after, &mut |_, _| bar.inc(1));
        bar.finish_and_clear();
        result.map_err(|error| Failure::Execution(format!("the run on one device failed: {error}")))
    }
}

/// A plan's task graph as it is executed: at the detail of segments, with what its tasks are made of.
pub(crate) struct Executable {
    programs: Programs,
    pub(crate) schedule: Schedule,
}

impl Executable {
    /// That of a plan, checked.
    pub(crate) fn of(plan: &Plan) -> Result<Self, Failure> {
        let whole = sound(plan, &Workload::abstract_stages(plan.placement().stages()))?;
        let programs = plan.programs().unwrap_or_default();
        Ok(Self { schedule: whole.segmented(&programs), programs })
    }
}

/// Microbatches of a step over all replicas.
pub(crate) fn microbatches(plan: &Plan) -> u32 {
    plan.batch.microbatches * plan.batch.rounds * plan.mesh.data.max(1)
}

/// Measures the costs of every way in which some plans cut the model, in as many turns as one likes.
pub(crate) struct Profiler<'a> {
    job: &'a Job,
    plans: &'a [Plan],
    /// A plan for each way of cutting, and what was measured of it.
    layouts: Vec<(&'a Plan, Samples)>,
}

impl<'a> Profiler<'a> {
    /// A profile measures stages by themselves, so a plan that shares a stage over devices is refused.
    pub(crate) fn new(loaded: &Loaded, job: &'a Job, plans: &'a [Plan]) -> Result<Self, Failure> {
        if let Some(plan) = plans.iter().find(|plan| plan.mesh.devices() != u64::from(plan.ranks())) {
            let (devices, ranks) = (plan.mesh.devices(), plan.ranks());
            let message = format!(
                "{} shares its {ranks} pipeline ranks over {devices} devices, and a profile measures one device a rank",
                plan.name
            );
            let help = "`run` and `verify` execute it; on a cluster `simulate` predicts it";
            return Err(loaded.fault("parallel", "execute::profile", message, help));
        }
        let mut layouts: Vec<(&Plan, Samples)> = Vec::new();
        for plan in plans {
            if layouts.iter().all(|(known, _)| known.layers != plan.layers) {
                layouts.push((plan, Samples::default()));
            }
        }
        Ok(Self { job, plans, layouts })
    }

    /// Measures every layout for `rounds` rounds.
    pub(crate) fn turn(&mut self, rounds: u32) -> Result<(), Failure> {
        let job = self.job;
        let options = ProfileOptions { warmup: 1, rounds, cores: job.shared_cores(), optimizer: job.optimizer };
        let bar = progress::bar("profile", self.layouts.len() as u64);
        for (plan, samples) in &mut self.layouts {
            let build = |stage: Stage, device: usize, on: &Device| job.build(plan, stage, device, on);
            let devices = job.devices(plan.ranks())?;
            let programs = job.programs(plan, self.plans);
            let layout = job.layout(plan, self.plans, &programs);
            let measured = profile::layout(&layout, &devices, &build, &job.batches(plan), &options);
            samples.extend(measured.map_err(|error| profile_failed(&error))?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// The costs measured so far, and those of a message.
    pub(crate) fn table(&self) -> Result<CostTable, Failure> {
        let Some((first, _)) = self.layouts.first() else { return Ok(CostTable::default()) };
        let devices = self.job.devices(first.ranks())?;
        let message = match devices.as_slice() {
            [a, b, ..] => profile::message(self.job.hidden(first), &[a.clone(), b.clone()], 50)
                .map_err(|error| profile_failed(&error))?,
            _ => MessageCosts::default(),
        };
        let slowdowns: Vec<(usize, f64)> = self.layouts.iter().flat_map(|(_, samples)| samples.slowdowns()).collect();
        Ok(CostTable {
            schema_version: 1,
            device: device::describe(self.job.kind, &devices),
            cores: self.job.shared_cores(),
            contention: profile::contention(&slowdowns),
            job: first.job.clone(),
            layouts: self
                .layouts
                .iter()
                .map(|(plan, samples)| {
                    let programs = self.job.programs(plan, self.plans);
                    samples.costs(&self.job.layout(plan, self.plans, &programs))
                })
                .collect(),
            message,
        })
    }
}

fn profile_failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::Execution(format!("the profile failed: {error}"))
}

/// What the executor cannot do yet is refused, whether the scenario asks for it or a default does.
fn refuse_unsupported(loaded: &Loaded, plan: &Plan) -> Result<(), Failure> {
    let Plan { mesh, setup, .. } = plan;
    let unsupported = [
        (mesh.expert > 1, "parallel.expert_model_parallel_size", "expert parallelism", "1"),
        (setup.dtype != Dtype::Fp32, "training.dtype", "16-bit training", "\"fp32\""),
        (setup.gradient_dtype != Dtype::Fp32, "training.gradient_dtype", "16-bit gradients", "\"fp32\""),
    ];
    match unsupported.into_iter().find(|(wanted, ..)| *wanted) {
        None => Ok(()),
        Some((_, path, what, use_instead)) => {
            let message = format!("{what} cannot be executed by this version");
            let help = format!("use {path} = {use_instead}, or only simulate");
            Err(loaded.fault(path, "execute::unsupported", message, help))
        }
    }
}

/// Most memory that a run may need by a rough count before it is refused: what no workstation has \[B\].
const MAX_MEMORY: u64 = 1 << 40;

/// A slip of a few zeros would otherwise end in an allocation that the system answers by ending the program.
fn refuse_too_large(loaded: &Loaded, plan: &Plan, shape: &ModelShape) -> Result<(), Failure> {
    let [layers, hidden, heads, ffn] =
        [shape.num_layers, shape.hidden_size, shape.num_attention_heads, shape.ffn_hidden_size].map(u64::from);
    let (tokens, seq) = (plan.batch.microbatch_tokens(), u64::from(plan.batch.seq_length));
    let attention = tokens.saturating_mul(seq).saturating_mul(heads);
    let linear = tokens.saturating_mul(8 * hidden + 2 * ffn);
    let activations = attention.saturating_add(linear).saturating_mul(layers).saturating_mul(4);
    let weights = shape.parameters().saturating_mul(16);
    let bytes = activations.saturating_add(weights);
    if bytes <= MAX_MEMORY {
        return Ok(());
    }
    let gib = |bytes: u64| bytes >> 30;
    let message = format!(
        "one microbatch would keep about {} GiB and the weights with optimizer {} GiB: too much to execute here",
        gib(activations),
        gib(weights)
    );
    Err(loaded.fault(
        "model",
        "execute::memory",
        message,
        "use a smaller model, microbatch or sequence, or only simulate",
    ))
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
