//! The groups of devices that collectives run over.
//!
//! One law: every device is in one group of each kind, found from its coordinates alone.

use super::{Axis, Mesh};

/// A kind of group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Of one axis.
    Along(Axis),
    /// Of the data and context axes together: gradients are reduced over it, for both see other tokens.
    DataContext,
    /// Of the devices that hold the same experts: their gradients are reduced over it.
    ExpertData,
}

/// How far the groups of a kind reach over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Groups of the kind.
    pub groups: u64,
    /// Groups with devices in more than one node.
    pub crossing: u64,
    /// Most nodes of one group.
    pub nodes: u64,
}

impl Group {
    /// Every kind, the innermost first.
    pub const ALL: [Group; 7] = [
        Group::Along(Axis::Tensor),
        Group::Along(Axis::Context),
        Group::Along(Axis::Data),
        Group::DataContext,
        Group::Along(Axis::Expert),
        Group::ExpertData,
        Group::Along(Axis::Pipeline),
    ];

    /// Its name, as in a mesh order.
    pub fn name(self) -> &'static str {
        match self {
            Group::Along(axis) => axis.name(),
            Group::DataContext => "dp-cp",
            Group::ExpertData => "edp",
        }
    }
}

impl From<Axis> for Group {
    fn from(axis: Axis) -> Self {
        match axis {
            Axis::DataContext => Group::DataContext,
            Axis::ExpertData => Group::ExpertData,
            axis => Group::Along(axis),
        }
    }
}

impl Mesh {
    /// Devices of a group of a kind.
    pub fn group_size(&self, group: Group) -> u64 {
        let both = u64::from(self.data) * u64::from(self.context);
        match group {
            Group::Along(axis) => u64::from(self.size(axis)),
            Group::DataContext => both,
            Group::ExpertData => both / u64::from(self.expert.max(1)),
        }
    }

    /// Whether a device is the first of its group.
    fn is_first(&self, group: Group, device: u64) -> bool {
        match group {
            Group::Along(axis) => self.coordinate(device, axis) == 0,
            Group::DataContext => self.data_context(device) == 0,
            Group::ExpertData => self.data_context(device) < u64::from(self.expert),
        }
    }

    /// The devices of the group that starts with `first`, in the order of their numbers on its axis.
    fn members(&self, group: Group, first: u64) -> impl Iterator<Item = u64> {
        let expert = u64::from(self.expert.max(1));
        let from = self.data_context(first);
        let base = first - self.device_at(from);
        (0..self.group_size(group)).map(move |i| match group {
            Group::Along(Axis::Expert) => base + self.device_at(from + i),
            Group::Along(axis) => first + i * self.stride(axis),
            Group::DataContext => base + self.device_at(i),
            Group::ExpertData => base + self.device_at(from + i * expert),
        })
    }

    /// The device number, of the first tensor-parallel rank of the first stage, of a number among data and context.
    fn device_at(&self, number: u64) -> u64 {
        let mut rest = number;
        let mut device = 0;
        for axis in self.order.iter().filter(|axis| matches!(axis, Axis::Data | Axis::Context)) {
            let size = u64::from(self.size(*axis).max(1));
            device += rest % size * self.stride(*axis);
            rest /= size;
        }
        device
    }

    /// The groups of a kind, each with its devices, in the order of their first devices.
    pub fn groups(&self, group: Group) -> impl Iterator<Item = Vec<u64>> {
        let firsts = (0..self.devices()).filter(move |device| self.is_first(group, *device));
        firsts.map(move |first| self.members(group, first).collect())
    }

