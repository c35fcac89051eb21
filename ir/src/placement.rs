//! Which rank holds which stage.
//!
//! One law: a table, never a formula in a consumer, so that every layout is the same to everyone downstream.

use crate::action::Op;
use crate::ids::{Pipe, Rank, Stage};

/// The table (stage, pipe) -> rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    ranks: u32,
    stages: u32,
    /// Pipe by pipe, the rank of each stage.
    rank_of: Vec<Rank>,
}

impl Placement {
    /// Stage `s` on rank `s mod p`, for `p v` stages (Megatron's interleaved layout; with `v = 1` one stage a rank).
    pub fn looped(ranks: u32, chunks: u32) -> Self {
        Self::table(ranks, (0..ranks * chunks).map(|s| Rank(s % ranks)).collect())
    }

    /// Two stages a rank, down the ranks and back up: stage `s` and stage `2 p - 1 - s` on rank `s` (the V of ZB-V).
    pub fn v_shaped(ranks: u32) -> Self {
        Self::table(ranks, (0..ranks).chain((0..ranks).rev()).map(Rank).collect())
    }

    /// Two pipes through the same ranks: stage `s` of the downward pipe on rank `s`, of the upward one on `p - 1 - s`.
    pub fn bidirectional(ranks: u32) -> Self {
        Self::two_pipes(ranks, (0..ranks).map(Rank).collect(), (0..ranks).rev().map(Rank).collect())
    }

    /// Any table over `ranks` ranks: entry `s` is the rank of stage `s`.
    pub fn table(ranks: u32, rank_of: Vec<Rank>) -> Self {
        Self { ranks, stages: Rank::at(rank_of.len()).0, rank_of }
    }

    /// Two tables of equally many stages, of the downward and the upward pipe. The longer one is cut.
    pub fn two_pipes(ranks: u32, mut down: Vec<Rank>, up: Vec<Rank>) -> Self {
        let stages = down.len().min(up.len());
        down.truncate(stages);
        down.extend(up.into_iter().take(stages));
        Self { ranks, stages: Rank::at(stages).0, rank_of: down }
    }

