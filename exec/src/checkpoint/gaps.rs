//! Which numbers of a shard are still to be found, and where in it those go that an entry has.
//!
//! One law: a number that was found once is never asked for again.

use super::{CheckpointError, EntryRecord, Kind};
use crate::shard::Shard;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Numbers of a shard that are not found yet: where each run of them begins in the whole tensor, to where it begins in the
/// shard, and how long it is.
pub(super) struct Gaps(BTreeMap<usize, (usize, usize)>);

/// Numbers of an entry, and where the first of them goes in the shard.
pub(super) type Move = (Range<usize>, usize);

impl Gaps {
    /// All of `shard`, whose indices are there once each.
    pub(super) fn new(shard: &Shard) -> Self {
        let runs = shard.runs().filter(|(_, range)| !range.is_empty());
        Self(runs.map(|(own, range)| (range.start, (own, range.len()))).collect())
    }

    /// Closes what `record`, an entry of the same tensor, has numbers for.
    pub(super) fn fill(&mut self, record: &EntryRecord) -> Vec<Move> {
        let part = &record.part;
        let mut moves = Vec::new();
        if self.0.is_empty() {
            return moves;
        }
        for (start, whole) in record.shard.runs() {
            // What of this run the entry has.
            let from = start.max(part.start);
            let to = (start + whole.len()).min(part.end);
            if from < to {
                let first = whole.start + (from - start);
                self.close(first..first + (to - from), from - part.start, &mut moves);
            }
        }
        moves
    }

    /// Closes the numbers `range` of the whole tensor, the first of which is number `at` of the entry.
    fn close(&mut self, range: Range<usize>, at: usize, moves: &mut Vec<Move>) {
        while let Some((&gap, &(own, length))) = self.0.range(..range.end).next_back() {
            let (from, to) = (gap.max(range.start), (gap + length).min(range.end));
            if from >= to {
                return;
            }
            self.0.remove(&gap);
            if gap + length > to {
                self.0.insert(to, (own + (to - gap), gap + length - to));
            }
            if gap < from {
                self.0.insert(gap, (own, from - gap));
            }
            let first = at + (from - range.start);
            moves.push((first..first + (to - from), own + (from - gap)));
        }
    }

    /// That nothing is left to be found of `kind` of `shard`; `path` names the checkpoint in messages.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`].
    pub(super) fn check_closed(&self, kind: Kind, shard: &Shard, path: &Path) -> Result<(), CheckpointError> {
        let Some(first) = self.0.keys().next() else { return Ok(()) };
        Err(CheckpointError::Missing {
            path: path.to_owned(),
            kind,
            name: shard.name.clone(),
            shape: shard.shape.clone(),
            missing: self.0.values().map(|(_, length)| length).sum(),
            needed: shard.len(),
            first: indices(*first, &shard.shape),
        })
    }
}

/// That an entry is of the same tensor as `shard`; `path` names the checkpoint in messages.
///
/// # Errors
/// [`CheckpointError::Shape`].
pub(super) fn check_shape(shard: &Shard, record: &EntryRecord, path: &Path) -> Result<(), CheckpointError> {
    if record.shard.shape == shard.shape {
        return Ok(());
    }
    Err(CheckpointError::Shape {
        name: shard.name.clone(),
        expected: shard.shape.clone(),
        found: record.shard.shape.clone(),
        path: path.to_owned(),
    })
}

/// Indices of the flat row-major number `flat` of a tensor.
fn indices(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut indices = Vec::with_capacity(shape.len());
    for length in shape.iter().rev().map(|length| (*length).max(1)) {
        indices.push(flat % length);
        flat /= length;
    }
    indices.reverse();
    indices
}
