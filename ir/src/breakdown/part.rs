//! The places that the time of a step can have.

use crate::action::Op;
use crate::explain::Cause;
use crate::mesh::Axis;
use crate::segments::{Body, Phase, Programs, RunPart, Step};
use crate::task::Task;

/// A place for time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// F.
    Forward,
    /// Forward again, in backward.
    Recompute,
    /// B, where it is not taken apart.
    Backward,
    /// I.
    BackwardInput,
    /// W.
    BackwardWeight,
    /// The optimizer, and what is fixed in a step.
    Optimizer,
    /// A message over an axis that compute waits for.
    Exposed(Axis),
    /// The rank has nothing to compute. A hop is an exposed message of the pipeline, not a bubble.
    Bubble(Cause),
}

impl Part {
    /// Every place, in the order of tables and pictures.
    pub const ALL: [Part; 18] = [
        Part::Forward,
        Part::Recompute,
        Part::Backward,
        Part::BackwardInput,
        Part::BackwardWeight,
        Part::Optimizer,
        Part::Exposed(Axis::Tensor),
        Part::Exposed(Axis::Context),
        Part::Exposed(Axis::Expert),
        Part::Exposed(Axis::Pipeline),
        Part::Exposed(Axis::Data),
        Part::Bubble(Cause::Fill),
        Part::Bubble(Cause::Drain),
        Part::Bubble(Cause::Forward),
        Part::Bubble(Cause::Backward),
        Part::Bubble(Cause::Imbalance),
        Part::Bubble(Cause::MemoryLimit),
        Part::Bubble(Cause::Barrier),
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Part::Forward => "forward",
            Part::Recompute => "recompute",
            Part::Backward => "backward",
            Part::BackwardInput => "backward_input",
            Part::BackwardWeight => "backward_weight",
            Part::Optimizer => "optimizer",
            Part::Exposed(Axis::Tensor) => "exposed_tp",
            Part::Exposed(Axis::Context) => "exposed_cp",
            Part::Exposed(Axis::Expert) => "exposed_ep",
            Part::Exposed(Axis::Pipeline) => "exposed_pp",
            Part::Exposed(Axis::Data | Axis::DataContext | Axis::ExpertData) => "exposed_dp",
            Part::Bubble(Cause::Fill) => "bubble_fill",
            Part::Bubble(Cause::Drain) => "bubble_drain",
            Part::Bubble(Cause::Forward) => "bubble_forward",
            Part::Bubble(Cause::Backward) => "bubble_backward",
            Part::Bubble(Cause::Imbalance) => "bubble_imbalance",
            Part::Bubble(Cause::MemoryLimit) => "bubble_memory_limit",
            Part::Bubble(Cause::Barrier) => "bubble_barrier",
            Part::Bubble(Cause::Hop) => "bubble_hop",
        }
    }

    fn index(self) -> usize {
        Part::ALL.iter().position(|part| *part == self).unwrap_or(0)
    }

    /// What a phase of an action is.
    fn of(op: Op, phase: Option<Phase>) -> Self {
        match (op, phase) {
            (_, Some(Phase::Recompute)) => Part::Recompute,
            (_, Some(Phase::Input)) => Part::BackwardInput,
            (_, Some(Phase::Weight)) => Part::BackwardWeight,
            (Op::Forward, _) => Part::Forward,
            (Op::FullBackward, _) => Part::Backward,
            (Op::BackwardInput, _) => Part::BackwardInput,
            (Op::BackwardWeight, _) => Part::BackwardWeight,
            _ => Part::Optimizer,
        }
    }
}

/// Time by place \[s or units\].
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Parts([f64; Part::ALL.len()]);

impl Parts {
    /// The time of one place.
    pub fn get(&self, part: Part) -> f64 {
        self.0[part.index()]
    }

    /// The time of all places.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(super) fn add(&mut self, part: Part, time: f64) {
        self.0[part.index()] += time;
    }

    /// The time of a compute task, by the phases that it has.
    pub(super) fn compute(&mut self, op: Op, shares: &[(Phase, f64)], time: f64) {
        if shares.is_empty() {
            self.add(Part::of(op, None), time);
        }
        shares.iter().for_each(|(phase, share)| self.add(Part::of(op, Some(*phase)), time * share));
    }

    /// The mean over several ranks.
    pub(super) fn mean<'a>(ranks: impl ExactSizeIterator<Item = &'a Parts>) -> Self {
        let mut mean = Self::default();
        let count = ranks.len().max(1) as f64;
        for parts in ranks {
            mean.0.iter_mut().zip(parts.0).for_each(|(sum, time)| *sum += time);
        }
        mean.0.iter_mut().for_each(|sum| *sum /= count);
        mean
    }
}

/// What the steps of a schedule at the detail of segments are, and how long each takes: a run of several phases is shared
/// out by them.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// The programs that the schedule was cut by.
    pub programs: &'a Programs,
    /// Times of [`Programs::steps`] \[s\].
    pub times: &'a [f64],
    /// Of the first step of each stage's forward and backward, the time for which a receive blocks it \[s\].
    pub received: &'a [[f64; 2]],
}

impl Steps<'_> {
    /// How long a receive blocks a compute task.
    pub(super) fn received(&self, task: &Task) -> f64 {
        let Some([forward, backward]) = self.received.get(task.action.stage.index()) else { return 0.0 };
        match task.action.op {
            Op::Forward if !task.step.continues => *forward,
            Op::FullBackward | Op::BackwardInput if !task.step.continues => *backward,
            _ => 0.0,
        }
    }

    /// The shares of phases in a step of the table.
    pub(super) fn shares(&self, step: u32) -> Vec<(Phase, f64)> {
        let mut shares: Vec<(Phase, f64)> = Vec::new();
        let Some(Step { body, phase, .. }) = self.programs.step(step) else { return shares };
        let Body::Run(parts) = body else { return vec![(*phase, 1.0)] };
        let time = |part: &RunPart| self.times.get(part.step as usize).copied().unwrap_or(0.0);
        let all: f64 = parts.iter().map(time).sum();
        for (phase, part) in parts.iter().filter_map(|part| Some((self.programs.step(part.step)?.phase, part))) {
            let share = if all > 0.0 { time(part) / all } else { 1.0 / parts.len() as f64 };
            match shares.iter_mut().find(|(known, _)| *known == phase) {
                Some((_, sum)) => *sum += share,
                None => shares.push((phase, share)),
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_and_a_place_of_its_own() {
        let mut names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        assert!(Part::ALL.iter().enumerate().all(|(i, part)| part.index() == i));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Part::ALL.len());
    }
}
