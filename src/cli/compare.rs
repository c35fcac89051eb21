//! `compare`: every schedule side by side, predicted; with `execute` also measured, verified and drawn.

use super::args::CompareArgs;
use super::failure::Failure;
use super::load::Loaded;
use super::predict::{Costs, Predicted, assume, options};
use super::simulate::{report_run, save, simulation, text, unit};
use super::{exit, load, output};
use pipewright::report::{Picture, comparison, gantt, memory, pareto, trace};
use std::path::Path;

pub(crate) fn run(args: &CompareArgs) -> Result<u8, Failure> {
    let mut loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    let folder = args.out.join(output::slug(&loaded.scenario.name));
    #[cfg(feature = "exec")]
    if loaded.scenario.execute.is_some() && !args.predict_only {
        return measured::run(args, &loaded, &folder);
    }
    assume(&mut loaded, &args.assumptions)?;
    predicted(args, &loaded, &folder)
}

/// Predictions alone.
fn predicted(args: &CompareArgs, loaded: &Loaded, folder: &Path) -> Result<u8, Failure> {
    let costs = Costs::of(loaded)?;
    let options = options(loaded);
    let predictions = costs.predict_all(loaded, &options)?;
    if args.json {
        output::json(&simulation(loaded, &costs, &predictions, options.steps))?;
    } else {
        output::result(&text(loaded, &costs, &predictions, &options))?;
    }
    draw_predictions(loaded, &costs, &predictions, folder)?;
    output::note(&format!("pictures and traces are in {}", folder.display()));
    Ok(exit::FINE)
}

/// The comparison figure, and for each schedule its timeline, memory and trace.
fn draw_predictions(loaded: &Loaded, costs: &Costs, predictions: &[Predicted], folder: &Path) -> Result<(), Failure> {
    let unit = unit(costs);
    let runs: Vec<_> = loaded.plans.iter().zip(predictions).map(|(plan, p)| report_run(plan, p, unit)).collect();
    save_both(&comparison(&loaded.scenario.name, &runs), folder, "comparison")?;
    save_both(&pareto(&loaded.scenario.name, &runs), folder, "pareto")?;
    for (run, slug) in runs.iter().zip(output::slugs(runs.iter().map(|run| run.name))) {
        save_both(&gantt(run), folder, &format!("timeline-{slug}"))?;
        save_both(&memory(run), folder, &format!("memory-{slug}"))?;
        output::write_file(&folder.join(format!("trace-{slug}.json")), trace(run).to_string().as_bytes())?;
    }
    Ok(())
}

/// Saves a picture as SVG and as PNG.
fn save_both(picture: &Picture, folder: &Path, name: &str) -> Result<(), Failure> {
    save(picture, &folder.join(format!("{name}.svg")))?;
    save(picture, &folder.join(format!("{name}.png")))
}

/// Predictions against measurements on this machine.
#[cfg(feature = "exec")]
mod measured {
    use super::super::args::{Assumptions, OverlapMode, SendMode};
    use super::super::execute::{Executable, Job, Profiler};
    use super::super::profile;
    use super::super::run::{median, warmed_up};
    use super::super::simulate::{count, row as predicted_row};
    use super::super::verify::{self, References, Row};
    use super::*;
    use pipewright::exec::reference::Reference;
    use pipewright::exec::run::Run;
    use pipewright::ir::metrics::Metrics;
    use pipewright::ir::plan::Plan;
    use pipewright::ir::timeline::{Source, Timeline};
    use pipewright::report::json::RunRow;
    use pipewright::report::pareto::on_front;
    use pipewright::report::table::{TimeScale, mebibytes, percent, table};
    use pipewright::report::{self, TimeUnit, memory_against, predicted_against_measured};
    use pipewright::sim::Options;
    use serde::Serialize;

    /// Steps whose every gradient is compared with one device.
    const VERIFIED_STEPS: u64 = 3;

