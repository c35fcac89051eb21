//! The pipeline schedules: a table of families, each a function from parameters to a [`PipelineOrder`].
//!
//! One law: a family emits compute actions only; passes add the rest. Adding one is a file here and a row in
//! [`FAMILIES`].

mod adapt;
mod auto;
mod chimera;
mod dual;
mod dualpipe;
mod dualpipe_v;
mod eager_one_f_one_b;
mod gpipe;
mod groups;
mod interleaved;
mod interleaved_zero_bubble;
mod looped_bfs;
mod naive;
mod one_f_one_b;
mod seq_one_f_one_b;
mod v_half;
mod v_min;
mod warmup;
mod zb_h1;
mod zb_h2;
mod zb_v;

use crate::fault::Fault;
use crate::order::PipelineOrder;
use crate::unit_costs::{StageTimes, UnitCosts};

/// What a family is built from.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleParams {
    /// Pipeline ranks `p`.
    pub ranks: u32,
    /// Microbatches `m`.
    pub microbatches: u32,
    /// Chunks a rank `v`.
    pub chunks: u32,
    /// Megatron's `microbatch_group_size_per_vp_stage` `g`: how many microbatches a chunk takes before the next
    /// chunk's turn. `None` is the strict form, `g = p`.
    pub microbatch_group_size: Option<u32>,
    /// Sequence slices of each microbatch, for Seq1F1B.
    pub num_seq_splits: Option<u16>,
    /// What the tasks take, one entry a stage, for the families that adapt to it.
    pub times: StageTimes,
    /// Most activations that each rank may hold, in microbatches of its whole share: one entry a rank. `None` is the
    /// family's own limit.
    pub max_activations: Option<Vec<f64>>,
}

impl ScheduleParams {
    /// `p` ranks, `m` microbatches, `v` chunks; strict groups, F = I = W = 1, no hop, the family's own memory limit.
    pub fn new(ranks: u32, microbatches: u32, chunks: u32) -> Self {
        let times = StageTimes::of(&UnitCosts::default(), ranks, ranks.saturating_mul(chunks).min(MAX_STAGES));
        let (microbatch_group_size, num_seq_splits, max_activations) = (None, None, None);
        Self { ranks, microbatches, chunks, microbatch_group_size, num_seq_splits, times, max_activations }
    }
}

/// More stages than any legal plan has.
pub(crate) const MAX_STAGES: u32 = 1 << 21;

/// How many chunks of layers a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// One.
    One,
    /// Two, down the ranks and back up.
    Two,
    /// Any number.
    Any,
}

/// The knobs of `schedules` that a family takes beside its chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// `microbatch_group_size_per_vp_stage`.
    pub group: bool,
    /// `num_seq_splits`.
    pub slices: bool,
    /// `max_activations`: it adapts to a memory limit, and to the costs.
    pub limit: bool,
}

impl Knobs {
    /// None of them.
    pub(crate) const NONE: Self = Self { group: false, slices: false, limit: false };
}

/// One row of the table.
pub struct Family {
    /// The name scripts use.
    pub name: &'static str,
    /// Other spellings that are accepted.
    pub aliases: &'static [&'static str],
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it was published.
    pub paper: &'static str,
    /// Makespan at equal stages and no hop, in chunk times `F`, `B`.
    pub makespan: &'static str,
    /// Most activations alive on rank `r`, in chunks.
    pub peak_activations: &'static str,
    /// How many chunks a rank holds.
    pub chunks: Chunks,
    /// What else can be set.
    pub knobs: Knobs,
    /// Every fault of the parameters beyond `p, m, v >= 1`, chunks and knobs that the family does not take.
    constraints: fn(&ScheduleParams) -> Vec<Fault>,
    /// The order itself, for legal parameters.
    order: fn(&ScheduleParams) -> PipelineOrder,
}

/// Every family, in the order `list` shows them.
pub static FAMILIES: [Family; 17] = [
    naive::FAMILY,
    gpipe::FAMILY,
    one_f_one_b::FAMILY,
    eager_one_f_one_b::FAMILY,
    seq_one_f_one_b::FAMILY,
    looped_bfs::FAMILY,
    interleaved::FAMILY,
    interleaved_zero_bubble::FAMILY,
    zb_h1::FAMILY,
    zb_h2::FAMILY,
    zb_v::FAMILY,
    v_half::FAMILY,
    v_min::FAMILY,
    chimera::FAMILY,
    dualpipe::FAMILY,
    dualpipe_v::FAMILY,
    auto::FAMILY,
];

