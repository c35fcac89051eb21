//! Where the numbers of a rank's parameter stand in the tensors of the whole model.
//!
//! One law: whatever is compared, saved, loaded or filled with first values goes through a [`Shard`], so every split of a
//! model names the same numbers alike.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A shard that is none of its tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ranges:?} along dimension {dim} is no part of {name} {shape:?}: {reason}")]
pub struct ShardError {
    /// The tensor.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The dimension along which it was to be cut.
    pub dim: usize,
    /// The indices along it.
    pub ranges: Vec<Range<usize>>,
    /// What is wrong.
    pub reason: &'static str,
}

/// A rank's part of one tensor of the model: the tensor cut along one dimension, its indices there in the order in which
/// the rank has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Hugging Face name of the tensor.
    pub name: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// The dimension along which it is cut.
    pub dim: usize,
    /// The indices along it that the rank has, in its order: for queries, keys and values in one matrix three ranges.
    pub ranges: Vec<Range<usize>>,
}

impl Shard {
    /// All of a tensor.
    pub fn whole(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let all = 0..shape.first().copied().unwrap_or(1);
        Self { name: name.into(), shape, dim: 0, ranges: vec![all] }
    }

    /// A tensor cut along `dim`.
    pub fn cut(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        dim: usize,
        ranges: impl Into<Vec<Range<usize>>>,
    ) -> Self {
        Self { name: name.into(), shape: shape.into(), dim, ranges: ranges.into() }
    }

    /// Whether it is a part of its tensor: indices that the dimension has, each once.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), ShardError> {
        let along = self.shape.get(self.dim).copied().unwrap_or(1);
        let mut ranges: Vec<_> = self.ranges.iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_by_key(|range| range.start);
        let countable =
            self.shape.iter().try_fold(size_of::<f32>(), |size, length| size.checked_mul(*length)).is_some();
        let reason = if self.dim > 0 && self.dim >= self.shape.len() {
            "it has no such dimension"
        } else if !countable {
            "it is larger than this machine can count"
        } else if ranges.last().is_some_and(|range| range.end > along) {
            "the dimension is shorter"
        } else if ranges.windows(2).any(|pair| matches!(pair, [a, b] if a.end > b.start)) {
            "an index is there twice"
        } else {
            return Ok(());
        };
        let (name, shape, ranges) = (self.name.clone(), self.shape.clone(), self.ranges.clone());
        Err(ShardError { name, shape, dim: self.dim, ranges, reason })
    }

    /// Its own shape.
    pub fn dims(&self) -> Vec<usize> {
        let mut dims = self.shape.clone();
        if let Some(dim) = dims.get_mut(self.dim) {
            *dim = self.ranges.iter().map(ExactSizeIterator::len).sum();
        }
        dims
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers of the whole tensor.
    pub fn whole_len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Runs of its flat row-major numbers that stand side by side in the whole tensor too: where each begins in the shard,
    /// and its place in the whole.
    pub fn runs(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let outer: usize = self.shape.iter().take(self.dim).product();
        let inner: usize = self.shape.iter().skip(self.dim + 1).product();
        let along = self.shape.get(self.dim).copied().unwrap_or(1);
        let mut own = 0;
        (0..outer).flat_map(move |row| self.ranges.iter().map(move |range| (row, range))).map(move |(row, range)| {
            let start = own;
            let from = (row * along + range.start) * inner;
            own += range.len() * inner;
            (start, from..from + range.len() * inner)
        })
    }

    /// Its numbers out of those of the whole tensor, flat row major.
    pub fn take(&self, whole: &[f32]) -> Vec<f32> {
        let mut own = vec![0.0; self.len()];
        for (start, range) in self.runs() {
            if let (Some(to), Some(from)) = (own.get_mut(start..start + range.len()), whole.get(range)) {
                to.copy_from_slice(from);
            }
        }
        own
    }

    /// Puts its numbers in their places in the whole tensor.
    pub fn put(&self, own: &[f32], whole: &mut [f32]) {
        for (start, range) in self.runs() {
            if let (Some(from), Some(to)) = (own.get(start..start + range.len()), whole.get_mut(range)) {
                to.copy_from_slice(from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_knows_its_places() {
        let whole: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let rows = Shard::cut("w", [6, 4], 0, [1..2, 4..6]);
        assert_eq!(rows.dims(), [3, 4]);
        assert_eq!(rows.take(&whole), [4.0, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0]);
        let columns = Shard::cut("w", [4, 6], 1, [0..1, 2..3, 4..5]);
        assert_eq!(columns.take(&whole), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0]);
        assert_eq!(Shard::whole("b", [24]).take(&whole), whole);
    }

    #[test]
    fn a_shard_of_nothing_is_found() {
        let reason =
            |dim, ranges: &[Range<usize>]| Shard::cut("w", [6, 4], dim, ranges).check().map_err(|error| error.reason);
        assert_eq!(reason(0, &[4..6, 0..2]), Ok(()));
        assert_eq!(reason(1, &[0..4, 2..2]), Ok(()));
        assert_eq!(reason(2, &[0..1, 2..3]), Err("it has no such dimension"));
        assert_eq!(reason(1, &[0..2, 3..5]), Err("the dimension is shorter"));
        assert_eq!(reason(0, &[0..1, 3..5, 4..6]), Err("an index is there twice"));
        let error = Shard::whole("w", [usize::MAX, 2]).check().unwrap_err();
        assert_eq!(error.reason, "it is larger than this machine can count");
        assert_eq!(Shard::whole("scalar", []).check(), Ok(()));
    }

    #[test]
    fn shards_put_together_are_the_whole() {
        let whole: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let mut again = vec![-1.0; 48];
        for rank in 0..2 {
            // Three blocks of columns, each halved.
            let ranges: Vec<_> = (0..3).map(|block| block * 4 + rank * 2..block * 4 + rank * 2 + 2).collect();
            let shard = Shard::cut("qkv", [4, 12], 1, ranges);
            assert_eq!(shard.len(), 24);
            shard.put(&shard.take(&whole), &mut again);
        }
        assert_eq!(again, whole);
    }
}
