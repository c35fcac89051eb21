//! Attention in burn's own operations, for every device and format.

use super::{Attended, AttentionShape, Gradients, NOTHING, Operands, Sight};
use burn::tensor::{Tensor, TensorData, activation};

/// Added to scores that are not seen.
const HIDDEN: f32 = -1e30;

/// `[B S, heads D]` as `[B, heads, S, D]`.
fn split(x: &Tensor<2>, batch: usize, heads: usize, dim: usize) -> Tensor<4> {
    let [n, _] = x.dims();
    x.clone().reshape([batch, n / batch.max(1), heads, dim]).swap_dims(1, 2)
}

/// The inverse.
fn join(x: Tensor<4>) -> Tensor<2> {
    let [b, a, s, d] = x.dims();
    x.swap_dims(1, 2).reshape([b * s, a * d])
}

/// A key-value head for each query head.
fn for_every_head(x: &Tensor<2>, shape: &AttentionShape) -> Tensor<4> {
    let x = split(x, shape.batch, shape.groups, shape.dim);
    let [b, g, s, d] = x.dims();
    let times = shape.sharing();
    if times == 1 { x } else { x.reshape([b, g, 1, s * d]).repeat_dim(2, times).reshape([b, g * times, s, d]) }
}

/// The sum over the query heads of each key-value head.
fn of_groups(x: Tensor<4>, shape: &AttentionShape) -> Tensor<2> {
    let [b, a, s, d] = x.dims();
    let times = shape.sharing();
    join(if times == 1 { x } else { x.reshape([b, a / times, times, s * d]).sum_dim(2).reshape([b, a / times, s, d]) })
}

/// Scaled scores `[B, A, Sq, Sk]`; what is not seen is very small.
fn scores(operands: &Operands<'_>) -> Tensor<4> {
    let Operands { queries, keys, shape, sight, .. } = operands;
    let queries = split(queries, shape.batch, shape.heads, shape.dim);
    let scores = queries.matmul(for_every_head(keys, shape).transpose()) * shape.scale();
    let (seen, all) = (sight.seen(), sight.key_positions().len());
    let hidden: Vec<f32> =
        seen.iter().flat_map(|seen| (0..all).map(move |key| if key < *seen { 0.0 } else { HIDDEN })).collect();
    let mask = Tensor::<2>::from_data(TensorData::new(hidden, [seen.len(), all]), &scores.device());
    let dtype = scores.dtype();
    scores + mask.cast(dtype).unsqueeze::<4>()
}

/// What each probability is multiplied by.
pub(super) fn kept(like: &Tensor<4>, sight: &Sight<'_>) -> Option<Tensor<4>> {
    let dropout = sight.dropout?;
    let [b, a, sq, sk] = like.dims();
    let (queries, keys) = (sight.query_positions(), sight.key_positions());
    let mut factors = Vec::with_capacity(b * a * sq * sk);
    for sequence in sight.sequences {
        for head in 0..a {
            let dropout = dropout.of_head(*sequence, sight.first_head + head);
            for query in &queries {
                factors.extend(keys.iter().map(|key| dropout.factor((*query as u64) << 32 | *key as u64)));
            }
        }
    }
    Some(Tensor::<4>::from_data(TensorData::new(factors, [b, a, sq, sk]), &like.device()).cast(like.dtype()))
}

fn dropped(probabilities: &Tensor<4>, factors: Option<&Tensor<4>>) -> Tensor<4> {
    factors.map_or_else(|| probabilities.clone(), |factors| probabilities.clone() * factors.clone())
}

