//! A second reading of a program, from its actions alone: what each waits for, whether the program ends, and when each
//! action runs. It shares nothing with the task graph, the law or the engine.

use pipewright::ir::action::{Action, Op};
use pipewright::ir::ids::{Microbatch, Rank, Stage};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::placement::Placement;
use pipewright::ir::spec::Semantics;
use pipewright::ir::unit_costs::UnitCosts;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// An action with its rank: unique in a lawful program. Whether it is part of a compound action is not part of its name.
pub(crate) type Place = (Rank, Action);

/// The place of an action.
pub(crate) fn place(rank: Rank, action: Action) -> Place {
    (rank, Action { joins_previous: false, ..action })
}

/// A program as queues of actions that run one after another.
pub(crate) struct Reference<'a> {
    order: &'a PipelineOrder,
    /// Every action, rank by rank; the places below are numbers in this list.
    places: Vec<Place>,
    number: BTreeMap<Place, usize>,
    /// The compound actions, and every other action as one of its own: stretches of `places`.
    units: Vec<Range<usize>>,
    /// Place -> what it waits for, with whether that comes from another rank.
    needs: Vec<Vec<(usize, bool)>>,
    /// Every backward that makes a stage's weight gradients.
    gradients: BTreeMap<Stage, Vec<Place>>,
    reductions: Vec<Place>,
    /// (stage, microbatch) with a whole backward; the others have it split.
    whole: BTreeSet<(Stage, Option<Microbatch>)>,
}

/// What decides when things happen.
pub(crate) struct Clock<'a> {
    pub(crate) costs: &'a UnitCosts,
    /// Whether the parts of a compound action run as one; else they run one after another.
    pub(crate) compound: bool,
    pub(crate) steps: usize,
    /// Whether a step waits for all of the one before.
    pub(crate) barrier: bool,
}

/// How long an action takes, computed as the simulator must.
pub(crate) fn duration(order: &PipelineOrder, costs: &UnitCosts, action: &Action) -> f64 {
    let chunks = f64::from(order.placement.stages()) / f64::from(order.placement.ranks());
    let scale = costs.stage_scale.get(action.stage.index()).copied().unwrap_or(1.0);
    let share = |cost: f64| cost / chunks * scale;
    let part = |cost: f64| share(cost) / f64::from(order.slices);
    match action.op {
        Op::Forward => part(costs.forward),
        Op::FullBackward => part(costs.backward_input) + part(costs.backward_weight),
        Op::BackwardInput => part(costs.backward_input),
        Op::BackwardWeight => part(costs.backward_weight),
        Op::OptimizerStep => share(costs.optimizer),
        _ => 0.0,
    }
}

/// How long a compound action takes that runs as one: the overlapped time of one F and one B, or its I and W, the mean
/// of what their stages take; else the sum.
fn compound_duration(order: &PipelineOrder, costs: &UnitCosts, parts: &[Action]) -> f64 {
    let sum = parts.iter().map(|action| duration(order, costs, action)).sum();
    let Some(both) = costs.overlapped_forward_backward else { return sum };
    let mut sorted: Vec<&Action> = parts.iter().collect();
    sorted.sort_by_key(|action| action.op);
    let (f, b) = match sorted[..] {
        [f, b] if (f.op, b.op) == (Op::Forward, Op::FullBackward) => (f.stage.index(), b.stage.index()),
        [f, i, w]
            if (f.op, i.op, w.op) == (Op::Forward, Op::BackwardInput, Op::BackwardWeight)
                && (i.stage, i.microbatch) == (w.stage, w.microbatch) =>
        {
            (f.stage.index(), i.stage.index())
        }
        _ => return sum,
    };
    let chunks = f64::from(order.placement.stages()) / f64::from(order.placement.ranks());
    let of = |s: usize| both / chunks / f64::from(order.slices) * costs.stage_scale.get(s).unwrap_or(&1.0);
    f64::midpoint(of(f), of(b))
}

/// Start and end of every action of a step.
pub(crate) type Times = BTreeMap<Place, (f64, f64)>;

