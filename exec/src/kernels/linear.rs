//! Linear layers: a product forward, two backward.
//!
//! One law: gradients of weights are added up where the sum stands, without a pass of their own.

use super::cpu::{Rows, edit, is_cpu, make};
use super::gemm::{Matrix, multiply};
use burn::tensor::Tensor;

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[in, out]`, as GPT-2's Conv1D.
    InOut,
    /// `[out, in]`, as PyTorch's Linear.
    OutIn,
}

/// `x` `[N, in]` times a weight, plus a bias `[out]`: `[N, out]`.
pub fn forward(x: &Tensor<2>, weight: &Tensor<2>, layout: Layout, bias: Option<&Tensor<1>>) -> Tensor<2> {
    let turned = layout == Layout::OutIn;
    if let Some(product) = product(x, weight, turned, bias) {
        return product;
    }
    let weight = if turned { weight.clone().transpose() } else { weight.clone() };
    let y = x.clone().matmul(weight);
    match bias {
        Some(bias) => y + bias.clone().unsqueeze::<2>(),
        None => y,
    }
}

/// The gradient of the input `[N, in]` from that of the output `[N, out]`.
pub fn input(gradient: &Tensor<2>, weight: &Tensor<2>, layout: Layout) -> Tensor<2> {
    let turned = layout == Layout::InOut;
    product(gradient, weight, turned, None).unwrap_or_else(|| {
        let weight = if turned { weight.clone().transpose() } else { weight.clone() };
        gradient.clone().matmul(weight)
    })
}

/// The gradient of the weight from the input `[N, in]` and the gradient of the output `[N, out]`, added to `onto`.
pub fn weight(x: &Tensor<2>, gradient: &Tensor<2>, layout: Layout, onto: Option<Tensor<2>>) -> Tensor<2> {
    let (left, right) = match layout {
        Layout::InOut => (x, gradient),
        Layout::OutIn => (gradient, x),
    };
    let (rows, columns) = (left.dims()[1], right.dims()[1]);
    if let (Some(a), Some(b), true) = (Rows::of(left), Rows::of(right), onto.as_ref().is_none_or(is_cpu)) {
        let (a, b) = (Matrix::of(&a).transposed(), Matrix::of(&b));
        return match onto {
            Some(onto) => edit(onto, |out| multiply(out, columns, true, a, b, 1.0)).unwrap_or_else(|onto| onto),
            None => make([rows, columns], &x.device(), |out| multiply(out, columns, false, a, b, 1.0)),
        };
    }
    let made = left.clone().transpose().matmul(right.clone());
    match onto {
        Some(onto) => onto + made,
        None => made,
    }
}

/// The gradient of the bias, the sum over the rows of that of the output `[N, out]`, added to `onto`.
pub fn bias(gradient: &Tensor<2>, onto: Option<Tensor<1>>) -> Tensor<1> {
    let [_, columns] = gradient.dims();
    if let (Some(rows), true) = (Rows::by_row(gradient), onto.as_ref().is_none_or(is_cpu)) {
        let add = |out: &mut [f32]| {
            for row in rows.storage().chunks(rows.strides[0].max(1)).take(rows.dims[0]) {
                for (sum, x) in out.iter_mut().zip(row) {
                    *sum += x;
                }
            }
        };
        return match onto {
            Some(onto) => edit(onto, add).unwrap_or_else(|onto| onto),
            None => make([columns], &gradient.device(), add),
        };
    }
    let made = gradient.clone().sum_dim(0).reshape([columns]);
    match onto {
        Some(onto) => onto + made,
        None => made,
    }
}

/// `x` times a matrix or, `turned`, its transpose, the bias in every row.
fn product(x: &Tensor<2>, matrix: &Tensor<2>, turned: bool, bias: Option<&Tensor<1>>) -> Option<Tensor<2>> {
    let (a, b) = (Rows::of(x)?, Rows::of(matrix)?);
    let (a, b) = (Matrix::of(&a), Matrix::of(&b));
    let b = if turned { b.transposed() } else { b };
    let (rows, columns) = (a.dims[0], b.dims[1]);
    let bias = bias.map(super::cpu::Values::of);
    let bias = match &bias {
        Some(None) => return None,
        Some(Some(values)) => Some(values.slice()),
        None => None,
    };
    Some(make([rows, columns], &x.device(), |out| {
        if let Some(bias) = bias {
            out.chunks_exact_mut(columns.max(1)).for_each(|row| row.copy_from_slice(bias));
        }
        multiply(out, columns, bias.is_some(), a, b, 1.0);
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, gradients, random, wide};
    use super::*;

    #[test]
    fn both_layouts_are_those_of_autodiff() {
        let (x, g) = (random([10, 7]), random([10, 5]));
        let b = random([5]);
        for layout in [Layout::InOut, Layout::OutIn] {
            let w = if layout == Layout::InOut { random([7, 5]) } else { random([5, 7]) };
            let plain = |x: Tensor<2>, w: Tensor<2>| {
                let w = if layout == Layout::InOut { w } else { w.transpose() };
                x.matmul(w)
            };
            let y = forward(&x, &w, layout, Some(&b));
            assert_close(&y, &(plain(x.clone(), w.clone()) + b.clone().unsqueeze::<2>()), 1e-5);
            let (dx, dw) = gradients(&x, &w, &g, plain);
            assert_close(&input(&g, &w, layout), &dx, 1e-5);
            assert_close(&weight(&x, &g, layout, None), &dw, 1e-5);
            let onto = random(w.dims());
            assert_close(&weight(&x, &g, layout, Some(onto.clone())), &(onto + dw), 1e-5);
        }
        let onto = random([5]);
        assert_close(&bias(&g, Some(onto.clone())), &(onto + g.clone().sum_dim(0).reshape([5])), 1e-5);
    }

    #[test]
    fn views_and_other_formats_give_the_same() {
        let (big, g, w) = (random([10, 20]), random([10, 5]), random([7, 5]));
        let x = big.slice([0..10, 3..10]);
        let dense = x.clone() * 1.0;
        assert_close(&forward(&x, &w, Layout::InOut, None), &forward(&dense, &w, Layout::InOut, None), 0.0);
        assert_close(&weight(&x, &g, Layout::InOut, None), &weight(&dense, &g, Layout::InOut, None), 0.0);
        let slow = wide(&forward(
            &x.clone().cast(burn::tensor::DType::F64),
            &w.clone().cast(burn::tensor::DType::F64),
            Layout::InOut,
            None,
        ));
        assert_close(&forward(&x, &w, Layout::InOut, None), &slow, 1e-5);
        let part = random([10, 9]).slice([0..10, 2..7]);
        assert_close(&bias(&part, None), &part.clone().sum_dim(0).reshape([5]), 1e-5);
    }
}
