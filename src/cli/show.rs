//! `show`: a schedule as an aligned grid, or in a form for other tools.

use super::args::{Format, ShowArgs};
use super::failure::Failure;
use super::load::Loaded;
use super::predict::{Costs, sound};
use super::{exit, load, output};
use pipewright::ir::interchange::{dot, json::ScheduleFile};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::plan::Plan;
use pipewright::ir::workload::Workload;

pub(crate) fn run(args: &ShowArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    let format = if args.csv { Format::Csv } else { args.format };
    let several = loaded.plans.len() > 1;
    if several && matches!(format, Format::TorchCsv | Format::Json | Format::Dot) {
        return Err(Failure::Usage {
            message: format!("{} schedules do not fit in one file of this form", loaded.plans.len()),
            help: "choose one with --schedule NAME".to_owned(),
        });
    }
    for plan in &loaded.plans {
        if several {
            // Behind a # so that the rest stays a list of CSV blocks.
            output::result(&format!("# {}\n", plan.name))?;
        }
        output::result(&text(&loaded, plan, format, args.comms)?)?;
    }
    Ok(exit::FINE)
}

fn text(loaded: &Loaded, plan: &Plan, format: Format, comms: bool) -> Result<String, Failure> {
    let order = || if comms { plan.program() } else { plan.order.clone() };
    match format {
        Format::Grid => Ok(grid(&order(), comms)),
        Format::Csv => Ok(order().to_csv(comms)),
        Format::TorchCsv => order().to_torch_csv(comms).map_err(|error| Failure::Usage {
            message: format!("{} cannot be written for PyTorch: {error}", plan.name),
            help: "--format csv writes it in pipewright's extended notation".to_owned(),
        }),
        Format::Json => {
            let workload = sizes(loaded, plan)?;
            let schedule = sound(plan, &workload)?;
            let file = ScheduleFile::of(&plan.name, &schedule, &workload);
            file.to_text().map_err(|error| Failure::Output(error.into()))
        }
        Format::Dot => {
            let schedule = sound(plan, &sizes(loaded, plan)?)?;
            let title = format!("{}: {}", loaded.scenario.name, plan.name);
            dot::write(&title, &schedule).map_err(|error| Failure::Usage {
                message: format!("{} is too large to draw as a graph: {error}", plan.name),
                help: "use fewer ranks or microbatches, or --format json for the graph as data".to_owned(),
            })
        }
    }
}

/// What the stages weigh, as far as the scenario says.
fn sizes(loaded: &Loaded, plan: &Plan) -> Result<Workload, Failure> {
    if loaded.scenario.costs.is_none() {
        return Ok(Workload::abstract_stages(plan.placement().stages()));
    }
    Ok(Costs::of(loaded)?.workload(plan))
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