impl<'a> Reference<'a> {
    pub(crate) fn new(order: &'a PipelineOrder) -> Self {
        let mut reference = Self {
            order,
            places: Vec::new(),
            number: BTreeMap::new(),
            units: Vec::new(),
            needs: Vec::new(),
            gradients: BTreeMap::new(),
            reductions: Vec::new(),
            whole: BTreeSet::new(),
        };
        for (r, actions) in order.ranks.iter().enumerate() {
            for parts in actions.chunk_by(|_, next| next.joins_previous) {
                let first = reference.places.len();
                reference.places.extend(parts.iter().map(|a| place(Rank::at(r), *a)));
                reference.units.push(first..reference.places.len());
            }
        }
        reference.number = reference.places.iter().enumerate().map(|(i, place)| (*place, i)).collect();
        for (rank, action) in &reference.places {
            if action.op == Op::FullBackward {
                reference.whole.insert((action.stage, action.microbatch));
            }
            match action.op {
                Op::FullBackward | Op::BackwardWeight => {
                    reference.gradients.entry(action.stage).or_default().push((*rank, *action));
                }
                Op::ReduceGrad | Op::ReduceTied => reference.reductions.push((*rank, *action)),
                _ => {}
            }
        }
        // What the program does not have never happens.
        let number = |(need, crosses): (Place, bool)| (reference.number.get(&need).map_or(usize::MAX, |i| *i), crosses);
        let needs = |place: &Place| reference.needs_of(*place).into_iter().map(number).collect();
        let needs = reference.places.iter().map(needs).collect();
        Self { needs, ..reference }
    }

    fn placement(&self) -> &Placement {
        &self.order.placement
    }

