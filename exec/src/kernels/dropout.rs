//! Dropout that counts: whether an element is kept follows from a key and its number in the tensor of the whole model.
//!
//! One law: ranks that hold the same element drop it alike, whatever the split; so regions that tensor parallelism
//! replicates agree, those that it shards differ, and a run can be repeated.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// What drops out at one place of the model in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Of the seed, the step, the layer and the place in it.
    pub key: u64,
    /// The share that drops out, below 1.
    pub rate: f32,
}

/// Rows of hidden states by their numbers in the global batch: sequence times length plus position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The numbers.
    pub ids: Vec<u64>,
    /// Columns.
    pub width: usize,
}

impl Rows {
    /// The number of the first element of each row.
    pub(super) fn firsts(&self) -> impl Iterator<Item = u64> + '_ {
        self.ids.iter().map(|id| id.wrapping_mul(self.width as u64))
    }
}

/// SplitMix64's mixing (Steele et al. 2014).
fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Dropout {
    /// What element `id` is multiplied by: 0, or what keeps the mean.
    pub fn factor(&self, id: u64) -> f32 {
        let bits = mixed(self.key.wrapping_add(id.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let draw = (bits >> 40) as f32 / 16_777_216.0;
        if draw < self.rate { 0.0 } else { (1.0 - self.rate).recip() }
    }

    /// The same for one (sequence, head) pair of attention alone: its elements are numbered by query and key.
    pub(super) fn of_head(&self, sequence: u64, head: usize) -> Self {
        let key = mixed(self.key ^ mixed(sequence.wrapping_mul(0xD1B5_4A32_D192_ED03).wrapping_add(head as u64)));
        Self { key, ..*self }
    }

    /// The factors of all elements of some rows `[N, H]`.
    pub fn mask(&self, rows: &Rows, dtype: DType, device: &Device) -> Tensor<2> {
        let width = rows.width as u64;
        let values: Vec<f32> =
            rows.firsts().flat_map(|first| (first..first + width).map(|id| self.factor(id))).collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows.ids.len(), rows.width]), device).cast(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(key: u64, ids: std::ops::Range<u64>, width: usize) -> Vec<f32> {
        let rows = Rows { ids: ids.collect(), width };
        Dropout { key, rate: 0.25 }.mask(&rows, DType::F32, &Device::flex()).into_data().iter().collect()
    }

    #[test]
    fn the_share_asked_for_drops_out_and_the_mean_stays() {
        let mask = mask(7, 0..400, 250);
        let kept = mask.iter().filter(|x| **x > 0.0).count() as f64 / 100_000.0;
        assert!((kept - 0.75).abs() < 0.005, "{kept}");
        let mean = mask.iter().map(|x| f64::from(*x)).sum::<f64>() / 100_000.0;
        assert!((mean - 1.0).abs() < 0.007, "{mean}");
    }

    #[test]
    fn neighbours_and_keys_are_independent() {
        let (one, other) = (mask(1, 0..400, 250), mask(2, 0..400, 250));
        let centred = |m: &[f32]| m.iter().map(|x| f64::from(*x) - 1.0).collect::<Vec<_>>();
        let (one, other) = (centred(&one), centred(&other));
        let variance = one.iter().map(|x| x * x).sum::<f64>();
        let correlation = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / variance;
        for found in [correlation(&one, &other), correlation(&one, &one[1..]), correlation(&one, &one[250..])] {
            assert!(found.abs() < 0.015, "{found}");
        }
    }

    #[test]
    fn a_shard_drops_what_the_whole_drops() {
        let whole = mask(3, 0..12, 8);
        assert_eq!(mask(3, 4..8, 8), whole[32..64]);
        let dropout = Dropout { key: 3, rate: 0.5 };
        assert_eq!(dropout.of_head(1, 2), dropout.of_head(1, 2));
        assert_ne!(dropout.of_head(1, 2), dropout.of_head(2, 1));
    }
}
