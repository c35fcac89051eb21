//! The steps of a stage as one task: how long they take together.

use pipewright_ir::segments::{Placed, Programs, Step};
use pipewright_ir::task::Lane;

/// Compute and every lane of messages, each with when it is free.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// When compute is free.
    pub(super) compute: f64,
    lanes: [f64; Lane::ALL.len()],
    /// Messages on their way: the place of the step that waits, when it arrives, its time, when compute set it off.
    pending: Vec<(usize, f64, f64, f64)>,
}

/// Runs the steps of a list from the clocks as they are. `cost` gives the time of a step of the table \[s\].
/// `overlap_cost` is the share of hidden messages' time that compute loses to them.
pub(super) fn run(programs: &Programs, placed: &[Placed], cost: &[f64], overlap_cost: f64, clocks: &mut Clocks) {
    run_with(programs, placed, cost, overlap_cost, clocks, &mut |_, _| {});
}

/// The same; gives the place of each step that waits for messages, with the time that compute has lost to them while they
/// were hidden, to `lost`.
pub(super) fn run_with(
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
        lost(place, join(clocks, place, overlap_cost));
        match collective {
            None => clocks.compute += time,
            Some(collective) => {
                let set_off = clocks.compute;
                let lane = &mut clocks.lanes[Lane::of_axis(collective.axis) as usize];
                *lane = lane.max(set_off) + time;
                clocks.pending.push((place.saturating_add(placed.joined_after as usize), *lane, time, set_off));
            }
        }
    }
}

/// Compute waits for the messages that the step at `place` needs. Returns what it has lost to them while they were hidden.
fn join(clocks: &mut Clocks, place: usize, overlap_cost: f64) -> f64 {
    let (mut at, mut lost) = (0, 0.0);
    while at < clocks.pending.len() {
        let (joined, end, time, set_off) = clocks.pending[at];
        if joined > place {
            at += 1;
            continue;
        }
        clocks.pending.swap_remove(at);
        let hidden = time.min(clocks.compute - set_off);
        clocks.compute = clocks.compute.max(end) + overlap_cost * hidden;
        lost += overlap_cost * hidden;
    }
    lost
}

/// The end of the action: every message has arrived. Returns when.
pub(super) fn finish(clocks: &mut Clocks, overlap_cost: f64) -> f64 {
    join(clocks, usize::MAX, overlap_cost);
    clocks.compute
}

/// What each step of an action loses to the messages that it hid: an entry a place. What is lost to messages that only the
/// end of the action waits for stands at its last compute step.
pub(super) fn losses(programs: &Programs, placed: &[Placed], cost: &[f64], overlap_cost: f64) -> Vec<f64> {
    let mut losses = vec![0.0; placed.len()];
    let mut clocks = Clocks::default();
    let computes = |placed: &Placed| programs.step(placed.step).is_some_and(|step| step.collective().is_none());
    let last = placed.iter().rposition(computes);
    // A message that waits for another one takes nothing from itself: the next compute step does.
    let mut carried = 0.0;
    run_with(programs, placed, cost, overlap_cost, &mut clocks, &mut |place, lost| {
        carried += lost;
        if placed.get(place).is_some_and(computes) {
            losses[place] += std::mem::take(&mut carried);
        }
    });
    carried += join(&mut clocks, usize::MAX, overlap_cost);
    if let Some(last) = last.and_then(|last| losses.get_mut(last)) {
        *last += carried;
    }
    losses
}