pub(super) fn forward(operands: &Operands<'_>) -> Attended {
    let Operands { values, shape, sight, .. } = operands;
    let scores = scores(operands);
    let [b, a, sq, _] = scores.dims();
    let top = scores.clone().max_dim(3).clamp_min(NOTHING / 2.0);
    let weights = (scores - top.clone()).exp();
    let sum = weights.clone().sum_dim(3);
    let nothing = sum.clone().equal_elem(0.0);
    let lse = (sum.clone().log() + top).mask_fill(nothing.clone(), NOTHING).reshape([b, a, sq]);
    let factors = kept(&weights, sight);
    let output =
        dropped(&weights, factors.as_ref()).matmul(for_every_head(values, shape)) / sum.mask_fill(nothing, 1.0);
    Attended { output: join(output), lse }
}

pub(super) fn merge(one: Attended, other: Attended, shape: &AttentionShape) -> Attended {
    let [b, a, sq] = one.lse.dims();
    let top = one.lse.clone().max_pair(other.lse.clone());
    let (first, second) = ((one.lse - top.clone()).exp(), (other.lse - top.clone()).exp());
    let sum = first.clone() + second.clone();
    let weighed = |output: &Tensor<2>, weight: Tensor<3>| {
        split(output, shape.batch, shape.heads, shape.dim)
            * (weight / sum.clone()).reshape([b, a, sq, 1]).cast(output.dtype())
    };
    let output = weighed(&one.output, first) + weighed(&other.output, second);
    Attended { output: join(output), lse: top + sum.log() }
}

pub(super) fn backward(operands: &Operands<'_>, attended: &Attended, gradient: &Tensor<2>) -> Gradients {
    let shape = operands.shape;
    let scores = scores(operands);
    let [b, a, sq, _] = scores.dims();
    let lse = attended.lse.clone().clamp_min(NOTHING / 2.0).reshape([b, a, sq, 1]).cast(scores.dtype());
    let probabilities = (scores - lse).exp();
    let output = split(&attended.output, shape.batch, shape.heads, shape.dim);
    let gradient = split(gradient, shape.batch, shape.heads, shape.dim);
    let along = (output * gradient.clone()).sum_dim(3);
    gradients(operands, &probabilities, gradient, along)
}

pub(super) fn forward_standard(operands: &Operands<'_>) -> (Tensor<2>, Tensor<4>) {
    let Operands { values, shape, sight, .. } = operands;
    let probabilities = activation::softmax(scores(operands), 3);
    let factors = kept(&probabilities, sight);
    let output = dropped(&probabilities, factors.as_ref()).matmul(for_every_head(values, shape));
    (join(output), probabilities)
}

pub(super) fn backward_standard(operands: &Operands<'_>, probabilities: &Tensor<4>, gradient: &Tensor<2>) -> Gradients {
    let Operands { values, shape, sight, .. } = operands;
    let gradient = split(gradient, shape.batch, shape.heads, shape.dim);
    let of_probabilities = gradient.clone().matmul(for_every_head(values, shape).transpose());
    let factors = kept(probabilities, sight);
    let along = (dropped(&of_probabilities, factors.as_ref()) * probabilities.clone()).sum_dim(3);
    gradients(operands, probabilities, gradient, along)
}

/// The gradients from the probabilities, the gradient of the output by heads, and for each row the sum of output times
/// gradient.
fn gradients(operands: &Operands<'_>, probabilities: &Tensor<4>, gradient: Tensor<4>, along: Tensor<4>) -> Gradients {
    let Operands { queries, keys, values, shape, sight } = operands;
    let factors = kept(probabilities, sight);
    let of_values = dropped(probabilities, factors.as_ref()).transpose().matmul(gradient.clone());
    let of_probabilities = gradient.matmul(for_every_head(values, shape).transpose());
    let of_probabilities = dropped(&of_probabilities, factors.as_ref());
    let of_scores = probabilities.clone() * (of_probabilities - along) * shape.scale();
    let of_queries = of_scores.clone().matmul(for_every_head(keys, shape));
    let of_keys = of_scores.transpose().matmul(split(queries, shape.batch, shape.heads, shape.dim));
    Gradients { queries: join(of_queries), keys: of_groups(of_keys, shape), values: of_groups(of_values, shape) }
}