    /// Number of ranks `p`.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Number of stages of a pipe, `p v` where every rank holds as many.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// The pipes.
    pub fn pipes(&self) -> &'static [Pipe] {
        if self.rank_of.len() > self.stages as usize { &[Pipe::Down, Pipe::Up] } else { &[Pipe::Only] }
    }

    /// The rank of a stage, `None` for a stage that does not exist.
    pub fn rank_of(&self, stage: Stage) -> Option<Rank> {
        let row = match stage.pipe() {
            Pipe::Up => self.stages as usize,
            Pipe::Only | Pipe::Down => 0,
        };
        let known = stage.number() < self.stages && self.pipes().contains(&stage.pipe());
        known.then(|| self.rank_of.get(row + stage.index()).copied()).flatten()
    }

    /// Every stage of every pipe.
    pub fn all_stages(&self) -> impl Iterator<Item = Stage> + use<> {
        let stages = self.stages;
        self.pipes().iter().flat_map(move |pipe| (0..stages).map(|s| Stage::new(s).on(*pipe)))
    }

    /// The stages of a rank, pipe by pipe.
    pub fn stages_of(&self, rank: Rank) -> impl Iterator<Item = Stage> + '_ {
        self.all_stages().filter(move |stage| self.rank_of(*stage) == Some(rank))
    }

    /// Chunks that a rank holds of one pipe, on average: `stages / ranks`.
    pub fn chunks(&self) -> f64 {
        f64::from(self.stages()) / f64::from(self.ranks.max(1))
    }

    /// The stage before `stage` in its pipe, if there is one.
    pub fn previous(&self, stage: Stage) -> Option<Stage> {
        stage.number().checked_sub(1).map(|s| Stage::new(s).on(stage.pipe()))
    }

    /// The stage after `stage` in its pipe, if there is one.
    pub fn next(&self, stage: Stage) -> Option<Stage> {
        let next = stage.number().saturating_add(1);
        (next < self.stages).then(|| Stage::new(next).on(stage.pipe()))
    }

    /// Whether it is the first of its pipe, which embeds the tokens.
    pub fn is_first(&self, stage: Stage) -> bool {
        stage.number() == 0
    }

    /// Whether it is the last of its pipe, which computes the loss.
    pub fn is_last(&self, stage: Stage) -> bool {
        stage.number() + 1 == self.stages
    }

    /// The copy of the stage in the other pipe, where there are two.
    pub fn copy_of(&self, stage: Stage) -> Option<Stage> {
        match stage.pipe() {
            Pipe::Only => None,
            Pipe::Down => Some(stage.on(Pipe::Up)),
            Pipe::Up => Some(stage.on(Pipe::Down)),
        }
    }

    /// The stage at the other end of the model whose copy of a tied embedding this first or last stage is reduced with:
    /// one on the same rank where there is one, else the one of its own pipe. `None` for a stage in between, and where
    /// one stage is both ends.
    pub fn tied_partner(&self, stage: Stage) -> Option<Stage> {
        if self.stages < 2 || !(self.is_first(stage) || self.is_last(stage)) {
            return None;
        }
        let end = if self.is_first(stage) { self.stages - 1 } else { 0 };
        let here = self.rank_of(stage)?;
        let mut ends = self.pipes().iter().map(|pipe| Stage::new(end).on(*pipe));
        ends.find(|s| self.rank_of(*s) == Some(here)).or(Some(Stage::new(end).on(stage.pipe())))
    }

    /// The stage whose gradients the reduction `op` of `stage` sums with its own: the copy in the other pipe, or the other
    /// end of a tied embedding. `None` where there is none, and for an operation that reduces nothing.
    pub fn reduced_with(&self, op: Op, stage: Stage) -> Option<Stage> {
        match op {
            Op::ReduceGrad => self.copy_of(stage),
            Op::ReduceTied => self.tied_partner(stage),
            _ => None,
        }
    }

    /// The stage that must hand its output (forward) to `stage`, with its rank.
    pub(crate) fn upstream(&self, stage: Stage, forward: bool) -> Option<(Stage, Rank)> {
        let from = if forward { self.previous(stage) } else { self.next(stage) }?;
        Some((from, self.rank_of(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looped_places_stage_s_on_rank_s_mod_p() {
        let placement = Placement::looped(4, 2);
        assert_eq!(placement.rank_of(Stage::new(6)), Some(Rank(2)));
        assert_eq!(placement.rank_of(Stage::new(8)), None);
        assert_eq!(placement.stages_of(Rank(1)).collect::<Vec<_>>(), [Stage::new(1), Stage::new(5)]);
        assert_eq!((placement.next(Stage::new(7)), placement.previous(Stage::new(0))), (None, None));
        assert_eq!(placement.tied_partner(Stage::new(0)), Some(Stage::new(7)));
    }

    #[test]
    fn the_v_turns_on_the_last_rank() {
        let placement = Placement::v_shaped(3);
        assert_eq!(placement.stages_of(Rank(2)).collect::<Vec<_>>(), [Stage::new(2), Stage::new(3)]);
        assert_eq!(placement.stages_of(Rank(0)).collect::<Vec<_>>(), [Stage::new(0), Stage::new(5)]);
    }

    #[test]
    fn two_pipes_cross() {
        let placement = Placement::bidirectional(4);
        let (down, up) = (Stage::new(1).on(Pipe::Down), Stage::new(2).on(Pipe::Up));
        assert_eq!(placement.stages_of(Rank(1)).collect::<Vec<_>>(), [down, up]);
        assert_eq!(placement.rank_of(Stage::new(1)), None, "a stage of no pipe");
        assert_eq!(placement.next(up), Some(Stage::new(3).on(Pipe::Up)));
        assert_eq!(placement.copy_of(down), Some(Stage::new(1).on(Pipe::Up)));
        let first = Stage::new(0).on(Pipe::Down);
        assert_eq!(placement.tied_partner(first), Some(Stage::new(3).on(Pipe::Up)), "on its own rank");
    }
}
