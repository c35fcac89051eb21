//! What a node of the schedule DAG is: a task, its edges and what it does to memory.

use crate::action::{Action, Op};
use crate::ids::{BufferId, LayerRange, Rank, TaskId};
use crate::mesh::Axis;
use crate::segments::CollectiveKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// A stream of a rank. Tasks of one lane run one after another, in program order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// F, B, I, W and the optimizer.
    Compute,
    /// Point-to-point sends.
    Send,
    /// Point-to-point receives.
    Receive,
    /// Reductions over several pipeline ranks.
    Collective,
    /// Messages of tensor parallelism.
    Tensor,
    /// Messages of context parallelism.
    Context,
    /// Messages of expert parallelism.
    Expert,
    /// Messages of data parallelism.
    Data,
}

impl Lane {
    /// Every lane, in drawing order.
    pub const ALL: [Lane; 8] = [
        Lane::Compute,
        Lane::Send,
        Lane::Receive,
        Lane::Collective,
        Lane::Tensor,
        Lane::Context,
        Lane::Expert,
        Lane::Data,
    ];

    /// The lane an operation runs on.
    pub fn of(op: Op) -> Lane {
        match op {
            Op::SendForward | Op::SendBackward => Lane::Send,
            Op::RecvForward | Op::RecvBackward => Lane::Receive,
            Op::ReduceGrad | Op::ReduceTied | Op::ClipGrad => Lane::Collective,
            Op::ReduceData | Op::GatherParam => Lane::Data,
            Op::ReduceTensor => Lane::Tensor,
            _ => Lane::Compute,
        }
    }

    /// The lane of the messages over an axis of the mesh.
    pub fn of_axis(axis: Axis) -> Lane {
        match axis {
            Axis::Tensor => Lane::Tensor,
            Axis::Context => Lane::Context,
            Axis::Expert => Lane::Expert,
            Axis::Data | Axis::DataContext | Axis::ExpertData => Lane::Data,
            Axis::Pipeline => Lane::Collective,
        }
    }

    /// Queues of a rank among `ranks`: one a lane, and one for the receives from each rank.
    pub fn queues(ranks: u32) -> usize {
        Lane::ALL.len() + ranks as usize
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::Send => "send",
            Lane::Receive => "receive",
            Lane::Collective => "collective",
            Lane::Tensor => "tensor",
            Lane::Context => "context",
            Lane::Expert => "expert",
            Lane::Data => "data",
        }
    }
}

/// Why one task waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dep {
    /// The second uses what the first made, on the same rank.
    Data,
    /// The second follows the first in their lane.
    Program,
    /// The first sends what the second receives; only here a link's latency counts.
    Transfer,
    /// The second updates the weights whose gradients the first completed.
    Weight,
}

/// How much a task computes, for cost models that derive time from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written \[B\].
    pub bytes: f64,
}

/// A node of the schedule DAG.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// What it does, to which stage and microbatch.
    pub action: Action,
    /// The rank that runs it.
    pub rank: Rank,
    /// The lane it runs on.
    pub lane: Lane,
    /// The other end of a message.
    pub peer: Option<Rank>,
    /// Segment: the layers it runs.
    pub layers: LayerRange,
    /// Size of the message \[B\], 0 for compute.
    pub payload: u64,
    /// The first part of the compound action that it is a part of, itself if it is the first.
    pub group: Option<TaskId>,
    /// Its place among the steps that its action is cut into.
    pub step: StepOf,
}

/// Which step of an action a task is. At the detail of stages an action is one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepOf {
    /// One more than the entry that [`StepOf::program`] gives: tasks are many, and 0 leaves room for none.
    pub(crate) entry: Option<NonZeroU32>,
    /// Its place in the program of its action; of a bucket of gradients, which bucket it is.
    pub place: u32,
    /// Whether steps of the same action stand before it.
    pub continues: bool,
    /// Whether steps of the same action stand behind it.
    pub continued: bool,
    /// A message over an axis of the mesh: what it does.
    pub collective: Option<CollectiveKind>,
}

impl StepOf {
    /// The step that is entry `program` of [`Programs::steps`](crate::segments::Programs::steps) and stands at `place`.
    pub(crate) fn new(program: u32, place: u32, collective: Option<CollectiveKind>) -> Self {
        Self { entry: NonZeroU32::new(program.saturating_add(1)), place, collective, ..Self::default() }
    }

    /// Which entry of [`Programs::steps`](crate::segments::Programs::steps) it is; `None` where the action is one task.
    pub fn program(self) -> Option<u32> {
        self.entry.map(|entry| entry.get() - 1)
    }
}

impl Task {
    /// The queue of its rank that it waits in, below [`Lane::queues`].
    pub fn queue(&self) -> usize {
        match (self.lane, self.peer) {
            (Lane::Receive, Some(peer)) => Lane::ALL.len() + peer.index(),
            (lane, _) => lane as usize,
        }
    }
}

/// What a buffer holds; memory is reported by these classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryClass {
    /// Weights.
    Parameters,
    /// Accumulated weight gradients.
    Gradients,
    /// Optimizer state.
    Optimizer,
    /// What forward keeps for backward.
    Activations,
    /// Logits and what the loss keeps.
    Logits,
    /// Messages in and out, and the workspace of the running task.
    Buffers,
    /// What no tensor accounts for: the context of the device, the libraries' own memory, and what the allocator cannot use.
    Overhead,
}

impl MemoryClass {
    /// Every class, in stacking order.
    pub const ALL: [MemoryClass; 7] = [
        MemoryClass::Parameters,
        MemoryClass::Optimizer,
        MemoryClass::Gradients,
        MemoryClass::Activations,
        MemoryClass::Logits,
        MemoryClass::Buffers,
        MemoryClass::Overhead,
    ];

    /// Position in [`MemoryClass::ALL`].
    pub fn index(self) -> usize {
        MemoryClass::ALL.iter().position(|c| *c == self).unwrap_or(0)
    }

    /// Its name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            MemoryClass::Parameters => "parameters",
            MemoryClass::Gradients => "gradients",
            MemoryClass::Optimizer => "optimizer",
            MemoryClass::Activations => "activations",
            MemoryClass::Logits => "logits",
            MemoryClass::Buffers => "buffers",
            MemoryClass::Overhead => "overhead",
        }
    }
}

/// A named piece of a rank's memory that lives from one task to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Whose memory it is.
    pub rank: Rank,
    /// What it holds.
    pub class: MemoryClass,
    /// Its size \[B\].
    pub bytes: u64,
    /// The action that makes it: its name, together with the class.
    pub of: Action,
}

/// What a task does to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// Allocates it at the task's start.
    Allocate,
    /// Reads or writes it.
    Use,
    /// Frees it at the task's end.
    Free,
    /// Allocates it at the task's start and frees it at its end.
    Workspace,
}

/// One touch of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEffect {
    /// The buffer.
    pub buffer: BufferId,
    /// What happens to it.
    pub touch: Touch,
}
