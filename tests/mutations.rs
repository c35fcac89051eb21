//! Programs of every family, each damaged in one place: the law refuses the damage for a reason that fits it, or the
//! program still trains, which an independent reading confirms to the bit.

#[cfg(test)]
mod support {
    pub(crate) mod programs;
    pub(crate) mod random;
    pub(crate) mod reference;
    pub(crate) mod split;
}

use pipewright::ir::action::{Action, Op};
use pipewright::ir::ids::{Microbatch, Pipe, Stage};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::schedules::{FAMILIES, Family};
use pipewright::ir::spec::{Rule, Semantics, Violation};
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::ir::workload::Workload;
use pipewright::sim::cost::UnitCost;
use pipewright::sim::{Options, simulate};
use std::collections::{BTreeMap, BTreeSet};
use support::programs::{small_program, weighted};
use support::random::Random;
use support::reference::{Clock, Reference, place};

/// Mutants of all families together, at least.
const MUTANTS: usize = 100_000;
/// Mutants of one lawful program.
const OF_ONE: usize = 20;

/// What is done to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Two actions of a rank change places.
    Swap,
    /// An action goes to another place of its rank.
    Move,
    Drop,
    Duplicate,
    /// An action goes to another rank.
    Rank,
    /// It acts on another stage, or on one that does not exist.
    Stage,
    /// It acts on its stage in another pipe.
    Pipe,
    Microbatch,
    Slice,
    Operation,
    /// It becomes part of the compound action before it.
    Join,
    /// It is no longer part of one.
    Unjoin,
    /// One end of the model sees a tied embedding of another size.
    Size,
}

const KINDS: [Kind; 13] = [
    Kind::Swap,
    Kind::Move,
    Kind::Drop,
    Kind::Duplicate,
    Kind::Rank,
    Kind::Stage,
    Kind::Pipe,
    Kind::Microbatch,
    Kind::Slice,
    Kind::Operation,
    Kind::Join,
    Kind::Unjoin,
    Kind::Size,
];

/// A program with its damage.
struct Mutant {
    kind: Kind,
    program: PipelineOrder,
    workload: Workload,
    /// The action that was changed, as it was and as it is.
    before: Action,
    after: Action,
}

/// Changes one thing, `None` where this kind of change does not apply to the place that was drawn or changes nothing.
fn mutate(lawful: &PipelineOrder, kind: Kind, random: &mut Random) -> Option<Mutant> {
    let mut program = lawful.clone();
    let mut workload = weighted(program.placement.stages());
    let rank = random.below(program.ranks.len());
    let len = program.ranks[rank].len();
    let at = random.below(len);
    let before = program.ranks[rank][at];
    let mut after = before;
    let cells = program.cells();
    let actions = &mut program.ranks[rank];
    match kind {
        Kind::Swap => actions.swap(at, if random.below(2) == 0 { random.below(len) } else { (at + 1) % len }),
        Kind::Move => {
            let action = actions.remove(at);
            actions.insert(random.below(len), action);
        }
        Kind::Drop => drop(actions.remove(at)),
        Kind::Duplicate => actions.insert(random.below(len + 1), before),
        Kind::Rank if lawful.ranks.len() == 1 => return None,
        Kind::Rank => {
            actions.remove(at);
            let to = random.below(program.ranks.len());
            let to = if to == rank { (to + 1) % program.ranks.len() } else { to };
            let place = random.below(program.ranks[to].len() + 1);
            program.ranks[to].insert(place, before);
        }
        Kind::Stage => after.stage = Stage::new(random.between(0, program.placement.stages())).on(before.stage.pipe()),
        Kind::Pipe => after.stage = before.stage.on(random.pick(&[Pipe::Only, Pipe::Down, Pipe::Up])),
        Kind::Microbatch => {
            let slice = before.microbatch?.slice();
            let other = Microbatch::new(random.between(0, cells.microbatches()));
            after.microbatch = Some(slice.map_or(other, |k| other.sliced(k)));
        }
        Kind::Slice => {
            let whole = Microbatch::new(before.microbatch?.number());
            // Slice 0 of one is the whole, so that there the first other one is 1.
            let others: Vec<u16> = (u16::from(cells.slices() == 1)..=cells.slices()).collect();
            let sliced = whole.sliced(random.pick(&others));
            after.microbatch =
                Some(if before.microbatch != Some(whole) && random.below(4) == 0 { whole } else { sliced });
        }
        Kind::Operation if before.microbatch.is_some() => {
            after.op = random.pick(&[
                Op::Forward,
                Op::FullBackward,
                Op::BackwardInput,
                Op::BackwardWeight,
                Op::SendForward,
                Op::RecvForward,
                Op::SendBackward,
                Op::RecvBackward,
            ]);
        }
        Kind::Operation => after.op = random.pick(&[Op::ReduceGrad, Op::ReduceTied, Op::OptimizerStep]),
        Kind::Join | Kind::Unjoin => after.joins_previous = kind == Kind::Join,
        Kind::Size => {
            let end = if random.below(2) == 0 { 0 } else { workload.stages.len() - 1 };
            workload.stages[end].tied += 1;
        }
    }
    if after != before {
        program.ranks[rank][at] = after;
    }
    let changed = program != *lawful || kind == Kind::Size && program.has(|op| op == Op::ReduceTied);
    changed.then_some(Mutant { kind, program, workload, before, after })
}

