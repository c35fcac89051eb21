//! Improves an order step by step: what lies on the critical path changes places.
//!
//! Late acceptance hill climbing (Burke and Bykov 2017): a change is kept when it is no worse than the order some steps
//! ago, so the search crosses plateaus and small ridges without a temperature to tune. The critical path, and moving a
//! task over its neighbours on it, are the classic neighbourhood of job shops (Nowicki and Smutnicki 1996).
//!
//! One law: the best order seen is returned, never a worse one than was given.

use super::bound::Bound;
use super::evaluate::{Evaluation, Evaluator, Kind, Step};
use super::refill::Spine;
use super::shop::{Program, Shop};

/// How many steps back an order must not be worse than.
const HISTORY: usize = 200;
/// The search starts anew from the best order, each time with a smaller leeway to be worse, as a share.
const LEEWAYS: [f64; 4] = [0.06, 0.03, 0.015, 0.0];
/// Most steps of a round for each task of the plan.
const STEPS_PER_TASK: usize = 40;
/// How far a task moves at most, in places.
const REACH: usize = 8;

/// SplitMix64 (Steele, Lea, Flood 2014), seeded by a constant: the same search every time.
struct Random(u64);

impl Random {
    /// A number below `n`, 0 when there is none.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        #[expect(clippy::cast_possible_truncation, reason = "it is below n")]
        let below = (z % n.max(1) as u64) as usize;
        below
    }
}

/// One task of one rank to another place in its program.
#[derive(Clone, Copy, Debug)]
struct Move {
    rank: usize,
    from: usize,
    to: usize,
}

impl Move {
    /// Does it to a program.
    fn apply(self, program: &mut Program) {
        let Self { rank, from, to } = self;
        let steps = &mut program[rank];
        if from < to {
            steps[from..=to].rotate_left(1);
        } else {
            steps[to..=from].rotate_right(1);
        }
    }

    /// The move that undoes it.
    fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// Whether the rank's own order allows it: F before I before W of a microbatch, and microbatches of a stage in turn.
    fn keeps_turns(self, program: &Program) -> bool {
        let Self { rank, from, to } = self;
        let steps = &program[rank];
        let moved = steps[from];
        let passed = if from < to { &steps[from + 1..=to] } else { &steps[to..from] };
        let turns = |s: &Step| s.cell() == moved.cell() || (s.stage() == moved.stage() && s.kind() == moved.kind());
        !passed.iter().any(turns)
    }
}

/// Whether a rank never holds more than its slots.
fn fits(steps: &[Step], slots: usize) -> bool {
    let mut live = 0usize;
    steps.iter().all(|step| {
        match step.kind() {
            Kind::Forward => live += 1,
            kind if kind.frees() => live = live.saturating_sub(1),
            _ => {}
        }
        live <= slots
    })
}

/// What the search minimises: the makespan, then the longest span, then that ranks end early, as one number so that
/// small gains add up.
fn cost(evaluation: &Evaluation) -> f64 {
    let ends: f64 = evaluation.ranks.iter().map(|rank| rank.end).sum();
    evaluation.makespan + 0.02 * evaluation.longest_span() + 0.005 * ends / evaluation.ranks.len() as f64
}

/// Improves `program` for as many tasks run as `effort` says.
pub(super) fn improve(
    shop: &Shop,
    evaluator: &mut Evaluator,
    program: Program,
    evaluation: Evaluation,
    bound: &Bound,
    effort: usize,
) -> (Evaluation, Program) {
    let mut random = Random(0);
    let mut best = (evaluation, program);
    let tasks = shop.tasks().max(1);
    // A small plan needs no more steps than it has orders worth trying.
    let steps = (effort / tasks / (2 * LEEWAYS.len())).min(1000 + STEPS_PER_TASK * tasks);
    for leeway in LEEWAYS {
        spine_search(shop, evaluator, &mut best, bound, steps, leeway, &mut random);
        program_search(shop, evaluator, &mut best, bound, steps, leeway, &mut random);
    }
    best
}

/// Late acceptance over the order of F and I, each time with the W put in anew.
fn spine_search(
    shop: &Shop,
    evaluator: &mut Evaluator,
    best: &mut (Evaluation, Program),
    bound: &Bound,
    steps: usize,
    leeway: f64,
    random: &mut Random,
) {
    let mut program = best.1.clone();
    let mut start: Option<(Evaluation, Spine)> = None;
    for overlap in [0.0, 0.5, 1.0] {
        let spine = Spine::of(&best.1, overlap);
        let Some(now) = evaluator.refill(shop, &spine, &mut program) else { continue };
        if now.beats(&best.0) {
            *best = (now.clone(), program.clone());
        }
        if start.as_ref().is_none_or(|(other, _)| now.beats(other)) {
            start = Some((now, spine));
        }
    }
    let Some((mut now, mut spine)) = start else { return };
    let mut history = vec![cost(&now) * (1.0 + leeway); HISTORY];
    let mut path = Vec::new();
    let _ = evaluator.refill(shop, &spine, &mut program);
    let mut scratch = program.clone();
    trace(shop, evaluator, &program, &now, bound, &mut path);
    for step in 0..steps {
        if bound.met_by(&best.0) || path.is_empty() {
            break;
        }
        let slot = step % HISTORY;
        let (rank, at) = somewhere(&path, &program, random);
        let was = spine.overlap[rank];
        let change = if random.below(8) == 0 {
            spine.overlap[rank] = [0.0, 0.5, 1.0][random.below(3)];
            None
        } else {
            let at = program[rank][..at].iter().filter(|s| s.kind() != Kind::BackwardWeight).count();
            match pick((rank, at), &spine.steps, random).filter(|change| change.keeps_turns(&spine.steps)) {
                Some(change) => Some(change),
                None => continue,
            }
        };
        if let Some(change) = change {
            change.apply(&mut spine.steps);
        }
        let next = evaluator.refill(shop, &spine, &mut scratch);
        match next.filter(|next| cost(next) <= history[slot] || cost(next) <= cost(&now)) {
            Some(next) => {
                std::mem::swap(&mut program, &mut scratch);
                if next.beats(&best.0) {
                    *best = (next.clone(), program.clone());
                }
                now = next;
                trace(shop, evaluator, &program, &now, bound, &mut path);
            }
            None => {
                spine.overlap[rank] = was;
                if let Some(change) = change {
                    change.back().apply(&mut spine.steps);
                }
            }
        }
        history[slot] = history[slot].min(cost(&now));
    }
}

