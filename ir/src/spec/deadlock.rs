//! R10: the program comes to its end.
//!
//! Every semantics of sends is a set of *queues* that run one task after another, and a way to join tasks that can only
//! happen together:
//!
//! | semantics | queues | joined |
//! |---|---|---|
//! | eager | each lane of each rank, its receives from each peer | nothing |
//! | rendezvous | each rank | a send with its receive, the members of a collective |
//! | stream FIFO | each rank's compute and collective lane, each rank's messages with each peer | the same |
//!
//! The parts of a compound action are joined in all of them: it starts when all its inputs are there.
//!
//! Tasks that are then neither behind a queue nor short of an input are taken away until none is left (fine) or none
//! can go (deadlock). In a deadlock the head of each stuck queue waits for another stuck queue; the shortest such cycle
//! is the witness.

use super::messages::sent_as;
use super::{Report, Rule, Semantics};
use crate::ids::TaskId;
use crate::schedule::{Draft, same_collective};
use crate::task::{Dep, Lane, Task};
use petgraph::Direction;
use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;
use std::collections::{BTreeMap, VecDeque};

/// The tasks in an order that can run under `semantics`, joined tasks side by side; `None` in a deadlock.
pub(crate) fn order(draft: &Draft, semantics: Semantics) -> Option<Vec<TaskId>> {
    let (order, _) = Waits::new(draft, semantics).run();
    (order.len() == draft.graph.node_count()).then_some(order)
}

/// Reports a deadlock, if there is one; returns the tasks in an order that can run.
pub(super) fn check(draft: &Draft, semantics: Semantics, report: &mut Report<'_>) -> Vec<TaskId> {
    if semantics == Semantics::Eager
        && let Some(order) = head_by_head(draft)
    {
        return order;
    }
    let waits = Waits::new(draft, semantics);
    let (order, done) = waits.run();
    if order.len() < draft.graph.node_count() {
        let cycle = waits.shortest_cycle(draft, &done);
        let waiting: Vec<String> = cycle
            .iter()
            .enumerate()
            .map(|(i, id)| {
                let next = cycle[(i + 1) % cycle.len()];
                let (task, next) = (draft.task(*id), draft.task(next));
                let whom = if task.rank == next.rank { "itself".to_owned() } else { format!("rank {}", next.rank) };
                format!("rank {} waits at {} for {whom}", task.rank, task.action)
            })
            .collect();
        let message = format!("deadlock under {} sends: {}", semantics.name(), waiting.join(", "));
        let help = match semantics {
            _ if cycle.len() == 1 => "what it needs stands behind it in its own program; move that forward",
            Semantics::Eager => "break the cycle: one of these tasks must stand earlier on its rank",
            Semantics::Rendezvous | Semantics::StreamFifo => {
                "let one side receive before it sends, or rely on eager (buffered) sends"
            }
        };
        report.add(Rule::DeadlockFree, message, help, &cycle);
    }
    order
}

/// An order of all tasks under eager sends; `None` in a deadlock. Queue by queue the head goes as soon as its inputs are
/// there; a queue whose head waits for a task is woken by that task. The graph is walked in place, each edge once.
fn head_by_head(draft: &Draft) -> Option<Vec<TaskId>> {
    const NONE: u32 = u32::MAX;
    let (n, ranks) = (draft.graph.node_count(), draft.programs.len());
    // Queues as chains of tasks: the first of each, and what comes behind each task.
    let queues = ranks * Lane::queues(TaskId::at(ranks).0);
    let (mut heads, mut tails, mut behind) = (vec![NONE; queues], vec![NONE; queues], vec![NONE; n]);
    for (id, task) in draft.tasks() {
        let queue = queue_of(task, ranks, Semantics::Eager);
        let last = std::mem::replace(&mut tails[queue], id.0);
        *behind.get_mut(last as usize).unwrap_or(&mut heads[queue]) = id.0;
    }
    let mut awake: Vec<u32> =
        (0..queues).rev().map(|q| TaskId::at(q).0).filter(|q| heads[*q as usize] != NONE).collect();
    // Task -> the first queue that waits for it; queue -> the next one that waits for the same.
    let (mut waiting, mut also_waiting) = (vec![NONE; n], vec![NONE; queues]);
    let mut done = vec![false; n];
    let mut order = Vec::with_capacity(n);
    while let Some(queue) = awake.pop() {
        while heads[queue as usize] != NONE {
            let head = heads[queue as usize];
            // The parts of a compound action go together.
            let (mut end, mut missing) = (head, None);
            loop {
                missing = missing.or_else(|| missing_input(draft, &done, end, head));
                match behind[end as usize] {
                    next if next == end + 1 && draft.task(TaskId(next)).action.joins_previous => end = next,
                    next => {
                        heads[queue as usize] = if missing.is_some() { head } else { next };
                        break;
                    }
                }
            }
            if let Some(missing) = missing {
                also_waiting[queue as usize] = std::mem::replace(&mut waiting[missing as usize], queue);
                break;
            }
            for id in head..=end {
                done[id as usize] = true;
                order.push(TaskId(id));
                let mut woken = std::mem::replace(&mut waiting[id as usize], NONE);
                while woken != NONE {
                    awake.push(woken);
                    woken = also_waiting[woken as usize];
                }
            }
        }
    }
    (order.len() == n).then_some(order)
}

