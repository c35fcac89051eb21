//! What can end a run: always with the rank, the task and what it waited for.

use crate::transport::TransportError;
use pipewright_ir::ids::{Microbatch, Rank};

/// Why a run ended before its last step.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A task failed.
    #[error("rank {rank} failed at {task} of step {step}: {reason}")]
    Task {
        /// The rank.
        rank: Rank,
        /// The task, in text form.
        task: String,
        /// The step, from 0.
        step: u64,
        /// What went wrong.
        reason: TaskError,
    },
    /// A worker could not set up its stages.
    #[error("rank {rank} could not build stage {stage}: {reason}")]
    Build {
        /// The rank.
        rank: Rank,
        /// The stage.
        stage: u32,
        /// What went wrong.
        reason: String,
    },
    /// A worker panicked.
    #[error("rank {rank} panicked: {message}")]
    Panic {
        /// The rank.
        rank: Rank,
        /// The panic's message.
        message: String,
    },
    /// There are not as many devices as ranks.
    #[error("{devices} devices were opened for {ranks} ranks")]
    Devices {
        /// Devices given.
        devices: usize,
        /// Ranks of the schedule.
        ranks: usize,
    },
}

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A message did not come or go.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A gradient is not a number any more.
    #[error("the gradient of {name} is not finite; lower the learning rate, or clip the gradients")]
    GradientNotFinite {
        /// Hugging Face name of the parameter.
        name: String,
    },
    /// Two copies of a stage that do not go together.
    #[error("this copy of the stage has {own} gradient values, the other one {other}")]
    Copies {
        /// Values of this copy.
        own: usize,
        /// Values of the other.
        other: usize,
    },
    /// The loss is not a number any more.
    #[error("the loss of microbatch {microbatch} is {loss}; lower the learning rate")]
    NotFinite {
        /// The microbatch, or slice of one.
        microbatch: Microbatch,
        /// The loss.
        loss: f32,
    },
    /// The schedule asks for something that its earlier tasks did not provide.
    #[error("{0} is not there; the schedule and the worker disagree")]
    Missing(&'static str),
}
