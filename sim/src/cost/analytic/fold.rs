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

/// The same; gives the place of each compute step, with the time that it loses to the messages beside it, to `lost`.
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
            None => {
                let loss = overlap_cost * beside(clocks, time);
                clocks.compute += time + loss;
                lost(place, loss);
            }
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

/// How long messages are on their way in the next `time` of compute.
fn beside(clocks: &Clocks, time: f64) -> f64 {
    let (from, to) = (clocks.compute, clocks.compute + time);
    clocks.pending.iter().map(|message| (message.end.min(to) - message.start.max(from)).max(0.0)).sum()
}

/// Compute waits for the messages that the step at `place` needs.
fn join(clocks: &mut Clocks, place: usize) {
    let needed = clocks.pending.iter().filter(|message| message.joined <= place);
    let ready = needed.fold(clocks.compute, |ready, message| ready.max(message.end));
    clocks.compute = ready;
    clocks.pending.retain(|message| message.end > ready);
}

/// The end of the action: every message has arrived. Returns when.
pub(super) fn finish(clocks: &mut Clocks) -> f64 {
    join(clocks, usize::MAX);
    clocks.compute
}

/// What each step of an action loses to the messages beside it: an entry a place.
pub(super) fn losses(programs: &Programs, placed: &[Placed], cost: &[f64], overlap_cost: f64) -> Vec<f64> {
    let mut losses = vec![0.0; placed.len()];
    run_with(programs, placed, cost, overlap_cost, &mut Clocks::default(), &mut |place, lost| losses[place] = lost);
    losses
}