/// The rules that say where actions may stand.
const ORDER: [Rule; 8] = [
    Rule::ForwardFirst,
    Rule::InputBeforeWeight,
    Rule::SliceOrder,
    Rule::ChannelOrder,
    Rule::MessagePlace,
    Rule::StepEnd,
    Rule::Compound,
    Rule::DeadlockFree,
];

/// The rule that counts the actions of an operation.
fn counted_by(op: Op) -> Rule {
    match op {
        op if op.is_compute() => Rule::ExactlyOnce,
        op if op.is_collective() => Rule::Collective,
        Op::OptimizerStep => Rule::StepEnd,
        _ => Rule::MessagePairs,
    }
}

impl Mutant {
    /// The rules of which at least one must be broken if the law refuses the mutant, and those that may be beside it.
    fn fitting(&self) -> (Vec<Rule>, Vec<Rule>) {
        let count = counted_by(self.before.op);
        let outside = match self.after.microbatch {
            Some(microbatch) => self.program.cells().index(self.after.stage, microbatch).is_none(),
            None => self.program.cells().stage(self.after.stage).is_none(),
        };
        match self.kind {
            Kind::Swap | Kind::Move => (ORDER.to_vec(), Vec::new()),
            // What was joined to it is joined to what stood before it.
            Kind::Drop => (vec![count], vec![Rule::Compound]),
            // The first of two counts, which may stand in the wrong place.
            Kind::Duplicate => (vec![count], ORDER.to_vec()),
            Kind::Rank => (vec![Rule::Placement], [&ORDER[..], &[Rule::Collective]].concat()),
            // A slice beyond the last still waits for the one before it.
            _ if outside => (vec![Rule::InRange], vec![count, Rule::DeadlockFree]),
            // A reduction is for what its rank holds.
            Kind::Stage | Kind::Pipe if self.before.op.is_collective() => {
                (vec![count, Rule::Placement], ORDER.to_vec())
            }
            Kind::Stage | Kind::Pipe => (vec![count], [&ORDER[..], &[Rule::Placement]].concat()),
            Kind::Microbatch | Kind::Slice => (vec![count], ORDER.to_vec()),
            // The only optimizer may go; then it is what came in its place that is wrong.
            Kind::Operation if !self.before.op.has_microbatch() => {
                (vec![count, counted_by(self.after.op)], ORDER.to_vec())
            }
            Kind::Operation => (vec![count], [&ORDER[..], &[counted_by(self.after.op)]].concat()),
            Kind::Join => (vec![Rule::Compound, Rule::DeadlockFree], Vec::new()),
            Kind::Unjoin => (Vec::new(), Vec::new()),
            Kind::Size => (vec![Rule::Collective], Vec::new()),
        }
    }

