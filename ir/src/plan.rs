//! From a scenario to plans: defaults, divisions, one plan for each schedule.
//!
//! One law: every fault of a scenario is reported at once, at the knob the user wrote, with the nearest legal values.

mod batch;
mod custom;
mod layout;
mod mesh;
mod model;
mod nominal;
mod parallel;
mod programs;
mod setup;
mod unit_faults;

pub use batch::Batch;
pub use custom::Source;
pub use layout::even_layout;
pub use model::model_shape;

use crate::action::Op;
use crate::cluster::Cluster;
use crate::cost_table::CostTable;
use crate::fault::Fault;
use crate::ids::{LayerRange, Stage};
use crate::mesh::Mesh;
use crate::model::{ModelShape, StagePart};
use crate::order::PipelineOrder;
use crate::passes;
use crate::placement::Placement;
use crate::scenario::{OptimizerName, PerRank, Scenario, ScheduleEntry};
use crate::schedule::{Draft, Schedule};
use crate::schedules::{self, Chunks, Family, ScheduleParams};
use crate::setup::Setup;
use crate::spec::Violation;
use crate::unit_costs::{StageTimes, UnitCosts};
use crate::workload::Workload;

/// One schedule of a scenario, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name: the family's, with `v` where it interleaves, or `custom` with the file's name.
    pub name: String,
    /// The family, or `custom`.
    pub family: String,
    /// Chunks a rank `v`.
    pub chunks: u32,
    /// The order of compute actions (of everything, where a file had it), one pass of the pipeline.
    pub order: PipelineOrder,
    /// `custom`: the CSV that the order was read from.
    pub source: Option<Source>,
    /// Most activations that each rank may hold, where the scenario limits them, in microbatches of its whole share.
    pub max_activations: Option<Vec<f64>>,
    /// The batch.
    pub batch: Batch,
    /// The devices: sizes and order of the axes.
    pub mesh: Mesh,
    /// How it is trained, beside shape and batch.
    pub setup: Setup,
    /// The cluster, where the scenario has one.
    pub cluster: Option<Cluster>,
    /// The model, where the scenario has one.
    pub model: Option<ModelShape>,
    /// Layers of each stage; empty without a model.
    pub layers: Vec<LayerRange>,
    /// What is trained, in words: model, microbatch, optimizer. Costs measured for one job say nothing of another.
    pub job: String,
    /// Things the user should know though they are legal.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Pipeline ranks `p`.
    pub fn ranks(&self) -> u32 {
        self.order.placement.ranks()
    }

    /// Which rank holds which stage.
    pub fn placement(&self) -> &Placement {
        &self.order.placement
    }

    /// The part of the model that a stage holds.
    pub fn part(&self, stage: Stage) -> StagePart {
        let layers = self.layers.get(stage.index()).copied().unwrap_or_default();
        StagePart { layers, embedding: self.placement().is_first(stage), head: self.placement().is_last(stage) }
    }

    /// Whether the two copies of a tied embedding must be reduced.
    pub fn reduces_tied_embedding(&self) -> bool {
        self.model.as_ref().is_some_and(|m| !m.untie_embeddings_and_output_weights) && self.placement().stages() > 1
    }

    /// Whether gradients must be summed over the tensor-parallel ranks: of weights that these hold copies of and have seen
    /// different parts of.
    pub fn reduces_over_tensor(&self) -> bool {
        let of_model = |model: &ModelShape| {
            let weights = model.all_weights();
            weights.iter().any(|w| w.partial_elements(self.mesh.tensor, self.setup.megatron_sequence_parallel) > 0)
        };
        let sequence = self.mesh.tensor > 1 && self.setup.megatron_sequence_parallel;
        self.model.as_ref().map_or(sequence, of_model)
    }

    /// The whole program of an optimizer step: accumulation rounds, messages, reductions, optimizer. What a custom order
    /// already has of a kind stays as it is there.
    pub fn program(&self) -> PipelineOrder {
        let mut order = passes::accumulate(&self.order, self.batch.rounds);
        if !order.has(|op| op.is_send() || op.is_receive()) {
            order = passes::add_send_recv(&order);
        }
        if !order.has(|op| op == Op::ReduceGrad) {
            order = passes::add_gradient_reduction(order);
        }
        // ZeRO-3 scatters gradients in every backward and gathers weights in every forward.
        let replicas = self.mesh.replicas() > 1 && self.setup.zero_stage < 3;
        if replicas && !order.has(|op| op == Op::ReduceData) {
            order = passes::add_data_reduction(order);
        }
        if self.reduces_over_tensor() && !order.has(|op| op == Op::ReduceTensor) {
            order = passes::add_tensor_reduction(order);
        }
        if self.reduces_tied_embedding() && !order.has(|op| op == Op::ReduceTied) {
            order = passes::add_tied_reduction(order);
        }
        if self.setup.clip_grad.is_some() && !order.has(|op| op == Op::ClipGrad) {
            order = passes::add_gradient_clipping(order);
        }
        if !order.has(|op| op == Op::OptimizerStep) {
            order = passes::add_optimizer_step(order);
        }
        if replicas && self.setup.zero_stage > 0 && !order.has(|op| op == Op::GatherParam) {
            order = passes::add_parameter_gather(order);
        }
        order
    }

    /// The unchecked task graph of an optimizer step.
    pub fn draft(&self, workload: &Workload) -> Draft {
        Draft::lower(&self.program(), workload)
    }

    /// The task graph of an optimizer step.
    ///
    /// # Errors
    /// Every violation of the law; only a custom order can have one.
    pub fn schedule(&self, workload: &Workload) -> Result<Schedule, Vec<Violation>> {
        self.draft(workload).seal()
    }
}

