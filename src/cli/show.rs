//! `show`: the order of a schedule, as CSV or as an aligned grid.

use super::args::ShowArgs;
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::ir::order::PipelineOrder;

pub(crate) fn run(args: &ShowArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    let several = loaded.plans.len() > 1;
    for plan in &loaded.plans {
        let order = if args.comms { plan.program() } else { plan.order.clone() };
        if several {
            // Behind a # so that the rest stays a list of CSV blocks.
            output::result(&format!("# {}\n", plan.name))?;
        }
        output::result(&if args.csv { order.to_csv(args.comms) } else { grid(&order, args.comms) })?;
    }
    Ok(exit::FINE)
}

/// One line a rank, columns aligned.
fn grid(order: &PipelineOrder, all: bool) -> String {
    let csv = order.to_csv(all);
    let width = csv.split([',', '\n']).map(str::len).max().unwrap_or(0);
    let mut text = String::new();
    for (rank, line) in csv.lines().enumerate() {
        text.push_str(&format!("rank {rank:<3}"));
        for cell in line.split(',') {
            text.push_str(&format!(" {cell:<width$}"));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
