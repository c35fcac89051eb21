//! `explain`: where idle time goes, and what would change it.

use super::args::ExplainArgs;
use super::failure::Failure;
use super::load::Loaded;
use super::predict::{Costs, Predicted, assume, options, sends};
use super::simulate::{headline, report_run, unit};
use super::{exit, load, output};
use pipewright::ir::cost_table::{CostTable, Measured};
use pipewright::ir::explain::Explanation;
use pipewright::ir::plan::{self, Plan};
use pipewright::ir::scenario::{PerRank, Scenario};
use pipewright::ir::schedules;
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::report::explanation::{Answer, ExplainedRun, WhatIf};
use pipewright::sim::Options;

pub(crate) fn run(args: &ExplainArgs) -> Result<u8, Failure> {
    let mut loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    assume(&mut loaded, &args.assumptions)?;
    let costs = Costs::of(&loaded)?;
    let options = Options { steps: args.repeat.steps as usize, barrier: args.repeat.barrier, ..options(&loaded) };
    let predictions = costs.predict_all(&loaded, &options)?;
    let mut runs = Vec::new();
    for (i, (plan, predicted)) in loaded.plans.iter().zip(&predictions).enumerate() {
        let explanation = Explanation::of(&predicted.schedule, &predicted.timeline);
        let changes = Changes { loaded: &loaded, costs: &costs, options: &options, entry: i, plan, now: predicted };
        let run = report_run(plan, predicted, unit(&costs));
        let explained = ExplainedRun::new(&plan.family, &run, &predicted.metrics, &explanation, changes.all()?);
        runs.push(ExplainedRun { lower_bound: predicted.lower_bound, ..explained });
    }
    if args.json {
        let time_unit = if costs.in_seconds() { "s" } else { "units" };
        output::json(&Answer { schema_version: 1, scenario: loaded.scenario.name.clone(), time_unit, runs })?;
    } else {
        let texts: Vec<String> = runs.iter().map(|run| run.text(costs.in_seconds())).collect();
        output::result(&format!("{}\n\n{}", headline(&loaded, &options), texts.join("\n")))?;
    }
    Ok(exit::FINE)
}

/// The changes of one plan that `explain` tries.
struct Changes<'a> {
    loaded: &'a Loaded,
    costs: &'a Costs,
    options: &'a Options,
    /// The plan's entry in the scenario.
    entry: usize,
    plan: &'a Plan,
    now: &'a Predicted,
}

