//! Schedules built for the costs at hand: evaluate an order, build one under a memory limit, improve it, and say how far
//! from the best possible it can be at most.
//!
//! One law: deterministic. No clock ends a search, only a stated number of steps; ties go to the candidate tried first.
//!
//! The shop is the one of the simulator without contention: a rank does its program in order, a task starts when its
//! input is there, and a message takes the hop. A microbatch holds a slot of a rank for each of the rank's chunks, from
//! the start of F to the end of W (or of a whole B).

pub mod bound;
pub mod evaluate;
mod improve;
mod list;
mod pattern;
mod refill;
mod shop;
mod tune;

pub use bound::{Bound, lower_bound};
pub use evaluate::{Evaluation, RankEvaluation, evaluate};
pub(crate) use shop::{Shop, slots};
pub(crate) use tune::{Effort, best_order};
