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

mod atomic_file;
pub mod autodiff;
pub mod checkpoint;
mod cpu;
pub mod data;
pub mod device;
pub mod error;
mod gate;
pub mod gpt;
pub mod init;
mod mapped_file;
pub mod memory;
pub mod ops;
pub mod optimizer;
pub mod parameters;
pub mod profile;
mod random;
pub mod reference;
pub mod run;
pub mod shard;
pub mod stage_module;
mod stage_runner;
mod tensor_file;
pub mod tokenizer;
pub mod transport;
pub mod verify;
pub mod weights;
pub mod worker;