/// An input of a task that is not done, but for the parts of its own compound action before it.
fn missing_input(draft: &Draft, done: &[bool], task: u32, first: u32) -> Option<u32> {
    let inputs = draft.graph.edges_directed(NodeIndex::new(task as usize), Direction::Incoming);
    let needed = inputs.filter(|e| *e.weight() != Dep::Program).map(|e| TaskId::at(e.source().index()).0);
    needed.into_iter().find(|from| !done[*from as usize] && !(first..task).contains(from))
}

/// The graph of joined tasks, in compressed rows.
struct Waits {
    /// Task -> the task that stands for it and all it is joined with.
    joined: Vec<u32>,
    /// Task -> its queue.
    queue: Vec<u32>,
    queues: usize,
    /// Successors of the joined task `i`: entries `start[i] .. start[i + 1]`.
    start: Vec<u32>,
    successors: Vec<u32>,
}

impl Waits {
    fn new(draft: &Draft, semantics: Semantics) -> Self {
        let n = draft.graph.node_count();
        let joined = joined(draft, semantics);
        let ranks = draft.programs.len();
        let queues = ranks * (Lane::ALL.len() + ranks);
        let queue: Vec<u32> = draft.tasks().map(|(_, task)| TaskId::at(queue_of(task, ranks, semantics)).0).collect();
        let each_edge = |visit: &mut dyn FnMut(u32, u32)| {
            let mut tail = vec![u32::MAX; queues];
            for id in 0..n {
                let last = std::mem::replace(&mut tail[queue[id] as usize], TaskId::at(id).0);
                if last != u32::MAX && joined[last as usize] != joined[id] {
                    visit(joined[last as usize], joined[id]);
                }
            }
            for edge in draft.graph.raw_edges().iter().filter(|e| e.weight != Dep::Program) {
                let (from, to) = (joined[edge.source().index()], joined[edge.target().index()]);
                if from != to {
                    visit(from, to);
                }
            }
        };
        let mut start = vec![0_u32; n + 1];
        each_edge(&mut |from, _| start[from as usize + 1] += 1);
        for i in 0..n {
            start[i + 1] += start[i];
        }
        let mut fill = start.clone();
        let mut successors = vec![0; start[n] as usize];
        each_edge(&mut |from, to| {
            let slot = &mut fill[from as usize];
            successors[*slot as usize] = to;
            *slot += 1;
        });
        Self { joined, queue, queues, start, successors }
    }

    fn successors(&self, i: u32) -> &[u32] {
        &self.successors[self.start[i as usize] as usize..self.start[i as usize + 1] as usize]
    }

    /// Takes away tasks as long as one can go: the order, and which joined tasks are done.
    fn run(&self) -> (Vec<TaskId>, Vec<bool>) {
        let n = self.joined.len();
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut missing = vec![0_u32; n];
        for to in &self.successors {
            missing[*to as usize] += 1;
        }
        // Only joins have more than one member; keep plain tasks free of a list of their own.
        let mut list = vec![u32::MAX; n];
        for (id, to) in self.joined.iter().enumerate().filter(|(id, to)| *id != **to as usize) {
            if list[*to as usize] == u32::MAX {
                list[*to as usize] = TaskId::at(members.len()).0;
                members.push(Vec::new());
            }
            members[list[*to as usize] as usize].push(TaskId::at(id).0);
        }
        let is_leader = |i: usize| self.joined[i] as usize == i;
        let mut ready: VecDeque<u32> =
            (0..n).filter(|i| is_leader(*i) && missing[*i] == 0).map(|i| TaskId::at(i).0).collect();
        let (mut order, mut done) = (Vec::with_capacity(n), vec![false; n]);
        while let Some(i) = ready.pop_front() {
            done[i as usize] = true;
            order.push(TaskId(i));
            if let Some(others) = members.get(list[i as usize] as usize) {
                order.extend(others.iter().map(|id| TaskId(*id)));
            }
            for to in self.successors(i) {
                missing[*to as usize] -= 1;
                if missing[*to as usize] == 0 {
                    ready.push_back(*to);
                }
            }
        }
        (order, done)
    }