/// Resolves every schedule of a scenario. `read` gives the text of a file named in it, or why it cannot.
///
/// # Errors
/// Every fault of the scenario, each once.
pub fn resolve(scenario: &Scenario, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Vec<Plan>, Vec<Fault>> {
    let mut faults = Vec::new();
    if scenario.schema_version != 1 {
        let message = format!("schema_version {} is not known to this version of pipewright", scenario.schema_version);
        faults.push(Fault::new("schema_version", "scenario::version", message, "use 1"));
    }
    if scenario.schedules.is_empty() {
        let help = "name at least one, for example \"1f1b\"";
        faults.push(Fault::new("schedules", "scenario::schedules", "no schedule is named", help));
    }
    let name_length = scenario.name.chars().count();
    if !(1..=100).contains(&name_length) || scenario.name.chars().any(char::is_control) {
        let message = format!("a name has 1 to 100 characters and no control characters; this one has {name_length}");
        faults.push(Fault::new("name", "scenario::name", message, "it is used in titles and as the name of a folder"));
    }
    let ranks = scenario.parallel.pipeline_model_parallel_size.unwrap_or(1);
    let mut mesh_faults = Vec::new();
    let (mesh, cluster) = mesh::resolve(scenario, read, &mut mesh_faults);
    let setup = setup::resolve(scenario, cluster.as_ref(), &mesh, &mut mesh_faults);
    let mut batch_faults = Vec::new();
    let batch = batch::resolve(scenario, mesh.data, &mut batch_faults);
    if !mesh_faults.is_empty() && scenario.parallel.data_parallel_size.is_none() {
        // The number of replicas is not known; what it does not divide would be an echo.
        batch_faults.retain(|fault| fault.code != batch::DIVIDE);
    }
    faults.extend(mesh_faults.into_iter().chain(batch_faults));
    let model = scenario.model.as_ref().and_then(|m| model::resolve(m, scenario, read, &mut faults));
    let mut plans = Vec::new();
    let (cluster, model) = (cluster.as_ref(), model.as_ref());
    let context = Context { scenario, ranks, batch, mesh: &mesh, setup: &setup, cluster, model, read };
    faults.extend(parallel::faults(&context.facts()));
    for (i, entry) in scenario.schedules.iter().enumerate() {
        match resolve_entry(&context, i, entry) {
            Ok(plan) => {
                unit_faults::check_stages(scenario, &plan, &mut faults);
                plans.push(plan);
            }
            Err(found) => faults.extend(found),
        }
    }
    unit_faults::check(scenario, &mut faults);
    // Several schedules may stumble over the same knob: say it once.
    let mut unique: Vec<Fault> = Vec::new();
    for fault in faults {
        if !unique.contains(&fault) {
            unique.push(fault);
        }
    }
    if unique.is_empty() { Ok(plans) } else { Err(unique) }
}

struct Context<'a> {
    scenario: &'a Scenario,
    ranks: u32,
    batch: Batch,
    mesh: &'a Mesh,
    setup: &'a Setup,
    cluster: Option<&'a Cluster>,
    model: Option<&'a ModelShape>,
    read: &'a dyn Fn(&str) -> Result<String, String>,
}

