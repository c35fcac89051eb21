//! The costly operations of a transformer, each one node on the tape with its own backward.
//!
//! One law: a forward gives the same bits with and without a tape (recomputation relies on it), and forward and
//! backward run their steps in a fixed order, on every kind of device burn has.
//!
//! burn's own softmax, LayerNorm and cross-entropy fall apart into many small nodes under autodiff, each with its own
//! saved tensors; here each is one node that saves the least.
//!
//! Shapes: `B` sequences, `S` tokens, `H` hidden size, `A` heads, `D = H / A`, `V` vocabulary, `N = B S`.

use crate::autodiff::{custom_op, custom_op_with_vectors};
use crate::cpu;
use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, activation, module};

/// A causal mask `[S, S]`: 0 where a row may look, minus infinity where it may not.
pub fn causal_mask(seq_length: usize, device: &Device) -> Tensor<2> {
    let device = device.clone().without_autodiff();
    let hidden = Tensor::<2, Bool>::tril_mask([seq_length, seq_length], 0, &device);
    Tensor::zeros([seq_length, seq_length], &device).mask_fill(hidden, f32::NEG_INFINITY)
}

/// Causal multi-head attention: `qkv` `[B, S, 3 H]` (queries, keys, values side by side) and a mask `[S, S]` to
/// `[B, S, H]`. Keeps `qkv` and the probabilities `[B, A, S, S]` for the backward.
pub fn attention(qkv: Tensor<3>, mask: &Tensor<2>, heads: usize) -> Tensor<3> {
    let plain = qkv.clone();
    let fused = custom_op(qkv, |qkv| {
        let [b, s, h3] = qkv.dims();
        let (h, d) = (h3 / 3, h3 / 3 / heads);
        let scale = (d as f32).sqrt().recip();
        let [q, k, v] = split_heads(&qkv, heads);
        let scores = q.clone().matmul(k.clone().transpose());
        let p = cpu::causal_softmax(&scores, scale)
            .unwrap_or_else(|| activation::softmax(scores * scale + mask.clone().unsqueeze::<4>(), 3));
        let out = p.clone().matmul(v.clone());
        let out_bsh = join_heads(out.clone());
        let backward = move |grad: Tensor<3>| {
            let grad = grad.reshape([b, s, heads, d]).swap_dims(1, 2);
            let dv = p.clone().transpose().matmul(grad.clone());
            let dp = grad.clone().matmul(v.clone().transpose());
            // The softmax backward needs sum(dp * p) of each row, which is sum(grad * out) of the row.
            let along = (grad * out.clone()).sum_dim(3);
            let ds = (dp - along) * p.clone() * scale;
            let dq = ds.clone().matmul(k.clone());
            let dk = ds.transpose().matmul(q.clone());
            let parts = [dq, dk, dv].map(|x| x.swap_dims(1, 2).reshape([b, s, h]));
            Tensor::cat(parts.to_vec(), 2)
        };
        (out_bsh, backward)
    });
    fused.unwrap_or_else(|_| attention_plain(&plain, mask, heads))
}

/// [`attention`] through burn's own autodiff: for tapes that custom operations do not know, and to test against.
fn attention_plain(qkv: &Tensor<3>, mask: &Tensor<2>, heads: usize) -> Tensor<3> {
    let d = qkv.dims()[2] / 3 / heads;
    let [q, k, v] = split_heads(qkv, heads);
    let mask = if q.is_autodiff() { mask.clone().autodiff() } else { mask.clone() };
    let scores = q.matmul(k.transpose()) * (d as f32).sqrt().recip() + mask.unsqueeze::<4>();
    join_heads(activation::softmax(scores, 3).matmul(v))
}

/// `[B, S, 3 H]` to three views `[B, A, S, D]`.
fn split_heads(qkv: &Tensor<3>, heads: usize) -> [Tensor<4>; 3] {
    let [b, s, h3] = qkv.dims();
    let (h, d) = (h3 / 3, h3 / 3 / heads);
    [0, 1, 2].map(|i| {
        let part = qkv.clone().slice([0..b, 0..s, i * h..(i + 1) * h]);
        part.reshape([b, s, heads, d]).swap_dims(1, 2)
    })
}

