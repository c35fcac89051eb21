//! A fault in what the user asked for: the knob as written, the rule, the way out.

/// One thing wrong with a scenario. Libraries report the path; the command line draws the place in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Where in the scenario, as a JSON path: `training.num_microbatches`, `schedules[2].csv`.
    pub path: String,
    /// Stable name of the rule, `scenario::microbatches`.
    pub code: &'static str,
    /// What is wrong, with the numbers.
    pub message: String,
    /// The nearest legal values.
    pub help: String,
}

impl Fault {
    /// A fault at `path`.
    pub fn new(
        path: impl Into<String>,
        code: &'static str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), code, message: message.into(), help: help.into() }
    }
}