impl<'a> Context<'a> {
    fn facts(&self) -> parallel::Facts<'a> {
        let Context { scenario, mesh, setup, cluster, model, .. } = *self;
        parallel::Facts { scenario, mesh, setup, cluster, model }
    }
}

fn resolve_entry(context: &Context<'_>, i: usize, entry: &ScheduleEntry) -> Result<Plan, Vec<Fault>> {
    let at = format!("schedules[{i}]");
    let parallel = &context.scenario.parallel;
    let mut source = None;
    let mut told = Vec::new();
    let (name, family, chunks, order) = if entry.name.eq_ignore_ascii_case("custom") {
        let custom = custom::resolve(context, &at, entry)?;
        let chunks = custom.order.placement.stages().div_ceil(custom.order.placement.ranks().max(1));
        (source, told) = (custom.source, custom.warnings);
        (format!("custom {}", custom.file), "custom".to_owned(), chunks, custom.order)
    } else {
        let family = schedules::find(&entry.name).ok_or_else(|| vec![unknown_family(&at, &entry.name)])?;
        for (key, file) in [("csv", &entry.csv), ("json", &entry.json)] {
            if file.is_some() {
                let message = format!("{} is built from its name and reads no file", family.name);
                let help = "use \"name\": \"custom\"";
                return Err(vec![Fault::new(format!("{at}.{key}"), "schedule::file", message, help)]);
            }
        }
        let own = entry.virtual_pipeline_model_parallel_size;
        let chunks = own.unwrap_or_else(|| family.default_chunks(parallel.virtual_pipeline_model_parallel_size));
        // Too many ranks are refused below, and no list is made for them.
        let limit = entry.max_activations.as_ref().filter(|_| context.ranks <= schedules::MAX_RANKS);
        let params = ScheduleParams {
            ranks: context.ranks,
            microbatches: context.batch.microbatches,
            chunks,
            microbatch_group_size: entry.microbatch_group_size_per_vp_stage,
            num_seq_splits: entry.num_seq_splits,
            times: times(context, &at, entry, chunks),
            max_activations: limit.map(|limit| limit.each(context.ranks)),
        };
        let order = family
            .order(&params)
            .map_err(|found| found.into_iter().map(|f| relocate(f, &at, entry, context)).collect::<Vec<_>>())?;
        (plan_name(family, entry, chunks), family.name.to_owned(), chunks, order)
    };
    let all_microbatches = context.batch.microbatches.saturating_mul(context.batch.rounds);
    let (ranks, stages) = (order.placement.ranks(), order.placement.stages());
    let mut too_large = schedules::size_faults(ranks, stages, all_microbatches, order.slices);
    // An order of one's own may repeat itself.
    let actions = (order.len() as u64).saturating_mul(u64::from(context.batch.rounds));
    if actions > MAX_ACTIONS {
        let message = format!("{actions} actions are more than {MAX_ACTIONS}, the most of one step");
        too_large.push(Fault::new(&at, "schedule::size", message, "use fewer accumulation rounds"));
    }
    too_large.extend(parallel::recompute_fault(context.setup, stages));
    if !too_large.is_empty() {
        return Err(too_large);
    }
    let (slices, seq_length) = (u32::from(order.slices), context.batch.seq_length);
    if seq_length > 0 && slices > seq_length {
        let path = if family == "custom" { format!("{at}.csv") } else { format!("{at}.num_seq_splits") };
        let message = format!("sequences of {seq_length} tokens cannot be cut into {slices} slices");
        return Err(vec![Fault::new(path, "schedule::slices", message, format!("use {seq_length} slices or fewer"))]);
    }
    let layers = match context.model {
        // An order of one's own may put any number of stages on a rank.
        Some(model) => {
            let chunks = if family == "custom" { 1 } else { chunks };
            layout::resolve(&layout_request(context, model, order.placement.stages(), chunks), &at, entry)?
        }
        None => Vec::new(),
    };
    told.extend(warnings(context, &family, &order, chunks));
    let (batch, model, job) = (context.batch, context.model.cloned(), job(context));
    let (mesh, setup, cluster) = (*context.mesh, context.setup.clone(), context.cluster.cloned());
    let max_activations = entry.max_activations.as_ref().map(|limit| limit.each(context.ranks));
    let warnings = told;
    Ok(Plan {
        name,
        family,
        chunks,
        order,
        source,
        max_activations,
        batch,
        mesh,
        setup,
        cluster,
        model,
        layers,
        job,
        warnings,
    })
}

