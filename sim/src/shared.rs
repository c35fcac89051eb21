//! Ranks that share a machine: cores, when there are more ranks than cores, and memory bandwidth, caches and clock.
//!
//! With `n` compute tasks running on `c` cores, `k = min(n, c)` of them really run at a time. Each goes at the rate
//! `k / n` (fair time slices: processor sharing) `/ (1 + contention (k - 1))`. Time then depends on what else runs, so
//! events are taken in order of time from a heap; steps without a barrier between them share the machine too and run in
//! one loop.

use crate::Options;
use crate::engine::Engine;
use ordered_float::OrderedFloat;
use pipewright_ir::ids::TaskId;
use pipewright_ir::timeline::Span;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Running {
    id: u32,
    start: f64,
    remaining: f64,
}

/// What ranks share.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    cores: f64,
    contention: f64,
}

impl Machine {
    /// `None` where every rank has a device of its own that no other rank slows down.
    pub(crate) fn of(options: &Options) -> Option<Self> {
        let shared = options.cores.is_some() || options.contention > 0.0;
        let cores = options.cores.map_or(f64::INFINITY, |cores| f64::from(cores.max(1)));
        shared.then_some(Self { cores, contention: options.contention.max(0.0) })
    }

    /// The rate at which each of `n` compute tasks goes on; 1 is alone.
    fn rate(self, n: usize) -> f64 {
        let n = n.max(1) as f64;
        let working = n.min(self.cores);
        working / n / (1.0 + self.contention * (working - 1.0))
    }
}

/// Runs `spans.len() / tasks` steps that overlap where they can, from lanes that are free at `ends`.
pub(crate) fn run(engine: &Engine, machine: Machine, ends: &mut [f64], spans: &mut [Span]) {
    let mut waiting = Waiting::new(engine, ends, spans.len());
    let mut running: Vec<Running> = Vec::new();
    let mut now = 0.0;
    loop {
        let rate = machine.rate(running.len());
        let finish = running.iter().map(|r| now + r.remaining / rate).min_by(f64::total_cmp);
        let arrival = waiting.ready.peek().map(|Reverse((time, _))| time.0);
        let Some(next) = finish.into_iter().chain(arrival).min_by(f64::total_cmp) else { break };
        for task in &mut running {
            task.remaining -= (next - now).max(0.0) * rate;
        }
        now = next;
        if finish.is_some_and(|finish| finish <= next) {
            // The one that determined `finish`: smallest remainder, then smallest id.
            let order = |a: &Running, b: &Running| a.remaining.total_cmp(&b.remaining).then(a.id.cmp(&b.id));
            let first = running.iter().enumerate().min_by(|a, b| order(a.1, b.1)).map(|(i, _)| i);
            if let Some(task) = first.map(|i| running.swap_remove(i)) {
                waiting.finish(task.id, Span { start: task.start, end: now }, spans);
            }
            continue;
        }
        if let Some(Reverse((time, id))) = waiting.ready.pop() {
            let task = id as usize % engine.tasks;
            let duration = engine.duration[task];
            if engine.is_compute[task] && duration > 0.0 {
                running.push(Running { id, start: time.0, remaining: duration });
            } else {
                waiting.finish(id, Span { start: time.0, end: time.0 + duration }, spans);
            }
        }
    }
    let last = spans.len().saturating_sub(engine.tasks);
    for (end, span) in ends.iter_mut().zip(&spans[last..]) {
        *end = span.end;
    }
}

/// What is still to come. Task `id` of step `n` goes by the number `n x tasks + id`.
struct Waiting {
    /// Number -> predecessors that have not ended.
    missing: Vec<u32>,
    /// Number -> earliest start so far.
    earliest: Vec<f64>,
    /// Number -> (successor, latency).
    successors: Vec<Vec<(u32, f64)>>,
    ready: BinaryHeap<Reverse<(OrderedFloat<f64>, u32)>>,
}

