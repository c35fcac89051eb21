//! `simulate --fits`: whether each plan fits in the memory of its GPUs, why the heaviest rank is, and what would help.

use super::load::Loaded;
use super::predict::{Costs, Predicted};
use pipewright::ir::footprint::{Fit, nearest_knobs, why};
use pipewright::ir::ids::Rank;
use pipewright::ir::memory::{self, RankMemory};
use pipewright::ir::plan::Plan;
use pipewright::ir::segments::{Cut, Programs};
use pipewright::ir::spec::Semantics;
use pipewright::report::explanation::wrapped;
use pipewright::report::json::FitsRow;
use pipewright::sim::Options;

/// The answer for each plan; `None` where the capacity is not known.
pub(crate) fn answers(loaded: &Loaded, costs: &Costs, predictions: &[Predicted]) -> Vec<Option<FitsRow>> {
    loaded.plans.iter().zip(predictions).map(|(plan, predicted)| answer(costs, plan, predicted)).collect()
}

fn answer(costs: &Costs, plan: &Plan, predicted: &Predicted) -> Option<FitsRow> {
    let capacity = plan.cluster.as_ref()?.hardware.gpu.memory.value;
    let memories: Vec<RankMemory> = predicted.metrics.ranks.iter().map(|rank| rank.memory.clone()).collect();
    let fit = Fit::new(capacity, &memories);
    let why = why(&predicted.schedule, &predicted.timeline, &plan.parts(), &memories);
    let nearest = match plan.cut() {
        Some(cut) if !fit.fits() => nearest_knobs(&cut, capacity, &|cut| peak(costs, plan, predicted, cut)),
        _ => Vec::new(),
    };
    Some(FitsRow {
        fits: fit.fits(),
        capacity_bytes: capacity,
        margin_bytes: fit.margins().collect(),
        answer: fit.to_string(),
        why: why.map_or_else(String::new, |why| why.to_string()),
        nearest: nearest.iter().map(ToString::to_string).collect(),
    })
}

/// Peak of the heaviest rank when the plan is cut differently, at the times that it has now \[B\].
fn peak(costs: &Costs, plan: &Plan, predicted: &Predicted, cut: &Cut<'_>) -> Option<u64> {
    let mut plan = plan.clone();
    plan.setup = cut.setup.clone();
    plan.batch.micro_batch_size = u32::try_from(cut.micro_batch_size).ok()?;
    let programs: Programs = plan.programs()?;
    let stack = costs.memory_stack(&plan)?;
    let schedule = plan.schedule(&plan.workload(&programs, &stack)).ok()?;
    // Under another ZeRO stage the step has other messages, and tasks of other numbers: predicted anew.
    let same = schedule.len() == predicted.schedule.len();
    let again = if same { None } else { costs.predict(&plan, &Options::default(), Semantics::Eager).ok() };
    let (schedule, timeline) = match &again {
        Some(again) => (&again.schedule, &again.timeline),
        None => (&schedule, &predicted.timeline),
    };
    let position = memory::positions(schedule);
    let peaks = (0..schedule.ranks()).map(|r| memory::of_rank(schedule, timeline, Rank::at(r), &position).peak);
    peaks.map(|peak| memory::total(&peak.live)).max()
}

/// The answers for people.
pub(crate) fn text(loaded: &Loaded, answers: &[Option<FitsRow>]) -> String {
    let mut text = String::new();
    for (plan, answer) in loaded.plans.iter().zip(answers) {
        let Some(answer) = answer else {
            text.push_str(&format!("\n{}: the memory of its devices is not known\n", plan.name));
            continue;
        };
        text.push_str(&format!("\n{}: {}\n", plan.name, answer.answer));
        for line in wrapped(&answer.why).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        if !answer.fits {
            let none = "  no single knob and no combination of recompute, ZeRO and a smaller microbatch makes it fit\n";
            text.push_str(if answer.nearest.is_empty() { none } else { "  would fit with\n" });
            answer.nearest.iter().for_each(|knobs| text.push_str(&format!("    {knobs}\n")));
        }
    }
    text
}
