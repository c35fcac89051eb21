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
    let mut profiler = Profiler::new(&job, &loaded.plans);
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

fn text(costs: &CostTable) -> String {
    let mut text = format!("{}\n{}\n", costs.device, costs.job);
    for layout in &costs.layouts {
        let scale = TimeScale::of(layout.stages.iter().map(|s| s.backward.median), true);
        let headers =
            ["stage", "layers", &scale.header("F"), &scale.header("B"), &scale.header("optimizer"), "B, 10 % to 90 %"]
                .map(str::to_owned);
        let row = |(s, stage): (usize, &pipewright::ir::cost_table::StageCosts)| {
            vec![
                s.to_string(),
                format!("{} to {}", stage.layers[0], stage.layers[1]),
                scale.show(stage.forward.median),
                scale.show(stage.backward.median),
                scale.show(stage.optimizer.median),
                format!("{} to {}", scale.show(stage.backward.p10), scale.show(stage.backward.p90)),
            ]
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
        text.push_str(&format!(
            "message of {} bytes: {}, {}, {}\n",
            message.bytes,
            [scale.header("send"), scale.show(message.send.median)].join(" "),
            [scale.header("hop"), scale.show(message.hop.median)].join(" "),
            [scale.header("receive"), scale.show(message.receive.median)].join(" "),
        ));
    }
    text
}
