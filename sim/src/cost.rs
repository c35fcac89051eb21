//! Cost models: how long a task takes and how long a message travels.

pub mod analytic;
mod table;
mod unit;

pub use analytic::AnalyticCost;
pub use table::{TableCost, TableError, workload_of};
pub use unit::UnitCost;

use pipewright_ir::task::Task;

/// How long things take. Seconds \[s\], or abstract units for [`UnitCost`].
pub trait CostModel {
    /// Time for which the task occupies its lane.
    fn duration(&self, task: &Task) -> f64;

    /// Time of a compound action whose parts run together; without anything better known, the sum of the parts.
    fn compound(&self, parts: &[&Task]) -> f64 {
        parts.iter().map(|task| self.duration(task)).sum()
    }

    /// From the end of a transfer's first task to the moment its second may start. Occupies no lane.
    fn latency(&self, receiver: &Task) -> f64;
}
