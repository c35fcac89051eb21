//! pipewright: compare, simulate, draw and execute parallel training plans from one schedule IR.
//!
//! This crate is the binary and a thin facade over three libraries:
//!
//! - [`ir`]: scenario, schedules, passes, the law, timeline. Pure values.
//! - [`sim`]: a schedule and a cost model in, a timeline out.
//! - `exec` (feature `exec`): the same schedule run for real with burn.
//! - [`report`]: pictures, traces and tables, all functions of a schedule and a timeline.

#[cfg(feature = "exec")]
pub use pipewright_exec as exec;
pub use pipewright_ir as ir;
pub use pipewright_sim as sim;

pub mod measurements;
pub mod report;
