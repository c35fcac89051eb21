//! Puts the W into an order of F and I: into the gaps, and where memory asks for them.
//!
//! One law: F and I keep their order. A W runs before the next F or I of its rank when it ends before that one's input is
//! there (or overruns it by no more than a share of itself), and when an F needs the slot that it frees.

use super::evaluate::{Evaluation, Evaluator, Kind, RankEvaluation, Step};
use super::shop::{Program, Shop};

/// The F and I of every rank, and how much of a W may overrun the input of the next of them.
#[derive(Clone, Debug)]
pub(super) struct Spine {
    pub(super) steps: Program,
    pub(super) overlap: Vec<f64>,
}

impl Spine {
    /// The F and I of a program of split backwards.
    pub(super) fn of(program: &Program, overlap: f64) -> Self {
        let spine = |steps: &Vec<Step>| steps.iter().copied().filter(|s| s.kind() != Kind::BackwardWeight).collect();
        Self { steps: program.iter().map(spine).collect(), overlap: vec![overlap; program.len()] }
    }
}

/// Where a rank stands.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    next: usize,
    /// Next of its I whose W has not run: a place in the spine, and how many wait.
    weight: usize,
    waiting: usize,
    live: usize,
    free: f64,
}

impl Evaluator {
    /// Runs a spine and writes the whole program to `out`; `None` when it deadlocks or some rank has too few slots.
    pub(super) fn refill(&mut self, shop: &Shop, spine: &Spine, out: &mut Program) -> Option<Evaluation> {
        self.clear();
        out.iter_mut().for_each(Vec::clear);
        let mut ats = vec![At::default(); shop.ranks()];
        let mut ranks = vec![RankEvaluation::default(); shop.ranks()];
        self.ready.extend((0..shop.ranks()).rev());
        while let Some(r) = self.ready.pop() {
            let steps = &spine.steps[r];
            let mut at = ats[r];
            let rank = &mut ranks[r];
            let mut run = |this: &mut Self, step: Step, input: f64, at: &mut At| {
                let start = f64::max(input, at.free);
                this.starts[r].push(start);
                out[r].push(step);
                let time = shop.times[step.stage()][step.kind() as usize];
                at.free = start + time;
                rank.busy += time;
                match step.kind() {
                    Kind::Forward => at.live += 1,
                    Kind::BackwardInput => at.waiting += 1,
                    Kind::FullBackward | Kind::BackwardWeight => at.live -= 1,
                }
                rank.peak = rank.peak.max(u32::try_from(at.live).unwrap_or(u32::MAX));
                at.free
            };
            while at.next <= steps.len() {
                let step = steps.get(at.next).copied();
                let input = step.map_or(f64::INFINITY, |step| self.input(shop, step));
                if input.is_nan() {
                    break;
                }
                // The W that have to run first, and the ones that fit.
                while at.waiting > 0 {
                    while steps[at.weight].kind() != Kind::BackwardInput {
                        at.weight += 1;
                    }
                    let of = steps[at.weight];
                    let weight = Step::new(Kind::BackwardWeight, of.stage(), of.cell());
                    let time = shop.times[of.stage()][Kind::BackwardWeight as usize];
                    let full = at.live == shop.slots[r] && step.is_some_and(|s| s.kind() == Kind::Forward);
                    if !full && at.free + time > input + spine.overlap[r] * time {
                        break;
                    }
                    run(self, weight, 0.0, &mut at);
                    at.waiting -= 1;
                    at.weight += 1;
                }
                let Some(step) = step else {
                    at.next += 1;
                    break;
                };
                if step.kind() == Kind::Forward && at.live == shop.slots[r] {
                    return None;
                }
                let end = run(self, step, input, &mut at);
                at.next += 1;
                if let Some(stage) = self.finish(shop, step, end) {
                    let other = shop.rank_of[stage];
                    let next = spine.steps[other].get(ats[other].next);
                    if other != r && next.is_some_and(|next| next.stage() == stage) {
                        self.ready.push(other);
                    }
                }
            }
            ats[r] = at;
        }
        let mut makespan = 0.0;
        for ((rank, at), (steps, starts)) in ranks.iter_mut().zip(&ats).zip(spine.steps.iter().zip(&self.starts)) {
            if at.next < steps.len() {
                return None;
            }
            rank.end = at.free;
            rank.start = starts.first().copied().unwrap_or(0.0);
            makespan = f64::max(makespan, rank.end);
        }
        Some(Evaluation { makespan, ranks })
    }
}
