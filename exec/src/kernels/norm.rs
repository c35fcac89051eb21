use burn::tensor::Tensor;
pub struct NormWeights<'a> { pub scale: &'a Tensor<1>, pub shift: Option<&'a Tensor<1>>, pub epsilon: f64 }
pub struct NormGradients { pub input: Tensor<2>, pub scale: Tensor<1>, pub shift: Option<Tensor<1>> }
fn normalised(x: &Tensor<2>, stats: &Tensor<2>) -> Tensor<2> {
    let [n, _] = x.dims();
    (x.clone() - stats.clone().slice([0..n, 0..1])) * stats.clone().slice([0..n, 1..2])
}
pub fn forward(x: &Tensor<2>, w: &NormWeights<'_>) -> (Tensor<2>, Tensor<2>) {
    let mean = if w.shift.is_some() { x.clone().mean_dim(1) } else { x.clone().mean_dim(1) * 0.0 };
    let c = x.clone() - mean.clone();
    let inv = (c.clone().square().mean_dim(1) + w.epsilon).sqrt().recip();
    let stats = Tensor::cat(vec![mean, inv], 1);
    let y = normalised(x, &stats) * w.scale.clone().unsqueeze::<2>();
    (match w.shift { Some(s) => y + s.clone().unsqueeze::<2>(), None => y }, stats)
}
pub fn backward(x: &Tensor<2>, stats: &Tensor<2>, w: &NormWeights<'_>, dy: &Tensor<2>, onto: Option<Tensor<2>>) -> NormGradients {
    let [n, h] = x.dims();
    let norm = normalised(x, stats);
    let scale = (dy.clone() * norm.clone()).sum_dim(0).reshape([h]);
    let shift = w.shift.map(|_| dy.clone().sum_dim(0).reshape([h]));
    let g = dy.clone() * w.scale.clone().unsqueeze::<2>();
    let along = (g.clone() * norm.clone()).mean_dim(1);
    let mut dx = g.clone() - norm * along;
    if w.shift.is_some() { dx = dx - g.mean_dim(1); }
    let dx = dx * stats.clone().slice([0..n, 1..2]);
    NormGradients { input: match onto { Some(o) => o + dx, None => dx }, scale, shift }
}
