//! From a plan to its predicted timeline.

use super::args::{Assumptions, OverlapMode};
use super::devices::{Device, every_device};
use super::failure::Failure;
use super::load::Loaded;
use pipewright::ir::cost_table::CostTable;
use pipewright::ir::flops::Throughput;
use pipewright::ir::footprint::MemoryParameters;
use pipewright::ir::metrics::Metrics;
use pipewright::ir::plan::Plan;
use pipewright::ir::scenario::{CostModelName, Overlap};
use pipewright::ir::schedule::Schedule;
use pipewright::ir::search::lower_bound;
use pipewright::ir::spec::Semantics;
use pipewright::ir::timeline::Timeline;
use pipewright::ir::unit_costs::{StageTimes, UnitCosts};
use pipewright::ir::workload::Workload;
use pipewright::sim::cost::analytic::{AnalyticError, Parameters, SegmentCost, parameters_of};
use pipewright::sim::cost::{AnalyticCost, CostModel, TableCost, UnitCost, workload_of};
use pipewright::sim::{Engine, Options, full};
use std::collections::BTreeMap;

/// A plan with what the simulator says of it.
pub(crate) struct Predicted {
    pub(crate) schedule: Schedule,
    pub(crate) timeline: Timeline,
    pub(crate) metrics: Metrics,
    /// No order of the same stages on the same ranks has a shorter step; `None` where that is not known.
    pub(crate) lower_bound: Option<f64>,
    /// How fast a step is; `None` where costs are not those of a model on a cluster.
    pub(crate) throughput: Option<Throughput>,
    /// At the detail of segments: times of the steps of the programs, and of receives that block each stage's forward and
    /// backward \[s\].
    pub(crate) step_times: (Vec<f64>, Vec<[f64; 2]>),
    /// Where every device was simulated, each of them, in the order of its number.
    pub(crate) devices: Vec<Device>,
}

/// How finely a prediction runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fineness {
    /// At the detail of segments.
    pub(crate) segments: bool,
    /// Every device of the mesh, where it shows one of equal replicas otherwise.
    pub(crate) full: bool,
}

/// Where costs come from.
pub(crate) enum Costs {
    Unit(UnitCosts),
    Table(CostTable),
    /// From the model, the cluster and the fitted parameters of its software stack, by the stack's name.
    Analytic(BTreeMap<String, Parameters>),
}

impl Costs {
    /// The costs that the scenario names.
    pub(crate) fn of(loaded: &Loaded) -> Result<Self, Failure> {
        let model = loaded.scenario.costs.as_ref().map(|costs| costs.model);
        let on_cluster = !loaded.plans.is_empty() && loaded.plans.iter().all(|plan| plan.cluster.is_some());
        if on_cluster && model.is_none_or(|model| model == CostModelName::Analytic) {
            let fault = |e: AnalyticError| {
                let help = "name one of them in cluster.stack, or give the file of your own";
                loaded.fault("cluster", "cluster::stack", e.to_string(), help)
            };
            let mut stacks = BTreeMap::new();
            for plan in &loaded.plans {
                let name = stack_name(plan);
                if !stacks.contains_key(name) {
                    let parameters = parameters_of(plan, &|file| loaded.read_beside(file)).map_err(fault)?;
                    stacks.insert(name.to_owned(), parameters);
                }
            }
            return Ok(Costs::Analytic(stacks));
        }
        let Some(costs) = &loaded.scenario.costs else {
            let message = "the scenario has no costs to predict with".to_owned();
            let help = "add \"cluster\": { \"preset\": \"dgx-a100-80g\", \"nodes\": 1 }, or \"costs\": { \"model\": \"unit\" }, or measure \
                 them with `pipewright profile FILE -o costs.json`";
            return Err(Failure::Usage { message, help: help.to_owned() });
        };
        match (costs.model, &costs.file) {
            (CostModelName::Analytic, _) => {
                let help = "add \"cluster\": { \"preset\": \"dgx-a100-80g\", \"nodes\": 1 }";
                let message = "analytic costs need a cluster".to_owned();
                Err(loaded.fault("costs.model", "costs::cluster", message, help))
            }
            (CostModelName::Table, Some(file)) => read_table(loaded, file).map(Costs::Table),
            _ => Ok(Costs::Unit(UnitCosts::from(costs))),
        }
    }

    /// Whether times are seconds and not abstract units.
    pub(crate) fn in_seconds(&self) -> bool {
        !matches!(self, Costs::Unit(_))
    }

    /// What the plan's stages weigh, as far as these costs know.
    pub(crate) fn workload(&self, plan: &Plan) -> Workload {
        match self {
            Costs::Unit(_) => Workload::abstract_stages(plan.placement().stages()),
            Costs::Table(table) => workload_of(table, plan),
            Costs::Analytic(_) => {
                let stack = self.memory_stack(plan);
                let sized = plan.programs().zip(stack).map(|(programs, stack)| plan.workload(&programs, &stack));
                sized.unwrap_or_else(|| Workload::abstract_stages(plan.placement().stages()))
            }
        }
    }

