//! Whether a plan fits in the memory of its devices, rank by rank, and what would make it fit.
//!
//! One law: a knob is only named with the peak that a replay with it turned has.

use super::in_words;
use crate::ids::Rank;
use crate::memory::{RankMemory, total};
use crate::scenario::{Attention, Recompute};
use crate::segments::Cut;
use crate::setup::Setup;
use std::fmt;

/// Whether every rank fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Memory of a device \[B\].
    pub capacity: u64,
    /// Most that each rank holds at once \[B\].
    pub peaks: Vec<u64>,
}

impl Fit {
    /// The fit of ranks with these memories.
    pub fn new(capacity: u64, memories: &[RankMemory]) -> Self {
        Self { capacity, peaks: memories.iter().map(|memory| total(&memory.peak.live)).collect() }
    }

    /// Whether no rank needs more than there is.
    pub fn fits(&self) -> bool {
        self.peaks.iter().all(|peak| *peak <= self.capacity)
    }

    /// What is left on each rank; negative where it does not fit \[B\].
    pub fn margins(&self) -> impl Iterator<Item = i64> + '_ {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.peaks.iter().map(move |peak| match self.capacity.checked_sub(*peak) {
            Some(left) => signed(left),
            None => -signed(peak - self.capacity),
        })
    }

    /// The heaviest rank and its peak \[B\].
    pub fn heaviest(&self) -> Option<(Rank, u64)> {
        let (rank, peak) = self.peaks.iter().enumerate().max_by_key(|(r, peak)| (**peak, std::cmp::Reverse(*r)))?;
        Some((Rank::at(rank), *peak))
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((Rank(rank), peak)) = self.heaviest() else { return f.write_str("there are no ranks") };
        let (peak_words, capacity) = (in_words(peak), in_words(self.capacity));
        if let Some(left) = self.capacity.checked_sub(peak) {
            let left = in_words(left);
            return write!(f, "fits: rank {rank} needs most, {peak_words} of {capacity}; {left} are left");
        }
        let over: Vec<String> =
            self.margins().enumerate().filter(|(_, margin)| *margin < 0).map(|(r, _)| r.to_string()).collect();
        let missing = in_words(peak - self.capacity);
        write!(f, "does not fit: rank {rank} needs {peak_words} of {capacity}, {missing} too much")?;
        if over.len() > 1 { write!(f, "; ranks that do not fit: {}", over.join(", ")) } else { Ok(()) }
    }
}

/// Knobs turned together, and what they give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// JSON paths and the values to write there.
    pub set: Vec<(&'static str, String)>,
    /// Peak of the heaviest rank then \[B\].
    pub peak: u64,
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set: Vec<String> = self.set.iter().map(|(path, value)| format!("{path} = {value}")).collect();
        write!(f, "{}: {} on the heaviest rank", set.join(" and "), in_words(self.peak))
    }
}

/// A knob turned: where, to what, and the setup and the microbatch with it.
struct Turn {
    path: &'static str,
    value: String,
    apply: fn(&mut Setup, &mut u64),
}

/// The nearest knobs that would make a plan fit, the cheapest in time first: each that suffices alone, or else the fewest
/// of them from the cheapest on that suffice together; empty where nothing does. `peak` replays a plan that is cut
/// differently and gives the peak of its heaviest rank; `None` where such a plan is not legal.
pub fn nearest_knobs(cut: &Cut<'_>, capacity: u64, peak: &dyn Fn(&Cut<'_>) -> Option<u64>) -> Vec<Knobs> {
    let turns = turns(cut);
    let with = |turns: &[&Turn]| {
        let (mut setup, mut micro_batch_size) = (cut.setup.clone(), cut.micro_batch_size);
        turns.iter().for_each(|turn| (turn.apply)(&mut setup, &mut micro_batch_size));
        let peak = peak(&Cut { setup: &setup, micro_batch_size, ..*cut })?;
        let set = turns.iter().map(|turn| (turn.path, turn.value.clone())).collect();
        (peak <= capacity).then_some(Knobs { set, peak })
    };
    let alone: Vec<Knobs> = turns.iter().filter_map(|turn| with(&[turn])).collect();
    if !alone.is_empty() {
        return alone;
    }
    // Of two values of one knob the later one holds.
    let together = (2..=turns.len()).find_map(|n| {
        let chosen: Vec<&Turn> = turns[..n]
            .iter()
            .enumerate()
            .filter(|(i, turn)| !turns[i + 1..n].iter().any(|later| later.path == turn.path))
            .map(|(_, turn)| turn)
            .collect();
        with(&chosen)
    });
    together.into_iter().collect()
}

/// What can be turned, the cheapest in time first.
fn turns(cut: &Cut<'_>) -> Vec<Turn> {
    let setup = cut.setup;
    let copies = u64::from(cut.mesh.data.max(1)) * cut.context();
    let piped = cut.mesh.pipeline > 1;
    let keeps = setup.recompute.contains(&Recompute::None);
    let all = |wanted: Recompute| setup.recompute.iter().all(|r| *r == wanted);
    let zero = |stage: u32, apply: fn(&mut Setup, &mut u64)| {
        // A pipeline accumulates gradients over its microbatches, which ZeRO 2 and 3 would reduce each time.
        let possible = copies > 1 && setup.zero_stage < stage && (stage == 1 || !piped);
        (possible, Turn { path: "parallel.zero_stage", value: stage.to_string(), apply })
    };
    let turn = |possible, path, value: &str, apply: fn(&mut Setup, &mut u64)| {
        (possible, Turn { path, value: value.to_owned(), apply })
    };
    let smaller = cut.micro_batch_size / 2;
    let even = cut.micro_batch_size.is_multiple_of(2) && smaller > 0;
    let turns = [
        zero(1, |setup, _| setup.zero_stage = 1),
        turn(setup.attention == Attention::Standard, "training.attention", "\"flash\"", |setup, _| {
            setup.attention = Attention::Flash;
        }),
        turn(cut.tensor() > 1 && !cut.shards_sequence(), "parallel.sequence_parallel", "\"megatron\"", |setup, _| {
            setup.megatron_sequence_parallel = true;
        }),
        turn(keeps && setup.attention == Attention::Standard, "training.recompute", "\"selective\"", |setup, _| {
            setup.recompute = vec![Recompute::Selective];
        }),
        turn(even, "training.micro_batch_size", &smaller.to_string(), |_, size| *size /= 2),
        zero(2, |setup, _| setup.zero_stage = 2),
        turn(!all(Recompute::Full), "training.recompute", "\"full\"", |setup, _| {
            setup.recompute = vec![Recompute::Full];
        }),
        zero(3, |setup, _| setup.zero_stage = 3),
    ];
    turns.into_iter().filter(|(possible, _)| *possible).map(|(_, turn)| turn).collect()
}
