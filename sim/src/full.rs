//! Every device of the mesh, where a schedule shows one representative of the tensor, context and data axes.
//!
//! All replicas run the same program. A message over an axis happens on all members of a group at once, from when the last
//! of them is ready.

use crate::engine::{Engine, Predecessor, Set, SetKind};
use pipewright_ir::ids::TaskId;
use pipewright_ir::mesh::Mesh;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::task::Lane;
use pipewright_ir::timeline::Timeline;

/// Copies of each pipeline rank in a mesh.
pub fn replicas(mesh: &Mesh) -> usize {
    [mesh.tensor, mesh.context, mesh.data].into_iter().map(|n| n.max(1) as usize).product()
}

impl Engine {
    /// The engine of all devices, with the costs that this one has. Task `id` of replica `r` is task `r x tasks + id`.
    #[must_use]
    pub fn replicated(&self, schedule: &Schedule, mesh: &Mesh) -> Engine {
        let (copies, tasks, queues) = (replicas(mesh), self.tasks, self.lane_tails.len());
        let slot = |replica: usize, old: u32| {
            let old = old as usize;
            let new =
                if old < tasks { replica * tasks + old } else { copies * tasks + replica * queues + (old - tasks) };
            TaskId::at(new).0
        };
        let moved = |replica: usize, p: Predecessor| Predecessor::new(slot(replica, p.slot()), p.is_transfer());
        let (order, sets) = self.replicated_order(schedule, mesh, &slot);
        let entries = TaskId::at(self.predecessors.len()).0;
        let starts = |replica: usize| {
            let from = TaskId::at(replica).0.saturating_mul(entries);
            self.start[..tasks].iter().map(move |start| from.saturating_add(*start))
        };
        let end = TaskId::at(copies).0.saturating_mul(entries);
        Engine {
            tasks: copies * tasks,
            order,
            start: (0..copies).flat_map(starts).chain([end]).collect(),
            predecessors: (0..copies).flat_map(|r| self.predecessors.iter().map(move |p| moved(r, *p))).collect(),
            latency: self.latency.repeat(copies),
            duration: self.duration.repeat(copies),
            sets,
            lane_tails: (0..copies).flat_map(|r| self.lane_tails.iter().map(move |t| t.map(|t| slot(r, t)))).collect(),
            is_compute: self.is_compute.repeat(copies),
        }
    }

    /// The order of all devices' tasks: for each task its copies, those that happen together side by side.
    fn replicated_order(
        &self,
        schedule: &Schedule,
        mesh: &Mesh,
        slot: &impl Fn(usize, u32) -> u32,
    ) -> (Vec<u32>, Vec<Set>) {
        let copies = replicas(mesh);
        let mut order: Vec<u32> = Vec::with_capacity(copies * self.tasks);
        let mut sets = Vec::new();
        let groups = |lane: Lane| groups(mesh, lane);
        let by_lane: Vec<Option<Vec<Vec<usize>>>> = Lane::ALL.iter().map(|lane| groups(*lane)).collect();
        let mut known = self.sets.iter().peekable();
        let mut at = 0;
        while at < self.order.len() {
            if let Some(set) = known.next_if(|set| set.range.start == at) {
                for replica in 0..copies {
                    let start = order.len();
                    order.extend(self.order[set.range.clone()].iter().map(|id| slot(replica, *id)));
                    sets.push(Set { range: start..order.len(), ..set.clone() });
                }
                at = set.range.end;
                continue;
            }
            let id = self.order[at];
            match &by_lane[schedule.task(TaskId(id)).lane as usize] {
                Some(groups) => {
                    for group in groups {
                        let start = order.len();
                        order.extend(group.iter().map(|replica| slot(*replica, id)));
                        let range = start..order.len();
                        sets.push(Set { range, kind: SetKind::Collective, duration: self.duration[id as usize] });
                    }
                }
                None => order.extend((0..copies).map(|replica| slot(replica, id))),
            }
            at += 1;
        }
        (order, sets)
    }
}

/// The replicas that take part in a message of a lane together, group by group; `None` for a lane of no such axis, or one
/// of size 1.
fn groups(mesh: &Mesh, lane: Lane) -> Option<Vec<Vec<usize>>> {
    let [tensor, context, data] = [mesh.tensor, mesh.context, mesh.data].map(|n| n.max(1) as usize);
    // Replica `(d x context + c) x tensor + t`.
    let (size, stride) = match lane {
        Lane::Tensor => (tensor, 1),
        Lane::Context => (context, tensor),
        // Gradients are summed over the context-parallel ranks too.
        Lane::Data => (data * context, tensor),
        Lane::Expert => (mesh.expert.max(1) as usize, tensor),
        _ => return None,
    };
    if size < 2 {
        return None;
    }
    let first = (0..tensor * context * data).filter(|r| (r / stride).is_multiple_of(size));
    Some(first.map(|r| (0..size).map(|i| r + i * stride).collect()).collect())
}

/// The timelines of the replicas, from that of a replicated engine.
pub fn split(timeline: &Timeline, mesh: &Mesh) -> Vec<Timeline> {
    let copies = replicas(mesh).max(1);
    let tasks = timeline.tasks / copies;
    let of = |replica: usize| {
        let steps = timeline.spans.chunks_exact(timeline.tasks.max(1));
        let spans = steps.flat_map(|step| step[replica * tasks..(replica + 1) * tasks].iter().copied()).collect();
        Timeline { source: timeline.source, tasks, spans, memory: Vec::new() }
    };
    (0..copies).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::cost::UnitCost;
    use pipewright_ir::action::Op;
    use pipewright_ir::passes::{add_data_reduction, add_optimizer_step, add_send_recv};
    use pipewright_ir::schedule::Draft;
    use pipewright_ir::schedules::{ScheduleParams, find};
    use pipewright_ir::unit_costs::UnitCosts;
    use pipewright_ir::workload::Workload;

    /// Replica 1 is 5 units slower in its last backward: the optimizers of replica 0 wait for the reduction with it.
    #[test]
    fn a_slow_replica_holds_up_those_that_it_shares_a_group_with() {
        let order = find("1f1b").unwrap().order(&ScheduleParams::new(2, 4, 1)).unwrap();
        let program = add_optimizer_step(add_data_reduction(add_send_recv(&order)));
        let schedule = Draft::lower(&program, &Workload::abstract_stages(2)).seal().unwrap();
        let mesh = Mesh { data: 2, pipeline: 2, ..Mesh::default() };
        let mut engine = Engine::new(&schedule);
        engine.set_costs(&schedule, &UnitCost::new(&UnitCosts::default(), &schedule));
        let mut all = engine.replicated(&schedule, &mesh);
        let last = |op: Op| schedule.tasks().filter(|(_, t)| t.rank.0 == 0 && t.action.op == op).last().unwrap().0;
        let before = split(&all.run(&Options::default()), &mesh);
        all.duration[schedule.len() + last(Op::FullBackward).index()] += 5.0;
        let after = split(&all.run(&Options::default()), &mesh);
        let start = |timelines: &[Timeline], op| timelines[0].span(0, last(op)).start;
        assert_eq!(before[0], before[1]);
        assert_eq!(start(&after, Op::FullBackward), start(&before, Op::FullBackward));
        assert_eq!(start(&after, Op::OptimizerStep), start(&before, Op::OptimizerStep) + 5.0);
    }
}
