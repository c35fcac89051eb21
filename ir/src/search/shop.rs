//! The problem: stages on ranks, their times, and the slots for activations of each rank.

use super::evaluate::{Kind, Step};
use crate::action::Action;
use crate::ids::{Microbatch, Rank, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::unit_costs::StageTimes;

/// Steps of every rank in program order.
pub(crate) type Program = Vec<Vec<Step>>;

/// Everything that a search looks at, as flat tables.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(super) placement: Placement,
    pub(crate) microbatches: usize,
    pub(crate) hop: f64,
    /// Rank of each stage.
    pub(crate) rank_of: Vec<usize>,
    /// F, B, I and W of each stage, by [`Kind`].
    pub(crate) times: Vec<[f64; 4]>,
    /// Stages of each rank, in the order of the model.
    pub(crate) stages_of: Vec<Vec<usize>>,
    /// Most (stage, microbatch) activations that each rank may hold.
    pub(crate) slots: Vec<usize>,
}

impl Shop {
    /// The shop of a placement with one pipe; stages without a time take none. `limits` are in microbatches of a rank's
    /// whole share; without them a rank may hold everything.
    pub(crate) fn new(
        placement: &Placement,
        times: &StageTimes,
        microbatches: u32,
        limits: impl Fn(usize) -> Option<f64>,
    ) -> Self {
        let mut stages_of = vec![Vec::new(); placement.ranks() as usize];
        let mut rank_of = Vec::with_capacity(placement.stages() as usize);
        for stage in (0..placement.stages()).map(Stage::new) {
            let rank = placement.rank_of(stage).map_or(0, Rank::index);
            if let Some(stages) = stages_of.get_mut(rank) {
                stages.push(stage.index());
            }
            rank_of.push(rank);
        }
        let time = |s: usize| {
            times.stages.get(s).map_or([0.0; 4], |t| {
                [t.forward, t.backward_input + t.backward_weight, t.backward_input, t.backward_weight]
            })
        };
        let microbatches = microbatches as usize;
        let slots = stages_of.iter().enumerate().map(|(r, stages)| {
            let all = stages.len() * microbatches;
            limits(r).map_or(all, |limit| all.min(slots(limit, stages.len())))
        });
        Self {
            microbatches,
            hop: times.hop,
            times: (0..rank_of.len()).map(time).collect(),
            slots: slots.collect(),
            placement: placement.clone(),
            rank_of,
            stages_of,
        }
    }

    /// Ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.stages_of.len()
    }

    /// Tasks of a step when every backward is split.
    pub(crate) fn tasks(&self) -> usize {
        3 * self.rank_of.len() * self.microbatches
    }

    /// From the end of a task of `from` to the moment its output is at `to`.
    pub(crate) fn hop(&self, from: usize, to: usize) -> f64 {
        if self.rank_of[from] == self.rank_of[to] { 0.0 } else { self.hop }
    }

    /// A step of the program.
    pub(crate) fn step(&self, kind: Kind, stage: usize, microbatch: usize) -> Step {
        Step::new(kind, stage, stage * self.microbatches + microbatch)
    }

    /// The steps of an order with one pipe, whole microbatches and this shop's placement; `None` for any other, and for
    /// one with actions that are not F, B, I or W.
    pub(crate) fn program(&self, order: &PipelineOrder) -> Option<Program> {
        let cells = order.cells();
        let fits = order.placement == self.placement
            && order.placement.pipes().len() == 1
            && order.slices == 1
            && cells.microbatches() as usize == self.microbatches;
        let step = |action: &Action| {
            let cell = cells.index(action.stage, action.microbatch?)?;
            Some(Step::new(Kind::of(action.op)?, action.stage.index(), cell))
        };
        let program = |actions: &Vec<Action>| actions.iter().map(step).collect::<Option<Vec<_>>>();
        fits.then(|| order.ranks.iter().map(program).collect()).flatten()
    }

    /// One microbatch after the other: as few slots as there can be.
    pub(crate) fn one_at_a_time(&self) -> Program {
        let program = |stages: &Vec<usize>| {
            let once = |m: usize| {
                let step = move |kind| move |s: &usize| self.step(kind, *s, m);
                let forward = stages.iter().map(step(Kind::Forward));
                let input = stages.iter().rev().map(step(Kind::BackwardInput));
                forward.chain(input).chain(stages.iter().rev().map(step(Kind::BackwardWeight))).collect::<Vec<_>>()
            };
            (0..self.microbatches).flat_map(once).collect()
        };
        self.stages_of.iter().map(program).collect()
    }

    /// The order of a program.
    pub(crate) fn order(&self, program: &Program) -> PipelineOrder {
        let action = |step: &Step| {
            let microbatch = step.cell() - step.stage() * self.microbatches;
            Action::new(Stage::at(step.stage()), step.kind().op(), Microbatch::new(Rank::at(microbatch).0))
        };
        let ranks = program.iter().map(|steps| steps.iter().map(action).collect()).collect();
        PipelineOrder::new(Rank::at(self.microbatches).0, self.placement.clone(), ranks)
    }
}

/// Whole slots of a limit in microbatches of a rank's share, for a rank with `chunks` chunks. A limit that is a sum of
/// shares may be a rounding error below the number it means.
pub(crate) fn slots(limit: f64, chunks: usize) -> usize {
    let slots = (limit * chunks as f64 * (1.0 + 1e-9)).floor().clamp(0.0, 4e9);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped just above")]
    let slots = slots as usize;
    slots
}
