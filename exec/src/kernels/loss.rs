//! Cross-entropy over a rank's shard of the vocabulary.
//!
//! Of each token three numbers say all that another shard needs to know: the largest logit, the sum of `exp(x - largest)`,
//! and the target's logit, minus infinity where it is of another shard. Merged over the shards they give the loss of the
//! token, `largest + ln(sum) - target` (Narayanan et al. 2021, section 2.3; Shoeybi et al. 2019, section 3).
//!
//! One law: a row of logits that nobody has is never counted: shards may differ in size, nothing is padded.

use super::cpu::{Values, edit, is_cpu, make};
use super::maths;
use super::vocabulary::{place, places};
use burn::tensor::{IndexingUpdateOp, Tensor};

/// The three numbers of each row of logits `[N, V]`, of tokens `first..` of the vocabulary: `[N, 3]` in fp32.
pub fn statistics(logits: &Tensor<2>, targets: &[u32], first: usize) -> Tensor<2> {
    let [n, v] = logits.dims();
    let Some(values) = Values::of(logits) else { return plain_statistics(logits, targets, first) };
    make([n, 3], &logits.device(), |out| {
        let rows = values.slice().chunks_exact(v).zip(targets);
        for (out, (row, target)) in out.chunks_exact_mut(3).zip(rows) {
            let top = maths::largest(row);
            let mut sums = [0.0f32; 16];
            let (blocks, rest) = row.as_chunks::<16>();
            for block in blocks {
                for (sum, x) in sums.iter_mut().zip(block) {
                    *sum += maths::exp(x - top);
                }
            }
            let sum = sums.iter().sum::<f32>() + rest.iter().map(|x| maths::exp(x - top)).sum::<f32>();
            let target = place(*target, first, v).and_then(|at| row.get(at)).copied();
            out.copy_from_slice(&[top, sum, target.unwrap_or(f32::NEG_INFINITY)]);
        }
    })
}

/// The numbers of all shards together, from those of each in their order.
pub fn merge(parts: &[Tensor<2>]) -> Tensor<2> {
    let mut parts = parts.iter();
    let Some(one) = parts.next() else { return Tensor::zeros([0, 3], &burn::tensor::Device::flex()) };
    let column = |x: &Tensor<2>, i: usize| x.clone().slice([0..x.dims()[0], i..i + 1]);
    parts.fold(one.clone(), |all, part| {
        let top = column(&all, 0).max_pair(column(part, 0));
        let scaled = |x: &Tensor<2>| column(x, 1) * (column(x, 0) - top.clone()).exp();
        let sum = scaled(&all) + scaled(part);
        let target = column(&all, 2).max_pair(column(part, 2));
        Tensor::cat(vec![top, sum, target], 1)
    })
}

/// The loss of each token `[N]`.
pub fn losses(statistics: &Tensor<2>) -> Tensor<1> {
    let [n, _] = statistics.dims();
    let column = |i: usize| statistics.clone().slice([0..n, i..i + 1]);
    (column(0) + column(1).log() - column(2)).reshape([n])
}

/// The gradient of `scale` times the sum of the losses with respect to the shard's logits `[N, V]`, in their place: the
/// probabilities, less 1 at the target.
pub fn backward(logits: Tensor<2>, statistics: &Tensor<2>, targets: &[u32], first: usize, scale: f32) -> Tensor<2> {
    let [n, v] = logits.dims();
    let Some(numbers) = Values::of(statistics).filter(|_| is_cpu(&logits)) else {
        return plain_backward(logits, statistics, targets, first, scale);
    };
    let changed = edit(logits, |values| {
        let rows = values.chunks_exact_mut(v).zip(numbers.slice().chunks_exact(3)).zip(targets);
        for ((row, numbers), target) in rows.take(n) {
            let (top, factor) = (numbers[0], scale / numbers[1]);
            for x in row.iter_mut() {
                *x = maths::exp(*x - top) * factor;
            }
            if let Some(x) = place(*target, first, v).and_then(|at| row.get_mut(at)) {
                *x -= scale;
            }
        }
    });
    changed.unwrap_or_else(|logits| logits)
}

