//! `simulate`: predicted time, bubble, memory and messages.

use super::args::{Detail, SimulateArgs};
use super::devices::{self, Device};
use super::failure::Failure;
use super::load::Loaded;
use super::predict::{self, Costs, Fineness, Predicted, assume};
use super::{exit, fits, load, output};
use pipewright::ir::flops::Throughput;
use pipewright::ir::plan::Plan;
use pipewright::ir::spec::Semantics;
use pipewright::report::json::{RunRow, Simulation, Speed};
use pipewright::report::pareto::{in_bytes, on_front};
use pipewright::report::table::{TimeScale, mebibytes, percent, table};
use pipewright::report::{Picture, Run, TimeUnit, comparison, gantt, memory, pareto, trace};
use pipewright::sim::Options;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &SimulateArgs) -> Result<u8, Failure> {
    let mut loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    assume(&mut loaded, &args.assumptions)?;
    let costs = Costs::of(&loaded)?;
    let options = Options {
        steps: args.repeat.steps as usize,
        barrier: args.repeat.barrier,
        cores: args.cores,
        ..predict::options(&loaded)
    };
    let fineness = Fineness { segments: args.detail == Detail::Segment, full: args.full };
    refuse(&costs, fineness)?;
    let predictions = costs.predict_all_at(&loaded, &options, fineness)?;
    let fits = if args.fits { fits::answers(&loaded, &costs, &predictions) } else { Vec::new() };
    if args.json {
        let mut answer = simulation(&loaded, &costs, &predictions, options.steps);
        answer.runs.iter_mut().zip(&fits).for_each(|(run, fits)| run.fits.clone_from(fits));
        output::json(&answer)?;
    } else {
        let mut text = text(&loaded, &costs, &predictions, &options);
        text.push_str(&fits::text(&loaded, &fits));
        for (plan, predicted) in loaded.plans.iter().zip(&predictions) {
            text.push_str(&devices::whether_equal(plan, predicted));
        }
        output::result(&text)?;
    }
    write_pictures(args, &loaded, &costs, &predictions)?;
    Ok(if fits.iter().flatten().all(|answer| answer.fits) { exit::FINE } else { exit::NO })
}

/// Segments and replicas are those of a model on a cluster.
fn refuse(costs: &Costs, fineness: Fineness) -> Result<(), Failure> {
    let option = match (costs, fineness) {
        (Costs::Analytic(_), _) | (_, Fineness { segments: false, full: false }) => return Ok(()),
        (_, Fineness { segments: true, .. }) => "--detail segment",
        _ => "--full",
    };
    Err(Failure::Usage {
        message: format!(
            "{option} needs the model and the cluster, but these costs are of whole stages of one pipeline"
        ),
        help: "add \"model\", \"cluster\" and training.seq_length to the scenario, and leave out \"costs\"".to_owned(),
    })
}

pub(crate) fn simulation(loaded: &Loaded, costs: &Costs, predictions: &[Predicted], steps: usize) -> Simulation {
    let front = on_front(predictions.iter().map(|p| &p.metrics));
    let rows = loaded.plans.iter().zip(predictions).zip(front);
    Simulation {
        schema_version: 1,
        scenario: loaded.scenario.name.clone(),
        time_unit: if costs.in_seconds() { "s" } else { "units" },
        runs: rows.map(|((plan, p), pareto)| row(plan, p, steps, pareto)).collect(),
    }
}

