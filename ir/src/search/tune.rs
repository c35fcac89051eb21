//! Looks for the best order of a shop: given candidates, list schedules under many rules, then local improvement.
//!
//! One law: the result is never worse than the first candidate, and changes it only for something strictly better.

use super::bound::{self, Bound};
use super::evaluate::{Evaluation, Evaluator};
use super::improve;
use super::list::{First, Rule, build};
use super::pattern::{Layout, Pattern};
use super::refill::Spine;
use super::shop::{Program, Shop};

/// Tasks of a plan that is too large to search at length.
const LARGE: usize = 40_000;

/// How long to look, in tasks run: about 20 ns each for list schedules and evaluations alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Tasks run by list schedules.
    pub(crate) list: usize,
    /// Tasks run by local improvement.
    pub(crate) improve: usize,
}

impl Effort {
    /// For a named family: a tenth of a second or two.
    pub(crate) const NAMED: Self = Self { list: 8_000_000, improve: 6_000_000 };
    /// For `auto`: some tenths of a second a placement.
    pub(crate) const AUTO: Self = Self { list: 8_000_000, improve: 30_000_000 };

    /// What a plan of so many tasks gets. A large one gets its tightest pattern and no more, so that building it takes as
    /// long as simulating it a few times.
    fn of(self, tasks: usize) -> Self {
        if tasks > LARGE { Self { list: 0, improve: 0 } } else { self }
    }
}

/// The best program found so far.
struct Best<'a> {
    shop: &'a Shop,
    bound: Bound,
    evaluator: Evaluator,
    found: Option<(Evaluation, Program)>,
    /// Tasks that may still be run.
    left: usize,
}

impl Best<'_> {
    /// Whether another list schedule may be built.
    fn goes_on(&self) -> bool {
        (self.left >= 2 * self.shop.tasks() || self.found.is_none()) && !self.done()
    }

    /// Whether nothing can be better.
    fn done(&self) -> bool {
        self.found.as_ref().is_some_and(|(evaluation, _)| self.bound.met_by(evaluation))
    }

    /// Takes a program in if it runs, fits in memory and is better than what there is.
    fn offer(&mut self, program: Program) -> Option<Evaluation> {
        let evaluation = self.evaluator.run(self.shop, &program)?;
        let fits = evaluation.ranks.iter().zip(&self.shop.slots).all(|(rank, slots)| rank.peak as usize <= *slots);
        if fits && self.found.as_ref().is_none_or(|(best, _)| evaluation.beats(best)) {
            self.found = Some((evaluation.clone(), program));
        }
        fits.then_some(evaluation)
    }

    /// The tightest pattern that fits in memory, with W put in three ways.
    fn try_tightest(&mut self) {
        let shop = self.shop;
        let Some(pattern) =
            Some(shop).filter(|_| !self.done()).and_then(|shop| Pattern::tightest(shop, busiest(shop), shortest(shop)))
        else {
            return;
        };
        let steps = pattern.spine(shop);
        for overlap in [0.5, 0.0, 1.0] {
            let spine = Spine { steps: steps.clone(), overlap: vec![overlap; shop.ranks()] };
            let mut program = vec![Vec::new(); shop.ranks()];
            if self.evaluator.refill(shop, &spine, &mut program).is_some() {
                self.offer(program);
            }
        }
    }

    fn try_rule(&mut self, shop: &Shop, rule: &Rule) {
        self.left = self.left.saturating_sub(2 * self.shop.tasks());
        let program = build(shop, rule);
        if program.iter().map(Vec::len).sum::<usize>() == self.shop.tasks() {
            self.offer(program);
        }
    }
}

/// What a microbatch takes on the busiest rank.
fn busiest(shop: &Shop) -> f64 {
    let work = |of_rank: &Vec<usize>| of_rank.iter().map(|s| shop.times[*s][0] + shop.times[*s][1]).sum::<f64>();
    shop.stages_of.iter().map(work).fold(0.0, f64::max)
}

/// The shortest F or I.
fn shortest(shop: &Shop) -> f64 {
    shop.times.iter().map(|t| t[0].min(t[2])).fold(f64::INFINITY, f64::min)
}

