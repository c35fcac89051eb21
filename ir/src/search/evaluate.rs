//! When every task of a compute order runs: the simulator's clock without messages, lanes and a task graph.
//!
//! One law: the numbers are the simulator's, to the last bit. A rank runs its actions in program order, each as soon as
//! its input is there: F needs F of the stage before, B and I their own F and B or I of the stage after, W its own I.
//! What crosses ranks arrives a hop later; messages never wait for each other. Parts of a compound action run one after
//! another.

use super::shop::{Program, Shop};
use crate::action::Op;
use crate::order::PipelineOrder;
use crate::unit_costs::StageTimes;

/// What a step does; the number is its place in a stage's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Forward = 0,
    FullBackward = 1,
    BackwardInput = 2,
    BackwardWeight = 3,
}

impl Kind {
    pub(crate) fn of(op: Op) -> Option<Self> {
        match op {
            Op::Forward => Some(Self::Forward),
            Op::FullBackward => Some(Self::FullBackward),
            Op::BackwardInput => Some(Self::BackwardInput),
            Op::BackwardWeight => Some(Self::BackwardWeight),
            _ => None,
        }
    }

    pub(crate) fn op(self) -> Op {
        match self {
            Self::Forward => Op::Forward,
            Self::FullBackward => Op::FullBackward,
            Self::BackwardInput => Op::BackwardInput,
            Self::BackwardWeight => Op::BackwardWeight,
        }
    }

    /// Whether its end frees the activations: B or W.
    pub(crate) fn frees(self) -> bool {
        matches!(self, Self::FullBackward | Self::BackwardWeight)
    }
}

/// An action of a program, in eight bytes: its kind and stage, and its number among all (stage, microbatch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    kind_stage: u32,
    cell: u32,
}

impl Step {
    /// A plan has fewer than 2^21 stages and 2^20 (stage, microbatch) pairs.
    #[expect(clippy::cast_possible_truncation, reason = "both are far below 2^30")]
    pub(crate) fn new(kind: Kind, stage: usize, cell: usize) -> Self {
        Self { kind_stage: (stage as u32) << 2 | kind as u32, cell: cell as u32 }
    }

    pub(crate) fn kind(self) -> Kind {
        match self.kind_stage & 3 {
            0 => Kind::Forward,
            1 => Kind::FullBackward,
            2 => Kind::BackwardInput,
            _ => Kind::BackwardWeight,
        }
    }

    pub(crate) fn stage(self) -> usize {
        (self.kind_stage >> 2) as usize
    }

    pub(crate) fn cell(self) -> usize {
        self.cell as usize
    }
}

/// What an order does on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankEvaluation {
    /// Start of its first task, 0 for a rank without one.
    pub start: f64,
    /// End of its last task.
    pub end: f64,
    /// Sum of its tasks' times.
    pub busy: f64,
    /// Most activations alive, in chunks: from the start of F to the end of B or W, in program order.
    pub peak: u32,
}

impl RankEvaluation {
    /// From its first start to its last end.
    pub fn span(&self) -> f64 {
        self.end - self.start
    }
}

/// What an order does.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// End of the last task; the first starts at 0.
    pub makespan: f64,
    /// Each rank.
    pub ranks: Vec<RankEvaluation>,
}

impl Evaluation {
    /// The longest span of a rank: what a step costs when the next may begin before this one has ended everywhere.
    pub fn longest_span(&self) -> f64 {
        self.ranks.iter().map(RankEvaluation::span).fold(0.0, f64::max)
    }

    /// Most activations alive on any rank, in chunks.
    pub fn peak(&self) -> u32 {
        self.ranks.iter().map(|rank| rank.peak).max().unwrap_or(0)
    }

    /// Whether it is better than another: the shorter makespan, then the shorter longest span, then the lower peak.
    /// Times within a billionth of each other are equal, so that rounding decides nothing.
    pub fn beats(&self, other: &Self) -> bool {
        let shorter = |a: f64, b: f64| a < b - 1e-9 * b.abs();
        let keys = [(self.makespan, other.makespan), (self.longest_span(), other.longest_span())];
        for (ours, theirs) in keys {
            if shorter(ours, theirs) || shorter(theirs, ours) {
                return shorter(ours, theirs);
            }
        }
        self.peak() < other.peak()
    }
}

/// Evaluates a compute order under `times`, one entry a stage.
///
/// `None` for what it cannot run: an order that deadlocks, one of two pipes or of sliced microbatches, and one with
/// other actions than F, B, I and W.
pub fn evaluate(order: &PipelineOrder, times: &StageTimes) -> Option<Evaluation> {
    let shop = Shop::new(&order.placement, times, order.microbatches, |_| None);
    Evaluator::new(&shop).run(&shop, &shop.program(order)?)
}

