//! `fit`: parameters of a software stack from measured step times.

use super::accuracy::{at, read, stack_of};
use super::args::FitArgs;
use super::failure::Failure;
use super::{exit, output};
use pipewright::measurements::fit;
use std::path::Path;

pub(crate) fn run(args: &FitArgs) -> Result<u8, Failure> {
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for file in &args.files {
        let (measurements, prepared) = read(file)?;
        names.push(measurements.name);
        rows.extend(prepared);
    }
    let start = match (&args.stack, rows.first()) {
        (Some(named), _) => stack_of(named)?,
        (None, Some(row)) => row.stack.clone(),
        (None, None) => {
            let message = "there is no row to fit to".to_owned();
            return Err(Failure::Usage { message, help: "give a table with rows".to_owned() });
        }
    };
    let source = format!("fitted on {}", names.join("; "));
    let first = args.files.first().map_or(Path::new(""), |file| file);
    let fitted = fit(&start, &args.parameters, &rows, args.rounds, &source).map_err(|error| at(first, &error))?;
    let [before, after] = fitted.error.map(|error| error * 100.0);
    output::note(&format!(
        "{} rows: mean error {before:.2} % before, {after:.2} % after",
        rows.iter().filter(|row| row.counts && row.step_seconds.is_some()).count()
    ));
    for (name, [old, new]) in &fitted.values {
        output::note(&format!("  {name}  {old} -> {new}"));
    }
    match &args.output {
        Some(path) => {
            let text = serde_json::to_string_pretty(&fitted.parameters).map_err(|e| Failure::Output(e.into()))?;
            output::write_file(path, format!("{text}\n").as_bytes())?;
        }
        None => output::json(&fitted.parameters)?,
    }
    Ok(exit::FINE)
}