    /// Profile and runs alternate in turns, so that a machine whose speed drifts slows both alike.
    const TURNS: usize = 8;
    /// Rounds of the profile in a turn.
    const ROUNDS: u32 = 2;
    /// Steps of each schedule in a turn after the first, which trains for all steps.
    const TURN_STEPS: u64 = 3;

    #[derive(Serialize)]
    struct Answer {
        schema_version: u32,
        scenario: String,
        time_unit: &'static str,
        device: &'static str,
        /// Cores that all ranks share; null where every rank has a device of its own.
        cores: Option<u32>,
        /// More ranks than cores took turns: measured times say nothing about bubbles.
        oversubscribed: bool,
        /// One device, the whole model: median step \[s\].
        one_device_step_seconds: f64,
        ok: bool,
        /// As `simulate` gives them, with `measured` inside.
        runs: Vec<RunRow>,
        #[serde(skip)]
        measured: Vec<Measured>,
        folder: String,
    }

    /// One schedule, measured.
    #[derive(Serialize)]
    struct Measured {
        /// What the table shows beside it; the JSON has it around this.
        #[serde(skip)]
        predicted: RunRow,
        /// Median over all steps but the first \[s\].
        measured_step_seconds: f64,
        /// Predicted / measured - 1.
        step_error: f64,
        /// Null where ranks took turns on too few cores.
        measured_bubble_fraction: Option<f64>,
        /// Most live bytes of any rank, as the allocator counted them \[B\].
        measured_peak_memory_bytes: u64,
        losses: Vec<f64>,
        /// Largest difference of any step's loss from that of one device.
        max_loss_diff_all_steps: f64,
        verify: Row,
    }

