//! Builds an order by running it: whenever a rank is free it takes one of the tasks that are ready, by a rule.
//!
//! One law: it never deadlocks. A forward is taken only while every microbatch of the rank that has begun can still
//! finish in turn, the oldest first, each with the slots that those before it give back (the banker's algorithm with a
//! fixed order). The order is the same on all ranks, so the oldest microbatch of all can always go on.

use super::evaluate::Kind;
use super::pattern::Pattern;
use super::shop::{Program, Shop};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which of the ready forwards and backwards goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// A backward.
    Backward,
    /// A forward.
    Forward,
    /// What the rank did not do last.
    Turns,
    /// A forward of the rank's last chunk, then a backward, then the other forwards.
    LastChunk,
}

/// The rule of a list schedule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) first: First,
    /// Whether of several forwards that of the later stage goes first.
    pub(crate) late_forward: bool,
    /// Whether of several backwards that of the later stage goes first.
    pub(crate) late_backward: bool,
    /// W fills a gap when it makes the next task at most this share of W late.
    pub(crate) overlap: f64,
    /// Most forwards of each stage that may be ahead of its backwards (warm-up + 1 of 1F1B); at least 1.
    pub(crate) caps: Vec<usize>,
    /// Instead of all that: by the clock of a pattern, and how far ahead of the first task of the rank that has not run another may
    /// be taken while that one's input is not there.
    pub(crate) pattern: Option<(Pattern, f64)>,
}

/// A rank while it is scheduled.
#[derive(Clone, Debug, Default)]
struct RankState {
    free: f64,
    /// When it looks next, infinite when it waits to be told.
    wake: f64,
    /// Slots in use.
    live: usize,
    last_was_forward: bool,
}

/// An event: a rank looks for a task. Earlier times first, then lower ranks.
#[derive(PartialEq)]
struct Wake(f64, usize);

impl Eq for Wake {}

impl Ord for Wake {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Wake {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// How many F, I and W of a stage have begun.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    forward: usize,
    input: usize,
    weight: usize,
}

/// One list schedule being built.
struct Builder<'a> {
    shop: &'a Shop,
    rule: &'a Rule,
    ranks: Vec<RankState>,
    done: Vec<Done>,
    /// When the input of F and of I is there, by cell; infinite while unknown.
    forward_at: Vec<f64>,
    input_at: Vec<f64>,
    program: Program,
    wakes: BinaryHeap<Reverse<Wake>>,
}

/// Builds the order of a rule. Every rank needs as many slots as it holds stages; with fewer some task never runs, and
/// the program is short.
pub(crate) fn build(shop: &Shop, rule: &Rule) -> Program {
    let m = shop.microbatches;
    let cells = shop.rank_of.len() * m;
    let mut builder = Builder {
        shop,
        rule,
        ranks: vec![RankState::default(); shop.ranks()],
        done: vec![Done::default(); shop.rank_of.len()],
        forward_at: vec![f64::INFINITY; cells],
        input_at: vec![f64::INFINITY; cells],
        program: shop.stages_of.iter().map(|stages| Vec::with_capacity(3 * m * stages.len())).collect(),
        wakes: (0..shop.ranks()).map(|r| Reverse(Wake(0.0, r))).collect(),
    };
    builder.forward_at[..m].fill(0.0);
    let mut now = 0.0;
    loop {
        while let Some(Reverse(Wake(time, rank))) = builder.wakes.pop() {
            let state = &mut builder.ranks[rank];
            // An earlier look has replaced this one.
            if state.wake != time {
                continue;
            }
            state.wake = f64::INFINITY;
            now = time;
            builder.turn(rank, now);
        }
        // Every rank waits for what its pattern puts first: one of them takes what is ready instead.
        let Some((pattern, _)) = &rule.pattern else { break };
        if !(0..shop.ranks()).any(|rank| {
            builder.turn_by(pattern, f64::INFINITY, rank, now);
            !builder.wakes.is_empty()
        }) {
            break;
        }
    }
    builder.program
}

