use super::dropout::Dropout;
use burn::tensor::{Tensor, TensorData};
use std::ops::Range;
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape { pub batch: usize, pub heads: usize, pub groups: usize, pub dim: usize }
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> { pub queries: &'a [Range<usize>], pub keys: &'a [Range<usize>], pub sequences: &'a [u64], pub first_head: usize, pub dropout: Option<Dropout> }
#[derive(Clone, Debug)]
pub struct Attended { pub output: Tensor<2>, pub lse: Tensor<3> }
pub struct Gradients { pub queries: Tensor<2>, pub keys: Tensor<2>, pub values: Tensor<2> }
fn split(x: &Tensor<2>, batch: usize, heads: usize, dim: usize) -> Tensor<4> {
    let [n, _] = x.dims();
    x.clone().reshape([batch, n / batch, heads, dim]).swap_dims(1, 2)
}
fn join(x: Tensor<4>) -> Tensor<2> {
    let [b, a, s, d] = x.dims();
    x.swap_dims(1, 2).reshape([b * s, a * d])
}
fn expand(x: Tensor<4>, times: usize) -> Tensor<4> {
    let [b, g, s, d] = x.dims();
    if times == 1 { return x; }
    x.reshape([b, g, 1, s * d]).repeat_dim(2, times).reshape([b, g * times, s, d])
}
fn contract(x: Tensor<4>, groups: usize) -> Tensor<4> {
    let [b, a, s, d] = x.dims();
    if a == groups { return x; }
    x.reshape([b, groups, a / groups, s * d]).sum_dim(2).reshape([b, groups, s, d])
}
fn mask(x: &Tensor<4>, sight: &Sight<'_>) -> Tensor<4> {
    let q: Vec<usize> = sight.queries.iter().cloned().flatten().collect();
    let k: Vec<usize> = sight.keys.iter().cloned().flatten().collect();
    let v: Vec<f32> = q.iter().flat_map(|i| k.iter().map(move |j| if j <= i { 0.0 } else { -1e30 })).collect();
    Tensor::<2>::from_data(TensorData::new(v, [q.len(), k.len()]), &x.device()).unsqueeze::<4>()
}
fn drop_mask(x: &Tensor<4>, sight: &Sight<'_>) -> Option<Tensor<4>> {
    let d = sight.dropout?;
    let [_, a, sq, sk] = x.dims();
    let q: Vec<usize> = sight.queries.iter().cloned().flatten().collect();
    let k: Vec<usize> = sight.keys.iter().cloned().flatten().collect();
    let mut v = Vec::new();
    for s in sight.sequences { for h in 0..a { for i in &q { for j in &k {
        let id = ((s * 4096 + (sight.first_head + h) as u64) << 40) ^ ((*i as u64) << 20) ^ *j as u64;
        v.push(d.factor(id));
    } } } }
    Some(Tensor::<4>::from_data(TensorData::new(v, [sight.sequences.len(), a, sq, sk]), &x.device()))
}
fn scores(q: &Tensor<2>, k: &Tensor<2>, s: &AttentionShape, sight: &Sight<'_>) -> Tensor<4> {
    let scale = (s.dim as f64).sqrt().recip();
    let q = split(q, s.batch, s.heads, s.dim);
    let k = expand(split(k, s.batch, s.groups, s.dim), s.heads / s.groups);
    let x = q.matmul(k.transpose()) * scale;
    let m = mask(&x, sight);
    x + m
}
pub fn forward(q: &Tensor<2>, k: &Tensor<2>, v: &Tensor<2>, s: &AttentionShape, sight: &Sight<'_>) -> Attended {
    let x = scores(q, k, s, sight);
    let top = x.clone().max_dim(3).clamp_min(-1e20);
    let e = (x - top.clone()).exp();
    let sum = e.clone().sum_dim(3);
    let [b, a, sq, _] = sum.dims();
    let lse = (sum.clone().log() + top).clamp_min(-1e20).reshape([b, a, sq]);
    let e = match drop_mask(&e, sight) { Some(m) => e * m, None => e };
    let v = expand(split(v, s.batch, s.groups, s.dim), s.heads / s.groups);
    let o = e.matmul(v) / sum.clamp_min(1e-30);
    Attended { output: join(o), lse }
}
pub fn merge(one: Attended, two: Attended, s: &AttentionShape) -> Attended {
    let [b, a, sq] = one.lse.dims();
    let top = one.lse.clone().max_pair(two.lse.clone());
    let (w1, w2) = ((one.lse - top.clone()).exp(), (two.lse - top.clone()).exp());
    let sum = w1.clone() + w2.clone();
    let lse = top + sum.clone().log();
    let weigh = |o: Tensor<2>, w: Tensor<3>| split(&o, s.batch, s.heads, s.dim) * (w / sum.clone()).reshape([b, a, sq, 1]);
    let o = weigh(one.output, w1) + weigh(two.output, w2);
    Attended { output: join(o), lse }
}
pub fn backward(q: &Tensor<2>, k: &Tensor<2>, v: &Tensor<2>, at: &Attended, g: &Tensor<2>, s: &AttentionShape, sight: &Sight<'_>) -> Gradients {
    let x = scores(q, k, s, sight);
    let [b, a, sq, _] = x.dims();
    let p = (x - at.lse.clone().reshape([b, a, sq, 1])).exp();
    let o = split(&at.output, s.batch, s.heads, s.dim);
    let g4 = split(g, s.batch, s.heads, s.dim);
    let delta = (o * g4.clone()).sum_dim(3);
    finish(q, k, v, p, g4, delta, s, sight)
}
#[expect(clippy::too_many_arguments, reason = "inner")]
fn finish(q: &Tensor<2>, k: &Tensor<2>, v: &Tensor<2>, p: Tensor<4>, g4: Tensor<4>, delta: Tensor<4>, s: &AttentionShape, sight: &Sight<'_>) -> Gradients {
    let times = s.heads / s.groups;
    let scale = (s.dim as f64).sqrt().recip();
    let m = drop_mask(&p, sight);
    let pd = match &m { Some(m) => p.clone() * m.clone(), None => p.clone() };
    let dv = pd.transpose().matmul(g4.clone());
    let v4 = expand(split(v, s.batch, s.groups, s.dim), times);
    let dp = g4.matmul(v4.transpose());
    let dp = match m { Some(m) => dp * m, None => dp };
    let ds = p * (dp - delta) * scale;
    let q4 = split(q, s.batch, s.heads, s.dim);
    let k4 = expand(split(k, s.batch, s.groups, s.dim), times);
    let dq = ds.clone().matmul(k4);
    let dk = ds.transpose().matmul(q4);
    Gradients { queries: join(dq), keys: join(contract(dk, s.groups)), values: join(contract(dv, s.groups)) }
}
pub fn forward_standard(q: &Tensor<2>, k: &Tensor<2>, v: &Tensor<2>, s: &AttentionShape, sight: &Sight<'_>) -> (Tensor<2>, Tensor<4>) {
    let p = burn::tensor::activation::softmax(scores(q, k, s, sight), 3);
    let pd = match drop_mask(&p, sight) { Some(m) => p.clone() * m, None => p.clone() };
    let v = expand(split(v, s.batch, s.groups, s.dim), s.heads / s.groups);
    (join(pd.matmul(v)), p)
}
pub fn backward_standard(q: &Tensor<2>, k: &Tensor<2>, v: &Tensor<2>, p: &Tensor<4>, g: &Tensor<2>, s: &AttentionShape, sight: &Sight<'_>) -> Gradients {
    let g4 = split(g, s.batch, s.heads, s.dim);
    let v4 = expand(split(v, s.batch, s.groups, s.dim), s.heads / s.groups);
    let dp = g4.clone().matmul(v4.transpose());
    let dp = match drop_mask(p, sight) { Some(m) => dp * m, None => dp };
    let delta = (dp * p.clone()).sum_dim(3);
    finish(q, k, v, p.clone(), g4, delta, s, sight)
}
