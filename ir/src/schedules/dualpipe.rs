//! DualPipe: two pipes in opposite directions through the same ranks, so that a rank always has the forward of one to
//! overlap with the backward of the other: the messages of each hide behind the compute of the other.
//!
//! ```text
//! p = 4, m = 8; a lower-case letter is the upward pipe, & joins what runs as one
//! rank 0  F0 F1 F2 f0 i0 w0 f1 F3&b1 b1 .  f2&B0 B0 b2 b2 .  f3&B1 B1 b3 b3 I2 W2 I3 W3
//! rank 1  .  F0 f0 F1 f1 F2 b0 b0 f2&B0 B0 F3&b1 b1 f3&B1 B1 b2 b2 B2 B2 .  i3 I3 w3 W3
//! rank 2  .  f0 F0 f1 F1 f2 B0 B0 F2&b0 b0 f3&B1 B1 F3&b1 b1 B2 B2 b2 b2 .  I3 i3 W3 w3
//! rank 3  f0 f1 f2 F0 I0 W0 F1 f3&B1 B1 .  F2&b0 b0 B2 B2 .  F3&b1 b1 B3 B3 i2 w2 i3 w3
//! ```
//! Half of the microbatches go each way. Every rank holds two stages, and every stage's parameters are held twice, so
//! their gradients are summed over both copies at the end of the step. With `F&B` the time of an overlapped pair, I = F
//! and pairs that start and end as one, the makespan at `F&B = F + B` is `m (F + B) + (p/2 - 1)(F&B + B - 3 W)`; a pair
//! that takes less also shortens the steady phase. `p + 1` activations alive, both pipes together; `2 m (p - 1)` messages.
//! For I other than F there is no closed form. `p` even, `m` even, `m >= 2 p`.
//! DeepSeek-AI 2024 (arXiv 2412.19437), section 3.2.1.

use super::{Chunks, Family, Knobs, MICROBATCHES, RANKS, ScheduleParams, dual};
use crate::fault::Fault;
use crate::ids::{Pipe, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "dualpipe",
    aliases: &["DualPipe", "dual-pipe"],
    summary: "two pipes in opposite directions, forwards overlap backwards; parameters held twice",
    paper: "DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1",
    makespan: "m (F + B) + (p/2 - 1)(2 B + F - 3 W) at I = F, pairs as one",
    peak_activations: "p + 1",
    chunks: Chunks::One,
    knobs: Knobs::NONE,
    constraints,
    order,
};

/// `p` even, `m` even and at least `2 p`.
fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let mut faults: Vec<Fault> = odd_ranks("dualpipe", p).into_iter().collect();
    let least = 2 * p;
    let (message, help) = if m < least {
        (
            format!("dualpipe needs m >= 2 p, p microbatches each way: {m} < 2 * {p} = {least}"),
            format!("use m = {least}"),
        )
    } else if !m.is_multiple_of(2) {
        (odd_microbatches("dualpipe", m), neighbours("m", m))
    } else {
        return faults;
    };
    faults.push(Fault::new(MICROBATCHES, "dualpipe::microbatches", message, help));
    faults
}

/// Two pipes meet between two ranks.
pub(super) fn odd_ranks(family: &str, p: u32) -> Option<Fault> {
    let message =
        || format!("{family} needs an even number of ranks, for its two pipes to meet in the middle: {p} % 2 = 1");
    (!p.is_multiple_of(2)).then(|| Fault::new(RANKS, "bidirectional::ranks", message(), neighbours("p", p)))
}

/// Half of the microbatches go each way.
pub(super) fn odd_microbatches(family: &str, m: u32) -> String {
    format!("{family} needs an even number of microbatches, half of them for each pipe: {m} % 2 = 1")
}

/// The even numbers next to an odd one.
pub(super) fn neighbours(what: &str, odd: u32) -> String {
    let above = odd.saturating_add(1);
    if odd < 2 { format!("use {what} = {above}") } else { format!("use {what} = {} or {above}", odd - 1) }
}

/// The stage whose microbatches begin closer to rank `r`, and the other.
pub(super) fn sides(p: u32, r: u32) -> [Stage; 2] {
    let (down, up) = (Stage::new(r).on(Pipe::Down), Stage::new(p - 1 - r).on(Pipe::Up));
    if r < p / 2 { [down, up] } else { [up, down] }
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let rank = |r: u32| {
        let [near, far] = sides(p, r);
        dual::program(p / 2, near.number(), m / 2, near, far)
    };
    PipelineOrder::new(m, Placement::bidirectional(p), (0..p).map(rank).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_numbers_and_few_microbatches_are_refused_at_once() {
        let text = |p, m| constraints(&ScheduleParams::new(p, m, 1)).iter().map(|f| f.help.clone()).collect::<Vec<_>>();
        assert_eq!(text(3, 4), ["use p = 2 or 4", "use m = 6"]);
        assert_eq!(text(1, 3), ["use p = 2", "use m = 2 or 4"]);
        assert_eq!(text(4, 9), ["use m = 8 or 10"]);
        assert!(text(4, 8).is_empty());
    }
}
