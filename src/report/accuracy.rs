//! How far predictions are from measurements: tables in the terminal, a page in Markdown, JSON.

use super::table::table;
use crate::measurements::{Accuracy, Errors, RowError};
use crate::sim::cost::analytic::Parameters;
use serde::Serialize;
use serde_json::Value;

/// The errors of some tables, for JSON.
#[derive(Serialize)]
pub struct Answer<'a> {
    schema_version: u32,
    tables: Vec<AnswerTable<'a>>,
}

#[derive(Serialize)]
struct AnswerTable<'a> {
    name: &'a str,
    stacks: Vec<&'a str>,
    /// Step times \[s\] and their relative errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_seconds: Option<AnswerErrors<'a>>,
    /// Bubble rates and their differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    bubble_rate: Option<AnswerErrors<'a>>,
}

#[derive(Serialize)]
struct AnswerErrors<'a> {
    /// Rows that count in the next three.
    counted: usize,
    mean: f64,
    max: f64,
    bias: f64,
    rows: Vec<AnswerRow<'a>>,
}

#[derive(Serialize)]
struct AnswerRow<'a> {
    name: &'a str,
    measured: f64,
    predicted: f64,
    error: f64,
    counts: bool,
}

/// For JSON.
pub fn json(tables: &[Accuracy]) -> Answer<'_> {
    let tables = tables.iter().map(|t| AnswerTable {
        name: &t.measurements.name,
        stacks: t.stacks.iter().map(|stack| stack.name.as_str()).collect(),
        step_seconds: t.step_times.as_ref().map(answer),
        bubble_rate: t.bubble_rates.as_ref().map(answer),
    });
    Answer { schema_version: 1, tables: tables.collect() }
}

fn answer<'a>(errors: &'a Errors) -> AnswerErrors<'a> {
    let row = |r: &'a RowError| {
        let RowError { name, measured, predicted, error, counts } = r;
        AnswerRow { name, measured: *measured, predicted: *predicted, error: *error, counts: *counts }
    };
    let (mean, max, bias) = (errors.mean(), errors.max(), errors.bias());
    AnswerErrors { counted: errors.count(), mean, max, bias, rows: errors.rows.iter().map(row).collect() }
}

/// What a table is compared by.
struct Quantity<'a> {
    table: &'a Accuracy,
    errors: &'a Errors,
    /// Its name and unit for people.
    name: &'static str,
    /// How an error is written, as a share or as points.
    unit: &'static str,
    show: fn(f64) -> String,
}

/// Step times before bubble rates, table after table.
fn quantities(tables: &[Accuracy]) -> impl Iterator<Item = Quantity<'_>> {
    tables.iter().flat_map(|table| {
        let step = table.step_times.as_ref();
        let step = step.map(|errors| Quantity { table, errors, name: "step time [s]", unit: "%", show: seconds });
        let bubble = table.bubble_rates.as_ref();
        let bubble =
            bubble.map(|errors| Quantity { table, errors, name: "bubble rate [%]", unit: "points", show: share });
        step.into_iter().chain(bubble)
    })
}

/// Four digits.
fn seconds(time: f64) -> String {
    let decimals = if time >= 100.0 {
        1
    } else if time >= 10.0 {
        2
    } else {
        3
    };
    format!("{time:.decimals$}")
}

fn share(rate: f64) -> String {
    format!("{:.2}", rate * 100.0)
}

fn percent(error: f64) -> String {
    format!("{:.1}", error * 100.0)
}

fn signed(error: f64) -> String {
    // No minus before what rounds to zero.
    let tenths = (error * 1000.0).round() / 10.0 + 0.0;
    format!("{tenths:+.1}")
}

