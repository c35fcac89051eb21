//! The residual stream: what is added to it, with bias and dropout.
//!
//! One law: what drops out is decided by an element's place in the whole model alone ([`Dropout`]).

use super::cpu::{Values, edit, is_cpu};
use super::dropout::{Dropout, Rows};
use burn::tensor::Tensor;

/// `stream + dropout(x + bias)`, all `[N, H]` but the bias `[H]`.
pub fn add(
    stream: Tensor<2>,
    x: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    dropout: Option<(&Dropout, &Rows)>,
) -> Tensor<2> {
    let [_, h] = stream.dims();
    let fast = is_cpu(&stream) && bias.is_none_or(is_cpu);
    let Some(values) = Values::of(x).filter(|_| fast) else { return plain_add(stream, x, bias, dropout) };
    let bias = bias.and_then(Values::of);
    let none = vec![0.0; h];
    let bias = bias.as_ref().map_or(none.as_slice(), Values::slice);
    let changed = edit(stream, |stream| {
        let rows = stream.chunks_exact_mut(h).zip(values.slice().chunks_exact(h));
        match dropout {
            None => {
                for (stream, x) in rows {
                    for ((stream, x), bias) in stream.iter_mut().zip(x).zip(bias) {
                        *stream += x + bias;
                    }
                }
            }
            Some((dropout, ids)) => {
                for ((stream, x), first) in rows.zip(ids.firsts()) {
                    for (((stream, x), bias), id) in stream.iter_mut().zip(x).zip(bias).zip(first..) {
                        *stream += (x + bias) * dropout.factor(id);
                    }
                }
            }
        }
    });
    changed.unwrap_or_else(|stream| stream)
}

/// The gradient of what was added, from that of the stream `[N, H]`.
pub fn backward(gradient: &Tensor<2>, dropout: Option<(&Dropout, &Rows)>) -> Tensor<2> {
    match dropout {
        None => gradient.clone(),
        Some((dropout, rows)) => gradient.clone() * dropout.mask(rows, gradient.dtype(), &gradient.device()),
    }
}

fn plain_add(
    stream: Tensor<2>,
    x: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    dropout: Option<(&Dropout, &Rows)>,
) -> Tensor<2> {
    let x = match bias {
        Some(bias) => x.clone() + bias.clone().unsqueeze::<2>(),
        None => x.clone(),
    };
    stream + backward(&x, dropout)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, random};
    use super::*;

    #[test]
    fn bias_and_dropout_come_before_the_sum() {
        let (stream, x, bias) = (random([6, 10]), random([6, 10]), random([10]));
        let rows = Rows { ids: vec![3, 4, 5, 90, 91, 92], width: 10 };
        let dropout = Dropout { key: 11, rate: 0.4 };
        for bias in [Some(&bias), None] {
            for dropout in [Some((&dropout, &rows)), None] {
                let fast = add(stream.clone(), &x, bias, dropout);
                assert_close(&fast, &plain_add(stream.clone(), &x, bias, dropout), 1e-6);
            }
        }
        let dropped = add(stream.clone(), &x, None, Some((&dropout, &rows)));
        let same: Vec<bool> =
            (dropped - stream).into_data().iter::<f32>().map(|difference| difference == 0.0).collect();
        let gradient = backward(&Tensor::ones([6, 10], &x.device()), Some((&dropout, &rows)));
        let zero: Vec<bool> = gradient.into_data().iter::<f32>().map(|g| g == 0.0).collect();
        assert!(zero.iter().any(|z| *z) && !zero.iter().all(|z| *z));
        assert_eq!(same, zero, "backward drops what forward dropped");
    }
}
