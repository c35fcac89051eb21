//! Random streams that depend on names, not on the order of drawing.
//!
//! One law: a stream is a function of its seed and its words alone, so any rank can draw any part of the model or of
//! the data without drawing the rest.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The stream of a seed and three words.
pub(crate) fn stream(seed: u64, words: [u64; 3]) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, words[0], words[1], words[2]]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// The stream of a seed and a name.
pub(crate) fn named_stream(seed: u64, name: &str) -> ChaCha8Rng {
    // Two FNV-1a hashes from different starts and the length: no two names of a model meet.
    let words = [0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142].map(|start| fnv1a(start, name.as_bytes()));
    stream(seed, [words[0], words[1], name.len() as u64])
}

/// A number of a seed and two words, for what counts on its own from there.
pub(crate) fn key(seed: u64, words: [u64; 2]) -> u64 {
    stream(seed, [words[0], words[1], u64::MAX]).next_u64()
}

/// An even draw from `0 .. n` (0 for `n = 0`): the high half of a 64 x 64 bit product, uneven by less than `n / 2^64`.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

fn fnv1a(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_and_by_every_word() {
        let first = |seed, words| stream(seed, words).next_u64();
        let draws = [first(0, [0; 3]), first(1, [0; 3]), first(0, [1, 0, 0]), first(0, [0, 1, 0]), first(0, [0, 0, 1])];
        for (i, a) in draws.iter().enumerate() {
            assert!(draws[..i].iter().all(|b| a != b), "{draws:?}");
        }
        assert_ne!(named_stream(0, "ab").next_u64(), named_stream(0, "ba").next_u64());
        assert_eq!(named_stream(4, "ab").next_u64(), named_stream(4, "ab").next_u64());
    }

    #[test]
    fn draws_stay_below_and_reach_everything() {
        let mut rng = stream(3, [0; 3]);
        let mut seen = [0; 7];
        for _ in 0..7000 {
            seen[below(&mut rng, 7)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!(below(&mut rng, 0), 0);
    }
}
