//! Why the heaviest rank is: what is alive at its peak, by class and in words.
//!
//! One law: every word is read from the buffers that are alive in the replay; nothing is estimated again.

use crate::ids::{Microbatch, Rank, Stage};
use crate::memory::{self, RankMemory, total};
use crate::model::StagePart;
use crate::schedule::Schedule;
use crate::task::{Buffer, MemoryClass};
use crate::timeline::Timeline;
use std::collections::BTreeSet;
use std::fmt;

/// One class of memory at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The class.
    pub class: MemoryClass,
    /// How much \[B\].
    pub bytes: u64,
    /// What it is.
    pub words: String,
}

/// Why a rank is the heaviest.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The rank.
    pub rank: Rank,
    /// When its memory peaks \[s or units\].
    pub time: f64,
    /// What it holds then \[B\].
    pub bytes: u64,
    /// By class, the largest first.
    pub holdings: Vec<Holding>,
    /// Next to the second heaviest rank, where there is one.
    pub against: Option<String>,
}

/// Why the heaviest rank of a replayed schedule is; `None` without ranks. `parts` is what each stage holds, `memories` the
/// memory of each rank.
pub fn why(schedule: &Schedule, timeline: &Timeline, parts: &[StagePart], memories: &[RankMemory]) -> Option<Why> {
    let mut by_weight: Vec<usize> = (0..memories.len()).collect();
    by_weight.sort_by_key(|r| (std::cmp::Reverse(total(&memories[*r].peak.live)), *r));
    let heaviest = *by_weight.first()?;
    let (rank, peak) = (Rank::at(heaviest), &memories[heaviest].peak);
    let alive = memory::alive_at_peak(schedule, timeline, rank, &memory::positions(schedule));
    let alive: Vec<&Buffer> = alive.into_iter().map(|id| schedule.buffer(id)).collect();
    let of_stages = stages_in_words(schedule, parts, rank);
    let mut holdings: Vec<Holding> = MemoryClass::ALL
        .into_iter()
        .filter(|class| peak.live[class.index()] > 0)
        .map(|class| Holding {
            class,
            bytes: peak.live[class.index()],
            words: match class {
                MemoryClass::Parameters | MemoryClass::Gradients | MemoryClass::Optimizer => format!("of {of_stages}"),
                MemoryClass::Activations => activations_in_words(&alive, parts),
                MemoryClass::Logits => format!("of {}", count(microbatches(&alive, class).len(), "microbatch")),
                MemoryClass::Buffers => "messages, workspace of the running task and of the libraries".to_owned(),
                MemoryClass::Overhead => "device context, communicators, what the allocator cannot use".to_owned(),
            },
        })
        .collect();
    holdings.sort_by_key(|holding| std::cmp::Reverse(holding.bytes));
    let against = by_weight.get(1).map(|next| {
        let other = &memories[*next].peak.live;
        let mut more: Vec<(u64, MemoryClass)> = MemoryClass::ALL
            .into_iter()
            .map(|class| (peak.live[class.index()].saturating_sub(other[class.index()]), class))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        more.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let more: Vec<String> =
            more.iter().map(|(bytes, c)| format!("{} less {}", in_words(*bytes), c.name())).collect();
        let equal = more.is_empty();
        let less = if equal { "as much".to_owned() } else { more.join(", ") };
        format!("rank {next} comes next with {}: {less}", in_words(total(other)))
    });
    Some(Why { rank, time: peak.time, bytes: total(&peak.live), holdings, against })
}

/// Microbatches of the buffers of a class.
fn microbatches(alive: &[&Buffer], class: MemoryClass) -> BTreeSet<(Stage, Microbatch)> {
    let of_class = alive.iter().filter(|buffer| buffer.class == class && buffer.bytes > 0);
    of_class.filter_map(|buffer| Some((buffer.of.stage, buffer.of.microbatch?))).collect()
}

fn activations_in_words(alive: &[&Buffer], parts: &[StagePart]) -> String {
    let held = microbatches(alive, MemoryClass::Activations);
    let stages: BTreeSet<Stage> = held.iter().map(|(stage, _)| *stage).collect();
    // Chunks of as many layers in one phrase.
    let mut held_by_layers: Vec<(u32, Vec<usize>)> = Vec::new();
    for stage in stages {
        let layers = parts.get(stage.index()).map_or(0, |part| part.layers.len());
        let microbatches = held.iter().filter(|(s, _)| *s == stage).count();
        match held_by_layers.iter_mut().find(|(of, _)| *of == layers) {
            Some((_, counts)) => counts.push(microbatches),
            None => held_by_layers.push((layers, vec![microbatches])),
        }
    }
    let phrase = |(layers, counts): &(u32, Vec<usize>)| {
        let sum = counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ");
        let microbatches = match counts.as_slice() {
            [one] => count(*one, "microbatch"),
            _ => format!("{sum} microbatches"),
        };
        format!("{microbatches} of {}", count(*layers as usize, "layer"))
    };
    let words: Vec<String> = held_by_layers.iter().map(phrase).collect();
    words.join(" and ")
}

/// What a rank holds of the model.
fn stages_in_words(schedule: &Schedule, parts: &[StagePart], rank: Rank) -> String {
    let mut words = Vec::new();
    for part in schedule.placement().stages_of(rank).filter_map(|stage| parts.get(stage.index())) {
        if part.embedding {
            words.push("the embedding".to_owned());
        }
        match part.layers.len() {
            0 => {}
            1 => words.push(format!("layer {}", part.layers.start)),
            _ => words.push(format!("layers {} to {}", part.layers.start, part.layers.end - 1)),
        }
        if part.head {
            words.push("the head".to_owned());
        }
    }
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.join(""),
    }
}

fn count(n: usize, one: &str) -> String {
    let plural = if one.ends_with("ch") { "es" } else { "s" };
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}{plural}") }
}

/// A size for people: `9.6 GiB`.
pub fn in_words(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((name, shift)) => format!("{:.1} {name}", bytes as f64 / f64::from(1_u32 << shift)),
        None => format!("{bytes} B"),
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} is the heaviest with {}: ", self.rank.0, in_words(self.bytes))?;
        for (i, holding) in self.holdings.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{} of {} ({})", in_words(holding.bytes), holding.class.name(), holding.words)?;
        }
        self.against.iter().try_for_each(|against| write!(f, "; {against}"))
    }
}