    /// How the software stack of a plan uses memory, where costs are analytic.
    pub(crate) fn memory_stack(&self, plan: &Plan) -> Option<MemoryParameters> {
        match self {
            Costs::Analytic(stacks) => stacks.get(stack_name(plan)).and_then(Parameters::memory_stack),
            Costs::Unit(_) | Costs::Table(_) => None,
        }
    }

    /// Options for a plan: a table was measured on a machine whose ranks share cores and bandwidth.
    fn on_machine(&self, plan: &Plan, options: &Options, sends: Semantics) -> Result<Options, Failure> {
        let options = match self {
            Costs::Unit(_) | Costs::Analytic(_) => *options,
            Costs::Table(table) => Options {
                cores: options.cores.or((plan.ranks() > table.cores).then_some(table.cores)),
                contention: table.contention,
                ..*options
            },
        };
        let shared = options.cores.is_some() || options.contention > 0.0;
        if shared && (options.compound || sends != Semantics::Eager) {
            return Err(Failure::Usage {
                message:
                    "compound actions that run as one and sends that wait are predicted only where every rank has \
                          a device of its own, but these ranks share cores or slow each other down"
                        .to_owned(),
                help: "use --overlap sequential --sends eager; or leave out --cores, and predict from unit costs"
                    .to_owned(),
            });
        }
        Ok(options)
    }

    /// Predicts every plan of a scenario at the detail of stages.
    pub(crate) fn predict_all(&self, loaded: &Loaded, options: &Options) -> Result<Vec<Predicted>, Failure> {
        self.predict_all_at(loaded, options, Fineness::default())
    }

    /// Predicts every plan of a scenario.
    pub(crate) fn predict_all_at(
        &self,
        loaded: &Loaded,
        options: &Options,
        fineness: Fineness,
    ) -> Result<Vec<Predicted>, Failure> {
        loaded.plans.iter().map(|plan| self.predict_at(plan, options, sends(loaded), fineness)).collect()
    }

    /// Predicts one plan at the detail of stages.
    pub(crate) fn predict(&self, plan: &Plan, options: &Options, sends: Semantics) -> Result<Predicted, Failure> {
        self.predict_at(plan, options, sends, Fineness::default())
    }

    /// Predicts one plan.
    pub(crate) fn predict_at(
        &self,
        plan: &Plan,
        options: &Options,
        sends: Semantics,
        fineness: Fineness,
    ) -> Result<Predicted, Failure> {
        let whole = sound(plan, &self.workload(plan))?;
        let (unit, table, analytic, segment, programs);
        let mut cut = None;
        let (mut throughput, mut step_times) = (None, Default::default());
        let cost: &dyn CostModel = match self {
            Costs::Unit(costs) => {
                unit = UnitCost::new(costs, &whole);
                &unit
            }
            Costs::Table(costs) => {
                let fail = |error: pipewright::sim::cost::TableError| Failure::Usage {
                    message: error.to_string(),
                    help: "measure this scenario with `pipewright profile FILE -o costs.json`".to_owned(),
                };
                table = TableCost::new(costs, plan).map_err(fail)?;
                &table
            }
            Costs::Analytic(stacks) => {
                let fail = |error: AnalyticError| Failure::Usage {
                    message: error.to_string(),
                    help: "add \"model\": { \"preset\": \"gpt3-175b\" } and training.seq_length".to_owned(),
                };
                let missing = || AnalyticError::Stack { name: stack_name(plan).to_owned(), known: String::new() };
                let parameters = stacks.get(stack_name(plan)).ok_or_else(missing).map_err(fail)?;
                (programs, analytic) = AnalyticCost::of_plan(plan, parameters).map_err(fail)?;
                throughput = Throughput::of(plan, &whole, &programs, f64::NAN);
                if fineness.segments {
                    segment = SegmentCost::new(&analytic, &programs);
                    cut = Some(whole.segmented(&programs));
                    step_times = (analytic.steps.clone(), analytic.received.clone());
                    &segment
                } else {
                    &analytic
                }
            }
        };
        let schedule = cut.unwrap_or(whole);
        let copies = if fineness.full { full::replicas(&plan.mesh) } else { 1 };
        let spans = schedule.len().saturating_mul(copies);
        if spans.saturating_mul(options.steps) > MAX_SPANS {
            return Err(Failure::Usage {
                message: format!("{} steps of {spans} tasks are more than {MAX_SPANS}", options.steps),
                help: if copies > 1 && spans > MAX_SPANS {
                    "leave out --full: equal replicas are folded then".to_owned()
                } else {
                    format!("use --steps {} or fewer", (MAX_SPANS / spans.max(1)).max(1))
                },
            });
        }
        let options = self.on_machine(plan, options, sends)?;
        let mut engine = Engine::under(&schedule, sends).ok_or_else(|| Failure::Usage {
            message: format!("{} deadlocks under {} sends", plan.name, sends.name()),
            help: format!("`pipewright check FILE --sends {}` shows which tasks wait for each other", sends.name()),
        })?;
        engine.set_costs(&schedule, cost);
        let (timeline, devices) = if fineness.full {
            let all = full::split(&engine.replicated(&schedule, &plan.mesh).run(&options), &plan.mesh);
            let devices = every_device(plan, &schedule, &all);
            (all.into_iter().next().unwrap_or_else(|| engine.run(&options)), devices)
        } else {
            (engine.run(&options), Vec::new())
        };
        let metrics = Metrics::of(&schedule, &timeline);
        let lower_bound = self.lower_bound(plan, &options);
        let step_seconds = metrics.makespan / options.steps.max(1) as f64;
        let throughput = throughput.map(|throughput| Throughput { step_seconds, ..throughput });
        Ok(Predicted { schedule, timeline, metrics, lower_bound, throughput, step_times, devices })
    }