/// JSON path of the number of microbatches.
pub(crate) const MICROBATCHES: &str = "training.num_microbatches";
/// JSON path of the number of pipeline ranks.
pub(crate) const RANKS: &str = "parallel.pipeline_model_parallel_size";
/// JSON path of the number of chunks; an entry of `schedules` may override it.
pub(crate) const CHUNKS: &str = "parallel.virtual_pipeline_model_parallel_size";
/// JSON key of the group size, in an entry of `schedules`.
pub(crate) const GROUP: &str = "microbatch_group_size_per_vp_stage";
/// JSON key of the sequence slices, in an entry of `schedules`.
pub(crate) const SLICES: &str = "num_seq_splits";
/// JSON key of the memory limit, in an entry of `schedules`.
pub(crate) const LIMIT: &str = "max_activations";

/// The family called `name`, whichever way it is spelt: case, `-`, `_` and blanks do not count.
pub fn find(name: &str) -> Option<&'static Family> {
    let plain = |s: &str| s.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let wanted = plain(name);
    FAMILIES.iter().find(|f| plain(f.name) == wanted || f.aliases.iter().any(|a| plain(a) == wanted))
}

/// No constraint of its own.
fn unconstrained(_: &ScheduleParams) -> Vec<Fault> {
    Vec::new()
}

impl Family {
    /// Every fault of the parameters for this family; empty when [`Family::order`] will succeed.
    pub fn faults(&self, params: &ScheduleParams) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (value, knob) in [(params.ranks, RANKS), (params.microbatches, MICROBATCHES), (params.chunks, CHUNKS)] {
            if value == 0 {
                let message = format!("{knob} is 0; a pipeline needs at least 1");
                faults.push(Fault::new(knob, "schedule::zero", message, "use 1 or more"));
            }
        }
        // Larger plans than this would not fit in memory as a task graph; refuse them before trying.
        let slices = params.num_seq_splits.unwrap_or(1);
        faults.extend(size_faults(
            params.ranks,
            params.ranks.saturating_mul(params.chunks),
            params.microbatches,
            slices,
        ));
        faults.extend(self.chunk_fault(params));
        for (given, taken, knob) in [
            (params.microbatch_group_size.is_some(), self.knobs.group, GROUP),
            (params.num_seq_splits.is_some(), self.knobs.slices, SLICES),
            (params.max_activations.is_some(), self.knobs.limit, LIMIT),
        ] {
            if given && !taken {
                let takers: Vec<&str> = FAMILIES.iter().filter(|f| f.takes(knob)).map(|f| f.name).collect();
                let message = format!("{} does not take {knob}", self.name);
                let help = format!("leave it out; it is for {}", takers.join(", "));
                faults.push(Fault::new(knob, "schedule::knob", message, help));
            }
        }
        faults.extend(limit_fault(params));
        if faults.is_empty() {
            faults = (self.constraints)(params);
        }
        faults
    }

    fn takes(&self, knob: &str) -> bool {
        match knob {
            GROUP => self.knobs.group,
            SLICES => self.knobs.slices,
            _ => self.knobs.limit,
        }
    }

    fn chunk_fault(&self, params: &ScheduleParams) -> Option<Fault> {
        let v = params.chunks;
        let (wrong, message, help) = match self.chunks {
            Chunks::Any => return None,
            Chunks::One => (
                v > 1,
                format!("{} holds one chunk a rank, not {v}", self.name),
                "leave virtual_pipeline_model_parallel_size out, or use interleaved-1f1b".to_owned(),
            ),
            Chunks::Two => (
                v > 0 && v != 2,
                format!(
                    "{} needs 2 stages a rank = {} stages (down the ranks and back up), not {}",
                    self.name,
                    u64::from(params.ranks) * 2,
                    u64::from(params.ranks) * u64::from(v)
                ),
                "set virtual_pipeline_model_parallel_size to 2, or leave it out of this entry".to_owned(),
            ),
        };
        wrong.then(|| Fault::new(CHUNKS, "schedule::chunks", message, help))
    }

    /// Chunks a rank, unless an entry says otherwise: `parallel`'s, for the families that let one choose.
    pub fn default_chunks(&self, parallel: Option<u32>) -> u32 {
        match self.chunks {
            Chunks::One => 1,
            Chunks::Two => parallel.unwrap_or(2),
            Chunks::Any => parallel.unwrap_or(1),
        }
    }

    /// The order of compute actions.
    ///
    /// # Errors
    /// Every fault of the parameters, see [`Family::faults`].
    pub fn order(&self, params: &ScheduleParams) -> Result<PipelineOrder, Vec<Fault>> {
        let faults = self.faults(params);
        if faults.is_empty() { Ok((self.order)(params)) } else { Err(faults) }
    }
}

