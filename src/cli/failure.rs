//! What can go wrong for the user or the world, drawn at the edge with place and way out.

use super::{exit, output};
use miette::{Diagnostic, GraphicalReportHandler, LabeledSpan, NamedSource, SourceCode};
use std::fmt;
use std::path::PathBuf;

/// A verb that could not give its answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The scenario or a file it names is wrong: every fault.
    #[error("the scenario has {} faults", .0.len())]
    Faults(Vec<Fault>),
    /// stdout failed.
    #[error("cannot write the result: {0}")]
    Output(std::io::Error),
    /// A file cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// A file cannot be read, or an option does not fit.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// The way out.
        help: String,
    },
    /// Execution failed.
    #[cfg(feature = "exec")]
    #[error("{0}")]
    Execution(String),
}

/// Faults that are drawn before the rest is only counted.
const SHOWN: usize = 30;

impl Failure {
    /// Prints it on stderr and says which exit code it has.
    pub(crate) fn report(self) -> u8 {
        match self {
            Failure::Faults(faults) => {
                faults.iter().take(SHOWN).for_each(draw);
                if let Some(more) = faults.len().checked_sub(SHOWN).filter(|more| *more > 0) {
                    output::note(&format!("and {more} more faults"));
                }
                exit::USAGE
            }
            Failure::Usage { message, help } => {
                draw(&Fault { message, help, code: "usage".to_owned(), path: String::new(), place: None });
                exit::USAGE
            }
            #[cfg(feature = "exec")]
            Failure::Execution(message) => {
                draw(&Fault {
                    message,
                    help: String::new(),
                    code: "execution".to_owned(),
                    path: String::new(),
                    place: None,
                });
                exit::EXECUTION
            }
            other => {
                output::note(&format!("error: {other}"));
                exit::USAGE
            }
        }
    }
}

/// A fault with its place in a file.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Fault {
    pub(crate) message: String,
    pub(crate) help: String,
    pub(crate) code: String,
    /// JSON path of the knob; empty where there is none.
    pub(crate) path: String,
    pub(crate) place: Option<Place>,
}

/// A span of a file.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) source: NamedSource<String>,
    /// Byte offset and length.
    pub(crate) span: (usize, usize),
}

impl Diagnostic for Fault {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.help.is_empty()).then(|| Box::new(&self.help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|p| &p.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(Some("here".to_owned()), place.span))))
    }
}

fn draw(fault: &Fault) {
    let mut text = String::new();
    let handler = GraphicalReportHandler::new();
    // Terminals and pipes differ in colours and box characters; miette's own theme detection decides.
    match handler.with_links(false).render_report(&mut text, fault) {
        Ok(()) => output::note(text.trim_end()),
        Err(_) => output::note(&format!("error: {fault}")),
    }
}
