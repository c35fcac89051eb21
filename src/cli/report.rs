//! `report`: where the time of a step goes, how fast it is, and what is sent over which links.

use super::args::ReportArgs;
use super::failure::Failure;
use super::predict::{Costs, Fineness, assume, options, sends, sound};
use super::simulate::{folded, folds, headline, save};
use super::{exit, load, output};
use pipewright::ir::breakdown::{Breakdown, Steps};
use pipewright::ir::communication::{Network, traffic};
use pipewright::report::step::{Answer, Facts, StepReport};
use pipewright::report::step_plot;
use pipewright::sim::Options;

pub(crate) fn run(args: &ReportArgs) -> Result<u8, Failure> {
    let mut loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    assume(&mut loaded, &args.assumptions)?;
    let costs = Costs::of(&loaded)?;
    let options = Options { steps: 1, ..options(&loaded) };
    let segments = matches!(costs, Costs::Analytic(_));
    let mut runs = Vec::new();
    let mut folding = Vec::new();
    for plan in &loaded.plans {
        let fineness = Fineness { segments, full: false };
        let predicted = costs.predict_at(plan, &options, sends(&loaded), fineness)?;
        let whole = sound(plan, &costs.workload(plan))?;
        let programs = plan.programs().filter(|_| segments);
        let (times, received) = &predicted.step_times;
        let steps = programs.as_ref().map(|programs| Steps { programs, times, received });
        let breakdown = Breakdown::of(&predicted.schedule, &predicted.timeline, &whole, steps.as_ref());
        let gpus_per_node = plan.cluster.as_ref().map_or(u32::MAX, |cluster| cluster.gpus_per_node());
        let network = Network { mesh: &plan.mesh, setup: &plan.setup, programs: programs.as_ref(), gpus_per_node };
        let traffic = traffic(&predicted.schedule, &network);
        folding.extend(folds(plan, &predicted).then_some(plan));
        runs.push(StepReport::new(&Facts {
            plan,
            metrics: &predicted.metrics,
            throughput: predicted.throughput.as_ref(),
            breakdown: &breakdown,
            traffic: &traffic,
            segments,
        }));
    }
    let time_unit = if costs.in_seconds() { "s" } else { "units" };
    let answer = Answer { schema_version: 1, scenario: loaded.scenario.name.clone(), time_unit, runs };
    if let Some(path) = &args.plot {
        save(&step_plot::draw(&answer), path)?;
    }
    if args.json {
        output::json(&answer)?;
    } else {
        let texts: Vec<String> = answer.runs.iter().map(|run| run.text(costs.in_seconds())).collect();
        let head = format!("{}{}", headline(&loaded, &options), folded(&folding).unwrap_or_default());
        output::result(&format!("{head}\n\n{}", texts.join("\n")))?;
    }
    Ok(exit::FINE)
}