/// The table for people.
pub(crate) fn text(loaded: &Loaded, costs: &Costs, predictions: &[Predicted], options: &Options) -> String {
    let scale = TimeScale::of(predictions.iter().map(|p| p.metrics.makespan), costs.in_seconds());
    let bytes = predictions.iter().any(|p| p.metrics.peak_memory() > 0);
    let mut headers = vec!["schedule".to_owned(), scale.header("time")];
    let more = [
        "bubble
fraction",
        "bubble
overhead",
        "peak
activations",
        "messages",
        "of the
first",
    ];
    headers.extend(more.map(str::to_owned));
    if bytes {
        headers.push("peak memory\n[MiB]".to_owned());
    }
    let fast = predictions.iter().any(|p| p.throughput.is_some());
    if fast {
        headers.extend(["tokens/s".to_owned(), "MFU".to_owned()]);
    }
    let first = predictions.first().map_or(1.0, |p| p.metrics.makespan);
    let front = on_front(predictions.iter().map(|p| &p.metrics));
    let several = predictions.len() > 1;
    let row = |((plan, p), pareto): ((&Plan, &Predicted), bool)| {
        let metrics = &p.metrics;
        let mut row = vec![
            format!("{}{}", plan.name, if pareto && several { " *" } else { "" }),
            scale.show(metrics.makespan),
            percent(metrics.bubble_fraction),
            percent(metrics.bubble_overhead),
            TimeScale::of([], false).show(metrics.peak_activations()),
            metrics.messages.to_string(),
            ratio(metrics.makespan, first),
        ];
        if bytes {
            row.push(mebibytes(metrics.peak_memory()));
        }
        if fast {
            let of = |value: fn(&Throughput) -> String| p.throughput.as_ref().map_or_else(|| "-".to_owned(), value);
            row.push(of(|t| format!("{:.0}", t.tokens_per_second())));
            row.push(of(|t| percent(t.mfu())));
        }
        row
    };
    let rows: Vec<Vec<String>> = loaded.plans.iter().zip(predictions).zip(front).map(row).collect();
    let folding = loaded.plans.iter().zip(predictions).filter(|(plan, predicted)| folds(plan, predicted));
    let folded = folded(&folding.map(|(plan, _)| plan).collect::<Vec<_>>());
    let mut text = format!("{}{}\n{}", headline(loaded, options), folded.unwrap_or_default(), table(&headers, &rows));
    if several {
        let memory = if in_bytes(predictions.iter().map(|p| &p.metrics)) { "peak memory" } else { "peak activations" };
        text.push_str(&format!("* on the Pareto front of time and {memory}\n"));
    }
    for (plan, predicted) in loaded.plans.iter().zip(predictions).filter(|(plan, _)| plan.family == "auto") {
        if let Some(bound) = predicted.lower_bound {
            let gap = percent((predicted.metrics.makespan / bound - 1.0).max(0.0));
            text.push_str(&format!("{}: lower bound {}, gap {gap}\n", plan.name, scale.show(bound)));
        }
    }
    text
}

/// The row of a prediction.
pub(crate) fn row(plan: &Plan, predicted: &Predicted, steps: usize, pareto: bool) -> RunRow {
    RunRow {
        lower_bound: predicted.lower_bound,
        speed: predicted.throughput.as_ref().map(Speed::of),
        devices: (!predicted.devices.is_empty()).then(|| predicted.devices.iter().map(Device::row).collect()),
        ..RunRow::new(plan, &predicted.metrics, steps, pareto)
    }
}

/// `a / b`, a dash where there is no such thing.
fn ratio(a: f64, b: f64) -> String {
    let ratio = a / b;
    if ratio.is_finite() { format!("{ratio:.2} x") } else { "-".to_owned() }
}

/// `1 rank`, `2 ranks`.
pub(crate) fn count(n: u32, one: &str, several: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { several })
}

/// `2 ranks` where all are the same, `1 to 8 ranks` where they are not.
fn counts(all: impl Iterator<Item = u32> + Clone, one: &str, several: &str) -> String {
    let (least, most) = (all.clone().min().unwrap_or(0), all.max().unwrap_or(0));
    if least == most { count(most, one, several) } else { format!("{least} to {}", count(most, one, several)) }
}