    /// The heads of the stuck queues that wait for each other in the shortest cycle.
    fn shortest_cycle(&self, draft: &Draft, done: &[bool]) -> Vec<TaskId> {
        let stuck = |id: usize| !done[self.joined[id] as usize];
        let mut head: Vec<Option<usize>> = vec![None; self.queues];
        for id in (0..self.joined.len()).filter(|id| stuck(*id)) {
            head[self.queue[id] as usize].get_or_insert(id);
        }
        // Joined task -> the queues it is the head of.
        let mut heads: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (queue, id) in head.iter().enumerate() {
            if let Some(id) = id {
                heads.entry(self.joined[*id]).or_default().push(queue);
            }
        }
        let mut waits_for: Vec<Vec<usize>> = vec![Vec::new(); self.queues];
        let mut wait = |waiting: u32, holder: usize| {
            for queue in heads.get(&waiting).into_iter().flatten() {
                waits_for[*queue].push(self.queue[holder] as usize);
            }
        };
        // A head waits for the queues where a task that it is joined with is not at the head yet ...
        for id in (0..self.joined.len()).filter(|id| stuck(*id)) {
            let first = head[self.queue[id] as usize];
            // The parts of a compound action stand one behind the other and come to the head together.
            if first.is_some_and(|first| first != id && self.joined[first] != self.joined[id]) {
                wait(self.joined[id], id);
            }
        }
        // ... and for the queues of the inputs that it still needs.
        for edge in draft.graph.edge_references().filter(|e| *e.weight() != Dep::Program) {
            let (from, to) = (edge.source().index(), edge.target().index());
            if stuck(from) && self.joined[from] != self.joined[to] {
                wait(self.joined[to], from);
            }
        }
        let cycle = (0..self.queues).filter_map(|q| cycle_through(q, &waits_for)).min_by_key(Vec::len);
        cycle.unwrap_or_default().into_iter().filter_map(|q| head[q].map(TaskId::at)).collect()
    }
}

/// The shortest cycle through `start`, by breadth-first search.
fn cycle_through(start: usize, waits_for: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut came_from = vec![None; waits_for.len()];
    let mut queue = VecDeque::from([start]);
    while let Some(q) = queue.pop_front() {
        for next in &waits_for[q] {
            if *next == start {
                let mut cycle = vec![q];
                while let Some(previous) = came_from[cycle[cycle.len() - 1]] {
                    cycle.push(previous);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if came_from[*next].is_none() {
                came_from[*next] = Some(q);
                queue.push_back(*next);
            }
        }
    }
    None
}

/// Task -> the task that stands for it.
pub(crate) fn joined(draft: &Draft, semantics: Semantics) -> Vec<u32> {
    let mut joined: Vec<u32> = draft.tasks().map(|(id, task)| task.group.unwrap_or(id).0).collect();
    if semantics == Semantics::Eager {
        return joined;
    }
    let collectives = &draft.index.collectives;
    for (id, task) in draft.tasks() {
        if task.action.op.is_collective() {
            let first = collectives.iter().find(|c| same_collective(draft.task(**c), task) && task.peer.is_some());
            joined[id.index()] = first.copied().unwrap_or(id).0;
        } else if let Some(send) = sent_as(draft, &task.action) {
            joined[id.index()] = send.0;
        }
    }
    joined
}

/// The queue of a task, below `ranks x Lane::queues(ranks)`.
pub(crate) fn queue_of(task: &Task, ranks: usize, semantics: Semantics) -> usize {
    let width = Lane::ALL.len() + ranks;
    let within = match (semantics, task.lane) {
        (Semantics::Rendezvous, _) => 0,
        (Semantics::StreamFifo, Lane::Send | Lane::Receive) => {
            Lane::ALL.len() + task.peer.map_or(task.rank, |peer| peer).index()
        }
        (Semantics::Eager, Lane::Receive) => task.queue(),
        (_, lane) => lane as usize,
    };
    task.rank.index() * width + within
}