/// `[B, A, S, D]` to `[B, S, H]`.
fn join_heads(x: Tensor<4>) -> Tensor<3> {
    let [b, heads, s, d] = x.dims();
    x.swap_dims(1, 2).reshape([b, s, heads * d])
}

/// GELU in its exact form, of every element. Keeps the input.
pub fn gelu(x: Tensor<3>) -> Tensor<3> {
    let plain = x.clone();
    let fused = custom_op(x, |x| {
        let out = cpu::gelu(&x).unwrap_or_else(|| activation::gelu(x.clone()));
        let backward = move |grad: Tensor<3>| {
            cpu::gelu_backward(&x, &grad).unwrap_or_else(|| {
                let cdf = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
                let density = (x.clone().square() * -0.5).exp() * (0.5 / std::f64::consts::PI).sqrt();
                grad * (cdf + x.clone() * density)
            })
        };
        (out, backward)
    });
    fused.unwrap_or_else(|_| activation::gelu(plain))
}

/// LayerNorm over the last dimension of `[B, S, H]` with scale and shift `[H]`.
pub fn layer_norm(x: Tensor<3>, scale: Tensor<1>, shift: Tensor<1>, epsilon: f64) -> Tensor<3> {
    let plain = (x.clone(), scale.clone(), shift.clone());
    let fused = custom_op_with_vectors(x, [scale, shift], |x, [scale, shift]| {
        let out = module::layer_norm(x.clone(), scale.clone(), Some(shift), epsilon);
        let backward = move |grad: Tensor<3>| layer_norm_backward(x.clone(), scale.clone(), grad, epsilon);
        (out, backward)
    });
    fused.unwrap_or_else(|_| module::layer_norm(plain.0, plain.1, Some(plain.2), epsilon))
}

/// With `n = (x - mean) / std` and `g = grad * scale`: `dx = (g - mean(g) - n mean(g n)) / std`.
fn layer_norm_backward(x: Tensor<3>, scale: Tensor<1>, grad: Tensor<3>, epsilon: f64) -> (Tensor<3>, [Tensor<1>; 2]) {
    let [b, s, h] = x.dims();
    let (x, grad) = (x.reshape([b * s, h]), grad.reshape([b * s, h]));
    let centered = x.clone() - x.mean_dim(1);
    let inv_std = (centered.clone().square().mean_dim(1) + epsilon).sqrt().recip();
    let n = centered * inv_std.clone();
    let dscale = (grad.clone() * n.clone()).sum_dim(0).reshape([h]);
    let dshift = grad.clone().sum_dim(0).reshape([h]);
    let g = grad * scale.unsqueeze::<2>();
    let along = (g.clone() * n.clone()).mean_dim(1);
    let dx = (g.clone() - g.mean_dim(1) - n * along) * inv_std;
    (dx.reshape([b, s, h]), [dscale, dshift])
}

