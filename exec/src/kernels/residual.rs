use super::dropout::{Dropout, Rows};
use burn::tensor::Tensor;
pub fn add(stream: Tensor<2>, x: &Tensor<2>, bias: Option<&Tensor<1>>, dropout: Option<(&Dropout, &Rows)>) -> Tensor<2> {
    let x = match bias { Some(b) => x.clone() + b.clone().unsqueeze::<2>(), None => x.clone() };
    stream + backward(&x, dropout)
}
pub fn backward(g: &Tensor<2>, dropout: Option<(&Dropout, &Rows)>) -> Tensor<2> {
    match dropout { Some((d, rows)) => g.clone() * d.mask(rows, &g.device()), None => g.clone() }
}
