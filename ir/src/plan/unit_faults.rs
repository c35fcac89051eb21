//! Faults of the abstract costs of a scenario.

use super::Plan;
use crate::fault::Fault;
use crate::scenario::{CostModelName, Costs, Overlap, Scenario};

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
        (costs.overlapped_forward_backward, "overlapped_forward_backward"),
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
    overlap(costs, faults);
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
        CostModelName::Analytic if costs.file.is_some() => {
            let message = "costs.file belongs to a cost table, but the model is analytic";
            faults.push(Fault::new("costs.file", "costs::mixed", message, "use \"model\": \"table\", or leave it out"));
        }
        CostModelName::Analytic => {
            if let Some((_, key)) = numbers.iter().find(|(value, _)| value.is_some()) {
                let message = format!("costs.{key} belongs to unit costs, but the model is analytic");
                faults.push(Fault::new(format!("costs.{key}"), "costs::mixed", message, "leave it out"));
            }
        }
        CostModelName::Unit => {}
    }
}

/// A measured overlap needs its number, and the number a measured overlap.
fn overlap(costs: &Costs, faults: &mut Vec<Fault>) {
    let measured = costs.overlap == Some(Overlap::Overlapped);
    if measured && costs.overlapped_forward_backward.is_none() {
        let message = "costs.overlap is \"overlapped\", but how long an overlapped F and B take is not given";
        let help = "add \"overlapped_forward_backward\", or use \"atomic\": the sum of both";
        faults.push(Fault::new("costs.overlap", "costs::overlap", message, help));
    }
    if !measured && costs.overlapped_forward_backward.is_some() {
        let message = "costs.overlapped_forward_backward is used only with \"overlap\": \"overlapped\"";
        let help = "set costs.overlap to \"overlapped\", or leave it out";
        faults.push(Fault::new("costs.overlapped_forward_backward", "costs::overlap", message, help));
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