/// One line that says what was simulated.
pub(crate) fn headline(loaded: &Loaded, options: &Options) -> String {
    let mut line = loaded.scenario.name.clone();
    if let Some(plan) = loaded.plans.first() {
        let ranks = counts(loaded.plans.iter().map(Plan::ranks), "rank", "ranks");
        let microbatches = loaded.plans.iter().map(|plan| plan.batch.microbatches);
        line.push_str(&format!(": {ranks}, {}", counts(microbatches, "microbatch", "microbatches")));
        if plan.batch.rounds > 1 {
            line.push_str(&format!(" x {} accumulation rounds", plan.batch.rounds));
        }
    }
    if predict::sends(loaded) != Semantics::Eager {
        line.push_str(&format!(", {} sends", predict::sends(loaded).name()));
    }
    if options.steps > 1 {
        let between = if options.barrier { "a barrier between" } else { "no barrier" };
        line.push_str(&format!(", {} steps, {between}", options.steps));
    }
    if let Some(cores) = options.cores {
        line.push_str(&format!(", {} for all ranks", count(cores, "core", "cores")));
    }
    if loaded.plans.iter().any(|plan| plan.order.ranks.iter().flatten().any(|action| action.joins_previous)) {
        line.push_str(&format!(", compound actions {}", predict::overlap(loaded).name()));
    }
    line
}

/// Whether the ranks of a prediction stand for more devices.
pub(crate) fn folds(plan: &Plan, predicted: &Predicted) -> bool {
    let more = plan.mesh.devices() > u64::from(plan.ranks());
    more && predicted.throughput.is_some() && predicted.devices.is_empty()
}

/// How many devices the ranks of these plans stand for.
pub(crate) fn folded(plans: &[&Plan]) -> Option<String> {
    let first = plans.first()?;
    let (shown, all) = (first.ranks(), first.mesh.devices());
    Some(if plans.iter().any(|plan| plan.mesh.devices() != all) {
        ", replicas folded".to_owned()
    } else if plans.iter().any(|plan| plan.ranks() != shown) {
        format!(", {all} devices, replicas folded")
    } else {
        format!(", {shown} of {all} devices shown, replicas folded")
    })
}

/// What the numbers of a timeline under these costs mean.
pub(crate) fn unit(costs: &Costs) -> TimeUnit {
    if costs.in_seconds() { TimeUnit::Seconds } else { TimeUnit::Abstract }
}

fn write_pictures(
    args: &SimulateArgs,
    loaded: &Loaded,
    costs: &Costs,
    predictions: &[Predicted],
) -> Result<(), Failure> {
    let unit = unit(costs);
    let runs: Vec<Run<'_>> = loaded.plans.iter().zip(predictions).map(|(plan, p)| report_run(plan, p, unit)).collect();
    if let Some(path) = &args.pareto {
        save(&pareto(&loaded.scenario.name, &runs), path)?;
    }
    if let Some(path) = &args.plot {
        let picture = match runs.as_slice() {
            [run] => gantt(run),
            runs => comparison(&loaded.scenario.name, runs),
        };
        save(&picture, path)?;
    }
    let slugs = output::slugs(loaded.plans.iter().map(|plan| plan.name.as_str()));
    for (run, slug) in runs.iter().zip(&slugs) {
        let own = |path: &Path| if runs.len() > 1 { suffixed(path, slug) } else { path.to_owned() };
        if let Some(path) = &args.memory_plot {
            save(&memory(run), &own(path))?;
        }
        if let Some(path) = &args.trace {
            output::write_file(&own(path), trace(run).to_string().as_bytes())?;
        }
    }
    Ok(())
}

/// What the pictures need to know of a prediction.
pub(crate) fn report_run<'a>(plan: &'a Plan, predicted: &'a Predicted, unit: TimeUnit) -> Run<'a> {
    Run {
        name: &plan.name,
        schedule: &predicted.schedule,
        timeline: &predicted.timeline,
        unit,
        chunks: plan.chunks,
        note: None,
    }
}

/// Saves a picture under a name that says its format.
pub(crate) fn save(picture: &Picture, path: &Path) -> Result<(), Failure> {
    let fail = |error: pipewright::report::PictureError| Failure::Usage {
        help: match &error {
            pipewright::report::PictureError::Extension(_) => "name a file that ends in .svg or .png".to_owned(),
            _ => "an SVG has no such limit: name a file that ends in .svg".to_owned(),
        },
        message: format!("cannot draw {}: {error}", path.display()),
    };
    let bytes = picture.encode(path).map_err(fail)?;
    output::write_file(path, &bytes)
}

/// `out/trace.json` for one of several schedules: `out/trace-1f1b.json`.
fn suffixed(path: &Path, slug: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
    path.with_file_name(format!("{stem}-{slug}{extension}"))
}
