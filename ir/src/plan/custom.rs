//! Orders of one's own, from a CSV or a JSON file that the scenario names.

use super::Context;
use crate::action::Action;
use crate::fault::{Fault, FilePlace};
use crate::ids::Rank;
use crate::interchange::csv::{self, CellPlace, Reading};
use crate::interchange::json::{FileFault, ScheduleFile};
use crate::order::PipelineOrder;
use crate::scenario::ScheduleEntry;
use crate::schedule::Draft;
use crate::schedules::{MICROBATCHES, RANKS, size_faults};
use crate::spec::{Rule, Semantics, Violation};
use crate::workload::Workload;
use std::collections::{BTreeMap, VecDeque};

/// The CSV that an order was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file, as the scenario names it.
    pub file: String,
    /// What it says.
    pub text: String,
    /// Rank -> the actions of its line, each with the place of its cell.
    cells: Vec<Vec<(Action, CellPlace)>>,
}

impl Source {
    fn new(file: &str, text: &str, reading: &Reading) -> Self {
        let rows = reading.order.ranks.iter().zip(&reading.places);
        let cells = rows.map(|(actions, places)| actions.iter().copied().zip(places.iter().copied()).collect());
        Self { file: file.to_owned(), text: text.to_owned(), cells: cells.collect() }
    }

    /// The place of each task's cell, by task id; `None` for a task that no cell names, which a pass has added. The n-th
    /// task that does something on a rank comes from the n-th cell of the rank's line that says so.
    pub fn places(&self, draft: &Draft) -> Vec<Option<CellPlace>> {
        let mut left: BTreeMap<(Rank, Action), VecDeque<CellPlace>> = BTreeMap::new();
        for (r, cells) in self.cells.iter().enumerate() {
            for (action, place) in cells {
                left.entry((Rank::at(r), *action)).or_default().push_back(*place);
            }
        }
        draft.tasks().map(|(_, task)| left.get_mut(&(task.rank, task.action))?.pop_front()).collect()
    }
}

/// An order of one's own.
pub(super) struct Custom {
    pub(super) order: PipelineOrder,
    /// The file that it is from.
    pub(super) file: String,
    pub(super) source: Option<Source>,
    pub(super) warnings: Vec<String>,
}

pub(super) fn resolve(context: &Context<'_>, at: &str, entry: &ScheduleEntry) -> Result<Custom, Vec<Fault>> {
    let (key, file) = match (entry.csv.as_deref(), entry.json.as_deref()) {
        (Some(file), None) => ("csv", file),
        (None, Some(file)) => ("json", file),
        (None, None) => {
            let message = "a custom schedule needs the path of its order";
            let help = "add \"csv\": \"orders/mine.csv\", or \"json\" with a file that `show --format json` writes";
            return Err(vec![Fault::new(at, "custom::file", message, help)]);
        }
        (Some(_), Some(_)) => {
            let message = "a custom schedule is read from one file, not from two";
            return Err(vec![Fault::new(format!("{at}.json"), "custom::file", message, "keep csv or json")]);
        }
    };
    let path = format!("{at}.{key}");
    let text = (context.read)(file).map_err(|why| {
        let help = "paths are relative to the scenario file";
        vec![Fault::new(&path, "custom::file", format!("cannot read {file}: {why}"), help)]
    })?;
    if key == "csv" { from_csv(context, &path, file, &text) } else { from_json(context, &path, file, &text) }
}