    pub(super) fn run(args: &CompareArgs, loaded: &Loaded, folder: &Path) -> Result<u8, Failure> {
        // The executor runs the parts of a compound action one after another.
        let Assumptions { overlap, sends } = args.assumptions;
        if overlap.is_some_and(|m| m != OverlapMode::Sequential) || sends.is_some_and(|m| m != SendMode::Eager) {
            return Err(Failure::Usage {
                message: "what is executed runs the parts of compound actions one after another and never waits for a \
                          receive"
                    .to_owned(),
                help: "leave out --overlap and --sends, or predict alone with --predict-only".to_owned(),
            });
        }
        let job = Job::of(loaded, &args.execute)?;
        let oversubscribed = loaded.plans.first().is_some_and(|plan| job.oversubscribed(plan));
        let written = match &loaded.scenario.costs {
            Some(costs) if costs.file.is_some() => Some(Costs::of(loaded)?),
            Some(_) => {
                output::note(
                    "the scenario's unit costs are abstract: predicting from costs measured on this machine instead",
                );
                None
            }
            None => None,
        };
        let mut profiler = Profiler::new(loaded, &job, &loaded.plans)?;
        let cuts = loaded.plans.iter().map(Executable::of).collect::<Result<Vec<_>, _>>()?;
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); loaded.plans.len()];
        for turn in 0..TURNS {
            if written.is_none() {
                profiler.turn(ROUNDS)?;
            }
            let steps = if turn == 0 { job.steps } else { job.steps.min(TURN_STEPS) };
            for ((plan, cut), runs) in loaded.plans.iter().zip(&cuts).zip(&mut runs) {
                runs.push(job.run(plan, cut, steps, false)?);
            }
        }
        let costs = match written {
            Some(costs) => costs,
            None => {
                let table = profiler.table()?;
                profile::write(&table, &folder.join("costs.json"))?;
                Costs::Table(table)
            }
        };
        let predictions = costs.predict_all(loaded, &Options::default())?;
        let mut references = References::default();
        let (mut rows, mut steps, mut one_device) = (Vec::new(), Vec::new(), None);
        let front = on_front(predictions.iter().map(|p| &p.metrics));
        for (((plan, predicted), runs), pareto) in loaded.plans.iter().zip(&predictions).zip(&runs).zip(front) {
            let reference = references.of(&job, plan, job.steps, VERIFIED_STEPS.min(job.steps))?;
            one_device.get_or_insert_with(|| median(warmed_up(&reference.step_seconds)));
            let verified = verify::verify(&job, plan, reference)?;
            let step = median_step(runs);
            let mut row = row((plan, predicted, pareto), runs, &step, reference, verified);
            row.measured_bubble_fraction = row.measured_bubble_fraction.filter(|_| !oversubscribed);
            rows.push(row);
            steps.push(step);
        }
        draw_predictions(loaded, &costs, &predictions, folder)?;
        draw(loaded, &predictions, &steps, oversubscribed, folder)?;
        let answer = Answer {
            schema_version: 1,
            scenario: loaded.scenario.name.clone(),
            time_unit: "s",
            device: job.device_name(),
            cores: job.cores(),
            oversubscribed,
            one_device_step_seconds: one_device.unwrap_or(f64::NAN),
            ok: rows.iter().all(|r| r.verify.ok),
            runs: rows.iter().map(joined).collect(),
            measured: rows,
            folder: folder.display().to_string(),
        };
        if args.json {
            output::json(&answer)?;
        } else {
            output::result(&text(loaded, &answer))?;
        }
        Ok(if answer.ok { exit::FINE } else { exit::NO })
    }

    /// A prediction with its measurement inside.
    fn joined(row: &Measured) -> RunRow {
        // Numbers and texts under fixed names: there is nothing that could fail to become JSON.
        RunRow { measured: serde_json::to_value(row).ok(), ..row.predicted.clone() }
    }

    /// The step whose time is the median over all steps of all turns but the first of each, which warms up.
    fn median_step(runs: &[Run]) -> Timeline {
        let mut steps = Vec::new();
        for run in runs {
            let seconds = run.step_seconds();
            let from = usize::from(seconds.len() > 1);
            steps.extend(seconds.into_iter().enumerate().skip(from).map(|(step, seconds)| (seconds, step, run)));
        }
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let empty = Timeline { source: Source::Measured, tasks: 0, spans: Vec::new(), memory: Vec::new() };
        steps.get(steps.len() / 2).map_or(empty, |(_, step, run)| run.timeline.step(*step))
    }

    fn row(
        (plan, predicted, pareto): (&Plan, &Predicted, bool),
        runs: &[Run],
        step: &Timeline,
        reference: &Reference,
        verify: Row,
    ) -> Measured {
        let metrics = Metrics::of(&predicted.schedule, step);
        // The first turn trains for all steps.
        let losses = runs.first().map_or_else(Vec::new, |run| run.losses.clone());
        let differences = losses.iter().zip(&reference.losses).map(|(a, b)| (a - b).abs());
        Measured {
            predicted: predicted_row(plan, predicted, 1, pareto),
            measured_step_seconds: metrics.makespan,
            step_error: predicted.metrics.makespan / metrics.makespan - 1.0,
            measured_bubble_fraction: Some(metrics.bubble_fraction),
            measured_peak_memory_bytes: step.memory.iter().map(|m| m.peak).max().unwrap_or(0),
            max_loss_diff_all_steps: differences.fold(0.0, f64::max),
            losses,
            verify,
        }
    }

    /// Prediction above measurement: all times in one figure, memory and the measured trace of each schedule.
    fn draw(
        loaded: &Loaded,
        predictions: &[Predicted],
        steps: &[Timeline],
        oversubscribed: bool,
        folder: &Path,
    ) -> Result<(), Failure> {
        let note = oversubscribed.then(|| "more ranks than cores took turns: not a bubble measurement".to_owned());
        let mut pairs = Vec::new();
        let slugs = output::slugs(loaded.plans.iter().map(|plan| plan.name.as_str()));
        for (((plan, predicted), step), slug) in loaded.plans.iter().zip(predictions).zip(steps).zip(slugs) {
            let above = report_run(plan, predicted, TimeUnit::Seconds);
            let below = report::Run { timeline: step, note: note.clone(), ..above.clone() };
            save_both(&memory_against(&above, &below), folder, &format!("measured-memory-{slug}"))?;
            let trace = trace(&below).to_string();
            output::write_file(&folder.join(format!("measured-trace-{slug}.json")), trace.as_bytes())?;
            pairs.push((above, below));
        }
        save_both(&predicted_against_measured(&loaded.scenario.name, &pairs), folder, "predicted-against-measured")
    }

    /// Two tables, so that each fits a terminal of 80 columns: times, and what else was measured.
    fn text(loaded: &Loaded, answer: &Answer) -> String {
        let Some(plan) = loaded.plans.first() else { return String::new() };
        let mut text = format!("{}\n", headline(plan, answer));
        let runs = &answer.measured;
        let scale = TimeScale::of(runs.iter().flat_map(|r| [r.predicted.makespan, r.measured_step_seconds]), true);
        let headers = [
            "schedule".to_owned(),
            scale.header("predicted"),
            scale.header("measured"),
            "error".to_owned(),
            "bubble\npredicted".to_owned(),
            "bubble\nmeasured".to_owned(),
        ];
        let times = |r: &Measured| {
            vec![
                r.predicted.name.clone(),
                scale.show(r.predicted.makespan),
                scale.show(r.measured_step_seconds),
                format!("{:+.1} %", r.step_error * 100.0),
                percent(r.predicted.bubble_fraction),
                r.measured_bubble_fraction.map_or("-".to_owned(), percent),
            ]
        };
        text.push_str(&table(&headers, &runs.iter().map(times).collect::<Vec<_>>()));
        let headers = ["schedule", "predicted\npeak [MiB]", "measured\npeak [MiB]", "last loss", "equals\none device"];
        let peak = |r: &RunRow| r.ranks.iter().map(|rank| rank.peak_memory_bytes).max().unwrap_or(0);
        let rest = |r: &Measured| {
            vec![
                r.predicted.name.clone(),
                mebibytes(peak(&r.predicted)),
                mebibytes(r.measured_peak_memory_bytes),
                r.losses.last().map_or_else(String::new, |loss| format!("{loss:.4}")),
                r.verify.verdict().to_owned(),
            ]
        };
        text.push_str(&table(&headers.map(str::to_owned), &runs.iter().map(rest).collect::<Vec<_>>()));
        for (run, difference) in runs.iter().filter_map(|r| Some((r, r.verify.first_difference.as_ref()?))) {
            text.push_str(&format!("{}: {}\n", run.predicted.name, difference.describe()));
        }
        let one = scale.show(answer.one_device_step_seconds);
        text.push_str(&format!(
            "One device takes {one} {} a step. Times are medians over all steps but the first.\n",
            scale.unit
        ));
        if answer.oversubscribed {
            text.push_str(&format!(
                "{} share {} and take turns: measured times say nothing about bubbles.\nThe prediction shares the cores \
                 too.\n",
                count(plan.ranks(), "rank", "ranks"),
                count(answer.cores.unwrap_or(1), "core", "cores"),
            ));
        }
        text.push_str(&format!("Pictures, traces and measured costs are in {}\n", answer.folder));
        text
    }

    /// One line that says what was run.
    fn headline(plan: &Plan, answer: &Answer) -> String {
        let batch = &plan.batch;
        let rounds = if batch.rounds > 1 { format!(" x {} rounds", batch.rounds) } else { String::new() };
        let steps = answer.measured.first().map_or(0, |r| r.losses.len());
        format!(
            "{}: {} on {}, {}{rounds} of {} x {} tokens, {}",
            answer.scenario,
            count(plan.ranks(), "rank", "ranks"),
            answer.device,
            count(batch.microbatches, "microbatch", "microbatches"),
            batch.micro_batch_size,
            batch.seq_length,
            count(u32::try_from(steps).unwrap_or(u32::MAX), "step", "steps"),
        )
    }
}
