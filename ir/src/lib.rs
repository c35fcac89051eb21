//! The schedule IR of pipewright: what a parallel training step is, before any engine runs it.
//!
//! Data goes down these floors once and never up:
//!
//! ```text
//! schedules -> PipelineOrder -> passes -> Draft -- spec --> Schedule
//! ```
//!
//! One law: pure values. No clock, no device, no printing, no file system.

pub mod action;
pub mod breakdown;
pub mod cells;
pub mod cluster;
pub mod communication;
pub mod cost_table;
pub mod explain;
pub mod fault;
pub mod flops;
pub mod ids;
pub mod interchange;
pub mod memory;
pub mod mesh;
pub mod metrics;
pub mod model;
pub mod order;
pub mod passes;
pub mod placement;
pub mod plan;
pub mod scenario;
pub mod schedule;
pub mod schedules;
pub mod search;
pub mod segments;
pub mod setup;
pub mod spec;
pub mod task;
pub mod timeline;
pub mod unit_costs;
pub mod workload;
