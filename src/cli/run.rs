//! `run`: really train with one schedule.

use super::args::RunArgs;
use super::execute::{Executable, Job};
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::report::json::timeline_json;
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    device: &'static str,
    schedule: String,
    /// Mean loss over the tokens of each step.
    losses: Vec<f64>,
    /// First start to last end of each step \[s\].
    step_seconds: Vec<f64>,
    /// Of the median step after the first.
    tokens_per_second: f64,
    /// Whether more ranks than cores took turns, so that times say nothing about bubbles.
    oversubscribed: bool,
    /// File with the start and end of every task.
    timeline: String,
}

pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    let job = Job::of(&loaded, &args.execute)?;
    let Some(plan) = loaded.plans.first() else { return Ok(exit::USAGE) };
    if loaded.plans.len() > 1 {
        output::note(&format!("running {}; --schedule NAME chooses another of the scenario", plan.name));
    }
    let cut = Executable::of(plan)?;
    let oversubscribed = job.oversubscribed(plan);
    let result = job.run(plan, &cut, job.steps, false)?;
    let step_seconds = result.step_seconds();
    let path =
        args.out.join(output::slug(&loaded.scenario.name)).join(format!("timeline-{}.json", output::slug(&plan.name)));
    output::write_file(&path, timeline_json(&cut.schedule, &result.timeline).to_string().as_bytes())?;
    let median = median(warmed_up(&step_seconds));
    let answer = Answer {
        schema_version: 1,
        device: job.device_name(),
        schedule: plan.name.clone(),
        tokens_per_second: plan.batch.tokens() as f64 / median,
        losses: result.losses,
        step_seconds,
        oversubscribed,
        timeline: path.display().to_string(),
    };
    if args.json {
        output::json(&answer)?;
    } else {
        output::result(&text(&answer))?;
    }
    Ok(exit::FINE)
}

fn text(answer: &Answer) -> String {
    let mut text = format!("{} on {}\n step        loss   seconds\n", answer.schedule, answer.device);
    for (step, (loss, seconds)) in answer.losses.iter().zip(&answer.step_seconds).enumerate() {
        text.push_str(&format!("{step:>5} {loss:>11.6} {seconds:>9.3}\n"));
    }
    text.push_str(&format!(
        "{:.0} tokens/s in the median step; timeline in {}\n",
        answer.tokens_per_second, answer.timeline
    ));
    if answer.oversubscribed {
        text.push_str("More ranks than cores took turns: these times say nothing about bubbles.\n");
    }
    text
}

/// All steps but the first, which warms up; that one where there is no other.
pub(crate) fn warmed_up(steps: &[f64]) -> &[f64] {
    steps.get(usize::from(steps.len() > 1)..).unwrap_or_default()
}

/// The middle value; of an even number the upper one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
