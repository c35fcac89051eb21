//! What the interleaved kin share: microbatches go in groups, and a chunk takes a whole group before the next chunk's
//! turn.

use super::{GROUP, ScheduleParams};
use crate::fault::Fault;
use crate::ids::{Microbatch, Stage};

/// The turns of a rank's chunks.
pub(super) struct Groups {
    /// Pipeline ranks `p`.
    pub(super) ranks: u32,
    /// Microbatches `m`.
    pub(super) microbatches: u32,
    /// Chunks a rank `v`.
    pub(super) chunks: u32,
    /// Microbatches a group `g`; the last group may hold fewer.
    pub(super) size: u32,
}

impl Groups {
    /// Groups of `size` microbatches.
    pub(super) fn new(params: &ScheduleParams, size: u32) -> Self {
        let ScheduleParams { ranks, microbatches, chunks, .. } = *params;
        Self { ranks, microbatches, chunks, size }
    }

    /// What the `k`-th of the rank's `m v` forwards works on: group, then chunk, then microbatch in the group.
    pub(super) fn forward(&self, rank: u32, k: u32) -> (Stage, Microbatch) {
        let (chunk, microbatch) = self.turn(k);
        (Stage::new(chunk * self.ranks + rank), Microbatch::new(microbatch))
    }

    /// What the `k`-th of the rank's `m v` backwards works on: the same, the last chunk first.
    pub(super) fn backward(&self, rank: u32, k: u32) -> (Stage, Microbatch) {
        let (chunk, microbatch) = self.turn(k);
        (Stage::new((self.chunks - 1 - chunk) * self.ranks + rank), Microbatch::new(microbatch))
    }

    /// Chunk and microbatch of the `k`-th turn.
    fn turn(&self, k: u32) -> (u32, u32) {
        let group = k / (self.size * self.chunks);
        let size = self.size.min(self.microbatches - group * self.size);
        let within = k - group * self.size * self.chunks;
        (within / size, group * self.size + within % size)
    }
}

/// A group size that the order cannot be built with. Sound are `p <= g <= m` with `m mod g` 0 or at least `p`
/// (Megatron-LM), and `g = m`, a single group, for every `m`.
pub(super) fn size_fault(p: u32, m: u32, g: u32) -> Option<Fault> {
    if g == m || (g >= p && g < m && (m.is_multiple_of(g) || m % g >= p)) {
        return None;
    }
    let legal: Vec<String> = legal_sizes(p, m).into_iter().map(|g| g.to_string()).collect();
    let message = format!(
        "{GROUP} = {g} does not suit p = {p} ranks and m = {m} microbatches: it must lie between p and m and leave a last \
         group of 0 or at least p microbatches ({m} % {g} = {})",
        m.checked_rem(g).unwrap_or(m)
    );
    Some(Fault::new(GROUP, "interleaved::group", message, format!("use one of {}", legal.join(", "))))
}

/// The group sizes that `m` microbatches on `p` ranks allow, at most eight of them, smallest first, `m` always among
/// them.
fn legal_sizes(p: u32, m: u32) -> Vec<u32> {
    let mut legal: Vec<u32> = (p..m).filter(|g| m.is_multiple_of(*g) || m % g >= p).take(7).collect();
    legal.push(m);
    legal
}

/// What to do about a number of microbatches that needs a group size: the legal numbers next to it, or the smallest
/// size.
pub(super) fn help(p: u32, m: u32, below: u32, above: u32) -> String {
    let nearest = if below == 0 { format!("m = {above}") } else { format!("m = {below} or {above}") };
    let group = legal_sizes(p, m).first().copied().unwrap_or(m);
    format!("use {nearest}, or allow uneven groups with \"{GROUP}\": {group} in this entry of schedules")
}