/// Sum over the tokens of the cross-entropy of `logits` `[N, V]` at `targets` `[N]`, `[1]`. Keeps the log
/// probabilities.
pub fn cross_entropy_sum(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let n = targets.dims()[0];
    let targets = targets.reshape([n, 1]);
    let plain = (logits.clone(), targets.clone());
    let fused = custom_op(logits, |logits| {
        let log_p = activation::log_softmax(logits, 1);
        let loss = log_p.clone().gather(1, targets.clone()).sum().neg();
        let backward = move |grad: Tensor<1>| {
            let minus_one = Tensor::<2>::full([n, 1], -1.0, &log_p.device());
            let d = log_p.clone().exp().scatter(1, targets.clone(), minus_one, IndexingUpdateOp::Add);
            d * grad.unsqueeze::<2>()
        };
        (loss, backward)
    });
    fused.unwrap_or_else(|_| activation::log_softmax(plain.0, 1).gather(1, plain.1).sum().neg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::backward_from;
    use burn::tensor::Distribution;

    fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
    }

    fn assert_close<const D: usize>(a: Tensor<D>, b: Tensor<D>) {
        let (a, b): (Vec<f32>, Vec<f32>) = (a.into_data().try_to_vec().unwrap(), b.into_data().try_to_vec().unwrap());
        assert_eq!(a.len(), b.len());
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5 && a.iter().any(|x| *x != 0.0), "largest difference {worst}");
    }

    /// Output and input gradient of `f` at `x` with output gradient `g`.
    fn run<const I: usize, const O: usize>(
        f: impl Fn(Tensor<I>) -> Tensor<O>,
        x: &Tensor<I>,
        g: &Tensor<O>,
    ) -> (Tensor<O>, Tensor<I>) {
        let x = x.clone().autodiff().require_grad();
        let y = f(x.clone());
        let grads = backward_from(y.clone(), g.clone()).unwrap();
        (y.inner(), x.grad(&grads).unwrap())
    }

    #[test]
    fn attention_matches_burn() {
        let device = Device::flex();
        let mask = causal_mask(7, &device);
        let (x, g) = (random([3, 7, 3 * 12], &device), random([3, 7, 12], &device));
        let (y, dx) = run(|x| attention(x, &mask, 4), &x, &g);
        let (y_plain, dx_plain) = run(|x| attention_plain(&x, &mask, 4), &x, &g);
        assert_close(y.clone(), y_plain);
        assert_close(dx, dx_plain);
        assert_eq!(attention(x, &mask, 4).into_data(), y.into_data(), "with and without a tape");
    }

    #[test]
    fn attention_does_not_look_ahead() {
        let device = Device::flex();
        let mask = causal_mask(5, &device);
        let x = random([1, 5, 12], &device);
        let changed = x.clone().slice_assign([0..1, 4..5, 0..12], random([1, 1, 12], &device));
        let head = |x| attention(x, &mask, 2).slice([0..1, 0..4, 0..4]).into_data();
        assert_eq!(head(x), head(changed));
    }

    #[test]
    fn gelu_matches_burn() {
        let device = Device::flex();
        let (x, g) = (random([2, 5, 16], &device) * 2.0, random([2, 5, 16], &device));
        let (y, dx) = run(gelu, &x, &g);
        let (y_plain, dx_plain) = run(activation::gelu, &x, &g);
        assert_close(y.clone(), y_plain);
        assert_close(dx, dx_plain);
        assert_eq!(gelu(x).into_data(), y.into_data(), "with and without a tape");
    }

    #[test]
    fn layer_norm_matches_burn() {
        let device = Device::flex();
        let (x, g) = (random([2, 5, 16], &device) * 3.0 + 1.0, random([2, 5, 16], &device));
        let vector = || random([16], &device).autodiff().require_grad();
        let (scale, shift) = (vector(), vector());
        let leaf = x.autodiff().require_grad();
        let ours = layer_norm(leaf.clone(), scale.clone(), shift.clone(), 1e-5);
        let theirs = module::layer_norm(leaf.clone(), scale.clone(), Some(shift.clone()), 1e-5);
        assert_close(ours.clone().inner(), theirs.clone().inner());
        let (ours, theirs) = (backward_from(ours, g.clone()).unwrap(), backward_from(theirs, g).unwrap());
        assert_close(leaf.grad(&ours).unwrap(), leaf.grad(&theirs).unwrap());
        assert_close(scale.grad(&ours).unwrap(), scale.grad(&theirs).unwrap());
        assert_close(shift.grad(&ours).unwrap(), shift.grad(&theirs).unwrap());
    }

    #[test]
    fn cross_entropy_matches_burn_and_is_a_sum() {
        let device = Device::flex();
        let targets = Tensor::<1, Int>::from_ints([3, 0, 9, 9], &device);
        let (x, g) = (random([4, 10], &device), Tensor::<1>::full([1], 0.25, &device));
        let plain = |x: Tensor<2>| {
            let targets = targets.clone().reshape([4, 1]);
            activation::log_softmax(x, 1).gather(1, targets).sum().neg()
        };
        let (y, dx) = run(|x| cross_entropy_sum(x, targets.clone()), &x, &g);
        let (y_plain, dx_plain) = run(plain, &x, &g);
        assert_close(y, y_plain);
        assert_close(dx, dx_plain);
        let flat = cross_entropy_sum(Tensor::zeros([4, 10], &device), targets).into_scalar::<f32>();
        assert!((flat - 4.0 * 10f32.ln()).abs() < 1e-5);
    }
}
