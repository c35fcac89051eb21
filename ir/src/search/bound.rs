//! How short a step can be at most, whatever the order.
//!
//! One law: every line is a proof; none is an estimate. Written for stages `s` on ranks, times `F, I, W` of a stage, hop
//! `c` between ranks, `m` microbatches; a whole B is an I followed at once by its W, so what holds for split backwards
//! holds for it too.
//!
//! 1. *Busiest rank with its fill.* The first task of a rank is an F (nothing else has its inputs), of some stage of it.
//!    It starts no sooner than that stage's head: the F of all stages before it and their hops. Then come `m` times its
//!    F, I and W. So `head + m (F + I + W)`; the drain after its last task is 0 when that is a W.
//! 2. *Fill, forwards and backwards, drain.* Between the start of its first F and the end of its last I a rank runs all
//!    its F and I. The stage of the last I must still be followed by the I of all stages before it, and stage 0's W:
//!    `head + m (F + I) + least drain of its stages`, and a rank's own W when stage 0 is not after it.
//! 3. *One microbatch.* All F down, all I back up, the W of stage 0, and the hops.
//! 4. *Waiting for the first backward.* A rank runs nothing but F before its first I. That I ends its input no sooner
//!    than a microbatch needs from the first F, through the last stage, back. Until then at most `L` F fit in its
//!    memory (or all `m` of each stage), so the remaining `m (F + I + W)` less the longest `L` F come after it.
//! 5. *Memory over time* (Little's law). A microbatch holds a slot of the rank for stage `s` from the start of its F to
//!    the end of its W: at least `F`, the way through all later stages and back to `s`, `I` and `W`. All of them
//!    together are at most `L` slots times the rank's span.
//!
//! The same arguments from a rank's own first start give a bound of its span: 1, 4 and 5 without the head.

use super::evaluate::Evaluation;
use super::shop::Shop;
use crate::placement::Placement;
use crate::unit_costs::StageTimes;

/// Lower bounds of one step, in the unit of the times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// No order ends sooner.
    pub makespan: f64,
    /// In no order is the longest time between a rank's own first start and last end shorter.
    pub span: f64,
}

impl Bound {
    /// How much longer `makespan` is, as a share of the bound: 0.02 is 2 %.
    pub fn gap(&self, makespan: f64) -> f64 {
        if self.makespan > 0.0 { makespan / self.makespan - 1.0 } else { 0.0 }
    }

    /// Whether no order can have a shorter makespan than this one.
    pub(super) fn makespan_met_by(&self, evaluation: &Evaluation) -> bool {
        evaluation.makespan <= self.makespan * (1.0 + 1e-9)
    }

    /// Whether none can have a shorter makespan, nor a shorter longest span.
    pub(super) fn met_by(&self, evaluation: &Evaluation) -> bool {
        self.makespan_met_by(evaluation) && evaluation.longest_span() <= self.span * (1.0 + 1e-9)
    }
}

/// The bounds of a placement with one pipe. `limits` are the most activations each rank may hold, in microbatches of its
/// whole share, one entry a rank; without them memory bounds nothing.
pub fn lower_bound(placement: &Placement, times: &StageTimes, microbatches: u32, limits: Option<&[f64]>) -> Bound {
    of_shop(&Shop::new(placement, times, microbatches, |r| limits?.get(r).copied()))
}

/// The bounds of a shop.
pub(super) fn of_shop(shop: &Shop) -> Bound {
    let stages = shop.rank_of.len();
    if stages == 0 || shop.microbatches == 0 {
        return Bound::default();
    }
    // When F of a stage can start; from the start of a stage's F to the earliest start of its I; from the end of its I
    // to the end of the step.
    let (mut head, mut turn, mut drain) = (vec![0.0; stages], vec![0.0; stages], vec![0.0; stages]);
    turn[stages - 1] = shop.times[stages - 1][0];
    drain[0] = shop.times[0][3];
    for s in 1..stages {
        let hop = shop.hop(s - 1, s);
        head[s] = head[s - 1] + shop.times[s - 1][0] + hop;
        drain[s] = f64::max(hop + shop.times[s - 1][2] + drain[s - 1], shop.times[s][3]);
    }
    for s in (0..stages - 1).rev() {
        let [forward, ..] = shop.times[s];
        turn[s] = forward + turn[s + 1] + shop.times[s + 1][2] + 2.0 * shop.hop(s, s + 1);
    }
    let m = shop.microbatches as f64;
    let mut bound = Bound { makespan: turn[0] + shop.times[0][2] + drain[0], span: 0.0 };
    for (of_rank, slots) in shop.stages_of.iter().zip(&shop.slots) {
        let least = |of: &dyn Fn(usize) -> f64| of_rank.iter().map(|s| of(*s)).fold(f64::INFINITY, f64::min);
        if of_rank.is_empty() {
            continue;
        }
        let work: f64 = of_rank.iter().map(|s| shop.times[*s][0] + shop.times[*s][1]).sum::<f64>() * m;
        let weights: f64 = of_rank.iter().map(|s| shop.times[*s][3]).sum::<f64>() * m;
        let first = least(&|s| head[s]);
        let held: f64 = of_rank.iter().map(|s| turn[*s] + shop.times[*s][1]).sum::<f64>() * m;
        let before = longest_forwards(shop, of_rank, *slots);
        let waits = least(&|s| turn[s]) + work - before;
        let span = work.max(waits).max(held / (*slots).max(1) as f64);
        let drained = first + work - weights + least(&|s| drain[s]);
        // The first I of the rank, measured from the start of the step.
        let waits = least(&|s| head[s] + turn[s]) + work - before;
        bound.makespan = bound.makespan.max(first + span).max(drained).max(waits);
        bound.span = bound.span.max(span);
    }
    bound
}

/// The longest that `slots` forwards of a rank take, each stage at most once a microbatch.
fn longest_forwards(shop: &Shop, of_rank: &[usize], slots: usize) -> f64 {
    let mut forwards: Vec<f64> = of_rank.iter().map(|s| shop.times[*s][0]).collect();
    forwards.sort_by(|a, b| b.total_cmp(a));
    let mut left = slots;
    let mut sum = 0.0;
    for forward in forwards {
        let taken = left.min(shop.microbatches);
        sum += forward * taken as f64;
        left -= taken;
    }
    sum
}
