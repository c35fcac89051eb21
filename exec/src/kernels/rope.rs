//! Rotary positions (Su et al. 2021) of queries and keys, the halves of a head paired as Hugging Face does.
//!
//! One law: backward is the rotation the other way.

use super::cpu::{edit, is_cpu};
use burn::tensor::{Tensor, TensorData};
use std::ops::Range;

/// Cosines and sines for the rows of one sequence, `[S, D / 2]` each: the same for every layer.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation {
    /// Those of rows at some positions.
    pub fn new(positions: &[Range<usize>], inverse_frequencies: &[f32]) -> Self {
        let of = |p: usize| inverse_frequencies.iter().map(move |f| p as f32 * f);
        let angles = positions.iter().cloned().flatten().flat_map(of);
        let (cos, sin) = angles.map(|angle| (angle.cos(), angle.sin())).unzip();
        Self { cos, sin }
    }
}

/// Rotates the heads of `x` `[B S, heads D]`. With `back` it takes the gradient of the rotated to that of `x`.
pub fn rotate(x: Tensor<2>, batch: usize, dim: usize, rotation: &Rotation, back: bool) -> Tensor<2> {
    let ([rows, width], half) = (x.dims(), dim / 2);
    let (Rotation { cos, sin }, way) = (rotation, if back { -1.0 } else { 1.0 });
    let seq_length = rows / batch.max(1);
    if is_cpu(&x) {
        let rotated = edit(x, |values| {
            for (at, row) in values.chunks_exact_mut(width).enumerate() {
                let from = at % seq_length * half;
                let (Some(cos), Some(sin)) = (cos.get(from..from + half), sin.get(from..from + half)) else { continue };
                for head in row.chunks_exact_mut(dim) {
                    let (left, right) = head.split_at_mut(half);
                    for (((left, right), cos), sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
                        let sin = sin * way;
                        (*left, *right) = (*left * cos - *right * sin, *right * cos + *left * sin);
                    }
                }
            }
        });
        return rotated.unwrap_or_else(|x| x);
    }
    let of = |values: &[f32]| {
        Tensor::<4>::from_data(TensorData::new(values.to_vec(), [1, seq_length, 1, half]), &x.device()).cast(x.dtype())
    };
    let (cos, sin) = (of(cos), of(sin) * way);
    let heads = width / dim.max(1);
    let all = x.reshape([batch, seq_length, heads, dim]);
    let part = |from: usize| all.clone().slice([0..batch, 0..seq_length, 0..heads, from..from + half]);
    let (left, right) = (part(0), part(half));
    let turned = left.clone() * cos.clone() - right.clone() * sin.clone();
    Tensor::cat(vec![turned, right * cos + left * sin], 3).reshape([rows, width])
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, random, wide};
    use super::*;
    use burn::tensor::DType;

    const FREQUENCIES: [f32; 3] = [1.0, 0.1, 0.01];

    fn rotated(x: &Tensor<2>, runs: &[Range<usize>], back: bool) -> Tensor<2> {
        rotate(x.clone(), 2, 6, &Rotation::new(runs, &FREQUENCIES), back)
    }

    #[test]
    fn a_rotation_keeps_lengths_and_goes_back() {
        let x = random([10, 12]);
        let y = rotated(&x, &[0..2, 7..10], false);
        assert_close(&rotated(&y, &[0..2, 7..10], true), &x, 1e-6);
        assert_close(&y.clone().square().sum_dim(1), &x.clone().square().sum_dim(1), 1e-5);
        let slow = rotate(x.clone().cast(DType::F64), 2, 6, &Rotation::new(&[0..2, 7..10], &FREQUENCIES), false);
        assert_close(&y, &wide(&slow), 1e-5);
        let first = |x: &Tensor<2>| x.clone().slice([0..1, 0..12]);
        assert_close(&first(&y), &first(&x), 0.0);
    }

    #[test]
    fn scores_depend_on_distances_alone() {
        let (q, k) = (random([2, 6]), random([2, 6]));
        let score = |i: usize, j: usize| {
            let at = |x: &Tensor<2>, p: usize| rotated(x, &[p..p + 1], false).slice([0..1, 0..6]);
            (at(&q, i) * at(&k, j)).sum().into_scalar::<f32>()
        };
        assert!((score(5, 2) - score(13, 10)).abs() < 1e-4 && (score(5, 2) - score(5, 4)).abs() > 1e-4);
    }
}
