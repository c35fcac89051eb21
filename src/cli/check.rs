//! `check`: every violation of the law.

use super::args::CheckArgs;
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::ir::interchange::csv::CellPlace;
use pipewright::ir::plan::Source;
use pipewright::ir::spec::{Rule, Violation};
use pipewright::ir::workload::Workload;
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    ok: bool,
    /// The semantics of sends that were assumed.
    sends: Vec<&'static str>,
    violations: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    schedule: String,
    rule: &'static str,
    message: String,
    help: String,
    tasks: Vec<String>,
    /// Where the tasks stand in the CSV of a custom schedule, one each; null for a task that no cell names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<Option<PlaceRow>>,
}

#[derive(Serialize)]
struct PlaceRow {
    file: String,
    line: usize,
    /// Cell in the line, from 1.
    cell: usize,
    /// Byte offset and length of the cell in the file.
    offset: usize,
    length: usize,
}

/// Cells of one violation that are drawn; a deadlock can have hundreds.
const DRAWN: usize = 4;

/// Violations of one schedule that are printed for people before the rest is only counted.
const SHOWN: usize = 20;

pub(crate) fn run(args: &CheckArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    let semantics = args.sends.semantics();
    let names: Vec<&str> = semantics.iter().map(|s| s.name()).collect();
    let mut rows = Vec::new();
    let mut text = String::new();
    for plan in &loaded.plans {
        let draft = plan.draft(&Workload::abstract_stages(plan.placement().stages()));
        // Only whether it deadlocks depends on how sends behave.
        let mut found: Vec<Violation> = Vec::new();
        for (i, semantics) in semantics.iter().enumerate() {
            found.extend(draft.check(*semantics).into_iter().filter(|v| i == 0 || v.rule == Rule::DeadlockFree));
        }
        if found.is_empty() {
            text.push_str(&format!("{}: keeps all rules ({} sends)\n", plan.name, names.join(", ")));
        } else {
            text.push_str(&format!("{}: {} violations ({} sends)\n", plan.name, found.len(), names.join(", ")));
        }
        let places = plan.source.as_ref().map(|source| source.places(&draft));
        let cells = |v: &Violation| -> Vec<Option<CellPlace>> {
            let Some(places) = &places else { return Vec::new() };
            v.ids.iter().map(|id| places.get(id.index()).copied().flatten()).collect()
        };
        for violation in found.iter().take(SHOWN) {
            text.push_str(&format!("  {violation}\n"));
            for place in cells(violation).into_iter().flatten().take(DRAWN) {
                text.push_str(&plan.source.as_ref().map_or_else(String::new, |source| excerpt(source, place)));
            }
            text.push_str(&format!("    help: {}\n", violation.help));
        }
        if let Some(more) = found.len().checked_sub(SHOWN + 1) {
            text.push_str(&format!("  and {} more; --json lists all\n", more + 1));
        }
        rows.extend(found.into_iter().map(|v| Row {
            schedule: plan.name.clone(),
            rule: v.rule.name(),
            places: cells(&v).into_iter().map(|place| Some(row_of(plan.source.as_ref()?, place?))).collect(),
            message: v.message,
            help: v.help,
            tasks: v.tasks,
        }));
    }
    let ok = rows.is_empty();
    if args.json {
        output::json(&Answer { schema_version: 1, ok, sends: names, violations: rows })?;
    } else {
        output::result(&text)?;
    }
    Ok(if ok { exit::FINE } else { exit::NO })
}

fn row_of(source: &Source, place: CellPlace) -> PlaceRow {
    let CellPlace { line, cell, span: (offset, length) } = place;
    PlaceRow { file: source.file.clone(), line, cell, offset, length }
}

/// Most characters of a line that are drawn on each side of a cell.
const BESIDE: usize = 24;

/// The cell in its line, underlined, as far as it fits.
fn excerpt(source: &Source, place: CellPlace) -> String {
    let (start, length) = place.span;
    let (before, cell) = (&source.text[..start], &source.text[start..start + length]);
    let line = before.rsplit('\n').next().unwrap_or_default();
    let rest = source.text[start + length..].lines().next().unwrap_or_default();
    let skip = line.chars().count().saturating_sub(BESIDE);
    let head: String = line.chars().skip(skip).collect();
    let tail: String = rest.chars().take(BESIDE).collect();
    let (left, right) = (if skip > 0 { "..." } else { "" }, if tail.len() < rest.len() { "..." } else { "" });
    let indent = " ".repeat(left.len() + head.chars().count());
    let mark = "^".repeat(cell.chars().count());
    format!(
        "    {}, line {}, cell {}:\n      {left}{head}{cell}{tail}{right}\n      {indent}{mark}\n",
        source.file, place.line, place.cell
    )
}