impl Quantity<'_> {
    fn stacks(&self) -> String {
        self.table.stacks.iter().map(|stack| stack.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Name, rows, mean, largest, bias.
    fn summary(&self) -> [String; 7] {
        let e = self.errors;
        let name = self.table.measurements.name.clone();
        let unit = self.unit.to_owned();
        [name, self.stacks(), e.count().to_string(), percent(e.mean()), percent(e.max()), signed(e.bias()), unit]
    }

    fn row(&self, row: &RowError) -> [String; 4] {
        let name = if row.counts { row.name.clone() } else { format!("{} (not counted)", row.name) };
        [name, (self.show)(row.measured), (self.show)(row.predicted), signed(row.error)]
    }
}

const SUMMARY: [&str; 7] = ["table", "stack", "rows", "mean", "max", "bias", "in"];

/// For the terminal.
pub fn text(tables: &[Accuracy]) -> String {
    let owned = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let mut text = String::new();
    for q in quantities(tables) {
        let rows: Vec<Vec<String>> = q.errors.rows.iter().map(|row| q.row(row).to_vec()).collect();
        text.push_str(&format!("{}, {}\n", q.table.measurements.name, q.name));
        text.push_str(&table(&owned(&["row", "measured", "predicted", &format!("error\n[{}]", q.unit)]), &rows));
        text.push('\n');
    }
    let rows: Vec<Vec<String>> = quantities(tables).map(|q| q.summary().to_vec()).collect();
    text.push_str(&table(&owned(&SUMMARY), &rows));
    text
}

/// What stands before the tables of the page.
const OPENING: &str = "\
# How far predictions are from measurements

Every row below is a published measurement of a real training run, written as a scenario and predicted by the same code
that predicts yours. The page is generated; a test compares it with what the tool gives, so it is what this version does:

    pipewright accuracy --markdown tests/published/*.json > docs/accuracy.md

Error = predicted / measured - 1. *Mean* and *max* are of absolute errors, *bias* is the mean with signs. Bubble rates are
compared by their difference, in points.

What is fitted are a few numbers for each pair of GPU and software stack, never a row or a table's correction. Most rows
were also used to fit, so expect more on your cluster: what stands below as *held out* says how far off rows are that a
fit did not see. A published step time also has the noise of one run.

## Your own cluster

A table is JSON: a base `scenario` and `rows` that `set` some of its knobs by their paths, each with `step_seconds`. The
files in `tests/published/` are examples. With some ten runs of your own,

    pipewright fit mine.json --parameters gemm_efficiency,memory_efficiency,launch --stack h100-megatron -o mine-stack.json
    pipewright accuracy mine.json --stack mine-stack.json

fits those parameters from the start of a known stack, and `\"cluster\": { \"stack\": \"mine-stack.json\" }` predicts with it.
Each number keeps its source in the file.

## Summary

";

/// For a page in Markdown.
pub fn markdown(tables: &[Accuracy]) -> String {
    let mut page = OPENING.to_owned();
    grid(&mut page, &SUMMARY, quantities(tables).map(|q| q.summary().to_vec()));
    page.push_str("\n## Tables\n");
    for q in quantities(tables) {
        let m = &q.table.measurements;
        page.push_str(&format!("\n### {}, {}\n\n", m.name, q.name));
        page.push_str(&format!("Source: {}.\n\nStack: {}.\n", m.source.trim_end_matches('.'), q.stacks()));
        for (head, words) in
            [("Conventions", &m.conventions), ("Held out", &m.held_out), ("Known misses", &m.known_misses)]
        {
            if !words.is_empty() {
                page.push_str(&format!("\n{head}: {words}\n"));
            }
        }
        page.push('\n');
        let head = ["row", "measured", "predicted", &format!("error [{}]", q.unit)];
        grid(&mut page, &head, q.errors.rows.iter().map(|row| q.row(row).to_vec()));
    }
    page.push_str("\n## Stacks\n");
    let mut shown: Vec<&str> = Vec::new();
    for stack in tables.iter().flat_map(|t| &t.stacks) {
        if !shown.contains(&stack.name.as_str()) {
            shown.push(&stack.name);
            stack_section(&mut page, stack);
        }
    }
    page
}

fn stack_section(page: &mut String, stack: &Parameters) {
    page.push_str(&format!("\n### {}\n\n{}. Fitted on: {}.\n\n", stack.name, stack.description, stack.fitted_on));
    let numbers = serde_json::to_value(stack).unwrap_or(Value::Null);
    let numbers = numbers.as_object().into_iter().flatten().filter(|(_, number)| number["value"].is_number());
    let cells = numbers.map(|(name, number)| {
        let source = number["source"].as_str().unwrap_or("");
        vec![name.replace('_', " "), number["value"].to_string(), source.to_owned()]
    });
    grid(page, &["parameter", "value", "source"], cells);
}

/// A table in Markdown.
fn grid(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut line = |cells: &[String]| page.push_str(&format!("| {} |\n", cells.join(" | ")));
    line(&head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    line(&vec!["---".to_owned(); head.len()]);
    rows.for_each(|cells| line(&cells));
}
