//! `plan`: whether a plan is legal, and what it comes to: devices, groups, layers, batch, switches.

mod answer;
mod text;

use super::args::PlanArgs;
use super::failure::{Failure, Fault};
use super::{exit, load, output};
use answer::Answer;
use serde::Serialize;

/// A scenario that cannot be planned.
#[derive(Serialize)]
struct Refusal<'a> {
    schema_version: u32,
    ok: bool,
    faults: Vec<FaultRow<'a>>,
}

#[derive(Serialize)]
struct FaultRow<'a> {
    /// JSON path of the knob, as in the scenario; empty for a fault of the whole file.
    path: &'a str,
    /// Name of the rule.
    rule: &'a str,
    message: &'a str,
    /// The nearest legal values.
    help: &'a str,
}

impl<'a> FaultRow<'a> {
    fn of(fault: &'a Fault) -> Self {
        let Fault { path, code, message, help, .. } = fault;
        Self { path, rule: code, message, help }
    }
}

pub(crate) fn run(args: &PlanArgs) -> Result<u8, Failure> {
    let loaded = match load::load(&args.source.file, &args.source.schedule) {
        Err(Failure::Faults(faults)) if args.json => {
            let rows = faults.iter().map(FaultRow::of).collect();
            output::json(&Refusal { schema_version: 1, ok: false, faults: rows })?;
            return Err(Failure::Faults(faults));
        }
        loaded => loaded?,
    };
    let Some(answer) = Answer::of(&loaded) else {
        return Err(Failure::Usage { message: "no schedule is named".to_owned(), help: String::new() });
    };
    if args.json {
        output::json(&answer)?;
    } else {
        output::result(&text::text(&answer))?;
        loaded.warn();
    }
    Ok(exit::FINE)
}
