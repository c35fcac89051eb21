//! A run as a Chrome trace, which Perfetto and `chrome://tracing` open: spans, arrows from sends to receives, memory.
//!
//! One law: times become whole nanoseconds before anything is subtracted, so spans that touch never overlap.

use super::live;
use super::run::{Run, TimeUnit, zero};
use pipewright_ir::ids::{Rank, TaskId};
use pipewright_ir::task::{Dep, Lane, MemoryClass, Task};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The trace as a JSON object. Times are in microseconds; an abstract unit counts as a millisecond.
///
/// A process is a rank and a thread one of its lanes. Spans are named by their action (`2F0`); counters give the bytes
/// of each class of memory, or the activations alive where no bytes are known.
pub fn trace(run: &Run<'_>) -> Value {
    let clock = Clock { zero: zero(run.timeline), nanoseconds: nanoseconds(run.unit) };
    let mut events = names(run);
    let mut timed = Vec::new();
    add_spans(&mut timed, run, clock);
    add_flows(&mut timed, run, clock);
    add_counters(&mut timed, run, clock);
    // Stable: at equal times spans come before the arrows that bind to them.
    timed.sort_by_key(|event| event.0);
    events.extend(timed.into_iter().map(|event| event.1));
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": run.name,
            "shape": run.shape(),
            "source": run.timeline.source.name(),
            "time": match run.unit {
                TimeUnit::Seconds => "microseconds",
                TimeUnit::Abstract => "abstract: 1 unit is shown as 1 ms",
            },
            "note": run.note,
        },
        "traceEvents": events,
    })
}

/// Nanoseconds of one of a timeline's units.
fn nanoseconds(unit: TimeUnit) -> f64 {
    match unit {
        TimeUnit::Seconds => 1e9,
        TimeUnit::Abstract => 1e6,
    }
}

/// Turns times into nanoseconds from the first start.
#[derive(Clone, Copy)]
struct Clock {
    zero: f64,
    nanoseconds: f64,
}

impl Clock {
    fn at(self, time: f64) -> u64 {
        ((time - self.zero) * self.nanoseconds).round().max(0.0) as u64
    }
}

/// Nanoseconds as the microseconds of the format.
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// An event with its time [ns].
type Timed = (u64, Value);

/// Names and order of processes and threads.
fn names(run: &Run<'_>) -> Vec<Value> {
    let mut events = Vec::new();
    for rank in 0..run.schedule.ranks() {
        let process = |name: &str, args: Value| json!({ "ph": "M", "name": name, "pid": rank, "args": args });
        events.push(process("process_name", json!({ "name": format!("rank {rank}") })));
        events.push(process("process_sort_index", json!({ "sort_index": rank })));
        let queues: BTreeMap<usize, String> =
            run.schedule.program(Rank::at(rank)).map(|(_, task)| (tid(task), thread_name(task))).collect();
        for (tid, name) in queues {
            let thread =
                |what: &str, args: Value| json!({ "ph": "M", "name": what, "pid": rank, "tid": tid, "args": args });
            events.push(thread("thread_name", json!({ "name": name })));
            events.push(thread("thread_sort_index", json!({ "sort_index": tid })));
        }
    }
    events
}

/// A thread is a queue of a rank: a lane, or the receives from one peer. They count from 1: Perfetto takes thread 0 of
/// process 0 for the idle thread of a machine.
fn tid(task: &Task) -> usize {
    task.queue() + 1
}

fn thread_name(task: &Task) -> String {
    match task.peer {
        Some(peer) if task.lane == Lane::Receive => format!("receive from rank {peer}"),
        _ => task.lane.name().to_owned(),
    }
}

fn add_spans(events: &mut Vec<Timed>, run: &Run<'_>, clock: Clock) {
    for step in 0..run.timeline.steps() {
        for (id, task) in run.schedule.tasks() {
            let span = run.timeline.span(step, id);
            let (start, end) = (clock.at(span.start), clock.at(span.end));
            let mut args = Map::new();
            args.insert("step".to_owned(), json!(step));
            args.insert("stage".to_owned(), json!(task.action.stage.number()));
            if let Some(microbatch) = task.action.microbatch {
                args.insert("microbatch".to_owned(), json!(microbatch.number()));
            }
            if task.payload > 0 {
                args.insert("bytes".to_owned(), json!(task.payload));
            }
            if let Some(sample) = run.timeline.memory(step, id) {
                args.insert("peak_memory_bytes".to_owned(), json!(sample.peak));
            }
            let event = json!({
                "ph": "X",
                "name": task.action.to_string(),
                "cat": task.lane.name(),
                "pid": task.rank.0,
                "tid": tid(task),
                "ts": microseconds(start),
                "dur": microseconds(end.saturating_sub(start)),
                "args": args,
            });
            events.push((start, event));
        }
    }
}

/// An arrow from each send to its receive.
fn add_flows(events: &mut Vec<Timed>, run: &Run<'_>, clock: Clock) {
    for edge in run.schedule.graph().raw_edges().iter().filter(|edge| edge.weight == Dep::Transfer) {
        let (from, to) = (TaskId::at(edge.source().index()), TaskId::at(edge.target().index()));
        for step in 0..run.timeline.steps() {
            let (send, receive) = (run.timeline.span(step, from), run.timeline.span(step, to));
            let start = clock.at(send.start);
            // An arrow binds to the span its end lies in, so it must not touch the receive's end; a receive that
            // waited is reached when the message left.
            let (first, last) = (clock.at(receive.start), clock.at(receive.end));
            let end = clock.at(send.end).clamp(first, last.saturating_sub(1).max(first)).max(start);
            let id = step * run.timeline.tasks + from.index();
            for (phase, time, task) in [("s", start, from), ("f", end, to)] {
                let task = run.schedule.task(task);
                let mut event = json!({
                    "ph": phase,
                    "name": "message",
                    "cat": "message",
                    "id": id,
                    "pid": task.rank.0,
                    "tid": tid(task),
                    "ts": microseconds(time),
                });
                if phase == "f" {
                    // The arrow ends in the span around its end, not in the next one.
                    event["bp"] = json!("e");
                }
                events.push((time, event));
            }
        }
    }
}

/// What is alive on each rank, at every change.
fn add_counters(events: &mut Vec<Timed>, run: &Run<'_>, clock: Clock) {
    let bytes = live::has_bytes(run.schedule);
    for (rank, live) in live::of_run(run).iter().enumerate() {
        let is_there = |class: &MemoryClass| live.changes.iter().any(|c| c.levels[class.index()] > 0.0);
        let classes: Vec<_> = MemoryClass::ALL.into_iter().filter(is_there).collect();
        let mut changes = live.changes.iter().peekable();
        while let Some(change) = changes.next() {
            let time = clock.at(change.time + clock.zero);
            // Of changes at one moment only the last can be seen.
            if changes.peek().is_some_and(|next| clock.at(next.time + clock.zero) == time) {
                continue;
            }
            let value = |class: &MemoryClass| {
                let level = change.levels[class.index()];
                let number = if bytes { json!(level as u64) } else { json!(level) };
                (class.name().to_owned(), number)
            };
            let args: Map<_, _> = classes.iter().map(value).collect();
            let name = if bytes { "memory [B]" } else { "activations alive [microbatches]" };
            let event = json!({ "ph": "C", "name": name, "pid": rank, "ts": microseconds(time), "args": args });
            events.push((time, event));
        }
    }
}
