//! The executor of pipewright: interprets a [`Schedule`](pipewright_ir::schedule::Schedule) with burn, one worker a
//! rank.
//!
//! ```text
//! run -> worker (one a rank: walks its program) -> stage_runner (one a stage: autodiff) -> gpt
//!            |-> transport (messages)
//! reference (one device, no schedule) -> verify (number by number)
//! profile (stages by themselves) -> CostTable
//! ```
//!
//! One law: it takes no scheduling decision. What runs where and when is in the schedule; the executor does it and
//! notes the time.

pub mod autodiff;
mod cpu;
pub mod data;
pub mod device;
pub mod error;
mod gate;
pub mod gpt;
pub mod init;
pub mod memory;
pub mod ops;
pub mod optimizer;
pub mod parameters;
pub mod profile;
mod random;
pub mod reference;
pub mod run;
pub mod stage_module;
mod stage_runner;
pub mod transport;
pub mod verify;
pub mod worker;
