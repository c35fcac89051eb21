//! Point-to-point messages between ranks: what is sent, how it is named, what can go wrong.
//!
//! One law: a payload is plain data copied out of a tensor; ranks share no memory, so a transport over processes or
//! machines can stand in for the one over threads.

use burn::tensor::{Device, Tensor, TensorData};
use pipewright_ir::ids::{Microbatch, Rank, Stage};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub mod threads;

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// The output of a stage, on its way to the next stage.
    Activation,
    /// The gradient of a stage's input, on its way to the stage before.
    Gradient,
    /// All gradients of a stage, to be summed with those of its copy in the other pipe.
    StageGradients,
    /// The gradient of a tied embedding, to be summed with its other copy.
    TiedGradient,
    /// The part of a message over a group: which task of the ranks' program, and which of its messages.
    Group(u32, u32),
    /// Squares of gradients, for their norm.
    Squares,
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Activation => "activation",
            Self::Gradient => "gradient",
            Self::StageGradients => "gradients",
            Self::TiedGradient => "tied gradient",
            Self::Group(task, _) => return write!(f, "part of the group message of task {task}"),
            Self::Squares => "squares of the gradients",
        })
    }
}

/// The name of a message between two ranks. Two messages with one tag are delivered in the order they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// What is carried.
    pub kind: MessageKind,
    /// The stage that made it.
    pub stage: Stage,
    /// The microbatch of the stage's pipe, or the slice of one, that it belongs to; none where it belongs to a step.
    pub microbatch: Option<Microbatch>,
    /// The training step.
    pub step: u64,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, stage, microbatch, step } = self;
        write!(f, "{kind} of stage {stage}, ")?;
        microbatch.map_or(Ok(()), |microbatch| write!(f, "microbatch {microbatch}, "))?;
        write!(f, "step {step}")
    }
}

/// Plain fp32 data with its shape, row major.
#[derive(Clone, Debug, PartialEq)]
pub struct Payload {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Payload {
    /// A payload of `values` in row-major order.
    ///
    /// # Errors
    /// [`TransportError::Shape`] when the number of values is not the product of `shape`.
    pub fn new(shape: Vec<usize>, values: Vec<f32>) -> Result<Self, TransportError> {
        if shape.iter().product::<usize>() != values.len() {
            return Err(TransportError::Shape { expected: shape, got: vec![values.len()] });
        }
        Ok(Self { shape, values })
    }

    /// The values of a tensor, brought to the host. A tensor that nothing else holds gives its buffer away instead of
    /// being copied (on CPU).
    ///
    /// # Errors
    /// [`TransportError::NotF32`] when the tensor holds another element type.
    pub fn from_tensor<const D: usize>(tensor: Tensor<D>) -> Result<Self, TransportError> {
        let shape = tensor.dims().to_vec();
        let data = tensor.into_data();
        let dtype = data.dtype();
        let values = data.try_into_vec::<f32>().map_err(|_| TransportError::NotF32 { dtype: format!("{dtype:?}") })?;
        Ok(Self { shape, values })
    }

    /// The payload as a plain tensor of `D` dimensions on `device`.
    ///
    /// # Errors
    /// [`TransportError::Dimensions`] when the payload does not have `D` dimensions.
    pub fn into_tensor<const D: usize>(self, device: &Device) -> Result<Tensor<D>, TransportError> {
        if self.shape.len() != D {
            return Err(TransportError::Dimensions { expected: D, got: self.shape });
        }
        Ok(Tensor::from_data(TensorData::new(self.values, self.shape), device))
    }

    /// Checks that the payload has the shape the receiver expects.
    ///
    /// # Errors
    /// [`TransportError::Shape`] with both shapes.
    pub fn check_shape(&self, expected: &[usize]) -> Result<(), TransportError> {
        if self.shape == expected {
            return Ok(());
        }
        Err(TransportError::Shape { expected: expected.to_vec(), got: self.shape.clone() })
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, row major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Size of the values \[B\].
    pub fn bytes(&self) -> u64 {
        4 * self.values.len() as u64
    }
}

/// A message that arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// The data, in memory of the receiving thread.
    pub payload: Payload,
    /// When the sender handed it over; on a transport without a common clock, when it arrived.
    pub sent: Instant,
}

/// What can go wrong between two ranks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TransportError {
    /// The peer's endpoint is gone, and no such message is left of it.
    #[error("rank {peer} is gone: it ended before \"{tag}\" was exchanged with rank {rank}")]
    PeerGone {
        /// This rank.
        rank: Rank,
        /// The rank that ended.
        peer: Rank,
        /// The message in question.
        tag: Tag,
    },
    /// Nothing came in time.
    #[error("rank {rank} waited {:.3} s for \"{tag}\" from rank {from}", waited.as_secs_f64())]
    TimedOut {
        /// This rank.
        rank: Rank,
        /// The rank that should have sent.
        from: Rank,
        /// The message waited for.
        tag: Tag,
        /// How long.
        waited: Duration,
    },
    /// Another rank failed and ended the run.
    #[error("rank {rank} stopped: the run was ended by rank {by}: {reason}")]
    Aborted {
        /// This rank.
        rank: Rank,
        /// The rank that failed first.
        by: Rank,
        /// Its words.
        reason: String,
    },
    /// There is no such rank.
    #[error("rank {rank} addressed rank {peer}, but there are only {size} ranks")]
    NoSuchRank {
        /// This rank.
        rank: Rank,
        /// The rank addressed.
        peer: Rank,
        /// Ranks in the run.
        size: usize,
    },
    /// The data has another shape than expected.
    #[error("expected data of shape {expected:?}, got {got:?}")]
    Shape {
        /// What the receiver expected.
        expected: Vec<usize>,
        /// What came.
        got: Vec<usize>,
    },
    /// The data has another number of dimensions than expected.
    #[error("expected data of {expected} dimensions, got shape {got:?}")]
    Dimensions {
        /// Dimensions the receiver expected.
        expected: usize,
        /// The shape that came.
        got: Vec<usize>,
    },
    /// Only fp32 tensors are sent.
    #[error("only f32 tensors can be sent, this one holds {dtype}")]
    NotF32 {
        /// The element type met.
        dtype: String,
    },
}

