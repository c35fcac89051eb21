//! The command line: a file a verb.
//!
//! One law: only this module prints, reads files and writes them. Results go to stdout, all else to stderr.

mod accuracy;
mod args;
mod check;
mod compare;
mod devices;
#[cfg(feature = "exec")]
mod execute;
pub(crate) mod exit;
mod explain;
mod failure;
mod fit;
mod fits;
mod list;
mod load;
mod locate;
mod model;
mod output;
mod plan;
mod predict;
#[cfg(feature = "exec")]
mod profile;
#[cfg(feature = "exec")]
mod progress;
mod report;
#[cfg(feature = "exec")]
mod run;
mod schema;
mod show;
mod simulate;
#[cfg(feature = "exec")]
mod verify;

use args::{Arguments, Verb};
use clap::Parser;
use failure::Failure;
use std::process::ExitCode;

/// Filter of the log on stderr, in `tracing`'s syntax: `PIPEWRIGHT_LOG=debug`.
const LOG_VARIABLE: &str = "PIPEWRIGHT_LOG";

/// Parses the command line and runs the verb.
pub(crate) fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version come this way too; clap knows which stream and whether it is a fault.
            let code = if error.use_stderr() { exit::USAGE } else { exit::FINE };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let filter = tracing_subscriber::EnvFilter::from_env(LOG_VARIABLE);
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match &arguments.verb {
        Verb::Check(args) => check::run(args),
        Verb::Plan(args) => plan::run(args),
        Verb::Show(args) => show::run(args),
        Verb::Simulate(args) => simulate::run(args),
        Verb::Compare(args) => compare::run(args),
        Verb::Explain(args) => explain::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Accuracy(args) => accuracy::run(args),
        Verb::Fit(args) => fit::run(args),
        Verb::Model(args) => model::run(args),
        Verb::List(args) => list::run(args),
        Verb::Schema(args) => schema::run(args),
        Verb::Completions(args) => list::completions(args),
        #[cfg(feature = "exec")]
        Verb::Run(args) => run::run(args),
        #[cfg(feature = "exec")]
        Verb::Verify(args) => verify::run(args),
        #[cfg(feature = "exec")]
        Verb::Profile(args) => profile::run(args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        // Whoever reads our output may stop reading.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(exit::FINE),
        Err(failure) => ExitCode::from(failure.report()),
    }
}
