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
    for (place, placed) in placed.iter().enumerate() {
        let collective = programs.step(placed.step).and_then(Step::collective);
        let time = cost.get(placed.step as usize).copied().unwrap_or(0.0);
        join(clocks, place, overlap_cost);
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

/// Compute waits for the messages that the step at `place` needs.
fn join(clocks: &mut Clocks, place: usize, overlap_cost: f64) {
    let mut at = 0;
    while at < clocks.pending.len() {
        let (joined, end, time, set_off) = clocks.pending[at];
        if joined > place {
            at += 1;
            continue;
        }
        clocks.pending.swap_remove(at);
        let hidden = time.min(clocks.compute - set_off);
        clocks.compute = clocks.compute.max(end) + overlap_cost * hidden;
    }
}

/// The end of the action: every message has arrived. Returns when.
pub(super) fn finish(clocks: &mut Clocks, overlap_cost: f64) -> f64 {
    join(clocks, usize::MAX, overlap_cost);
    clocks.compute
}