/// The tables of an evaluation, kept from one to the next.
pub(crate) struct Evaluator {
    /// End of F and of B or I, by cell; NaN while it has not run.
    forward: Vec<f64>,
    backward: Vec<f64>,
    /// How far each rank has come, and when it is free.
    at: Vec<(usize, f64)>,
    /// Start of each step of each rank, when the last run has kept them.
    pub(crate) starts: Vec<Vec<f64>>,
    pub(super) ready: Vec<usize>,
}

impl Evaluator {
    pub(crate) fn new(shop: &Shop) -> Self {
        let cells = shop.rank_of.len() * shop.microbatches;
        Self {
            forward: vec![f64::NAN; cells],
            backward: vec![f64::NAN; cells],
            at: vec![(0, 0.0); shop.ranks()],
            starts: vec![Vec::new(); shop.ranks()],
            ready: Vec::with_capacity(shop.ranks()),
        }
    }

    /// When the input of a step is there; NaN while it is unknown.
    pub(crate) fn input(&self, shop: &Shop, step: Step) -> f64 {
        let (stage, cell, m) = (step.stage(), step.cell(), shop.microbatches);
        match step.kind() {
            Kind::Forward if stage == 0 => 0.0,
            Kind::Forward => self.forward[cell - m] + shop.hop(stage - 1, stage),
            Kind::BackwardWeight => self.backward[cell],
            // A comparison with NaN is false both ways, so a sum carries it where `max` would drop it.
            Kind::FullBackward | Kind::BackwardInput if stage + 1 < shop.rank_of.len() => {
                let (own, after) = (self.forward[cell], self.backward[cell + m] + shop.hop(stage + 1, stage));
                if own <= after { after } else { own + 0.0 * after }
            }
            Kind::FullBackward | Kind::BackwardInput => self.forward[cell],
        }
    }

    /// Forgets the last run.
    pub(super) fn clear(&mut self) {
        self.forward.fill(f64::NAN);
        self.backward.fill(f64::NAN);
        self.at.fill((0, 0.0));
        self.starts.iter_mut().for_each(Vec::clear);
        self.ready.clear();
    }

    /// Writes down when a step has ended, and tells the stage that may wait for it.
    pub(super) fn finish(&mut self, shop: &Shop, step: Step, end: f64) -> Option<usize> {
        match step.kind() {
            Kind::Forward => {
                self.forward[step.cell()] = end;
                Some(step.stage() + 1).filter(|stage| *stage < shop.rank_of.len())
            }
            Kind::FullBackward | Kind::BackwardInput => {
                self.backward[step.cell()] = end;
                step.stage().checked_sub(1)
            }
            Kind::BackwardWeight => None,
        }
    }

    /// Runs a program; `None` when it deadlocks.
    pub(crate) fn run(&mut self, shop: &Shop, program: &Program) -> Option<Evaluation> {
        let ranks = shop.ranks();
        self.clear();
        let mut result = Evaluation { makespan: 0.0, ranks: vec![RankEvaluation::default(); ranks] };
        self.ready.extend((0..ranks).rev());
        while let Some(r) = self.ready.pop() {
            let (mut at, mut free) = self.at[r];
            for step in &program[r][at..] {
                let input = self.input(shop, *step);
                if input.is_nan() {
                    break;
                }
                let start = if input > free { input } else { free };
                free = start + shop.times[step.stage()][step.kind() as usize];
                self.starts[r].push(start);
                at += 1;
                // Whoever may wait for this: it is looked at again only where it stands at the cell.
                if let Some(stage) = self.finish(shop, *step, free) {
                    let other = shop.rank_of[stage];
                    let next = program[other].get(self.at[other].0);
                    if other != r && next.is_some_and(|next| next.stage() == stage) {
                        self.ready.push(other);
                    }
                }
            }
            self.at[r] = (at, free);
        }
        for (r, rank) in result.ranks.iter_mut().enumerate() {
            if self.at[r].0 < program[r].len() {
                return None;
            }
            let mut live = 0u32;
            for step in &program[r] {
                rank.busy += shop.times[step.stage()][step.kind() as usize];
                match step.kind() {
                    Kind::Forward => live += 1,
                    kind if kind.frees() => live = live.saturating_sub(1),
                    _ => {}
                }
                rank.peak = rank.peak.max(live);
            }
            rank.start = self.starts[r].first().copied().unwrap_or(0.0);
            rank.end = if program[r].is_empty() { 0.0 } else { self.at[r].1 };
            result.makespan = result.makespan.max(rank.end);
        }
        Some(result)
    }
}
