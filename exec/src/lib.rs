//! The executor of pipewright: interprets a [`Schedule`](pipewright_ir::schedule::Schedule) with burn, one worker a
//! device of the mesh.
//!
//! ```text
//! run -> worker (one a device: walks its program) -> transformer (its part of the model: operations) -> kernels
//!            |-> collectives -> transport (messages)
//!            |-> update (norm of the gradients, optimizer) on parameter, shard (who holds which numbers)
//! reference (one device, no schedule) -> verify (number by number)
//! profile (stages by themselves) -> CostTable
//! ```
//!
//! One law: it takes no scheduling decision. What runs where and when, and what is sent, is in the schedule; the executor
//! does it and notes the time.

mod atomic_file;
pub mod checkpoint;
mod collectives;
pub mod data;
pub mod device;
pub mod error;
mod gate;
pub mod init;
pub mod kernels;
mod mapped_file;
pub mod memory;
pub mod optimizer;
pub mod parameter;
pub mod pieces;
pub mod positions;
pub mod profile;
mod random;
pub mod reference;
pub mod run;
pub mod shard;
pub mod stage_module;
mod tensor_file;
pub mod tokenizer;
pub mod transformer;
pub mod transport;
mod update;
pub mod verify;
pub mod weights;
pub mod worker;
mod world;