    /// What an action waits for, each with whether it comes from another rank.
    fn needs_of(&self, (rank, action): Place) -> Vec<(Place, bool)> {
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
            Op::ReduceData | Op::ReduceTensor | Op::ClipGrad | Op::GatherParam => Vec::new(),
            Op::OptimizerStep => {
                let reductions = self.reductions.iter().copied().filter(|r| self.reduces(r).contains(&stage));
                gradients(stage).chain(reductions.filter(|(r, _)| *r == rank)).map(|place| (place, false)).collect()
            }
            Op::ReduceGrad | Op::ReduceTied => {
                let members = self.members(&(rank, action));
                let stages: BTreeSet<Stage> = members.iter().flat_map(|member| self.reduces(member)).collect();
                // A tied embedding is summed over its copies in the pipes first.
                let copies = |(_, reduction): &&Place| op == Op::ReduceTied && reduction.op == Op::ReduceGrad;
                let summed = self.reductions.iter().filter(copies).copied();
                let summed = summed.filter(|reduction| self.reduces(reduction).iter().any(|s| stages.contains(s)));
                let gradients = stages.iter().copied().flat_map(gradients);
                gradients.chain(summed).map(|place| (place, place.0 != rank)).collect()
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

    /// The queues, filled with units or, without compound actions, with each action as a unit of its own.
    fn queues(&self, semantics: Semantics, compound: bool) -> BTreeMap<(Rank, u32), VecDeque<Range<usize>>> {
        let mut queues: BTreeMap<_, VecDeque<Range<usize>>> = BTreeMap::new();
        let single = |unit: &Range<usize>| unit.clone().map(|i| i..i + 1).collect::<Vec<_>>();
        for unit in self.units.iter().flat_map(|unit| if compound { vec![unit.clone()] } else { single(unit) }) {
            queues.entry(self.queue(self.places[unit.start], semantics)).or_default().push_back(unit);
        }
        queues
    }

    /// Whether the program comes to its end: its queues are emptied head by head, the parts of a compound action when
    /// the inputs of all are there.
    pub(crate) fn ends(&self, semantics: Semantics) -> bool {
        let mut queues = self.queues(semantics, true);
        let mut done = vec![false; self.places.len()];
        // What can only happen together stands at the head together.
        let together = |unit: &Range<usize>| -> Vec<usize> {
            let place = self.places[unit.start];
            match place.1.op {
                _ if semantics == Semantics::Eager => unit.clone().collect(),
                op if op.is_collective() => self.members(&place).iter().map(|member| self.number[member]).collect(),
                op if op.is_receive() => vec![self.number[&self.sender(place).unwrap()], unit.start],
                op if op.is_send() => Vec::new(),
                _ => unit.clone().collect(),
            }
        };
        loop {
            let names: Vec<(Rank, u32)> = queues.keys().copied().collect();
            let mut progress = false;
            for name in names {
                while let Some(unit) = queues[&name].front() {
                    let group = together(unit);
                    let at_head = |i: &usize| {
                        let queue = &queues[&self.queue(self.places[*i], semantics)];
                        queue.front().is_some_and(|unit| unit.contains(i))
                    };
                    let ready = |i: &usize| {
                        // A part needs no part behind it; a receive and its send happen at once.
                        let with = |need: &usize| group.contains(need) && (need < i || !unit.contains(need));
                        self.needs[*i].iter().all(|(need, _)| with(need) || done.get(*need) == Some(&true))
                    };
                    if group.is_empty() || !group.iter().all(|i| at_head(i) && ready(i)) {
                        break;
                    }
                    let mut emptied: Vec<_> = group.iter().map(|i| self.queue(self.places[*i], semantics)).collect();
                    emptied.dedup();
                    for name in emptied {
                        queues.get_mut(&name).unwrap().pop_front();
                    }
                    group.into_iter().for_each(|i| done[i] = true);
                    progress = true;
                }
            }
            if !progress {
                return done.iter().all(|done| *done);
            }
        }
    }

    /// When every action of every step starts and ends, with eager sends: as soon as its queue and its inputs allow.
    pub(crate) fn times(&self, clock: &Clock<'_>) -> Vec<Times> {
        let mut free: BTreeMap<(Rank, u32), f64> = BTreeMap::new();
        let mut last: f64 = 0.0;
        (0..clock.steps)
            .map(|_| {
                let begin = if clock.barrier { last } else { 0.0 };
                let mut queues = self.queues(Semantics::Eager, clock.compound);
                let mut spans = vec![(0.0, 0.0); self.places.len()];
                // Place -> when whoever waits for it may go on: a compound action is over when all its parts are.
                let mut over: Vec<Option<f64>> = vec![None; self.places.len()];
                while queues.values().any(|queue| !queue.is_empty()) {
                    let mut progress = false;
                    for (name, queue) in &mut queues {
                        while let Some(unit) = queue.front() {
                            let inputs = unit.clone().flat_map(|i| &self.needs[i]).filter(|(i, _)| !unit.contains(i));
                            let at = |(need, crosses): &(usize, bool)| {
                                Some((*over.get(*need)?)? + if *crosses { clock.costs.hop } else { 0.0 })
                            };
                            let Some(inputs) = inputs.map(at).collect::<Option<Vec<f64>>>() else { break };
                            let lane = free.entry(*name).or_default();
                            let start = inputs.into_iter().fold(lane.max(begin), f64::max);
                            let end = self.run_unit(clock, unit, start, &mut spans);
                            unit.clone().for_each(|i| over[i] = Some(end));
                            *lane = end;
                            last = last.max(end);
                            queue.pop_front();
                            progress = true;
                        }
                    }
                    assert!(progress, "the program does not end");
                }
                self.places.iter().copied().zip(spans).collect()
            })
            .collect()
    }

    /// Runs the parts of a unit from `start`, each for its share of the whole; gives the end.
    fn run_unit(&self, clock: &Clock<'_>, unit: &Range<usize>, start: f64, spans: &mut [(f64, f64)]) -> f64 {
        let parts: Vec<Action> = self.places[unit.clone()].iter().map(|place| place.1).collect();
        let durations: Vec<f64> = parts.iter().map(|action| duration(self.order, clock.costs, action)).collect();
        if parts.len() == 1 || !clock.compound {
            let end = start + durations[0];
            spans[unit.start] = (start, end);
            return end;
        }
        let whole = compound_duration(self.order, clock.costs, &parts);
        let end = start + whole;
        let sum: f64 = durations.iter().sum();
        let stretch = if sum > 0.0 { whole / sum } else { 0.0 };
        let mut at = start;
        for (i, duration) in unit.clone().zip(durations) {
            let until = if i + 1 == unit.end { end } else { at + duration * stretch };
            spans[i] = (at, until);
            at = until;
        }
        end
    }

    /// Whether times obey what a training step is: every forward and backward once, each after what it needs.
    pub(crate) fn check_step(&self, times: &Times, hop: f64) -> Result<(), String> {
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
        let compute = self.places.iter().filter(|(_, a)| a.op.is_compute()).count();
        let unique = times.keys().filter(|(_, a)| a.op.is_compute()).count();
        if compute == unique { Ok(()) } else { Err(format!("{compute} compute actions, {unique} of them different")) }
    }
}
