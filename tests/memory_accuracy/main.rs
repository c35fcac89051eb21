//! Memory against published formulas and measurements: closed forms exactly, measured peaks within their targets.
//!
//! Everything goes the way of the product: shapes, mesh and setup to programs, workload, schedule, timeline and replay.

#![expect(clippy::unwrap_used, reason = "a broken plan or row should stop the test")]

mod formulas;
mod measured;
mod replay;
mod shapes;
mod words;