    /// The bound is on one step of one pipe of whole microbatches whose tasks run one after another.
    fn lower_bound(&self, plan: &Plan, options: &Options) -> Option<f64> {
        let Plan { order, batch, .. } = plan;
        let overlaps = options.compound && order.ranks.iter().flatten().any(|action| action.joins_previous);
        if options.steps != 1 || order.placement.pipes().len() > 1 || order.slices > 1 || overlaps {
            return None;
        }
        let times = match self {
            Costs::Unit(costs) => StageTimes::of(costs, plan.ranks(), order.placement.stages()),
            Costs::Table(table) => StageTimes::measured(table, &plan.layers)?,
            Costs::Analytic(_) => return None,
        };
        let microbatches = batch.microbatches.saturating_mul(batch.rounds);
        Some(lower_bound(&order.placement, &times, microbatches, plan.max_activations.as_deref()).makespan)
    }
}

/// The software stack of a plan's cluster.
fn stack_name(plan: &Plan) -> &str {
    plan.cluster.as_ref().map_or("", |cluster| cluster.stack.as_str())
}

/// How the parts of compound actions run, as the scenario says.
pub(crate) fn overlap(loaded: &Loaded) -> Overlap {
    loaded.scenario.costs.as_ref().and_then(|costs| costs.overlap).unwrap_or_default()
}

/// How sends behave, as the scenario says.
pub(crate) fn sends(loaded: &Loaded) -> Semantics {
    loaded.scenario.costs.as_ref().and_then(|costs| costs.sends).unwrap_or_default()
}

/// Options of a prediction that the scenario decides.
pub(crate) fn options(loaded: &Loaded) -> Options {
    Options { compound: overlap(loaded) != Overlap::Sequential, ..Options::default() }
}

/// Lets the command line override what the scenario assumes.
pub(crate) fn assume(loaded: &mut Loaded, assumptions: &Assumptions) -> Result<(), Failure> {
    let Some(costs) = loaded.scenario.costs.as_mut() else { return Ok(()) };
    if let Some(sends) = assumptions.sends {
        costs.sends = Some(sends.semantics());
    }
    let Some(chosen) = assumptions.overlap.map(OverlapMode::overlap) else { return Ok(()) };
    if chosen == Overlap::Overlapped && costs.overlapped_forward_backward.is_none() {
        return Err(Failure::Usage {
            message: "--overlap overlapped needs to know how long an overlapped F and B take together".to_owned(),
            help: "add \"overlap\": \"overlapped\" and \"overlapped_forward_backward\" to costs, or use --overlap atomic: \
                   the sum of both"
                .to_owned(),
        });
    }
    costs.overlap = Some(chosen);
    Ok(())
}

/// Most (step, task) pairs of one timeline that are accepted: with all its metrics about 2 GB.
pub(crate) const MAX_SPANS: usize = 1 << 24;

/// The schedule of a plan. One that breaks the law cannot be run by anything.
pub(crate) fn sound(plan: &Plan, workload: &Workload) -> Result<Schedule, Failure> {
    plan.schedule(workload).map_err(|violations| {
        let first: Vec<String> = violations.iter().take(3).map(ToString::to_string).collect();
        Failure::Usage {
            message: format!("{} breaks the rules {} times: {}", plan.name, violations.len(), first.join("; ")),
            help: "`pipewright check FILE` lists every violation with its tasks".to_owned(),
        }
    })
}

fn read_table(loaded: &Loaded, file: &str) -> Result<CostTable, Failure> {
    let path = loaded.path(file);
    let fault = |what: String| {
        let help = "write it with `pipewright profile FILE -o costs.json`; paths are relative to the scenario";
        loaded.fault("costs.file", "costs::file", format!("cannot use the cost table {}: {what}", path.display()), help)
    };
    let text = std::fs::read_to_string(&path).map_err(|e| fault(e.to_string()))?;
    let table: CostTable = serde_json::from_str(&text).map_err(|e| fault(e.to_string()))?;
    if table.schema_version != 1 {
        return Err(fault(format!("version {} is not known", table.schema_version)));
    }
    match table.first_fault() {
        Some(what) => Err(fault(what)),
        None => Ok(table),
    }
}
