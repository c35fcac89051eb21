//! The steps of a stage as one task: how long they take together.

use pipewright_ir::segments::{Placed, Programs, Step};
use pipewright_ir::task::Lane;

/// Compute and every lane of messages, each with when it is free.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// When compute is free.
    pub(super) compute: f64,
    lanes: [f64; Lane::ALL.len()],
    /// Messages on their way.
    pending: Vec<Pending>,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// The place of the step that waits for it.
    joined: usize,
    start: f64,
    end: f64,
}

/// Runs the steps of a list from the clocks as they are. `cost` gives the time of a step of the table \[s\].
/// `overlap_cost` is the share of the messages' time beside compute that compute loses to them.
pub(super) fn run(programs: &Programs, placed: &[Placed], cost: &[f64], overlap_cost: f64, clocks: &mut Clocks) {
    run_with(programs, placed, cost, overlap_cost, clocks, &mut |_, _| {});
}

/// The same; gives the place of each compute step with what it loses to the messages beside it to `lost`.
fn run_with(
    programs: &Programs,
    placed: &[Placed],
    cost: &[f64],
    overlap_cost: f64,
    clocks: &mut Clocks,
    lost: &mut impl FnMut(usize, f64),
) {
    for (place, placed) in placed.iter().enumerate() {
        let collective = programs.step(placed.step).and_then(Step::collective);
        let time = cost.get(placed.step as usize).copied().unwrap_or(0.0);
        join(clocks, place);
        match collective {
            None => lost(place, compute(clocks, time, overlap_cost)),
            Some(collective) => {
                let lane = &mut clocks.lanes[Lane::of_axis(collective.axis) as usize];
                let start = lane.max(clocks.compute);
                *lane = start + time;
                let joined = place.saturating_add(placed.joined_after as usize);
                clocks.pending.push(Pending { joined, start, end: start + time });
            }
        }
    }
}

/// Compute goes on for `time`, and slower beside messages. Returns what it loses to them.
fn compute(clocks: &mut Clocks, time: f64, overlap_cost: f64) -> f64 {
    let (from, to) = (clocks.compute, clocks.compute + time);
    let beside: f64 = clocks.pending.iter().map(|m| (m.end.min(to) - m.start.max(from)).max(0.0)).sum();
    clocks.compute = to + overlap_cost * beside;
    overlap_cost * beside
}

/// Compute waits for the messages that the step at `place` needs.
fn join(clocks: &mut Clocks, place: usize) {
    let needed = clocks.pending.iter().filter(|m| m.joined <= place);
    let ready = needed.fold(clocks.compute, |ready, m| ready.max(m.end));
    clocks.compute = ready;
    clocks.pending.retain(|m| m.end > ready);
}

/// The end of the action: every message has arrived. Returns when.
pub(super) fn finish(clocks: &mut Clocks) -> f64 {
    join(clocks, usize::MAX);
    clocks.compute
}

/// What each step of an action loses to the messages beside it: an entry a place.
pub(super) fn losses(programs: &Programs, placed: &[Placed], cost: &[f64], overlap_cost: f64) -> Vec<f64> {
    let mut losses = vec![0.0; placed.len()];
    let mut clocks = Clocks::default();
    run_with(programs, placed, cost, overlap_cost, &mut clocks, &mut |place, lost| losses[place] = lost);
    losses
}