impl Changes<'_> {
    fn all(&self) -> Result<Vec<WhatIf>, Failure> {
        let mut changes = Vec::new();
        if let Some((change, costs)) = self.costs.without_hop() {
            changes.push(self.outcome(change, &self.scenario(), &costs)?);
        }
        if let Some(costs) = self.costs.equal_stages() {
            changes.push(self.outcome("equal stages", &self.scenario(), &costs)?);
        }
        // An order of one's own is for its number of microbatches.
        if let Some(family) = schedules::find(&self.plan.family) {
            let m = self.plan.batch.microbatches.saturating_mul(2);
            let mut scenario = self.scenario();
            scenario.training.num_microbatches = Some(m);
            scenario.training.global_batch_size = scenario.training.global_batch_size.map(|n| n.saturating_mul(2));
            changes.push(self.outcome(&format!("m = {m}"), &scenario, self.costs)?);
            if family.knobs.limit {
                let limits = self.limits();
                let doubled: Vec<f64> = limits.iter().map(|limit| limit * 2.0).collect();
                changes.push(self.limited("memory limit doubled", &doubled)?);
                // No order can hold more than all microbatches.
                let all = f64::from(self.plan.batch.microbatches);
                changes.push(self.limited("no memory limit", &vec![all; limits.len()])?);
            }
        }
        Ok(changes)
    }

    /// The limit of each rank: as written, else what it holds now.
    fn limits(&self) -> Vec<f64> {
        let origin = self.scenario();
        let written = origin.schedules.first().and_then(|e| e.max_activations.as_ref());
        let held = || self.now.metrics.ranks.iter().map(|r| r.peak_activations).collect();
        written.map_or_else(held, |limit| limit.each(self.plan.ranks()))
    }

    fn limited(&self, change: &str, limits: &[f64]) -> Result<WhatIf, Failure> {
        let mut scenario = self.scenario();
        scenario.schedules.iter_mut().for_each(|entry| entry.max_activations = Some(PerRank::Each(limits.to_vec())));
        self.outcome(change, &scenario, self.costs)
    }

    /// The scenario with this plan's schedule alone.
    fn scenario(&self) -> Scenario {
        self.loaded.origin(self.entry)
    }

    /// Builds the schedule anew, since it may adapt to what has changed, and predicts it.
    fn outcome(&self, change: &str, scenario: &Scenario, costs: &Costs) -> Result<WhatIf, Failure> {
        let mut scenario = scenario.clone();
        let file = scenario.costs.as_ref().and_then(|c| c.file.clone());
        let mut table = None;
        match costs {
            Costs::Unit(unit) => {
                if let Some(written) = &mut scenario.costs {
                    written.hop = Some(unit.hop);
                    written.stage_scale = (!unit.stage_scale.is_empty()).then(|| unit.stage_scale.clone());
                }
            }
            // Numbers and texts: there is nothing that could fail to become JSON.
            Costs::Table(changed) => table = serde_json::to_string(changed).ok(),
            Costs::Analytic(_) => {}
        }
        let read = |named: &str| match &table {
            Some(table) if file.as_deref() == Some(named) => Ok(table.clone()),
            _ => std::fs::read_to_string(self.loaded.path(named)).map_err(|e| e.to_string()),
        };
        let plans = plan::resolve(&scenario, &read);
        let refused = plans.as_ref().err().map(|faults| faults.first().map_or_else(String::new, |f| f.message.clone()));
        let makespan = match plans.ok().and_then(|plans| plans.into_iter().next()) {
            Some(plan) => Some((
                costs.predict(&plan, self.options, sends(self.loaded))?.metrics.makespan,
                plan.batch.microbatches,
            )),
            None => None,
        };
        let now = self.now.metrics.makespan;
        let share = |then: f64| (now > 0.0).then(|| then / now - 1.0);
        let per_microbatch =
            |(then, m): (f64, u32)| share(then * (f64::from(self.plan.batch.microbatches) / f64::from(m.max(1))));
        Ok(WhatIf {
            change: change.to_owned(),
            makespan: makespan.map(|(then, _)| then),
            difference: makespan.and_then(|(then, _)| share(then)),
            difference_per_microbatch: makespan.and_then(per_microbatch),
            refused,
        })
    }
}

impl Costs {
    /// The same with messages that take no time; `None` where they take none.
    fn without_hop(&self) -> Option<(&'static str, Costs)> {
        match self {
            Costs::Unit(unit) => {
                let free = UnitCosts { hop: 0.0, ..unit.clone() };
                (unit.hop > 0.0).then_some(("hop = 0", Costs::Unit(free)))
            }
            Costs::Table(table) => {
                let mut table = table.clone();
                let message = &mut table.message;
                for time in [&mut message.send, &mut message.hop, &mut message.receive] {
                    *time = Measured { median: 0.0, p10: 0.0, p90: 0.0, ..*time };
                }
                Some(("messages take no time", Costs::Table(table)))
            }
            Costs::Analytic(_) => None,
        }
    }

    /// The same with stages that all take as long: a scale of 1, measured ones their mean; `None` where they do.
    fn equal_stages(&self) -> Option<Costs> {
        match self {
            Costs::Unit(unit) => {
                let equal = UnitCosts { stage_scale: Vec::new(), ..unit.clone() };
                unit.stage_scale.iter().any(|scale| *scale != 1.0).then_some(Costs::Unit(equal))
            }
            Costs::Table(table) => Some(Costs::Table(levelled(table))),
            Costs::Analytic(_) => None,
        }
    }
}

/// Each way of cutting with the mean times of its stages in each.
fn levelled(table: &CostTable) -> CostTable {
    let mut table = table.clone();
    for layout in &mut table.layouts {
        let stages = layout.stages.clone();
        let mean = |of: fn(&pipewright::ir::cost_table::StageCosts) -> f64| {
            stages.iter().map(of).sum::<f64>() / stages.len().max(1) as f64
        };
        let (forward, backward, optimizer) =
            (mean(|s| s.forward.median), mean(|s| s.backward.median), mean(|s| s.optimizer.median));
        for stage in &mut layout.stages {
            stage.forward.median = forward;
            stage.backward.median = backward;
            stage.optimizer.median = optimizer;
        }
    }
    table
}