fn layout_request<'a>(context: &Context<'a>, model: &'a ModelShape, stages: u32, chunks: u32) -> layout::Request<'a> {
    let parallel = &context.scenario.parallel;
    layout::Request { model, parallel, stages, chunks, seq_length: context.batch.seq_length }
}

/// Most actions of one step that are accepted: some eight for each (stage, microbatch).
const MAX_ACTIONS: u64 = schedules::MAX_STAGE_MICROBATCHES << 3;

/// The job in words.
fn job(context: &Context<'_>) -> String {
    let Batch { micro_batch_size, seq_length, .. } = context.batch;
    let optimizer = context.scenario.execute.as_ref().and_then(|e| e.optimizer.as_ref());
    let optimizer = match optimizer.map(|o| (o.kind, o.momentum.unwrap_or(0.0) > 0.0)) {
        Some((OptimizerName::Sgd, false)) => "SGD",
        Some((OptimizerName::Sgd, true)) => "SGD with momentum",
        Some((OptimizerName::Adamw, _)) | None => "AdamW",
    };
    let model = context.model.map_or_else(|| "no model".to_owned(), ModelShape::describe);
    format!("{model}; microbatch of {micro_batch_size} x {seq_length} tokens, fp32, {optimizer}")
}

/// The family's name with the knobs that tell two entries of one family apart.
fn plan_name(family: &Family, entry: &ScheduleEntry, chunks: u32) -> String {
    let mut name = family.name.to_owned();
    if family.chunks == Chunks::Any {
        name.push_str(&format!(" v={chunks}"));
    }
    if let Some(slices) = entry.num_seq_splits {
        name.push_str(&format!(" k={slices}"));
    }
    match &entry.max_activations {
        Some(PerRank::All(limit)) => name.push_str(&format!(" limit={limit}")),
        Some(PerRank::Each(limits)) => {
            let limits: Vec<String> = limits.iter().map(f64::to_string).collect();
            name.push_str(&format!(" limit={}", limits.join(",")));
        }
        None => {}
    }
    name
}

