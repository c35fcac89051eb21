//! The abstract costs of a scenario: defaults and faults.

use super::Plan;
use crate::fault::Fault;
use crate::scenario::{CostModelName, Costs, Scenario};

/// Unit costs, resolved. Abstract units.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitCosts {
    /// F of one microbatch on a rank's whole share.
    pub forward: f64,
    /// I, likewise.
    pub backward_input: f64,
    /// W, likewise; B = I + W.
    pub backward_weight: f64,
    /// From the end of a task to the moment its output is on another rank.
    pub hop: f64,
    /// Optimizer step of a rank's whole share.
    pub optimizer: f64,
    /// Multiplier of each stage; empty for all 1.
    pub stage_scale: Vec<f64>,
}

impl Default for UnitCosts {
    fn default() -> Self {
        let (forward, backward_input, backward_weight) = (1.0, 1.0, 1.0);
        Self { forward, backward_input, backward_weight, hop: 0.0, optimizer: 0.0, stage_scale: Vec::new() }
    }
}

impl From<&Costs> for UnitCosts {
    fn from(costs: &Costs) -> Self {
        Self {
            forward: costs.forward.unwrap_or(1.0),
            backward_input: costs.backward_input.unwrap_or(1.0),
            backward_weight: costs.backward_weight.unwrap_or(1.0),
            hop: costs.hop.unwrap_or(0.0),
            optimizer: costs.optimizer.unwrap_or(0.0),
            stage_scale: costs.stage_scale.clone().unwrap_or_default(),
        }
    }
}

/// Largest cost that is accepted: sums of a million of them keep their small change.
const MAX_COST: f64 = 1e9;

/// Faults that do not depend on the schedule.
pub(super) fn check(scenario: &Scenario, faults: &mut Vec<Fault>) {
    let Some(costs) = &scenario.costs else { return };
    let numbers = [
        (costs.forward, "forward"),
        (costs.backward_input, "backward_input"),
        (costs.backward_weight, "backward_weight"),
        (costs.hop, "hop"),
        (costs.optimizer, "optimizer"),
    ];
    let mut number = |value: f64, path: String| {
        if !(0.0..=MAX_COST).contains(&value) {
            let message = format!("{path} is {value:e}; a cost is a number from 0 to {MAX_COST:e}");
            faults.push(Fault::new(path, "costs::number", message, "use 0 or more; only the ratios of costs matter"));
        }
    };
    for (value, key) in numbers {
        if let Some(value) = value {
            number(value, format!("costs.{key}"));
        }
    }
    for (s, scale) in costs.stage_scale.iter().flatten().enumerate() {
        number(*scale, format!("costs.stage_scale[{s}]"));
    }
    match costs.model {
        CostModelName::Table if costs.file.is_none() => {
            let message = "a cost table needs its file";
            let help = "write it with `pipewright profile FILE -o costs.json` and add \"file\": \"costs.json\"";
            faults.push(Fault::new("costs", "costs::file", message, help));
        }
        CostModelName::Table if costs.stage_scale.is_some() => {
            let message = "costs.stage_scale belongs to unit costs, but the model is a table";
            faults.push(Fault::new("costs.stage_scale", "costs::mixed", message, "leave it out"));
        }
        CostModelName::Table => {
            if let Some((_, key)) = numbers.iter().find(|(value, _)| value.is_some()) {
                let message = format!("costs.{key} belongs to unit costs, but the model is a table");
                faults.push(Fault::new(format!("costs.{key}"), "costs::mixed", message, "leave it out"));
            }
        }
        CostModelName::Unit if costs.file.is_some() => {
            let message = "costs.file belongs to a cost table, but the model is unit";
            faults.push(Fault::new("costs.file", "costs::mixed", message, "use \"model\": \"table\", or leave it out"));
        }
        CostModelName::Unit => {}
    }
}

/// `stage_scale` has one entry for each stage of each schedule.
pub(super) fn check_stages(scenario: &Scenario, plan: &Plan, faults: &mut Vec<Fault>) {
    let Some(scale) = scenario.costs.as_ref().and_then(|c| c.stage_scale.as_ref()) else { return };
    let stages = plan.placement().stages();
    if scale.len() != stages as usize {
        let message = format!("stage_scale has {} entries, but {} has {stages} stages", scale.len(), plan.name);
        let help = format!("write {stages} numbers, or keep schedules with other stage counts in another scenario");
        faults.push(Fault::new("costs.stage_scale", "costs::stage_scale", message, help));
    }
}
