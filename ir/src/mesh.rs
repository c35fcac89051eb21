//! The mesh of devices: how many ranks each axis of parallelism has, and which device stands where.
//!
//! One law: a device's number is that of its coordinates, the innermost axis first; nothing else computes one.

mod groups;

pub use groups::{Crossing, Group};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Tensor parallelism: a layer's matrices are split.
    Tensor,
    /// Context parallelism: a sequence is split (ring attention, Ulysses).
    Context,
    /// Data parallelism: the batch is split.
    Data,
    /// Pipeline parallelism: the layers are split.
    Pipeline,
    /// Expert parallelism: the experts are split, over ranks that data parallelism gives other tokens.
    Expert,
    /// Data and context together: the ranks that hold the same parameters of everything but the experts.
    DataContext,
    /// What expert parallelism leaves of them: the ranks that hold the same experts.
    ExpertData,
}

impl Axis {
    /// The axes that span the mesh. Experts live on the ranks of the data and context axes.
    pub const MESH: [Axis; 4] = [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline];

    /// Its short name, as in a mesh order.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tensor => "tp",
            Axis::Context => "cp",
            Axis::Data => "dp",
            Axis::Pipeline => "pp",
            Axis::Expert => "ep",
            Axis::DataContext => "dp-cp",
            Axis::ExpertData => "edp",
        }
    }
}

/// Sizes of the axes and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Tensor-parallel size `t`.
    pub tensor: u32,
    /// Context-parallel size.
    pub context: u32,
    /// Data-parallel size `d`.
    pub data: u32,
    /// Pipeline-parallel size `p`.
    pub pipeline: u32,
    /// Expert-parallel size; divides `context x data`.
    pub expert: u32,
    /// The axes of the mesh, innermost first: neighbours on the first one are neighbouring devices.
    pub order: [Axis; 4],
}

impl Default for Mesh {
    fn default() -> Self {
        Self { tensor: 1, context: 1, data: 1, pipeline: 1, expert: 1, order: Axis::MESH }
    }
}

impl Mesh {
    /// Most devices of a mesh that a plan may have.
    pub const MAX_DEVICES: u64 = 1 << 20;

    /// Ranks along an axis.
    pub fn size(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tensor => self.tensor,
            Axis::Context => self.context,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Expert => self.expert,
            Axis::DataContext => self.replicas(),
            Axis::ExpertData => self.replicas() / self.expert.max(1),
        }
    }

    /// Ranks that hold the same parameters, experts apart: context-parallel ranks see other tokens of the same model.
    pub fn replicas(&self) -> u32 {
        self.data.max(1).saturating_mul(self.context.max(1))
    }

    /// The axis over which gradients of all but the experts are summed.
    pub fn replica_axis(&self) -> Axis {
        if self.context > 1 { Axis::DataContext } else { Axis::Data }
    }

    /// Devices of the whole mesh, at most `u64::MAX`.
    pub fn devices(&self) -> u64 {
        self.order.iter().map(|axis| u64::from(self.size(*axis))).fold(1, u64::saturating_mul)
    }

    /// How far apart, in device numbers, two neighbours on an axis are. Experts lie along the innermost of data and
    /// context.
    pub fn stride(&self, axis: Axis) -> u64 {
        let axis = match axis {
            Axis::ExpertData => return self.stride(Axis::Expert).saturating_mul(self.expert.max(1).into()),
            Axis::Expert | Axis::DataContext => {
                *self.order.iter().find(|a| matches!(a, Axis::Data | Axis::Context)).unwrap_or(&Axis::Data)
            }
            axis => axis,
        };
        self.order.iter().take_while(|a| **a != axis).map(|a| u64::from(self.size(*a))).fold(1, u64::saturating_mul)
    }

    /// Where a device stands on an axis of the mesh; on the expert axis, which share of the experts it holds.
    pub fn coordinate(&self, device: u64, axis: Axis) -> u32 {
        let coordinate = match axis {
            Axis::Expert => self.data_context(device) % u64::from(self.expert.max(1)),
            Axis::DataContext => self.data_context(device),
            Axis::ExpertData => self.data_context(device) / u64::from(self.expert.max(1)),
            axis => device / self.stride(axis) % u64::from(self.size(axis).max(1)),
        };
        u32::try_from(coordinate).unwrap_or(u32::MAX)
    }

    /// The device at these coordinates, one for each axis of the mesh.
    pub fn device(&self, coordinate: impl Fn(Axis) -> u32) -> u64 {
        self.order.iter().map(|axis| u64::from(coordinate(*axis)) * self.stride(*axis)).sum()
    }

    /// The number of a device among those that data and context parallelism give other tokens of the same layers.
    fn data_context(&self, device: u64) -> u64 {
        let axes = self.order.iter().filter(|axis| matches!(axis, Axis::Data | Axis::Context));
        let mut number = 0;
        let mut step = 1;
        for axis in axes {
            number += u64::from(self.coordinate(device, *axis)) * step;
            step *= u64::from(self.size(*axis));
        }
        number
    }
}