/// What the tasks of a schedule take, for the families that adapt to it: the scenario's costs; where it has none, nominal
/// times on its cluster; and without one (they are measured later) F = I = W = 1. A table that cannot be read is reported by whoever predicts with it.
fn times(context: &Context<'_>, at: &str, entry: &ScheduleEntry, chunks: u32) -> StageTimes {
    let stages = context.ranks.saturating_mul(chunks);
    let layers = || layout::resolve(&layout_request(context, context.model?, stages, chunks), at, entry).ok();
    let Some(costs) = &context.scenario.costs else {
        if let Some(times) = layers().and_then(|layers| nominal::times(context, &layers)) {
            return times;
        }
        return StageTimes::of(&UnitCosts::default(), context.ranks, stages.min(schedules::MAX_STAGES));
    };
    let measured = || {
        let text = (context.read)(costs.file.as_deref()?).ok()?;
        let table: CostTable = serde_json::from_str(&text).ok()?;
        StageTimes::measured(&table, &layers()?)
    };
    measured()
        .unwrap_or_else(|| StageTimes::of(&UnitCosts::from(costs), context.ranks, stages.min(schedules::MAX_STAGES)))
}

/// A fault of a knob that this entry overrides is a fault of the entry; one of a number that was worked out from others
/// is a fault of those.
fn relocate(mut fault: Fault, at: &str, entry: &ScheduleEntry, context: &Context<'_>) -> Fault {
    let training = &context.scenario.training;
    if fault.path == schedules::MICROBATCHES
        && training.num_microbatches.is_none()
        && let Some(global) = training.global_batch_size
    {
        let Batch { micro_batch_size: micro, microbatches: m, .. } = context.batch;
        let data = context.mesh.data;
        fault.path = batch::GLOBAL.to_owned();
        fault.message.push_str(&format!(
            "; m = global_batch_size {global} / (micro_batch_size {micro} * data_parallel_size {data}) = {m}"
        ));
        fault.help.push_str(&format!("; global_batch_size is m * {}", u64::from(micro) * u64::from(data)));
    }
    let own = match fault.path.as_str() {
        schedules::CHUNKS => entry.virtual_pipeline_model_parallel_size.map(|_| "virtual_pipeline_model_parallel_size"),
        knob @ (schedules::GROUP | schedules::SLICES | schedules::LIMIT) => Some(knob),
        _ => None,
    };
    if let Some(key) = own {
        fault.path = format!("{at}.{key}");
    }
    fault
}

fn unknown_family(at: &str, name: &str) -> Fault {
    let known: Vec<&str> = schedules::FAMILIES.iter().map(|f| f.name).chain(["custom"]).collect();
    let message = format!("`{name}` is not a schedule of this version");
    Fault::new(at, "schedule::unknown", message, format!("known are {}", known.join(", ")))
}

/// The divisors of `n` next to `near`: the largest below it and the smallest above.
pub(crate) fn nearest_divisors(n: u32, near: u32) -> Vec<u32> {
    let small = (1..=n.isqrt()).filter(|d| n.is_multiple_of(*d));
    let all: Vec<u32> = small.flat_map(|d| [d, n / d]).collect();
    let below = all.iter().copied().filter(|d| *d < near).max();
    let above = all.iter().copied().filter(|d| *d > near).min();
    below.into_iter().chain(above).collect()
}

/// Legal, but worth a word.
fn warnings(context: &Context<'_>, family: &str, order: &PipelineOrder, chunks: u32) -> Vec<String> {
    let mut warnings = Vec::new();
    let (m, ranks, slices) = (context.batch.microbatches, order.placement.ranks(), u32::from(order.slices));
    let enough = ranks.div_ceil(slices.max(1));
    if m < enough && family != "naive" && family != "custom" {
        // Chunk times: all that a rank does, and until the last rank has its first chunk of the last group.
        let [n, p, v] = [m * slices, ranks, chunks].map(f64::from);
        let idle = (1.0 - n * v / ((v - 1.0) * p + n + p - 1.0)) * 100.0;
        let idle = match family {
            "gpipe" | "1f1b" | "eager-1f1b" | "seq1f1b" | "looped-bfs" | "interleaved-1f1b" => {
                format!(": at equal stages {idle:.0} % of the time is idle")
            }
            // No closed form for so few.
            _ => String::new(),
        };
        warnings.push(format!("{m} microbatches do not fill {ranks} ranks{idle}; use {enough} or more"));
    }
    warnings.extend(parallel::warnings(&context.facts(), &context.batch, ranks));
    warnings
}