/// In-flight limits of each stage: as many microbatches as Little's law asks for at full speed, times `slack`.
fn caps(shop: &Shop, slack: f64) -> Vec<usize> {
    let stages = shop.rank_of.len();
    let busiest = busiest(shop);
    let mut turn = vec![0.0; stages];
    for s in (0..stages).rev() {
        let [forward, _, input, _] = shop.times[s];
        turn[s] = forward + input + if s + 1 < stages { turn[s + 1] + 2.0 * shop.hop(s, s + 1) } else { 0.0 };
    }
    let cap = |turn: &f64| if busiest > 0.0 { (turn / busiest * slack).ceil().clamp(1.0, 1e9) } else { 1.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    turn.iter().map(|turn| cap(turn) as usize).collect()
}

/// The same shop with every task of the mean length.
fn even(shop: &Shop) -> Shop {
    let sum: f64 = shop.times.iter().map(|t| t[0] + t[1]).sum();
    let mean = sum / (3 * shop.times.len()).max(1) as f64;
    Shop { times: vec![[mean, 2.0 * mean, mean, mean]; shop.times.len()], ..shop.clone() }
}

/// Every rule to try: those by readiness and those by a pattern in turn, so that a short search sees both.
fn rules(shop: &Shop) -> impl Iterator<Item = Rule> {
    let (mut by_readiness, mut by_pattern) = (readiness_rules(shop).into_iter(), pattern_rules(shop));
    let mut turn = false;
    std::iter::from_fn(move || {
        turn = !turn;
        if !turn {
            by_readiness.next().or_else(|| by_pattern.next())
        } else {
            by_pattern.next().or_else(|| by_readiness.next())
        }
    })
}

fn readiness_rules(shop: &Shop) -> Vec<Rule> {
    let mut rules = Vec::new();
    for slack in [f64::INFINITY, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 3.0] {
        let caps = if slack.is_finite() { caps(shop, slack) } else { vec![shop.microbatches; shop.rank_of.len()] };
        for first in [First::Backward, First::Turns, First::LastChunk, First::Forward] {
            for (late_forward, late_backward) in [(true, false), (true, true), (false, true), (false, false)] {
                for overlap in [0.0, 0.5, 1.0] {
                    rules.push(Rule { first, late_forward, late_backward, overlap, caps: caps.clone(), pattern: None });
                }
            }
        }
    }
    rules
}

/// The tightest pattern that fits in memory first, then those as tight as the busiest rank allows, then looser ones.
fn pattern_rules(shop: &Shop) -> impl Iterator<Item = Rule> {
    let busiest = busiest(shop);
    let shortest = shortest(shop);
    let layouts = [1.0, 1.05, 1.1, 1.2, 1.35, 1.5].into_iter().flat_map(move |stretch| {
        [true, false].into_iter().flat_map(move |weights| {
            (0..16u32).map(move |delays| {
                let delay = std::array::from_fn(|k| if delays >> k & 1 == 1 { shortest } else { 0.0 });
                Layout { period: busiest * stretch, delay, weights }
            })
        })
    });
    let tightest = std::iter::once_with(move || Pattern::tightest(shop, busiest, shortest)).flatten();
    tightest.chain(layouts.map(move |layout| Pattern::new(shop, layout))).flat_map(move |pattern| {
        let aheads = [busiest, 0.0, f64::INFINITY, 0.5 * busiest, 2.0 * busiest];
        aheads.into_iter().flat_map(move |ahead| {
            let pattern = pattern.clone();
            [0.0, 0.5, 1.0].map(|overlap| {
                let pattern = Some((pattern.clone(), ahead));
                let first = First::Backward;
                Rule { first, late_forward: false, late_backward: false, overlap, caps: Vec::new(), pattern }
            })
        })
    })
}

/// The best order found of a shop, better than each of `candidates` or the first of the best of them; `None` when no
/// order fits in its slots.
pub(crate) fn best_order(shop: &Shop, candidates: Vec<Program>, effort: Effort) -> Option<(Program, Evaluation)> {
    let effort = effort.of(shop.tasks());
    let mut best =
        Best { shop, bound: bound::of_shop(shop), evaluator: Evaluator::new(shop), found: None, left: effort.list };
    for candidate in candidates {
        best.offer(candidate);
    }
    best.try_tightest();
    let even = even(shop);
    let (mut own, mut others) = (rules(shop), rules(&even));
    let mut tried = usize::MAX;
    while tried > 0 {
        tried = 0;
        for (shop, rules) in [(shop, &mut own as &mut dyn Iterator<Item = Rule>), (&even, &mut others)] {
            if let Some(rule) = Some(&best).filter(|best| best.goes_on()).and_then(|_| rules.next()) {
                best.try_rule(shop, &rule);
                tried += 1;
            }
        }
    }
    if !best.done() && effort.improve > 0 {
        let (evaluation, program) = best.found.take()?;
        best.found =
            Some(improve::improve(shop, &mut best.evaluator, program, evaluation, &best.bound, effort.improve));
    }
    let (evaluation, program) = best.found?;
    Some((program, evaluation))
}
