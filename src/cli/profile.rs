//! `profile`: what each task costs on this machine, as a file that `simulate` predicts from.

use super::args::ProfileArgs;
use super::execute::{Job, Profiler};
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::ir::cost_table::CostTable;
use pipewright::report::table::{TimeScale, percent, table};

/// Rounds of a profile; a round is four microbatches and an optimizer step of every stage, alone and together.
const ROUNDS: u32 = 10;

pub(crate) fn run(args: &ProfileArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    let job = Job::of(&loaded, &args.execute)?;
    let mut profiler = Profiler::new(&loaded, &job, &loaded.plans)?;
    profiler.turn(ROUNDS)?;
    let costs = profiler.table()?;
    write(&costs, &args.output)?;
    output::result(&text(&costs))?;
    output::note(&format!("written to {}", args.output.display()));
    Ok(exit::FINE)
}

/// Writes a cost table.
pub(crate) fn write(costs: &CostTable, path: &std::path::Path) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(costs).map_err(|e| Failure::Output(e.into()))?;
    output::write_file(path, format!("{json}\n").as_bytes())
}

/// The layers of a stage, `4 to 7`.
pub(crate) fn layers([start, end]: [u32; 2]) -> String {
    if start < end { format!("{start} to {}", end - 1) } else { "none".to_owned() }
}

fn text(costs: &CostTable) -> String {
    let mut text = format!("{}\n{}\n", costs.device, costs.job);
    for layout in &costs.layouts {
        let scale = TimeScale::of(layout.stages.iter().map(|s| s.backward.median), true);
        let split = layout.stages.iter().any(|s| s.split.is_some());
        let mut headers = vec!["stage".to_owned(), "layers".to_owned(), scale.header("F"), scale.header("B")];
        if split {
            headers.extend([scale.header("I"), scale.header("W")]);
        }
        headers.extend([scale.header("optimizer"), "B, 10 %\nto 90 %".to_owned()]);
        let row = |(s, stage): (usize, &pipewright::ir::cost_table::StageCosts)| {
            let mut row = vec![
                s.to_string(),
                layers(stage.layers),
                scale.show(stage.forward.median),
                scale.show(stage.backward.median),
            ];
            if split {
                row.extend(stage.input_and_weight().map(|time| scale.show(time)));
            }
            row.push(scale.show(stage.optimizer.median));
            row.push(format!("{} to {}", scale.show(stage.backward.p10), scale.show(stage.backward.p90)));
            row
        };
        let rows: Vec<Vec<String>> = layout.stages.iter().enumerate().map(row).collect();
        text.push_str(&table(&headers, &rows));
    }
    if costs.contention > 0.0 {
        let share = percent(costs.contention);
        text.push_str(&format!("a task takes {share} longer for each further rank that works at the same time\n"));
    }
    let message = &costs.message;
    if message.bytes > 0 {
        let scale = TimeScale::of([message.hop.median, message.send.median], true);
        let times = [("send", &message.send), ("hop", &message.hop), ("receive", &message.receive)]
            .map(|(what, time)| format!("{what} {} {}", scale.show(time.median), scale.unit));
        text.push_str(&format!("message of {} bytes: {}\n", message.bytes, times.join(", ")));
    }
    text
}
