//! Exit codes: a contract with scripts.

use std::process::ExitCode;

/// All went well, and the answer is yes.
pub(crate) const FINE: u8 = 0;
/// The answer is no: violations, or not equal.
pub(crate) const NO: u8 = 1;
/// The command line, the scenario or a file it names is wrong.
pub(crate) const USAGE: u8 = 2;
/// Execution failed.
#[cfg_attr(not(feature = "exec"), expect(dead_code, reason = "only the executor can fail to execute"))]
pub(crate) const EXECUTION: u8 = 3;
/// A bug in pipewright.
const BUG: u8 = 70;

/// The answer to a panic, which has already been printed.
pub(crate) fn bug() -> ExitCode {
    super::output::note("this is a bug in pipewright: please report it with the command and the scenario");
    ExitCode::from(BUG)
}
