use burn::tensor::{Tensor, TensorData};
pub fn statistics(logits: &Tensor<2>, targets: &[u32], first: usize) -> Tensor<2> {
    let [n, v] = logits.dims();
    let data: Vec<f32> = logits.clone().into_data().iter().collect();
    let mut out = Vec::with_capacity(3 * n);
    for (row, t) in data.chunks_exact(v).zip(targets) {
        let top = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let sum: f32 = row.iter().map(|x| (x - top).exp()).sum();
        let target = (*t as usize).checked_sub(first).and_then(|t| row.get(t)).copied().unwrap_or(f32::NEG_INFINITY);
        out.extend([top, sum, target]);
    }
    Tensor::from_data(TensorData::new(out, [n, 3]), &logits.device())
}
pub fn merge(parts: &[Tensor<2>]) -> Tensor<2> {
    let device = parts[0].device();
    let all: Vec<Vec<f32>> = parts.iter().map(|p| p.clone().into_data().iter().collect()).collect();
    let n = all[0].len() / 3;
    let mut out = Vec::with_capacity(3 * n);
    for i in 0..n {
        let top = all.iter().fold(f32::NEG_INFINITY, |a, p| a.max(p[3 * i]));
        let sum: f32 = all.iter().map(|p| p[3 * i + 1] * (p[3 * i] - top).exp()).sum();
        let target = all.iter().fold(f32::NEG_INFINITY, |a, p| a.max(p[3 * i + 2]));
        out.extend([top, sum, target]);
    }
    Tensor::from_data(TensorData::new(out, [n, 3]), &device)
}
pub fn losses(stats: &Tensor<2>) -> Tensor<1> {
    let [n, _] = stats.dims();
    let c = |i: usize| stats.clone().slice([0..n, i..i + 1]);
    (c(0) + c(1).log() - c(2)).reshape([n])
}
pub fn backward(logits: Tensor<2>, stats: &Tensor<2>, targets: &[u32], first: usize, scale: f32) -> Tensor<2> {
    let [n, v] = logits.dims();
    let c = |i: usize| stats.clone().slice([0..n, i..i + 1]);
    let p = (logits - c(0)).exp() / c(1);
    let mut hot = vec![0.0f32; n * v];
    for (i, t) in targets.iter().enumerate() {
        if let Some(j) = (*t as usize).checked_sub(first).filter(|j| *j < v) { hot[i * v + j] = 1.0; }
    }
    (p.clone() - Tensor::from_data(TensorData::new(hot, [n, v]), &p.device())) * scale
}