    /// How far the groups of a kind reach over nodes of `gpus_per_node` devices.
    pub fn crossing(&self, group: Group, gpus_per_node: u32) -> Crossing {
        let node = |device: u64| device / u64::from(gpus_per_node.max(1));
        let mut crossing = Crossing { groups: 0, crossing: 0, nodes: 0 };
        for devices in self.groups(group) {
            let mut nodes: Vec<u64> = devices.into_iter().map(node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let nodes = nodes.len() as u64;
            crossing.groups += 1;
            crossing.crossing += u64::from(nodes > 1);
            crossing.nodes = crossing.nodes.max(nodes);
        }
        crossing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOOM: Mesh = Mesh { tensor: 4, context: 1, data: 8, pipeline: 12, expert: 1, order: Axis::MESH };

    fn first(mesh: &Mesh, group: Group) -> Vec<u64> {
        mesh.groups(group).next().unwrap()
    }

    #[test]
    fn the_innermost_axis_has_neighbouring_devices() {
        assert_eq!(first(&BLOOM, Group::Along(Axis::Tensor)), [0, 1, 2, 3]);
        assert_eq!(first(&BLOOM, Group::Along(Axis::Data)), [0, 4, 8, 12, 16, 20, 24, 28]);
        assert_eq!(first(&BLOOM, Group::Along(Axis::Pipeline))[..3], [0, 32, 64]);
        // Two tensor groups a node, a data group over four nodes.
        assert_eq!(BLOOM.crossing(Group::Along(Axis::Tensor), 8), Crossing { groups: 96, crossing: 0, nodes: 1 });
        assert_eq!(BLOOM.crossing(Group::Along(Axis::Data), 8), Crossing { groups: 48, crossing: 48, nodes: 4 });
        assert_eq!(BLOOM.crossing(Group::Along(Axis::Pipeline), 8), Crossing { groups: 32, crossing: 32, nodes: 12 });
    }

    #[test]
    fn a_tensor_group_that_does_not_divide_a_node_crosses_it_now_and_then() {
        let mesh = Mesh { tensor: 3, data: 8, ..Mesh::default() };
        assert_eq!(mesh.crossing(Group::Along(Axis::Tensor), 8), Crossing { groups: 8, crossing: 2, nodes: 2 });
    }

    /// Coordinates lead back to the device, and each device is in one group of each kind, for every order of the axes.
    #[test]
    fn every_device_is_in_one_group_of_each_kind() {
        let orders = orders();
        assert_eq!(orders.len(), 24);
        for order in orders {
            let mesh = Mesh { tensor: 2, context: 3, data: 4, pipeline: 2, expert: 6, order };
            for device in 0..mesh.devices() {
                assert_eq!(mesh.device(|axis| mesh.coordinate(device, axis)), device, "{order:?}");
            }
            for group in Group::ALL {
                let groups: Vec<Vec<u64>> = mesh.groups(group).collect();
                assert!(groups.iter().all(|g| g.len() as u64 == mesh.group_size(group)), "{order:?} {group:?}");
                let mut all: Vec<u64> = groups.concat();
                all.sort_unstable();
                assert_eq!(all, (0..48).collect::<Vec<_>>(), "{order:?} {group:?}");
            }
            // An expert group holds every share of the experts once, its data group one share.
            for devices in mesh.groups(Group::Along(Axis::Expert)) {
                let shares: Vec<u32> = devices.iter().map(|d| mesh.coordinate(*d, Axis::Expert)).collect();
                assert_eq!(shares, [0, 1, 2, 3, 4, 5], "{order:?}");
            }
            for devices in mesh.groups(Group::ExpertData) {
                assert!(
                    devices
                        .iter()
                        .all(|d| mesh.coordinate(*d, Axis::Expert) == mesh.coordinate(devices[0], Axis::Expert))
                );
            }
        }
    }

    /// The 24 orders of the axes.
    fn orders() -> Vec<[Axis; 4]> {
        let mut orders = Vec::new();
        for a in Axis::MESH {
            for b in Axis::MESH {
                for c in Axis::MESH {
                    for d in Axis::MESH {
                        let order = [a, b, c, d];
                        if Axis::MESH.iter().all(|axis| order.contains(axis)) {
                            orders.push(order);
                        }
                    }
                }
            }
        }
        orders
    }
}