impl Builder<'_> {
    /// The same by the clock of a pattern.
    fn turn_by(&mut self, pattern: &Pattern, ahead: f64, rank: usize, now: f64) {
        let m = self.shop.microbatches;
        let room = self.room(rank);
        let mut head = f64::INFINITY;
        let mut next = f64::INFINITY;
        let mut main: Option<(f64, Kind, usize)> = None;
        let mut weight = None;
        let period = pattern.period;
        for stage in &self.shop.stages_of[rank] {
            let done = self.done[*stage];
            let mut consider = |kind, clock: f64, at: f64| {
                head = head.min(clock);
                if at > now {
                    next = next.min(at);
                } else if main.is_none_or(|(best, ..)| clock < best) {
                    main = Some((clock, kind, *stage));
                }
            };
            if done.forward < m && self.fits(room, rank, *stage) {
                let clock = pattern.forward[*stage] + done.forward as f64 * period;
                consider(Kind::Forward, clock, self.forward_at[stage * m + done.forward]);
            }
            if done.input < m {
                let clock = pattern.input[*stage] + done.input as f64 * period;
                consider(Kind::BackwardInput, clock, self.input_at[stage * m + done.input]);
            }
            if done.weight < done.input {
                weight = Some(*stage);
            }
        }
        if let Some((_, kind, stage)) = main.filter(|(clock, ..)| *clock <= head + ahead) {
            return self.take(rank, now, kind, stage);
        }
        let filler = weight.filter(|stage| {
            let time = self.shop.times[*stage][Kind::BackwardWeight as usize];
            now + time <= next + self.rule.overlap * time
        });
        match filler {
            Some(stage) => self.take(rank, now, Kind::BackwardWeight, stage),
            None if next.is_finite() => self.wake(rank, next),
            None => {}
        }
    }

    /// A free rank takes a task, or is woken when one can be taken.
    fn turn(&mut self, rank: usize, now: f64) {
        let rule = self.rule;
        if let Some((pattern, ahead)) = &rule.pattern {
            return self.turn_by(pattern, *ahead, rank, now);
        }
        let (mut forward, mut input, mut weight) = (None, None, None);
        let mut next = f64::INFINITY;
        let m = self.shop.microbatches;
        let stages = &self.shop.stages_of[rank];
        let mut room = None;
        for stage in stages {
            let done = self.done[*stage];
            if done.forward < m && done.forward - done.input < self.rule.caps[*stage] {
                let at = self.forward_at[stage * m + done.forward];
                if at <= now || at < next {
                    let room = room.get_or_insert_with(|| self.room(rank));
                    if self.fits(*room, rank, *stage) {
                        if at > now {
                            next = at;
                        } else if forward.is_none() || self.rule.late_forward {
                            forward = Some(*stage);
                        }
                    }
                }
            }
            if done.input < done.forward {
                let at = self.input_at[stage * m + done.input];
                if at > now {
                    next = next.min(at);
                } else if input.is_none() || self.rule.late_backward {
                    input = Some(*stage);
                }
            }
            // The W of the later stage first: its I came first, and the order in which slots come free does not matter.
            if done.weight < done.input {
                weight = Some(*stage);
            }
        }
        let last = stages.last().copied();
        let forward_first = match self.rule.first {
            First::Backward => false,
            First::Forward => true,
            First::Turns => !self.ranks[rank].last_was_forward,
            First::LastChunk => forward == last && stages.len() > 1,
        };
        let main = match (forward, input) {
            (Some(stage), None) => Some((Kind::Forward, stage)),
            (Some(stage), Some(_)) if forward_first => Some((Kind::Forward, stage)),
            (_, Some(stage)) => Some((Kind::BackwardInput, stage)),
            (None, None) => None,
        };
        let filler = weight.filter(|stage| {
            let time = self.shop.times[*stage][Kind::BackwardWeight as usize];
            now + time <= next + self.rule.overlap * time
        });
        match (main, filler) {
            (Some((kind, stage)), _) => self.take(rank, now, kind, stage),
            (None, Some(stage)) => self.take(rank, now, Kind::BackwardWeight, stage),
            (None, None) if next.is_finite() => self.wake(rank, next),
            (None, None) => {}
        }
    }

    /// Has a rank look at a time, unless it looks sooner anyway.
    fn wake(&mut self, rank: usize, time: f64) {
        if time < self.ranks[rank].wake {
            self.ranks[rank].wake = time;
            self.wakes.push(Reverse(Wake(time, rank)));
        }
    }

    /// Slots that are free on a rank.
    fn room(&self, rank: usize) -> usize {
        self.shop.slots[rank].saturating_sub(self.ranks[rank].live)
    }

    /// Whether the next F of `stage` leaves every microbatch that has begun a way to its end.
    ///
    /// Microbatches go through each stage in order, so the ones that have begun F of the first chunk but not ended W of
    /// it are a run, and so are those among them that hold a slot of a later chunk. It is enough to look at the
    /// microbatches where one of these runs begins: between them the need does not grow.
    fn fits(&self, room: usize, rank: usize, stage: usize) -> bool {
        let Some(room) = room.checked_sub(1) else { return false };
        let stages = &self.shop.stages_of[rank];
        let (Some(first), true) = (stages.first(), stages.len() > 1) else { return true };
        let forwards = |s: usize| self.done[s].forward + usize::from(s == stage);
        for s in &stages[1..] {
            let oldest = forwards(*s);
            if oldest >= forwards(*first) {
                continue;
            }
            // What the oldest microbatch that lacks F of `s` still needs, and what all before it give back.
            let needs = stages.iter().filter(|t| forwards(**t) <= oldest).count();
            let back: usize =
                stages.iter().map(|t| forwards(*t).min(oldest).saturating_sub(self.done[*t].weight)).sum();
            if room + back < needs {
                return false;
            }
        }
        true
    }

    /// Runs a task, and tells who waits for its output.
    fn take(&mut self, rank: usize, now: f64, kind: Kind, stage: usize) {
        let (shop, m) = (self.shop, self.shop.microbatches);
        let end = now + shop.times[stage][kind as usize];
        let done = &mut self.done[stage];
        let state = &mut self.ranks[rank];
        let (microbatch, consumer) = match kind {
            Kind::Forward => {
                state.live += 1;
                done.forward += 1;
                (done.forward - 1, if stage + 1 < shop.rank_of.len() { Some(stage + 1) } else { None })
            }
            Kind::BackwardInput => {
                done.input += 1;
                (done.input - 1, stage.checked_sub(1))
            }
            Kind::FullBackward | Kind::BackwardWeight => {
                state.live -= 1;
                done.weight += 1;
                (done.weight - 1, None)
            }
        };
        if kind != Kind::BackwardWeight {
            state.last_was_forward = kind == Kind::Forward;
        }
        state.free = end;
        let step = shop.step(kind, stage, microbatch);
        self.program[rank].push(step);
        self.wake(rank, end);
        match (kind, consumer) {
            (Kind::Forward, Some(next)) => self.forward_at[next * m + microbatch] = end + shop.hop(stage, next),
            // The last stage's backward needs its own forward alone.
            (Kind::Forward, None) => self.input_at[step.cell()] = end,
            (Kind::BackwardInput, Some(before)) => {
                self.input_at[before * m + microbatch] = end + shop.hop(stage, before);
            }
            _ => {}
        }
        if let Some(consumer) = consumer.filter(|c| shop.rank_of[*c] != rank) {
            let other = shop.rank_of[consumer];
            // A busy rank looks when it is free.
            if self.ranks[other].free <= now {
                self.wake(other, now);
            }
        }
    }
}