/// The way of one rank to the others.
pub trait Transport: Send {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks in the run.
    fn size(&self) -> usize;

    /// Hands a message over; it is buffered, so this never waits for the receiver.
    ///
    /// # Errors
    /// [`TransportError::PeerGone`], [`TransportError::NoSuchRank`], [`TransportError::Aborted`].
    fn send(&self, to: Rank, tag: Tag, payload: Payload) -> Result<(), TransportError>;

    /// Waits for the message `tag` of rank `from`; messages with other tags stay for later.
    ///
    /// # Errors
    /// [`TransportError::TimedOut`] after `timeout`, [`TransportError::PeerGone`] when the peer ended without sending
    /// it, [`TransportError::Aborted`] promptly when any rank ended the run, [`TransportError::NoSuchRank`].
    fn receive(&self, from: Rank, tag: Tag, timeout: Duration) -> Result<Received, TransportError>;

    /// A handle that ends the run for all ranks.
    fn abort_handle(&self) -> AbortHandle;
}

/// Ends the run for all ranks: a receive that waits returns [`TransportError::Aborted`] at once, later calls too.
/// Clones are the same handle.
#[derive(Clone)]
pub struct AbortHandle {
    first: Arc<Mutex<Option<(Rank, String)>>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl AbortHandle {
    /// A handle; `wake` must make every waiting receive look at it again.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { first: Arc::default(), wake: Arc::new(wake) }
    }

    /// Ends the run in the name of `rank`. The first call's reason stands; later ones change nothing.
    pub fn abort(&self, rank: Rank, reason: impl Into<String>) {
        let reason = reason.into();
        self.cause_lock().get_or_insert((rank, reason));
        (self.wake)();
    }

    /// Who ended the run and why, if anyone did.
    pub fn cause(&self) -> Option<(Rank, String)> {
        self.cause_lock().clone()
    }

    /// An error when the run was ended.
    ///
    /// # Errors
    /// [`TransportError::Aborted`] as seen by `rank`.
    pub fn check(&self, rank: Rank) -> Result<(), TransportError> {
        match self.cause() {
            Some((by, reason)) => Err(TransportError::Aborted { rank, by, reason }),
            None => Ok(()),
        }
    }

    fn cause_lock(&self) -> MutexGuard<'_, Option<(Rank, String)>> {
        // The value is written in one go, so a panic elsewhere cannot have left it half done.
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_survive_the_round_trip() {
        let device = Device::flex();
        let tensor = Tensor::<2>::from_data([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
        // A transposed view must be sent in its own row-major order.
        let payload = Payload::from_tensor(tensor.clone().transpose()).unwrap();
        assert_eq!(payload.shape(), [3, 2]);
        assert_eq!(payload.values(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(payload.bytes(), 24);
        let back = payload.into_tensor::<2>(&device).unwrap();
        assert_eq!(back.into_data(), tensor.transpose().into_data());
    }

    #[test]
    fn wrong_shapes_are_named() {
        let payload = Payload::new(vec![2, 3], vec![0.0; 6]).unwrap();
        assert_eq!(payload.check_shape(&[2, 3]), Ok(()));
        let error = payload.check_shape(&[3, 2]).unwrap_err();
        assert_eq!(error.to_string(), "expected data of shape [3, 2], got [2, 3]");
        assert!(payload.into_tensor::<3>(&Device::flex()).is_err());
        assert!(Payload::new(vec![2, 3], vec![0.0; 5]).is_err());
    }

    #[test]
    fn the_first_abort_stands() {
        let handle = AbortHandle::new(|| {});
        assert_eq!(handle.check(Rank(0)), Ok(()));
        handle.abort(Rank(3), "out of memory");
        let other = handle.clone();
        other.abort(Rank(1), "aborted by rank 3");
        assert_eq!(handle.cause(), Some((Rank(3), "out of memory".to_owned())));
        assert!(handle.check(Rank(0)).unwrap_err().to_string().contains("ended by rank 3: out of memory"));
    }
}
