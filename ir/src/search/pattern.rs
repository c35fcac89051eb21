//! The steady state of a schedule: one microbatch's tasks, repeated every `period` without a clash on any rank.
//!
//! The building blocks of Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), for any times: the
//! tasks of one microbatch are laid down in the order they depend on each other, each at the first moment where the
//! rank is free in every repetition. The shorter a microbatch's way, the fewer activations are alive.

use super::evaluate::Kind;
use super::shop::{Program, Shop};

/// When F and I of microbatch 0 start on each stage; those of microbatch `j` start `j` periods later.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern {
    pub(crate) period: f64,
    pub(crate) forward: Vec<f64>,
    pub(crate) input: Vec<f64>,
    /// When microbatch 0's activations are freed: the end of W, or where W has no place the earliest it can be.
    freed: Vec<f64>,
}

/// How a pattern is laid down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Time from one microbatch to the next.
    pub(crate) period: f64,
    /// What is added to the way between stages, for F of the first and of later chunks of a rank, and for I.
    pub(crate) delay: [f64; 4],
    /// Whether W has its own place, as soon after I as there is one.
    pub(crate) weights: bool,
}

/// Whether W has its own place, and the delays, of the layouts that [`Pattern::tightest`] tries.
const LAYOUTS: [(bool, [f64; 4]); 6] = [
    (true, [0.0; 4]),
    (true, [1.0, 0.0, 0.0, 0.0]),
    (true, [0.0, 0.0, 0.0, 1.0]),
    (false, [0.0; 4]),
    (false, [1.0, 0.0, 0.0, 0.0]),
    (false, [0.0, 0.0, 0.0, 1.0]),
];

/// Intervals taken on one rank, all modulo the period.
struct Circle(Vec<(f64, f64)>);

impl Circle {
    /// The first moment from `ready` on where `time` fits, and takes it. Where nothing fits, `ready` itself.
    fn place(&mut self, ready: f64, time: f64, period: f64) -> f64 {
        let tiny = 1e-9 * period;
        let mut at = ready;
        let mut moved = true;
        while moved && at < ready + period {
            moved = false;
            for (start, length) in &self.0 {
                // From the start of the taken interval to `at`, and back from `at` to the next start.
                let after = (at - start).rem_euclid(period);
                let after = if period - after < tiny { 0.0 } else { after };
                let overlaps = after < length - tiny || (time > tiny && after + time > period + tiny);
                if overlaps && *length > tiny {
                    at += if after < *length { length - after } else { period - after + length };
                    moved = true;
                }
            }
        }
        let at = if moved { ready } else { at };
        self.0.push((at.rem_euclid(period), time));
        at
    }
}

impl Pattern {
    /// Lays one microbatch down.
    pub(crate) fn new(shop: &Shop, layout: Layout) -> Self {
        let Layout { period, delay, weights } = layout;
        let stages = shop.rank_of.len();
        let later_chunk: Vec<usize> =
            (0..stages).map(|s| usize::from(shop.stages_of[shop.rank_of[s]].first() != Some(&s))).collect();
        let mut circles: Vec<Circle> = (0..shop.ranks()).map(|_| Circle(Vec::new())).collect();
        let (mut forward, mut input, mut freed) = (vec![0.0; stages], vec![0.0; stages], vec![0.0; stages]);
        let mut ready = 0.0;
        for s in 0..stages {
            let time = shop.times[s][Kind::Forward as usize];
            if s > 0 {
                ready += shop.hop(s - 1, s) + delay[later_chunk[s]];
            }
            forward[s] = circles[shop.rank_of[s]].place(ready, time, period);
            ready = forward[s] + time;
        }
        for s in (0..stages).rev() {
            let [_, _, time, weight] = shop.times[s];
            if s + 1 < stages {
                ready += shop.hop(s, s + 1) + delay[2 + later_chunk[s]];
            }
            input[s] = circles[shop.rank_of[s]].place(ready, time, period);
            ready = input[s] + time;
            let start = if weights { circles[shop.rank_of[s]].place(ready, weight, period) } else { ready };
            freed[s] = start + weight;
        }
        Self { period, forward, input, freed }
    }

    /// Whether no rank holds more than its slots when the pattern is repeated for ever: looked at whenever an F starts.
    pub(crate) fn fits(&self, shop: &Shop) -> bool {
        let turns = |time: f64| (time / self.period + 1e-9).floor();
        shop.stages_of.iter().zip(&shop.slots).all(|(stages, slots)| {
            let held =
                |at: f64| stages.iter().map(|s| turns(at - self.forward[*s]) - turns(at - self.freed[*s])).sum::<f64>();
            stages.iter().all(|s| held(self.forward[*s]) <= *slots as f64)
        })
    }

    /// F and I of every rank by the clock of the pattern.
    pub(crate) fn spine(&self, shop: &Shop) -> Program {
        let rank = |stages: &Vec<usize>| {
            let of_stage = |s: &usize| {
                let s = *s;
                let clock = move |start: f64, m: usize| start + m as f64 * self.period;
                (0..shop.microbatches).flat_map(move |m| {
                    [
                        (clock(self.forward[s], m), shop.step(Kind::Forward, s, m)),
                        (clock(self.input[s], m), shop.step(Kind::BackwardInput, s, m)),
                    ]
                })
            };
            let mut steps: Vec<_> = stages.iter().flat_map(of_stage).collect();
            steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            steps.into_iter().map(|(_, step)| step).collect()
        };
        shop.stages_of.iter().map(rank).collect()
    }

    /// The pattern of the shortest period that fits in the slots, of a few layouts.
    pub(crate) fn tightest(shop: &Shop, busiest: f64, delay: f64) -> Option<Self> {
        let periods = (0..40).map(|k| busiest * (1.0 + 0.03 * f64::from(k)));
        periods.flat_map(|period| LAYOUTS.map(|(weights, delays)| (period, weights, delays))).find_map(
            |(period, weights, delays)| {
                let layout = Layout { period, delay: delays.map(|d| d * delay), weights };
                Some(Self::new(shop, layout)).filter(|pattern| pattern.fits(shop))
            },
        )
    }
}
