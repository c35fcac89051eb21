//! `accuracy`: how far predictions are from measurements, table by table.

use super::args::AccuracyArgs;
use super::failure::Failure;
use super::{exit, output};
use pipewright::measurements::{Accuracy, MeasurementError, Measurements, Prepared};
use pipewright::report::accuracy;
use pipewright::sim::cost::analytic::{Parameters, STACKS, stack};
use std::path::Path;

pub(crate) fn run(args: &AccuracyArgs) -> Result<u8, Failure> {
    let other = args.stack.as_deref().map(stack_of).transpose()?;
    let mut tables = Vec::new();
    for file in &args.files {
        let (measurements, mut rows) = read(file)?;
        for row in &mut rows {
            row.stack = other.clone().unwrap_or_else(|| row.stack.clone());
        }
        tables.push(Accuracy::of(measurements, &rows).map_err(|error| at(file, &error))?);
    }
    if args.json {
        output::json(&accuracy::json(&tables))?;
    } else if args.markdown {
        output::result(&accuracy::markdown(&tables))?;
    } else {
        output::result(&accuracy::text(&tables))?;
    }
    Ok(exit::FINE)
}

/// A table of measurements and its rows as plans. Files that it names lie beside it.
pub(crate) fn read(file: &Path) -> Result<(Measurements, Vec<Prepared>), Failure> {
    let measurements: Measurements = parse(file, "a table of measurements")?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let read_beside = |named: &str| std::fs::read_to_string(folder.join(named)).map_err(|e| e.to_string());
    let rows = measurements.prepare(&read_beside).map_err(|error| at(file, &error))?;
    Ok((measurements, rows))
}

/// A software stack by its name or its file.
pub(crate) fn stack_of(named: &str) -> Result<Parameters, Failure> {
    if named.ends_with(".json") {
        return parse(Path::new(named), "a software stack");
    }
    stack(named).ok_or_else(|| {
        let known: Vec<&str> = STACKS.iter().map(|(name, _)| *name).collect();
        let message = format!("no parameters are known for the software stack `{named}`");
        Failure::Usage { message, help: format!("known are {}; or give a file that ends in .json", known.join(", ")) }
    })
}

fn parse<T: serde::de::DeserializeOwned>(file: &Path, what: &str) -> Result<T, Failure> {
    let fail = |reason: String| Failure::Usage {
        message: format!("cannot read {what} from {}: {reason}", file.display()),
        help: "docs/accuracy.md says how tables and stacks are written".to_owned(),
    };
    let text = std::fs::read_to_string(file).map_err(|e| fail(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| fail(e.to_string()))
}

/// A row of a file that cannot be predicted.
pub(crate) fn at(file: &Path, error: &MeasurementError) -> Failure {
    Failure::Usage { message: format!("{}: {error}", file.display()), help: error.help().to_owned() }
}