fn plain_statistics(logits: &Tensor<2>, targets: &[u32], first: usize) -> Tensor<2> {
    let logits = logits.clone().cast(burn::tensor::DType::F32);
    let [n, v] = logits.dims();
    let (index, here) = places(targets, first, v, &logits);
    let top = logits.clone().max_dim(1);
    let sum = (logits.clone() - top.clone()).exp().sum_dim(1);
    let target = logits.gather(1, index.reshape([n, 1])).mask_fill(here.equal_elem(0.0), f32::NEG_INFINITY);
    Tensor::cat(vec![top, sum, target], 1)
}

fn plain_backward(logits: Tensor<2>, statistics: &Tensor<2>, targets: &[u32], first: usize, scale: f32) -> Tensor<2> {
    let ([n, v], dtype) = (logits.dims(), logits.dtype());
    let logits = logits.cast(burn::tensor::DType::F32);
    let (index, here) = places(targets, first, v, &logits);
    let column = |i: usize| statistics.clone().slice([0..n, i..i + 1]);
    let probabilities = (logits - column(0)).exp() / column(1);
    (probabilities.scatter(1, index.reshape([n, 1]), here.neg(), IndexingUpdateOp::Add) * scale).cast(dtype)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, gradients, random};
    use super::*;
    use burn::tensor::{Device, Int, TensorData, activation};

    fn loss_of(rows: &[&[f32]], target: u32) -> f64 {
        let mut first = 0;
        let mut parts = Vec::new();
        for row in rows {
            let logits = Tensor::<2>::from_data(TensorData::new(row.to_vec(), [1, row.len()]), &Device::flex());
            parts.push(statistics(&logits, &[target], first));
            first += row.len();
        }
        f64::from(losses(&merge(&parts)).into_scalar::<f32>())
    }

    /// Field case: logits 1, 2, 3, 4, target 3, over two ranks.
    #[test]
    fn a_vocabulary_over_two_ranks_gives_the_loss_of_one() {
        for split in [&[&[1.0f32, 2.0, 3.0, 4.0][..]][..], &[&[1.0, 2.0], &[3.0, 4.0]], &[&[1.0, 2.0, 3.0], &[4.0]]] {
            let loss = loss_of(split, 3);
            assert!((loss - 0.440_190).abs() < 1e-6, "{loss}");
            assert!((loss - 1.133_337).abs() > 0.1, "ln 2 too much: the ranks' sums were added twice");
        }
        let padded = loss_of(&[&[1.0, 2.0, 3.0], &[4.0, 0.0]], 3);
        assert!((padded - 0.451_914).abs() < 1e-6, "what a padded column would do: {padded}");
    }

    #[test]
    fn gradients_are_those_of_autodiff() {
        let (logits, targets) = (random([6, 20]) * 3.0, [3u32, 19, 0, 7, 7, 12]);
        let index = Tensor::<2, Int>::from_ints([[3], [19], [0], [7], [7], [12]], &Device::flex());
        let plain = |x: Tensor<2>, _: Tensor<1>| {
            let rows: Tensor<2> = activation::log_softmax(x, 1).gather(1, index.clone()).neg();
            rows
        };
        let (want, _) = gradients(&logits, &random([1]), &Tensor::full([6, 1], 0.25, &Device::flex()), plain);
        let whole = statistics(&logits, &targets, 0);
        assert_close(&plain_statistics(&logits, &targets, 0), &whole, 1e-6);
        assert_close(&losses(&whole).reshape([6, 1]), &plain(logits.clone(), random([1])), 1e-5);
        assert_close(&backward(logits.clone(), &whole, &targets, 0, 0.25), &want, 1e-6);
        assert_close(&plain_backward(logits.clone(), &whole, &targets, 0, 0.25), &want, 1e-6);
        // Shards of unequal size.
        let shard = |from: usize, to: usize| logits.clone().slice([0..6, from..to]);
        let merged = merge(&[statistics(&shard(0, 13), &targets, 0), statistics(&shard(13, 20), &targets, 13)]);
        assert_close(&merged, &whole, 1e-6);
        let made = Tensor::cat(
            vec![
                backward(shard(0, 13), &merged, &targets, 0, 0.25),
                backward(shard(13, 20), &merged, &targets, 13, 0.25),
            ],
            1,
        );
        assert_close(&made, &want, 1e-6);
    }

    #[test]
    fn a_nan_stays_visible() {
        let logits = Tensor::<2>::from_data([[1.0, f32::NAN, 2.0]], &Device::flex());
        assert!(losses(&statistics(&logits, &[0], 0)).into_scalar::<f32>().is_nan());
    }
}
