//! Where tokens stand in a rank's shard of the vocabulary.
//!
//! One law: a token of another shard has no place here.

use burn::tensor::{Int, Tensor, TensorData};

/// The row of a token in a shard of `rows` rows that begins with token `first`.
pub(super) fn place(token: u32, first: usize, rows: usize) -> Option<usize> {
    (token as usize).checked_sub(first).filter(|at| *at < rows)
}

/// The rows of tokens `[N]`, 0 for those of other shards, and `[N, 1]`, in the format of `like`, 1 for those of this one and
/// 0 for the others.
pub(super) fn places(tokens: &[u32], first: usize, rows: usize, like: &Tensor<2>) -> (Tensor<1, Int>, Tensor<2>) {
    let places: Vec<Option<usize>> = tokens.iter().map(|token| place(*token, first, rows)).collect();
    let index: Vec<i32> = places.iter().map(|at| i32::try_from(at.unwrap_or(0)).unwrap_or(0)).collect();
    let here: Vec<f32> = places.iter().map(|at| f32::from(u8::from(at.is_some()))).collect();
    let n = tokens.len();
    let here = Tensor::<2>::from_data(TensorData::new(here, [n, 1]), &like.device()).cast(like.dtype());
    (Tensor::from_data(TensorData::new(index, [n]), &like.device()), here)
}
