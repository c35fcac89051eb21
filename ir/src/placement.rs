//! Which rank holds which stage.
//!
//! One law: a table, never a formula in a consumer, so that every layout is the same to everyone downstream.

use crate::ids::{Rank, Stage};

/// The table stage -> rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    ranks: u32,
    rank_of: Vec<Rank>,
}

impl Placement {
    /// Stage `s` on rank `s mod p`, for `p v` stages (Megatron's interleaved layout; with `v = 1` one stage a rank).
    pub fn looped(ranks: u32, chunks: u32) -> Self {
        let rank_of = (0..ranks * chunks).map(|s| Rank(s % ranks)).collect();
        Self { ranks, rank_of }
    }

    /// Any table over `ranks` ranks: entry `s` is the rank of stage `s`.
    pub fn table(ranks: u32, rank_of: Vec<Rank>) -> Self {
        Self { ranks, rank_of }
    }

    /// Number of ranks `p`.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Number of stages, `p v` where every rank holds as many.
    pub fn stages(&self) -> u32 {
        Stage::at(self.rank_of.len()).0
    }

    /// The rank of a stage, `None` for a stage that does not exist.
    pub fn rank_of(&self, stage: Stage) -> Option<Rank> {
        self.rank_of.get(stage.index()).copied()
    }

    /// The stages of a rank, in order.
    pub fn stages_of(&self, rank: Rank) -> impl Iterator<Item = Stage> + '_ {
        self.rank_of.iter().enumerate().filter(move |(_, r)| **r == rank).map(|(s, _)| Stage::at(s))
    }

    /// Chunks a rank holds on average: `stages / ranks`.
    pub fn chunks(&self) -> f64 {
        f64::from(self.stages()) / f64::from(self.ranks.max(1))
    }

    /// The stage before `stage`, if there is one.
    pub fn previous(&self, stage: Stage) -> Option<Stage> {
        stage.0.checked_sub(1).map(Stage)
    }

    /// The stage after `stage`, if there is one.
    pub fn next(&self, stage: Stage) -> Option<Stage> {
        let next = Stage(stage.0.saturating_add(1));
        (next.index() < self.rank_of.len()).then_some(next)
    }

    /// The last stage.
    pub fn last(&self) -> Stage {
        Stage(self.stages().saturating_sub(1))
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
        assert_eq!(placement.rank_of(Stage(6)), Some(Rank(2)));
        assert_eq!(placement.rank_of(Stage(8)), None);
        assert_eq!(placement.stages_of(Rank(1)).collect::<Vec<_>>(), [Stage(1), Stage(5)]);
        assert_eq!((placement.next(Stage(7)), placement.previous(Stage(0))), (None, None));
    }
}
