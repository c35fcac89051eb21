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
    /// Where in another file, when the fault lies in one that the scenario names.
    pub file: Option<FilePlace>,
}

/// A place in a file that a scenario names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file, as the scenario names it.
    pub file: String,
    /// Byte offset and length.
    pub span: (usize, usize),
}

impl Fault {
    /// A fault at `path`.
    pub fn new(
        path: impl Into<String>,
        code: &'static str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), code, message: message.into(), help: help.into(), file: None }
    }
}