/// Late acceptance over the order of all tasks.
fn program_search(
    shop: &Shop,
    evaluator: &mut Evaluator,
    best: &mut (Evaluation, Program),
    bound: &Bound,
    steps: usize,
    leeway: f64,
    random: &mut Random,
) {
    let (mut now, mut current) = best.clone();
    let mut history = vec![cost(&now) * (1.0 + leeway); HISTORY];
    if evaluator.run(shop, &current).is_none() {
        return;
    }
    let mut path = Vec::new();
    trace(shop, evaluator, &current, &now, bound, &mut path);
    for step in 0..steps {
        if bound.met_by(&best.0) || path.is_empty() {
            break;
        }
        let critical = somewhere(&path, &current, random);
        let Some(change) = pick(critical, &current, random).filter(|change| change.keeps_turns(&current)) else {
            continue;
        };
        change.apply(&mut current);
        let slot = step % HISTORY;
        let held = fits(&current[change.rank], shop.slots[change.rank]);
        let next = if held { evaluator.run(shop, &current) } else { None };
        match next.filter(|next| cost(next) <= history[slot] || cost(next) <= cost(&now)) {
            Some(next) => {
                if next.beats(&best.0) {
                    *best = (next.clone(), current.clone());
                }
                now = next;
                trace(shop, evaluator, &current, &now, bound, &mut path);
            }
            None => change.back().apply(&mut current),
        }
        history[slot] = history[slot].min(cost(&now));
    }
}

/// A task: three times of four on the critical path, else any.
fn somewhere(path: &[(usize, usize)], program: &Program, random: &mut Random) -> (usize, usize) {
    if random.below(4) > 0 {
        return path[random.below(path.len())];
    }
    let rank = random.below(program.len());
    (rank, random.below(program[rank].len()))
}

/// A move of a task on the critical path, over the one before it or further.
fn pick((rank, at): (usize, usize), program: &Program, random: &mut Random) -> Option<Move> {
    let reach = 1 + random.below(REACH) * random.below(2);
    let last = program[rank].len().checked_sub(1)?;
    let at = at.min(last);
    let change = match random.below(2) {
        // What holds the critical task up goes behind it.
        0 => Move { rank, from: at.checked_sub(1)?, to: (at - 1 + reach).min(last) },
        // The critical task goes before what holds it up.
        _ => Move { rank, from: at, to: at.saturating_sub(reach) },
    };
    (change.from != change.to).then_some(change)
}

/// The tasks of a critical path that start the moment the task before them on their rank ends: from the last task of the
/// rank that ends last, or, once no makespan can be shorter, of the rank with the longest span.
fn trace(
    shop: &Shop,
    evaluator: &Evaluator,
    program: &Program,
    now: &Evaluation,
    bound: &Bound,
    path: &mut Vec<(usize, usize)>,
) {
    path.clear();
    let key = |r: usize| if bound.makespan_met_by(now) { now.ranks[r].span() } else { now.ranks[r].end };
    let Some(mut rank) = (0..shop.ranks()).reduce(|a, b| if key(b) > key(a) { b } else { a }) else { return };
    let Some(mut at) = program[rank].len().checked_sub(1) else { return };
    loop {
        let step = program[rank][at];
        let start = evaluator.starts[rank][at];
        let input = evaluator.input(shop, step);
        let tight = at > 0 && input < start;
        if at > 0 && !tight && step.kind() != Kind::BackwardWeight {
            // The input holds it up: go on with whoever made it, where the rank itself was free before.
            let from = match step.kind() {
                Kind::Forward => step.stage().checked_sub(1),
                _ => Some(step.stage() + 1).filter(|s| *s < shop.rank_of.len()),
            };
            if let Some(from) = from {
                let other = shop.rank_of[from];
                let ended = start - shop.hop(from, step.stage());
                // Starts of a rank ascend: the task that ended then is the last that started before.
                let after = evaluator.starts[other].partition_point(|s| *s < ended);
                match after.checked_sub(1) {
                    Some(k) if other != rank || k < at => {
                        rank = other;
                        at = k;
                        continue;
                    }
                    _ => return,
                }
            }
        }
        if at == 0 {
            let Some(from) = step.stage().checked_sub(1).filter(|_| step.kind() == Kind::Forward) else { return };
            let other = shop.rank_of[from];
            let ended = start - shop.hop(from, step.stage());
            let after = evaluator.starts[other].partition_point(|s| *s < ended);
            match after.checked_sub(1) {
                Some(k) if other != rank => {
                    rank = other;
                    at = k;
                    continue;
                }
                _ => return,
            }
        }
        path.push((rank, at));
        at -= 1;
    }
}
