//! The devices of a run and their groups, where a schedule shows one representative of the tensor, context and data axes.
//!
//! One law: every device runs the program of its pipeline rank; who talks to whom follows from the mesh alone.

use crate::collectives::Members;
use pipewright_ir::ids::Rank;
use pipewright_ir::mesh::{Axis, Group, Mesh};

/// One device of a run.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    mesh: Mesh,
    device: u64,
    tensor: Members,
    context: Members,
    replicas: Members,
    world: Members,
}

/// The number of a device as that of an endpoint.
fn endpoint(device: u64) -> Rank {
    Rank::at(usize::try_from(device).unwrap_or(usize::MAX))
}

impl Place {
    pub(crate) fn new(mesh: &Mesh, device: usize) -> Self {
        let device = device as u64;
        let members = |group: Group| {
            let found = mesh.groups(group).find(|devices| devices.contains(&device)).unwrap_or_else(|| vec![device]);
            Members::new(found.into_iter().map(endpoint).collect(), endpoint(device))
        };
        Self {
            mesh: *mesh,
            device,
            tensor: members(Group::Along(Axis::Tensor)),
            context: members(Group::Along(Axis::Context)),
            replicas: members(Group::DataContext),
            world: Members::new((0..mesh.devices()).map(endpoint).collect(), endpoint(device)),
        }
    }

    /// Its pipeline rank: whose program it runs.
    pub(crate) fn rank(&self) -> Rank {
        Rank(self.mesh.coordinate(self.device, Axis::Pipeline))
    }

    /// Where a pipeline rank's device of the same tensor, context and data coordinates is.
    pub(crate) fn endpoint(&self, rank: Rank) -> Rank {
        endpoint(self.mesh.device(|axis| match axis {
            Axis::Pipeline => rank.0,
            axis => self.mesh.coordinate(self.device, axis),
        }))
    }

    /// The group of an axis.
    pub(crate) fn members(&self, axis: Axis) -> &Members {
        match axis {
            Axis::Tensor => &self.tensor,
            Axis::Context => &self.context,
            Axis::Data | Axis::DataContext | Axis::ExpertData | Axis::Expert => &self.replicas,
            Axis::Pipeline => &self.world,
        }
    }

    /// All devices.
    pub(crate) fn world(&self) -> &Members {
        &self.world
    }

    /// Which of the tensor-parallel ranks it is.
    pub(crate) fn tensor_rank(&self) -> u32 {
        self.mesh.coordinate(self.device, Axis::Tensor)
    }

    /// Which of the devices that hold the same parameters it is.
    pub(crate) fn replica(&self) -> u32 {
        self.mesh.coordinate(self.device, Axis::DataContext)
    }

    /// Which of the data-parallel replicas it is.
    pub(crate) fn data_rank(&self) -> u32 {
        self.mesh.coordinate(self.device, Axis::Data)
    }

    /// Devices that hold the same parameters.
    pub(crate) fn replicas(&self) -> u32 {
        self.mesh.replicas()
    }

    /// Whether it stands for its pipeline rank: the first of every other axis.
    pub(crate) fn is_representative(&self) -> bool {
        self.tensor_rank() == 0 && self.replica() == 0
    }
}