    /// Whether the change can leave a program that trains.
    fn may_be_harmless(&self) -> bool {
        match self.kind {
            Kind::Swap | Kind::Move | Kind::Join | Kind::Unjoin | Kind::Size => true,
            // A program without reductions, or without any optimizer, is one too.
            Kind::Drop => !self.before.op.has_microbatch(),
            // A reduction on one rank may go by the name of either of its two stages.
            Kind::Stage => {
                let placement = &self.program.placement;
                let ranks = [self.before, self.after].map(|action| placement.rank_of(action.stage));
                self.before.op.is_collective() && ranks[0] == ranks[1]
            }
            _ => false,
        }
    }

    fn draft(&self) -> Draft {
        Draft::lower(&self.program, &self.workload)
    }

    /// The mutant runs to its end under the engine; the reference agrees on every time, part by part and as one.
    fn assert_trains(&self, schedule: &Schedule, what: &dyn Fn() -> String) {
        let stages = self.program.placement.stages();
        let costs = UnitCosts {
            forward: 3.0,
            backward_input: 5.0,
            backward_weight: 2.0,
            hop: 0.5,
            optimizer: 1.0,
            stage_scale: (0..stages).map(|s| f64::from(1 + s % 3)).collect(),
            overlapped_forward_backward: Some(7.0),
        };
        let reference = Reference::new(&self.program);
        for compound in [false, true] {
            let options = Options { compound, ..Options::default() };
            let timeline = simulate(schedule, &UnitCost::new(&costs, schedule), &options);
            let span = |id| (timeline.span(0, id).start, timeline.span(0, id).end);
            let ours: BTreeMap<_, _> = schedule.tasks().map(|(id, t)| (place(t.rank, t.action), span(id))).collect();
            let expected = reference.times(&Clock { costs: &costs, compound, steps: 1, barrier: false });
            let different = ours.iter().zip(&expected[0]).find(|(ours, expected)| ours != expected);
            assert_eq!((different, ours.len()), (None, expected[0].len()), "{}", what());
            assert_eq!(reference.check_step(&ours, costs.hop), Ok(()), "{}", what());
        }
    }
}

/// What became of the mutants.
#[derive(Default)]
struct Outcomes {
    /// (kind, operation's rule) -> mutants.
    kinds: BTreeMap<Kind, [usize; 2]>,
    rules: BTreeMap<(Kind, Rule), usize>,
    /// Where the law finds nothing but a deadlock, or nothing at all: [deadlocks, ends] of each semantics.
    deadlocks: [[usize; 2]; 3],
    /// Mutants that were refused for a reason that does not fit, or taken where they should not have been.
    wrong: Vec<String>,
}

impl Outcomes {
    fn add(&mut self, other: Self) {
        self.wrong.extend(other.wrong);
        for (kind, [refused, harmless]) in other.kinds {
            let sum = self.kinds.entry(kind).or_default();
            *sum = [sum[0] + refused, sum[1] + harmless];
        }
        for (key, count) in other.rules {
            *self.rules.entry(key).or_default() += count;
        }
        for (sum, other) in self.deadlocks.iter_mut().flatten().zip(other.deadlocks.into_iter().flatten()) {
            *sum += other;
        }
    }

    fn judge(&mut self, mutant: &Mutant, what: &dyn Fn() -> String) {
        let violations = mutant.draft().check(Semantics::Eager);
        let rules: BTreeSet<Rule> = violations.iter().map(|v| v.rule).collect();
        if rules.iter().all(|rule| *rule == Rule::DeadlockFree) {
            self.compare_ends(mutant, &violations, what);
        }
        let counts = self.kinds.entry(mutant.kind).or_default();
        match mutant.draft().seal() {
            Err(found) => {
                assert_eq!(found, violations, "{}", what());
                let (must, may) = mutant.fitting();
                let fits = must.iter().any(|rule| rules.contains(rule))
                    && rules.iter().all(|rule| must.contains(rule) || may.contains(rule));
                if !fits {
                    self.wrong.push(format!("{rules:?} do not fit {}", what()));
                }
                counts[0] += 1;
                for rule in rules {
                    *self.rules.entry((mutant.kind, rule)).or_default() += 1;
                }
            }
            Ok(schedule) => {
                assert!(violations.is_empty(), "{violations:?} {}", what());
                if !mutant.may_be_harmless() {
                    self.wrong.push(format!("taken: {}", what()));
                }
                mutant.assert_trains(&schedule, what);
                counts[1] += 1;
            }
        }
    }

