use burn::tensor::{Tensor, TensorData};
use std::ops::Range;
pub fn rotate(x: &Tensor<2>, batch: usize, dim: usize, runs: &[Range<usize>], inv: &[f32], back: bool) -> Tensor<2> {
    let [n, w] = x.dims();
    let (s, heads, half) = (n / batch, w / dim, dim / 2);
    let angles: Vec<f32> = runs.iter().cloned().flatten().flat_map(|p| inv.iter().map(move |f| p as f32 * f)).collect();
    let a = Tensor::<4>::from_data(TensorData::new(angles, [1, s, 1, half]), &x.device());
    let (cos, sin) = (a.clone().cos(), if back { a.sin().neg() } else { a.sin() });
    let x = x.clone().reshape([batch, s, heads, dim]);
    let (l, r) = (x.clone().slice([0..batch, 0..s, 0..heads, 0..half]), x.slice([0..batch, 0..s, 0..heads, half..dim]));
    let nl = l.clone() * cos.clone() - r.clone() * sin.clone();
    let nr = r * cos + l * sin;
    Tensor::cat(vec![nl, nr], 3).reshape([n, w])
}