impl Waiting {
    fn new(engine: &Engine, ends: &[f64], numbers: usize) -> Self {
        let n = engine.tasks;
        let mut waiting = Self {
            missing: vec![0; numbers],
            earliest: vec![0.0; numbers],
            successors: vec![Vec::new(); numbers],
            ready: BinaryHeap::new(),
        };
        let steps = numbers.checked_div(n).unwrap_or(0);
        for id in &engine.order {
            for step in 0..steps {
                waiting.add(engine, ends, step, *id as usize);
            }
        }
        waiting
    }

    /// One task in one step.
    fn add(&mut self, engine: &Engine, ends: &[f64], step: usize, id: usize) {
        let n = engine.tasks;
        let number = step * n + id;
        for entry in engine.start[id] as usize..engine.start[id + 1] as usize {
            let predecessor = engine.predecessors[entry];
            let slot = predecessor.slot() as usize;
            let latency = if predecessor.is_transfer() { engine.latency[id] } else { 0.0 };
            let from = match slot.checked_sub(n) {
                None => Some(step * n + slot),
                // Behind a lane stands its last task of the step before; before the first step, when it is free.
                Some(lane) => step.checked_sub(1).and_then(|s| Some(s * n + engine.lane_tails[lane]? as usize)),
            };
            match from {
                Some(from) => {
                    self.successors[from].push((TaskId::at(number).0, latency));
                    self.missing[number] += 1;
                }
                None => self.earliest[number] = self.earliest[number].max(ends[slot] + latency),
            }
        }
        if self.missing[number] == 0 {
            self.ready.push(Reverse((OrderedFloat(self.earliest[number]), TaskId::at(number).0)));
        }
    }

    fn finish(&mut self, number: u32, span: Span, spans: &mut [Span]) {
        spans[number as usize] = span;
        for (to, latency) in std::mem::take(&mut self.successors[number as usize]) {
            let i = to as usize;
            self.earliest[i] = self.earliest[i].max(span.end + latency);
            self.missing[i] -= 1;
            if self.missing[i] == 0 {
                self.ready.push(Reverse((OrderedFloat(self.earliest[i]), to)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::UnitCost;
    use crate::{Options, simulate};
    use pipewright_ir::schedule::{Draft, Schedule};
    use pipewright_ir::schedules::{ScheduleParams, find};
    use pipewright_ir::unit_costs::UnitCosts;
    use pipewright_ir::workload::Workload;

    /// GPipe's compute actions alone: every rank has something to do most of the time.
    fn schedule(ranks: u32, microbatches: u32) -> Schedule {
        let order = find("gpipe").unwrap().order(&ScheduleParams::new(ranks, microbatches, 1)).unwrap();
        let program = pipewright_ir::passes::add_send_recv(&order);
        Draft::lower(&program, &Workload::abstract_stages(ranks)).seal().unwrap()
    }

    fn makespan(ranks: u32, microbatches: u32, cores: Option<u32>, contention: f64) -> f64 {
        let schedule = schedule(ranks, microbatches);
        let cost = UnitCost::new(&UnitCosts::default(), &schedule);
        simulate(&schedule, &cost, &Options { cores, contention, ..Options::default() }).makespan()
    }

    #[test]
    fn two_ranks_on_one_core_take_as_long_as_one_after_the_other() {
        assert_eq!(makespan(2, 4, Some(1), 0.0), 2.0 * 4.0 * 3.0);
        assert_eq!(makespan(2, 4, Some(2), 0.0), makespan(2, 4, None, 0.0));
    }

    #[test]
    fn contention_slows_only_what_runs_together() {
        assert_eq!(makespan(1, 4, None, 0.5), 12.0, "alone");
        // F0 alone; three times two forwards together at 1.5; F3 and B0 of rank 1 alone; then three pairs of
        // backwards at 1.5 and the last one alone.
        assert_eq!(makespan(2, 4, None, 0.5), 1.0 + 3.0 * 1.5 + 1.0 + 2.0 + 3.0 * 3.0 + 2.0);
    }

    #[test]
    fn contention_counts_cores_at_work_and_not_ranks() {
        // One core works at a time: nothing to contend with.
        assert_eq!(makespan(2, 4, Some(1), 0.5), makespan(2, 4, Some(1), 0.0));
    }
}