    /// Under every semantics of sends the law and the reference agree whether the program ends.
    fn compare_ends(&mut self, mutant: &Mutant, eager: &[Violation], what: &dyn Fn() -> String) {
        let reference = Reference::new(&mutant.program);
        for (semantics, count) in Semantics::ALL.into_iter().zip(&mut self.deadlocks) {
            let found = if semantics == Semantics::Eager { eager.to_vec() } else { mutant.draft().check(semantics) };
            let only = found.iter().all(|violation| violation.rule == Rule::DeadlockFree);
            assert!(only, "{}: {found:?} {}", semantics.name(), what());
            assert_eq!(reference.ends(semantics), found.is_empty(), "{}: {found:?} {}", semantics.name(), what());
            count[usize::from(found.is_empty())] += 1;
        }
    }
}

/// All mutants of one family.
fn mutants_of(seed: u64, family: &Family) -> Outcomes {
    let mut random = Random(seed);
    let mut outcomes = Outcomes::default();
    let (mut done, wanted) = (0, MUTANTS.div_ceil(FAMILIES.len()));
    while done < wanted {
        let lawful = small_program(family, &mut random);
        let draft = Draft::lower(&lawful, &weighted(lawful.placement.stages()));
        assert!(draft.seal().is_ok(), "{}\n{}", family.name, lawful.to_csv(true));
        for _ in 0..OF_ONE {
            let kind = random.pick(&KINDS);
            let Some(mutant) = mutate(&lawful, kind, &mut random) else { continue };
            let what = || {
                let (before, after) = (lawful.to_csv(true), mutant.program.to_csv(true));
                format!("{}, {kind:?} of {}: from\n{before}to\n{after}", family.name, mutant.before)
            };
            outcomes.judge(&mutant, &what);
            done += 1;
        }
    }
    outcomes
}

#[test]
fn damaged_programs_are_refused_for_a_fitting_reason_or_still_train() {
    let mut outcomes = Outcomes::default();
    std::thread::scope(|scope| {
        let of = |parity| {
            move || {
                let families = (0..).zip(&FAMILIES).filter(|(i, _)| i % 2 == parity);
                families.map(|(seed, family)| mutants_of(seed, family)).collect::<Vec<_>>()
            }
        };
        let threads = [0, 1].map(|parity| scope.spawn(of(parity)));
        for family in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
            outcomes.add(family);
        }
    });
    for (kind, [refused, harmless]) in &outcomes.kinds {
        let rules = outcomes.rules.iter().filter(|((k, _), _)| k == kind);
        let rules: Vec<String> = rules.map(|((_, rule), count)| format!("{} {count}", rule.name())).collect();
        println!("{kind:?}: {refused} refused ({}), {harmless} still train", rules.join(", "));
    }
    println!("[deadlocks, ends] by semantics: {:?}", outcomes.deadlocks);
    let total: usize = outcomes.kinds.values().flatten().sum();
    println!("mutants: {total} of {} families", FAMILIES.len());
    let wrong = outcomes.wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(outcomes.wrong.is_empty(), "{} are judged wrongly:\n{wrong}", outcomes.wrong.len());
    assert!(total >= MUTANTS, "{total}");
    // Each kind happens, is refused where it can do harm, and does none where it can be harmless.
    for kind in KINDS {
        let [refused, harmless] = outcomes.kinds[&kind];
        let never_refused = kind == Kind::Unjoin;
        let never_harmless =
            ![Kind::Swap, Kind::Move, Kind::Drop, Kind::Stage, Kind::Join, Kind::Unjoin, Kind::Size].contains(&kind);
        assert_eq!((refused == 0, harmless == 0), (never_refused, never_harmless), "{kind:?}: {refused}, {harmless}");
    }
    assert!(outcomes.deadlocks.iter().flatten().all(|count| *count > 100), "{:?}", outcomes.deadlocks);
}
