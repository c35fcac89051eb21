use burn::tensor::{Tensor, TensorData};
pub fn forward(table: &Tensor<2>, tokens: &[u32], first: usize) -> Tensor<2> {
    let [v, h] = table.dims();
    let data: Vec<f32> = table.clone().into_data().iter().collect();
    let mut out = vec![0.0f32; tokens.len() * h];
    for (row, t) in out.chunks_exact_mut(h).zip(tokens) {
        if let Some(j) = (*t as usize).checked_sub(first).filter(|j| *j < v) { row.copy_from_slice(&data[j * h..(j + 1) * h]); }
    }
    Tensor::from_data(TensorData::new(out, [tokens.len(), h]), &table.device())
}
pub fn weight(dy: &Tensor<2>, tokens: &[u32], first: usize, rows: usize, onto: Option<Tensor<2>>) -> Tensor<2> {
    let [_, h] = dy.dims();
    let data: Vec<f32> = dy.clone().into_data().iter().collect();
    let mut out = match &onto { Some(o) => o.clone().into_data().iter().collect(), None => vec![0.0f32; rows * h] };
    for (row, t) in data.chunks_exact(h).zip(tokens) {
        if let Some(j) = (*t as usize).checked_sub(first).filter(|j| *j < rows) {
            out[j * h..(j + 1) * h].iter_mut().zip(row).for_each(|(a, b)| *a += b);
        }
    }
    Tensor::from_data(TensorData::new(out, [rows, h]), &dy.device())
}