/// One positive number a rank.
fn limit_fault(params: &ScheduleParams) -> Option<Fault> {
    let limits = params.max_activations.as_ref()?;
    let p = params.ranks;
    let message = if limits.len() != p as usize {
        format!("{LIMIT} has {} entries for {p} ranks", limits.len())
    } else {
        let wrong = limits.iter().find(|limit| !(**limit > 0.0 && limit.is_finite()))?;
        format!("{LIMIT} is {wrong}; a rank must hold something")
    };
    Some(Fault::new(LIMIT, "schedule::limit", message, format!("write one number above 0, or {p} of them")))
}

/// Most ranks of a pipeline that are accepted.
pub const MAX_RANKS: u32 = 1024;
/// Most (stage, microbatch) pairs of one step that are accepted: with messages some 6 million tasks, a few GB.
pub const MAX_STAGE_MICROBATCHES: u64 = 1 << 20;

/// (stage, microbatch) pairs of an order, each slice of a microbatch counted; `microbatches` is that of both pipes where
/// there are two.
pub(crate) fn stage_microbatches(stages: u32, microbatches: u32, slices: u16) -> u64 {
    (u64::from(stages) * u64::from(microbatches)).saturating_mul(u64::from(slices))
}

/// Plans too large to be held as a task graph.
pub(crate) fn size_faults(ranks: u32, stages: u32, microbatches: u32, slices: u16) -> Vec<Fault> {
    let mut faults = Vec::new();
    if ranks > MAX_RANKS {
        let message = format!("{ranks} pipeline ranks are more than {MAX_RANKS}, the most of one pipeline");
        faults.push(Fault::new(RANKS, "schedule::size", message, format!("use {MAX_RANKS} or fewer")));
    }
    let pairs = stage_microbatches(stages, microbatches, slices);
    if pairs > MAX_STAGE_MICROBATCHES {
        let slices = if slices > 1 { format!(" x {slices} slices") } else { String::new() };
        let message = format!(
            "{stages} stages x {microbatches} microbatches{slices} are {pairs} pairs, more than {MAX_STAGE_MICROBATCHES}, \
             the most of one step"
        );
        faults.push(Fault::new(MICROBATCHES, "schedule::size", message, "use fewer microbatches, ranks or chunks"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_they_are_spelt() {
        for (spelt, name) in [
            ("GPipe", "gpipe"),
            ("1F1B", "1f1b"),
            ("one_f_one_b", "1f1b"),
            ("Interleaved1F1B", "interleaved-1f1b"),
            ("Eager 1F1B", "eager-1f1b"),
            ("LoopedBFS", "looped-bfs"),
            ("InterleavedZeroBubble", "interleaved-zb"),
            ("ZBVZeroBubble", "zb-v"),
            ("DualPipeV", "dualpipe-v"),
        ] {
            assert_eq!(find(spelt).map(|f| f.name), Some(name));
        }
        assert!(find("2f2b").is_none());
    }

    /// Four stages on four ranks are no V (field case A4 h).
    #[test]
    fn a_v_needs_two_stages_a_rank() {
        for name in ["ZBV", "DualPipeV"] {
            let faults = find(name).unwrap().faults(&ScheduleParams::new(4, 8, 1));
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].message.contains("needs 2 stages a rank = 8 stages"), "{}", faults[0].message);
            assert!(faults[0].message.ends_with("not 4"), "{}", faults[0].message);
        }
    }

    #[test]
    fn every_family_is_found_by_its_names_and_each_name_is_of_one() {
        let mut names = std::collections::BTreeSet::new();
        for family in &FAMILIES {
            for name in std::iter::once(&family.name).chain(family.aliases) {
                assert_eq!(find(name).map(|f| f.name), Some(family.name), "{name}");
                names.insert(*name);
            }
        }
        assert!(names.len() > 2 * FAMILIES.len(), "{names:?}");
    }

    #[test]
    fn faults_come_all_at_once() {
        let faults = find("1f1b").unwrap().faults(&ScheduleParams::new(0, 0, 2));
        assert_eq!(faults.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), [RANKS, MICROBATCHES, CHUNKS]);
    }
}
