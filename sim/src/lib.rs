//! The simulator of pipewright: a [`Schedule`] and a cost model in, a [`Timeline`] out.
//!
//! One law: deterministic to the byte. The same schedule, costs and options give the same timeline on any machine and
//! any number of threads; ties go to the smaller task id.
//!
//! ```
//! use pipewright_ir::passes::add_send_recv;
//! use pipewright_ir::unit_costs::UnitCosts;
//! use pipewright_ir::schedule::Draft;
//! use pipewright_ir::schedules::{ScheduleParams, find};
//! use pipewright_ir::workload::Workload;
//! use pipewright_sim::{Options, cost::UnitCost, simulate};
//!
//! let order = find("1f1b").unwrap().order(&ScheduleParams::new(4, 8, 1)).unwrap();
//! let schedule = Draft::lower(&add_send_recv(&order), &Workload::abstract_stages(4)).seal().unwrap();
//! let cost = UnitCost::new(&UnitCosts::default(), &schedule);
//! let timeline = simulate(&schedule, &cost, &Options::default());
//! assert_eq!(timeline.makespan(), 33.0); // (m + p - 1)(F + B) = 11 x 3
//! ```

pub mod cost;
mod engine;
pub mod full;
mod shared;

pub use engine::Engine;

use cost::CostModel;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::timeline::Timeline;

/// How to run a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Steps back to back.
    pub steps: usize,
    /// Whether a step starts only when the one before has ended on every rank. Without it a rank goes on as soon as its
    /// own lanes are free.
    pub barrier: bool,
    /// How many cores all ranks share; compute tasks beyond it slow each other down. `None` is a device a rank.
    pub cores: Option<u32>,
    /// How much longer a compute task takes for each further one that runs at the same time, as a share of its time
    /// alone. 0 is no contention.
    pub contention: f64,
    /// Whether the parts of a compound action run as one: together from when the inputs of all are there. Otherwise one
    /// after another. Ranks that share a machine always run them one after another.
    pub compound: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { steps: 1, barrier: false, cores: None, contention: 0.0, compound: false }
    }
}

/// Runs a schedule once. To run one schedule under many costs, compile an [`Engine`] and keep it.
pub fn simulate(schedule: &Schedule, cost: &dyn CostModel, options: &Options) -> Timeline {
    let mut engine = Engine::new(schedule);
    engine.set_costs(schedule, cost);
    engine.run(options)
}
