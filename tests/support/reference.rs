//! A second reading of a program, from its actions alone: what each waits for, whether the program ends, and when each
//! action runs. It shares nothing with the task graph, the law or the engine.

use pipewright::ir::action::{Action, Op};
use pipewright::ir::ids::{Microbatch, Rank, Stage};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::placement::Placement;
use pipewright::ir::spec::Semantics;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An action with its rank: unique in a lawful program. Whether it is part of a compound action does not count here: the
/// parts run one after another.
pub(crate) type Place = (Rank, Action);

/// The place of an action.
pub(crate) fn place(rank: Rank, action: Action) -> Place {
    (rank, Action { joins_previous: false, ..action })
}

/// A program as queues of actions that run one after another.
pub(crate) struct Reference<'a> {
    order: &'a PipelineOrder,
    /// Every backward that makes a stage's weight gradients.
    gradients: BTreeMap<Stage, Vec<Place>>,
    reductions: Vec<Place>,
    /// (stage, microbatch) with a whole backward; the others have it split.
    whole: BTreeSet<(Stage, Option<Microbatch>)>,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(order: &'a PipelineOrder) -> Self {
        let mut reference = Self { order, gradients: BTreeMap::new(), reductions: Vec::new(), whole: BTreeSet::new() };
        for (rank, action) in reference.places() {
            if action.op == Op::FullBackward {
                reference.whole.insert((action.stage, action.microbatch));
            }
            match action.op {
                Op::FullBackward | Op::BackwardWeight => {
                    reference.gradients.entry(action.stage).or_default().push((rank, action));
                }
                Op::ReduceGrad | Op::ReduceTied => reference.reductions.push((rank, action)),
                _ => {}
            }
        }
        reference
    }

    fn places(&self) -> Vec<Place> {
        let ranks = self.order.ranks.iter().enumerate();
        ranks.flat_map(|(r, actions)| actions.iter().map(move |a| place(Rank::at(r), *a))).collect()
    }

    fn placement(&self) -> &Placement {
        &self.order.placement
    }

    /// What an action waits for, each with whether it comes from another rank.
    fn needs(&self, (rank, action): Place) -> Vec<(Place, bool)> {
        let Action { stage, op, .. } = action;
        let at = |op: Op, stage: Stage| (self.placement().rank_of(stage).unwrap(), Action { stage, op, ..action });
        let backward = |stage: Stage| {
            let whole = self.whole.contains(&(stage, action.microbatch));
            at(if whole { Op::FullBackward } else { Op::BackwardInput }, stage)
        };
        let beside = |stage: Stage| self.placement().rank_of(stage) == Some(rank);
        let gradients = |stage: Stage| self.gradients.get(&stage).into_iter().flatten().copied();
        match op {
            Op::Forward => match self.placement().previous(stage) {
                None => Vec::new(),
                Some(from) if beside(from) => vec![(at(Op::Forward, from), false)],
                Some(_) => vec![(at(Op::RecvForward, stage), false)],
            },
            Op::FullBackward | Op::BackwardInput => {
                let input = match self.placement().next(stage) {
                    None => None,
                    Some(from) if beside(from) => Some(backward(from)),
                    Some(_) => Some(at(Op::RecvBackward, stage)),
                };
                std::iter::once(at(Op::Forward, stage)).chain(input).map(|place| (place, false)).collect()
            }
            Op::BackwardWeight => vec![(at(Op::BackwardInput, stage), false)],
            Op::SendForward => vec![(at(Op::Forward, stage), false)],
            Op::SendBackward => vec![(backward(stage), false)],
            Op::RecvForward | Op::RecvBackward => {
                vec![(self.sender((rank, action)).unwrap(), true)]
            }
            Op::OptimizerStep => {
                let reductions = self.reductions.iter().copied().filter(|r| self.reduces(r).contains(&stage));
                gradients(stage).chain(reductions.filter(|(r, _)| *r == rank)).map(|place| (place, false)).collect()
            }
            Op::ReduceGrad | Op::ReduceTied => {
                let members = self.members(&(rank, action));
                let stages: BTreeSet<Stage> = members.iter().flat_map(|member| self.reduces(member)).collect();
                stages.into_iter().flat_map(gradients).map(|place| (place, place.0 != rank)).collect()
            }
        }
    }

    /// The stages whose gradients a reduction sums up on its rank: its own, and its partner where that is beside it.
    fn reduces(&self, (rank, action): &Place) -> Vec<Stage> {
        let partner = match action.op {
            Op::ReduceGrad => self.placement().copy_of(action.stage),
            _ => self.placement().tied_partner(action.stage),
        };
        let beside = partner.filter(|stage| self.placement().rank_of(*stage) == Some(*rank));
        std::iter::once(action.stage).chain(beside).collect()
    }

    /// The reductions that happen together with this one: itself alone where it stands for both.
    fn members(&self, reduction: &Place) -> Vec<Place> {
        if self.reduces(reduction).len() > 1 {
            return vec![*reduction];
        }
        let Action { stage, op, .. } = reduction.1;
        let same =
            |other: &&Place| other.1.op == op && (op == Op::ReduceTied || other.1.stage.number() == stage.number());
        self.reductions.iter().filter(same).copied().collect()
    }

    /// The send of a receive.
    fn sender(&self, (_, action): Place) -> Option<Place> {
        let (op, stage) = match action.op {
            Op::RecvForward => (Op::SendForward, self.placement().previous(action.stage)?),
            Op::RecvBackward => (Op::SendBackward, self.placement().next(action.stage)?),
            _ => return None,
        };
        Some((self.placement().rank_of(stage)?, Action { stage, op, ..action }))
    }

    /// The queue of an action on its rank, by name.
    fn queue(&self, (rank, action): Place, semantics: Semantics) -> (Rank, u32) {
        let forward = matches!(action.op, Op::SendForward | Op::RecvBackward);
        let peer = if forward { self.placement().next(action.stage) } else { self.placement().previous(action.stage) };
        let peer = 4 + peer.and_then(|stage| self.placement().rank_of(stage)).map_or(0, |r| r.0);
        let queue = match (semantics, action.op) {
            (Semantics::Rendezvous, _) => 0,
            (_, op) if op.is_compute() || op == Op::OptimizerStep => 0,
            (_, op) if op.is_collective() => 1,
            // Messages of one channel stay in order; what comes from another rank does not hold them up.
            (Semantics::StreamFifo, _) => peer,
            (Semantics::Eager, op) => {
                if op.is_send() {
                    2
                } else {
                    peer
                }
            }
        };
        (rank, queue)
    }

    fn queues(&self, semantics: Semantics) -> BTreeMap<(Rank, u32), VecDeque<Place>> {
        let mut queues: BTreeMap<_, VecDeque<Place>> = BTreeMap::new();
        for place in self.places() {
            queues.entry(self.queue(place, semantics)).or_default().push_back(place);
        }
        queues
    }

    /// Whether the program comes to its end: its queues are emptied head by head.
    pub(crate) fn ends(&self, semantics: Semantics) -> bool {
        let mut queues = self.queues(semantics);
        let mut done: BTreeSet<Place> = BTreeSet::new();
        loop {
            let heads: Vec<Place> = queues.values().filter_map(|queue| queue.front().copied()).collect();
            if heads.is_empty() {
                return true;
            }
            let ready = |place: &Place, joined: &[Place]| {
                self.needs(*place).iter().all(|(need, _)| joined.contains(need) || done.contains(need))
            };
            // What can only happen together stands at the head together.
            let together = |place: &Place| match place.1.op {
                _ if semantics == Semantics::Eager => vec![*place],
                op if op.is_collective() => self.members(place),
                op if op.is_receive() => vec![self.sender(*place).unwrap(), *place],
                op if op.is_send() => Vec::new(),
                _ => vec![*place],
            };
            let step = heads.iter().map(together).find(|group| {
                !group.is_empty() && group.iter().all(|place| heads.contains(place) && ready(place, group))
            });
            let Some(group) = step else { return false };
            for place in group {
                queues.get_mut(&self.queue(place, semantics)).unwrap().pop_front();
                done.insert(place);
            }
        }
    }

    /// When every action of every step starts and ends, with eager sends: as soon as its queue and its inputs allow.
    pub(crate) fn times(
        &self,
        duration: impl Fn(&Action) -> f64,
        hop: f64,
        steps: usize,
        barrier: bool,
    ) -> Vec<BTreeMap<Place, (f64, f64)>> {
        let mut free: BTreeMap<(Rank, u32), f64> = BTreeMap::new();
        let mut last: f64 = 0.0;
        (0..steps)
            .map(|_| {
                let mut queues = self.queues(Semantics::Eager);
                let mut times: BTreeMap<Place, (f64, f64)> = BTreeMap::new();
                let begin = if barrier { last } else { 0.0 };
                while queues.values().any(|queue| !queue.is_empty()) {
                    let mut progress = false;
                    for (name, queue) in &mut queues {
                        while let Some(place) = queue.front() {
                            let inputs = self.needs(*place);
                            let ends: Option<Vec<f64>> = inputs
                                .iter()
                                .map(|(need, crosses)| times.get(need).map(|t| t.1 + if *crosses { hop } else { 0.0 }))
                                .collect();
                            let Some(ends) = ends else { break };
                            let lane = free.entry(*name).or_default();
                            let start = ends.into_iter().fold(lane.max(begin), f64::max);
                            let end = start + duration(&place.1);
                            *lane = end;
                            last = last.max(end);
                            times.insert(*place, (start, end));
                            queue.pop_front();
                            progress = true;
                        }
                    }
                    assert!(progress, "the program does not end");
                }
                times
            })
            .collect()
    }

    /// Whether times obey what a training step is: every forward and backward once, each after what it needs.
    pub(crate) fn check_step(&self, times: &BTreeMap<Place, (f64, f64)>, hop: f64) -> Result<(), String> {
        for (stage, microbatch) in self.order.cells().iter() {
            let home = self.placement().rank_of(stage).unwrap();
            let at =
                |op, stage| times.get(&(self.placement().rank_of(stage)?, Action::new(stage, op, microbatch))).copied();
            let forward = at(Op::Forward, stage).ok_or_else(|| format!("{stage}F{microbatch} did not run"))?;
            let backward = |stage| match (
                at(Op::FullBackward, stage),
                at(Op::BackwardInput, stage),
                at(Op::BackwardWeight, stage),
            ) {
                (Some(whole), None, None) => Some(whole),
                (None, Some(input), Some(weight)) if weight.0 >= input.1 => Some(input),
                _ => None,
            };
            let own = backward(stage).ok_or_else(|| format!("no proper backward of {microbatch} on stage {stage}"))?;
            if own.0 < forward.1 {
                return Err(format!("backward of {microbatch} on stage {stage} before its forward"));
            }
            if let Some(before) = microbatch.slice().and_then(|k| k.checked_sub(1)).map(|k| microbatch.sliced(k)) {
                // A slice attends to those before it, and its backward adds to theirs.
                let span = |op, m| times.get(&(home, Action::new(stage, op, m))).copied();
                let input = |m| span(Op::FullBackward, m).or(span(Op::BackwardInput, m));
                let early = span(Op::Forward, before).is_none_or(|other| forward.0 < other.1)
                    || input(before).is_none_or(|other| other.0 < own.1);
                if early {
                    return Err(format!("slices {before} and {microbatch} on stage {stage} in the wrong order"));
                }
            }
            let Some(next) = self.placement().next(stage) else {
                continue;
            };
            let hop = if self.placement().rank_of(next) == Some(home) { 0.0 } else { hop };
            let downstream = at(Op::Forward, next).ok_or_else(|| format!("{next}F{microbatch} did not run"))?;
            let upstream =
                backward(next).ok_or_else(|| format!("no proper backward of {microbatch} on stage {next}"))?;
            if downstream.0 < forward.1 + hop || own.0 < upstream.1 + hop {
                return Err(format!("microbatch {microbatch} crosses between stages {stage} and {next} too early"));
            }
        }
        let compute = self.places().into_iter().filter(|(_, a)| a.op.is_compute()).count();
        let unique = times.keys().filter(|(_, a)| a.op.is_compute()).count();
        if compute == unique { Ok(()) } else { Err(format!("{compute} compute actions, {unique} of them different")) }
    }
}
