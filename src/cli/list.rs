//! `list` and `completions`: what there is to type.

use super::args::{Arguments, CompletionArgs, ListArgs};
use super::failure::Failure;
use super::{exit, output};
use clap::CommandFactory;
use pipewright::ir::schedules::FAMILIES;
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    paper: &'static str,
    makespan: &'static str,
    peak_activations: &'static str,
}

pub(crate) fn run(args: &ListArgs) -> Result<u8, Failure> {
    let row = |f: &'static pipewright::ir::schedules::Family| Row {
        name: f.name,
        aliases: f.aliases,
        summary: f.summary,
        paper: f.paper,
        makespan: f.makespan,
        peak_activations: f.peak_activations,
    };
    let rows: Vec<Row> = FAMILIES.iter().map(row).collect();
    if args.json {
        output::json(&rows)?;
        return Ok(exit::FINE);
    }
    let mut text = String::new();
    for row in &rows {
        text.push_str(&format!("{}\n    {}\n", row.name, row.summary));
        text.push_str(&format!("    makespan             {}\n", row.makespan));
        text.push_str(&format!("    activations, rank r  {}\n", row.peak_activations));
        text.push_str(&format!("    paper                {}\n", row.paper));
        text.push_str(&format!("    also called          {}\n", row.aliases.join(", ")));
    }
    text.push_str("custom\n    the order in a CSV file: { \"name\": \"custom\", \"csv\": \"orders/mine.csv\" }\n");
    text.push_str("\nF, B = I + W: times of one chunk, equal stages, no hop. Activations: most chunks alive.\n");
    text.push_str("p ranks, m microbatches, v chunks a rank, g microbatches a group, k slices a microbatch.\n");
    output::result(&text)?;
    Ok(exit::FINE)
}

pub(crate) fn completions(args: &CompletionArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), "pipewright", &mut script);
    output::result(&String::from_utf8_lossy(&script))?;
    Ok(exit::FINE)
}
