//! Which tokens of a sequence a context-parallel rank has.
//!
//! One law: the ranks' tokens are a partition of the sequence, and every rank has as many.

use pipewright_ir::scenario::SequenceParallel;
use std::ops::Range;

/// Runs of neighbouring positions, in the order of the rank's rows.
pub type Runs = Vec<Range<usize>>;

/// The tokens of rank `rank` of `ranks` in a sequence of `seq_length`. A ring gives rank `r` the chunks `r` and `2 n - 1 - r`
/// of `2 n`, so that each has as much of the causal triangle (zigzag); Ulysses and a contiguous ring one chunk of `n`.
pub fn of_rank(seq_length: usize, ranks: usize, rank: usize, kind: SequenceParallel) -> Runs {
    let cut = |parts: usize, part: usize| part * seq_length / parts..(part + 1) * seq_length / parts;
    match kind {
        _ if ranks <= 1 => vec![0..seq_length],
        SequenceParallel::Ulysses | SequenceParallel::RingContiguous => vec![cut(ranks, rank)],
        _ => vec![cut(2 * ranks, rank), cut(2 * ranks, 2 * ranks - 1 - rank)],
    }
}

/// How many tokens these are.
pub fn count(runs: &[Range<usize>]) -> usize {
    runs.iter().map(ExactSizeIterator::len).sum()
}

/// The values at these positions of every sequence of `[B, S]`, flat.
pub fn select<T: Copy>(values: &[T], seq_length: usize, runs: &[Range<usize>]) -> Vec<T> {
    let rows = values.chunks_exact(seq_length.max(1));
    rows.flat_map(|row| runs.iter().flat_map(|run| row.get(run.clone()).unwrap_or(&[]))).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_share_the_sequence_out() {
        for kind in [SequenceParallel::Ring, SequenceParallel::RingContiguous, SequenceParallel::Ulysses] {
            for ranks in [1, 2, 4] {
                let mut all: Vec<usize> = (0..ranks).flat_map(|r| of_rank(48, ranks, r, kind)).flatten().collect();
                assert!((0..ranks).all(|r| count(&of_rank(48, ranks, r, kind)) == 48 / ranks));
                all.sort_unstable();
                assert_eq!(all, (0..48).collect::<Vec<_>>());
            }
        }
        assert_eq!(of_rank(16, 2, 0, SequenceParallel::Ring), [0..4, 12..16]);
        assert_eq!(of_rank(16, 2, 1, SequenceParallel::Ring), [4..8, 8..12]);
    }

    #[test]
    fn tokens_are_selected_in_every_sequence() {
        let values: Vec<u32> = (0..16).collect();
        assert_eq!(select(&values, 8, &[0..2, 6..8]), [0, 1, 6, 7, 8, 9, 14, 15]);
    }
}