fn from_csv(context: &Context<'_>, path: &str, file: &str, text: &str) -> Result<Custom, Vec<Fault>> {
    let reading = csv::read(text, context.batch.microbatches);
    let in_file = |code, message, help: &str, place: CellPlace| {
        let file = Some(FilePlace { file: file.to_owned(), span: place.span });
        Fault { file, ..Fault::new(path, code, message, help) }
    };
    let mut faults: Vec<Fault> = Vec::new();
    for error in &reading.errors {
        let help = "cells are separated by commas, one line a rank";
        faults.push(in_file("custom::cell", format!("{file}: {error}"), help, error.place));
    }
    let lines = reading.order.placement.ranks();
    if reading.order.is_empty() && reading.errors.is_empty() {
        let help = "write one line a rank, for example 0F0,0B0";
        faults.push(Fault::new(path, "custom::empty", format!("{file} holds no actions"), help));
    } else if lines != context.ranks {
        let message = format!("{file} has {lines} lines, but {RANKS} is {}", context.ranks);
        let help = format!("write one line a rank, or set {RANKS} to {lines}");
        faults.push(Fault::new(path, "custom::ranks", message, help));
    }
    if faults.is_empty() {
        let source = Source::new(file, text, &reading);
        let warnings = skipped_warning(file, &reading).into_iter().collect();
        return Ok(Custom { order: reading.order, file: file.to_owned(), source: Some(source), warnings });
    }
    // What else is wrong with the cells that could be read, so that everything is told at once.
    let legal = size_faults(lines, reading.order.placement.stages(), reading.order.microbatches, reading.order.slices);
    if legal.is_empty() && !reading.errors.is_empty() {
        let draft = Draft::lower(&reading.order, &Workload::default());
        let places = Source::new(file, text, &reading).places(&draft);
        for violation in draft.check(Semantics::Eager).into_iter().filter(stands_alone) {
            let place = violation.ids.last().and_then(|id| places.get(id.index()).copied().flatten());
            if let Some(place) = place {
                let message = format!("{file}: line {}, cell {}: {violation}", place.line, place.cell);
                faults.push(in_file("custom::rule", message, &violation.help, place));
            }
        }
    }
    Err(faults)
}

/// Whether a violation is no mere echo of a cell that is missing because it cannot be read.
fn stands_alone(violation: &Violation) -> bool {
    match violation.rule {
        Rule::InRange | Rule::Placement | Rule::ForwardFirst | Rule::InputBeforeWeight => true,
        Rule::ExactlyOnce => violation.ids.len() > 1,
        _ => false,
    }
}

/// What was left out of a CSV of PyTorch's, in words.
fn skipped_warning(file: &str, reading: &Reading) -> Option<String> {
    let counts: Vec<String> = reading.skipped.iter().map(|(name, n)| format!("{n} {name}")).collect();
    (!counts.is_empty()).then(|| {
        format!(
            "{file}: skipped {}; they are about sharded data parallelism, and waiting that a task graph has as edges, and \
             mean nothing in one pipeline",
            counts.join(", ")
        )
    })
}

fn from_json(context: &Context<'_>, path: &str, file: &str, text: &str) -> Result<Custom, Vec<Fault>> {
    let schedule: ScheduleFile = serde_json::from_str(text).map_err(|error| {
        let help = "`pipewright schema schedule` describes the format, `pipewright show --format json` writes it";
        let span = (offset(text, error.line(), error.column()), 1);
        let fault = Fault::new(path, "custom::json", format!("{file}: {error}"), help);
        vec![Fault { file: Some(FilePlace { file: file.to_owned(), span }), ..fault }]
    })?;
    let fault = |f: FileFault| Fault::new(path, "custom::json", format!("{file}: {f}"), f.help);
    let (order, _) = schedule.read().map_err(|found| found.into_iter().map(fault).collect::<Vec<_>>())?;
    let mut faults = Vec::new();
    let (ranks, all) = (order.placement.ranks(), order.microbatches);
    if ranks != context.ranks {
        let message = format!("{file} is for {ranks} ranks, but {RANKS} is {}", context.ranks);
        faults.push(Fault::new(path, "custom::ranks", message, format!("set {RANKS} to {ranks}")));
    }
    // The file holds a whole step, accumulation rounds included.
    let batch = &context.batch;
    if (batch.microbatches, batch.rounds) != (all, 1) {
        let here = u64::from(batch.microbatches) * u64::from(batch.rounds);
        let message = format!("{file} is a step of {all} microbatches, but this scenario has {here}");
        let help = format!("set {MICROBATCHES} to {all}, and no larger global batch");
        faults.push(Fault::new(path, "custom::microbatches", message, help));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Custom { order, file: file.to_owned(), source: None, warnings: Vec::new() })
}

/// The byte of a line and column, both from 1, as serde counts them.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let mut at = (start + column.saturating_sub(1)).min(text.len().saturating_sub(1));
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
