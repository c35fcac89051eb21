//! More ranks than cores: compute tasks share the cores.
//!
//! With `n` compute tasks running on `c` cores each goes at the rate `min(1, c / n)`, as fair time slices give it
//! (processor sharing). Time then depends on what else runs, so events are taken in order of time from a heap.

use crate::engine::Engine;
use ordered_float::OrderedFloat;
use pipewright_ir::timeline::Span;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Running {
    id: u32,
    start: f64,
    remaining: f64,
}

pub(crate) fn run_step(engine: &Engine, cores: u32, ends: &mut [f64], spans: &mut [Span]) {
    let cores = f64::from(cores.max(1));
    let mut step = Step::new(engine, ends);
    let mut running: Vec<Running> = Vec::new();
    let mut now = 0.0;
    loop {
        let rate = (cores / running.len().max(1) as f64).min(1.0);
        let finish = running.iter().map(|r| now + r.remaining / rate).min_by(f64::total_cmp);
        let arrival = step.ready.peek().map(|Reverse((time, _))| time.0);
        let Some(next) = finish.into_iter().chain(arrival).min_by(f64::total_cmp) else { break };
        for task in &mut running {
            task.remaining -= (next - now).max(0.0) * rate;
        }
        now = next;
        if finish.is_some_and(|finish| finish <= next) {
            // The one that determined `finish`, smallest remainder, then smallest id.
            let order = |a: &Running, b: &Running| a.remaining.total_cmp(&b.remaining).then(a.id.cmp(&b.id));
            let first = running.iter().enumerate().min_by(|a, b| order(a.1, b.1)).map(|(i, _)| i);
            if let Some(task) = first.map(|i| running.swap_remove(i)) {
                step.finish(task.id, Span { start: task.start, end: now }, ends, spans);
            }
            continue;
        }
        if let Some(Reverse((time, id))) = step.ready.pop() {
            let duration = engine.duration[step.position[id as usize] as usize];
            if engine.is_compute[id as usize] && duration > 0.0 {
                running.push(Running { id, start: time.0, remaining: duration });
            } else {
                step.finish(id, Span { start: time.0, end: time.0 + duration }, ends, spans);
            }
        }
    }
}

/// What is still to come in this step.
struct Step {
    /// Task -> its position in topological order.
    position: Vec<u32>,
    /// Task -> predecessors that have not ended.
    missing: Vec<u32>,
    /// Task -> earliest start so far.
    earliest: Vec<f64>,
    /// Task -> (successor, latency).
    successors: Vec<Vec<(u32, f64)>>,
    ready: BinaryHeap<Reverse<(OrderedFloat<f64>, u32)>>,
}

impl Step {
    fn new(engine: &Engine, ends: &[f64]) -> Self {
        let n = engine.tasks;
        let mut step = Self {
            position: vec![0; n],
            missing: vec![0; n],
            earliest: vec![0.0; n],
            successors: vec![Vec::new(); n],
            ready: BinaryHeap::new(),
        };
        for (k, id) in engine.order.iter().enumerate() {
            let i = *id as usize;
            step.position[i] = u32::try_from(k).unwrap_or(u32::MAX);
            for entry in engine.start[k] as usize..engine.start[k + 1] as usize {
                let (from, latency) = (engine.predecessors[entry] as usize, engine.latency[entry]);
                if from < n {
                    step.successors[from].push((*id, latency));
                    step.missing[i] += 1;
                } else {
                    step.earliest[i] = step.earliest[i].max(ends[from] + latency);
                }
            }
            if step.missing[i] == 0 {
                step.ready.push(Reverse((OrderedFloat(step.earliest[i]), *id)));
            }
        }
        step
    }

    fn finish(&mut self, id: u32, span: Span, ends: &mut [f64], spans: &mut [Span]) {
        ends[id as usize] = span.end;
        spans[id as usize] = span;
        for (to, latency) in std::mem::take(&mut self.successors[id as usize]) {
            let i = to as usize;
            self.earliest[i] = self.earliest[i].max(span.end + latency);
            self.missing[i] -= 1;
            if self.missing[i] == 0 {
                self.ready.push(Reverse((OrderedFloat(self.earliest[i]), to)));
            }
        }
    }
}
