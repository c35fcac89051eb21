//! The costly operations of a transformer, each one node on the tape with its own backward.
//!
//! One law: a forward gives the same bits with and without a tape (recomputation relies on it), and forward and
//! backward run their steps in a fixed order, on every kind of device burn has.
//!
//! burn's own softmax, LayerNorm and cross-entropy fall apart into many small nodes under autodiff, each with its own
//! saved tensors; here each is one node that saves the least.
//!
//! Shapes: `B` sequences, `S` tokens, `H` hidden size, `A` heads, `D = H / A`, `V` vocabulary, `N = B S`.

use crate::autodiff::{AutodiffError, Parameter, custom_op, custom_op_with_parameters};
use crate::cpu;
use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, activation, module};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A causal mask for the last `rows` of `columns` tokens `[rows, columns]`: 0 where a row may look, minus infinity
/// where it may not.
pub fn causal_mask(rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    let device = device.clone().without_autodiff();
    let before = i64::try_from(columns.saturating_sub(rows)).unwrap_or(i64::MAX);
    let hidden = Tensor::<2, Bool>::tril_mask([rows, columns], before, &device);
    Tensor::zeros([rows, columns], &device).mask_fill(hidden, f32::NEG_INFINITY)
}

/// Tokens `[B, S]`, the first of them at position `start`, to the sum of their rows of the token embedding `[V, H]` and
/// of the position embedding `[P, H]`: `[B, S, H]`. Keeps the tokens.
pub fn embedding(tokens: Tensor<2, Int>, start: usize, wte: Parameter<2>, wpe: Parameter<2>) -> Tensor<3> {
    let plain = (tokens.clone(), wte.value(), wpe.value());
    let [b, s] = tokens.dims();
    let look_up = move |tokens: Tensor<2, Int>, wte: Tensor<2>, wpe: Tensor<2>| {
        let [_, h] = wpe.dims();
        module::embedding(wte, tokens) + wpe.slice([start..start + s, 0..h]).unsqueeze::<3>()
    };
    // Tokens have no gradient: a number stands in the place of the input.
    let nothing = Tensor::<1>::zeros([1], &wte.value().device().without_autodiff());
    let fused = custom_op_with_parameters(nothing, (wte, wpe), |nothing, wte: Tensor<2>, wpe: Tensor<2>| {
        let ([v, h], [p, _]) = (wte.dims(), wpe.dims());
        let out = look_up(tokens.clone(), wte, wpe);
        let backward = move |grad: Tensor<3>| {
            let tokens = tokens.clone();
            let gradients = move || {
                let device = grad.device();
                let dwpe = Tensor::zeros([p, h], &device);
                let dwpe = dwpe.slice_assign([start..start + s, 0..h], grad.clone().sum_dim(0).reshape([s, h]));
                let (rows, grad) = (tokens.reshape([b * s]), grad.reshape([b * s, h]));
                let dwte = Tensor::zeros([v, h], &device).select_assign(0, rows, grad, IndexingUpdateOp::Add);
                (dwte, dwpe)
            };
            (nothing.clone(), gradients)
        };
        (out, backward)
    });
    fused.unwrap_or_else(|_| look_up(plain.0, plain.1, plain.2))
}

/// `x` `[B, S, I]` times a weight `[I, O]` plus a bias `[O]`. Keeps `x`.
pub fn linear(x: Tensor<3>, weight: Parameter<2>, bias: Parameter<1>) -> Tensor<3> {
    let plain = (x.clone(), weight.value(), bias.value());
    let fused = custom_op_with_parameters(x, (weight, bias), |x, weight: Tensor<2>, bias: Tensor<1>| {
        let out = module::linear(x.clone(), weight.clone(), Some(bias));
        let backward = move |grad: Tensor<3>| {
            let dx = module::linear(grad.clone(), weight.clone().transpose(), None);
            let x = x.clone();
            let gradients = move || {
                let [b, s, o] = grad.dims();
                let (x, grad) = (x.clone().reshape([b * s, x.dims()[2]]), grad.reshape([b * s, o]));
                (x.transpose().matmul(grad.clone()), grad.sum_dim(0).reshape([o]))
            };
            (dx, gradients)
        };
        (out, backward)
    });
    fused.unwrap_or_else(|_| module::linear(plain.0, plain.1, Some(plain.2)))
}

/// Hidden states `[N, H]` to logits `[N, V]`: `x` times the transpose of a weight `[V, H]`. Keeps `x`.
pub fn head(x: Tensor<2>, weight: Parameter<2>) -> Tensor<2> {
    let plain = (x.clone(), weight.value());
    let no_bias = Parameter::constant(Tensor::<1>::zeros([1], &x.device().without_autodiff()));
    let fused = custom_op_with_parameters(x, (weight, no_bias), |x, weight: Tensor<2>, no_bias| {
        let out = x.clone().matmul(weight.clone().transpose());
        let backward = move |grad: Tensor<2>| {
            let dx = grad.clone().matmul(weight.clone());
            let (x, no_bias) = (x.clone(), no_bias.clone());
            (dx, move || (grad.transpose().matmul(x), no_bias))
        };
        (out, backward)
    });
    fused.unwrap_or_else(|_| plain.0.matmul(plain.1.transpose()))
}

/// Causal multi-head attention: `qkv` `[B, S, 3 H]` (queries, keys, values side by side) and a mask `[S, S]` to
/// `[B, S, H]`. Keeps `qkv` and the probabilities `[B, A, S, S]` for the backward.
pub fn attention(qkv: Tensor<3>, mask: &Tensor<2>, heads: usize) -> Tensor<3> {
    let plain = qkv.clone();
    attention_with(qkv, mask, heads, None).unwrap_or_else(|_| attention_plain(&plain, mask, heads))
}

/// [`attention`] of one slice of a sequence, which also sees the slices before it, whose keys and values are in `cache`:
/// `qkv` `[B, S, 3 H]` and a mask `[S, T + S]` to `[B, S, H]`, with `T` tokens before. Slices must go forward in order
/// and backward in the opposite order: the backward of a slice leaves in the cache what it puts on the keys and values
/// of the slices before, and takes what those behind have put on its own.
///
/// # Errors
/// [`AutodiffError::Backend`].
pub fn attention_slice(
    qkv: Tensor<3>,
    mask: &Tensor<2>,
    heads: usize,
    cache: &KeyValueCache,
) -> Result<Tensor<3>, AutodiffError> {
    attention_with(qkv, mask, heads, Some(cache.clone()))
}

fn attention_with(
    qkv: Tensor<3>,
    mask: &Tensor<2>,
    heads: usize,
    cache: Option<KeyValueCache>,
) -> Result<Tensor<3>, AutodiffError> {
    custom_op(qkv, |qkv| {
        let [b, s, h3] = qkv.dims();
        let (h, d) = (h3 / 3, h3 / 3 / heads);
        let scale = (d as f32).sqrt().recip();
        let [q, k, v] = split_heads(&qkv, heads);
        // With a cache, it keeps keys and values; all of them stand side by side only while they are used.
        let (all_k, all_v) = cache.as_ref().map_or((k.clone(), v.clone()), |cache| cache.append(k.clone(), v.clone()));
        let scores = q.clone().matmul(all_k.transpose());
        let p = cpu::causal_softmax(&scores, scale)
            .unwrap_or_else(|| activation::softmax(scores * scale + mask.clone().unsqueeze::<4>(), 3));
        let out = p.clone().matmul(all_v);
        let out_bsh = join_heads(out.clone());
        let backward = move |grad: Tensor<3>| {
            let (k, v) = cache.as_ref().map_or((k.clone(), v.clone()), KeyValueCache::all);
            let grad = grad.reshape([b, s, heads, d]).swap_dims(1, 2);
            let dv = p.clone().transpose().matmul(grad.clone());
            let dp = grad.clone().matmul(v.transpose());
            // The softmax backward needs sum(dp * p) of each row, which is sum(grad * out) of the row.
            let along = (grad * out.clone()).sum_dim(3);
            let ds = (dp - along) * p.clone() * scale;
            let dq = ds.clone().matmul(k);
            let dk = ds.transpose().matmul(q.clone());
            let (dk, dv) = match &cache {
                Some(cache) => cache.take_last(dk, dv),
                None => (dk, dv),
            };
            let parts = [dq, dk, dv].map(|x| x.swap_dims(1, 2).reshape([b, s, h]));
            Tensor::cat(parts.to_vec(), 2)
        };
        (out_bsh, backward)
    })
}

/// Keys and values of one attention layer, of the slices of one microbatch that went forward and not yet backward. A
/// clone is the same cache.
#[derive(Clone, Debug, Default)]
pub struct KeyValueCache(Arc<Mutex<Slices>>);

#[derive(Debug, Default)]
struct Slices {
    /// Keys and values of each slice, `[B, A, S, D]`.
    kept: Vec<(Tensor<4>, Tensor<4>)>,
    /// What the slices that went backward have put on the keys and values of all that are kept, `[B, A, T, D]`.
    gradients: Option<(Tensor<4>, Tensor<4>)>,
}

impl KeyValueCache {
    /// Tokens of all slices that are kept, `T`.
    pub fn tokens(&self) -> usize {
        self.lock().kept.iter().map(|(k, _)| k.dims()[2]).sum()
    }

    /// Keeps those of one more slice, and gives all together.
    fn append(&self, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        self.lock().kept.push((k, v));
        self.all()
    }

    /// The keys and the values of all slices that are kept, `[B, A, T, D]`.
    fn all(&self) -> (Tensor<4>, Tensor<4>) {
        let (k, v): (Vec<_>, Vec<_>) = self.lock().kept.iter().cloned().unzip();
        (Tensor::cat(k, 2), Tensor::cat(v, 2))
    }

    /// Adds gradients of all keys and values; drops the last slice and gives its part of the sums.
    fn take_last(&self, dk: Tensor<4>, dv: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let mut slices = self.lock();
        let [b, a, all, d] = dk.dims();
        let own = slices.kept.pop().map_or(0, |(k, _)| k.dims()[2]);
        let (dk, dv) = match slices.gradients.take() {
            Some((k, v)) => (k + dk, v + dv),
            None => (dk, dv),
        };
        let before = all - own;
        if before > 0 {
            let head = |x: &Tensor<4>| x.clone().slice([0..b, 0..a, 0..before, 0..d]);
            slices.gradients = Some((head(&dk), head(&dv)));
        }
        let tail = |x: Tensor<4>| x.slice([0..b, 0..a, before..all, 0..d]);
        (tail(dk), tail(dv))
    }

    fn lock(&self) -> MutexGuard<'_, Slices> {
        // A panic in between ends the run, so nobody sees a half-changed cache.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

/// LayerNorm over the last dimension of `[B, S, H]` with scale and shift `[H]`. Keeps `x`.
///
/// The gradients of scale and shift are computed with that of the input, also where weight gradients are deferred: they
/// are two vectors, and what they are computed from would have to be kept for W.
pub fn layer_norm(x: Tensor<3>, scale: Parameter<1>, shift: Parameter<1>, epsilon: f64) -> Tensor<3> {
    let plain = (x.clone(), scale.value(), shift.value());
    let fused = custom_op_with_parameters(x, (scale, shift), |x, scale: Tensor<1>, shift: Tensor<1>| {
        let out = module::layer_norm(x.clone(), scale.clone(), Some(shift), epsilon);
        let backward = move |grad: Tensor<3>| {
            let (dx, vectors) = layer_norm_backward(x.clone(), scale.clone(), grad, epsilon);
            (dx, move || vectors)
        };
        (out, backward)
    });
    fused.unwrap_or_else(|_| module::layer_norm(plain.0, plain.1, Some(plain.2), epsilon))
}

/// With `n = (x - mean) / std` and `g = grad * scale`: `dx = (g - mean(g) - n mean(g n)) / std`.
fn layer_norm_backward(
    x: Tensor<3>,
    scale: Tensor<1>,
    grad: Tensor<3>,
    epsilon: f64,
) -> (Tensor<3>, (Tensor<1>, Tensor<1>)) {
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
    (dx.reshape([b, s, h]), (dscale, dshift))
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
    use crate::autodiff::{backward_from, deferring};
    use burn::module::Param;
    use burn::optim::GradientsParams;
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
        let mask = causal_mask(7, 7, &device);
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
        let mask = causal_mask(5, 5, &device);
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

    fn trained<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
        Param::from_tensor(random(shape, device).autodiff().require_grad())
    }

    /// Gradients of `x`, `v` and `w` when `f` gets the gradient `g`, whole and with deferred weight gradients, which must
    /// be the same bits.
    fn gradients<const I: usize, const V: usize, const W: usize, const O: usize>(
        f: impl Fn(Tensor<I>) -> Tensor<O>,
        x: &Tensor<I>,
        (v, w): (&Param<Tensor<V>>, &Param<Tensor<W>>),
        g: &Tensor<O>,
    ) -> (Option<Tensor<I>>, Tensor<V>, Tensor<W>) {
        let whole = backward_from(f(x.clone()), g.clone()).unwrap();
        let (split, later) = deferring(|| backward_from(f(x.clone()), g.clone()).unwrap());
        assert!(v.val().grad(&split).is_none() && w.val().grad(&split).is_none(), "weights have their turn in W");
        let mut params = GradientsParams::new();
        later.compute(&mut params);
        if let Some(dx) = x.grad(&whole) {
            assert_eq!(dx.into_data(), x.grad(&split).unwrap().into_data());
        }
        let (dv, dw) = (v.val().grad(&whole).unwrap(), w.val().grad(&whole).unwrap());
        assert_eq!(dv.clone().into_data(), params.get::<V>(v.id).unwrap().into_data());
        assert_eq!(dw.clone().into_data(), params.get::<W>(w.id).unwrap().into_data());
        (x.grad(&whole), dv, dw)
    }

    /// [`gradients`] of two forms of one operation agree.
    fn assert_gradients_match<const I: usize, const V: usize, const W: usize, const O: usize>(
        ours: (Option<Tensor<I>>, Tensor<V>, Tensor<W>),
        theirs: impl Fn(Tensor<I>) -> Tensor<O>,
        x: &Tensor<I>,
        (v, w): (&Param<Tensor<V>>, &Param<Tensor<W>>),
        g: &Tensor<O>,
    ) {
        let grads = backward_from(theirs(x.clone()), g.clone()).unwrap();
        if let Some(dx) = ours.0 {
            assert_close(dx, x.grad(&grads).unwrap());
        }
        assert_close(ours.1, v.val().grad(&grads).unwrap());
        assert_close(ours.2, w.val().grad(&grads).unwrap());
    }

    #[test]
    fn layer_norm_matches_burn() {
        let device = Device::flex();
        let (x, g) = (random([2, 5, 16], &device) * 3.0 + 1.0, random([2, 5, 16], &device));
        let (scale, shift) = (trained([16], &device), trained([16], &device));
        let x = x.autodiff().require_grad();
        let ours = |x| layer_norm(x, (&scale).into(), (&shift).into(), 1e-5);
        let theirs = |x| module::layer_norm(x, scale.val(), Some(shift.val()), 1e-5);
        assert_close(ours(x.clone()).inner(), theirs(x.clone()).inner());
        let found = gradients(ours, &x, (&scale, &shift), &g);
        assert_gradients_match(found, theirs, &x, (&scale, &shift), &g);
    }

    #[test]
    fn linear_matches_burn() {
        let device = Device::flex();
        let (x, g) = (random([2, 5, 8], &device).autodiff().require_grad(), random([2, 5, 12], &device));
        let (weight, bias) = (trained([8, 12], &device), trained([12], &device));
        let ours = |x| linear(x, (&weight).into(), (&bias).into());
        let theirs = |x| module::linear(x, weight.val(), Some(bias.val()));
        assert_close(ours(x.clone()).inner(), theirs(x.clone()).inner());
        let found = gradients(ours, &x, (&weight, &bias), &g);
        assert_gradients_match(found, theirs, &x, (&weight, &bias), &g);
    }

    #[test]
    fn embedding_matches_burn() {
        let device = Device::flex();
        let tokens = Tensor::<2, Int>::from_ints([[3, 0, 3], [9, 9, 9]], &device);
        let g = random([2, 3, 4], &device);
        let (wte, wpe) = (trained([10, 4], &device), trained([7, 4], &device));
        // Positions 2, 3, 4.
        let ours = |_: Tensor<1>| embedding(tokens.clone(), 2, (&wte).into(), (&wpe).into());
        let theirs = |_: Tensor<1>| {
            module::embedding(wte.val(), tokens.clone()) + wpe.val().slice([2..5, 0..4]).unsqueeze::<3>()
        };
        let nothing = Tensor::<1>::zeros([1], &device).autodiff();
        assert_close(ours(nothing.clone()).inner(), theirs(nothing.clone()).inner());
        let (_, dwte, dwpe) = gradients(ours, &nothing, (&wte, &wpe), &g);
        assert_gradients_match((None, dwte, dwpe), theirs, &nothing, (&wte, &wpe), &g);
    }

    #[test]
    fn head_matches_burn() {
        let device = Device::flex();
        let (x, g) = (random([5, 8], &device).autodiff().require_grad(), random([5, 12], &device));
        let weight = trained([12, 8], &device);
        let (y, y_plain) = (head(x.clone(), (&weight).into()), x.clone().matmul(weight.val().transpose()));
        assert_close(y.clone().inner(), y_plain.clone().inner());
        let (whole, plain) = (backward_from(y, g.clone()).unwrap(), backward_from(y_plain, g.clone()).unwrap());
        assert_close(x.grad(&whole).unwrap(), x.grad(&plain).unwrap());
        assert_close(weight.val().grad(&whole).unwrap(), weight.val().grad(&plain).unwrap());
        let again = head(x, (&weight).into());
        let (split, later) = deferring(|| backward_from(again, g).unwrap());
        assert!(weight.val().grad(&split).is_none());
        let mut params = GradientsParams::new();
        later.compute(&mut params);
        let now = weight.val().grad(&whole).unwrap();
        assert_eq!(params.get::<2>(weight.id).unwrap().into_data(), now.into_data());
    }

    #[test]
    fn slices_attend_as_the_whole_does() {
        let device = Device::flex();
        let (x, g) = (random([2, 7, 3 * 8], &device), random([2, 7, 8], &device));
        let mask = causal_mask(7, 7, &device);
        let (y, dx) = run(|x| attention(x, &mask, 2), &x, &g);
        for cuts in [vec![0, 7], vec![0, 3, 7], vec![0, 1, 4, 6, 7]] {
            let cache = KeyValueCache::default();
            let part = |t: &Tensor<3>, w: &[usize]| {
                let [b, _, h] = t.dims();
                t.clone().slice([0..b, w[0]..w[1], 0..h])
            };
            let mut tapes = Vec::new();
            for w in cuts.windows(2) {
                assert_eq!(cache.tokens(), w[0]);
                let leaf = part(&x, w).autodiff().require_grad();
                let mask = causal_mask(w[1] - w[0], w[1], &device);
                let out = attention_slice(leaf.clone(), &mask, 2, &cache).unwrap();
                assert_close(out.clone().inner(), part(&y, w));
                tapes.push((leaf, out, w));
            }
            while let Some((leaf, out, w)) = tapes.pop() {
                let grads = backward_from(out, part(&g, w)).unwrap();
                assert_close(leaf.grad(&grads).unwrap(), part(&dx, w));
            }
            assert_eq!(cache.tokens(), 0, "nothing is left behind");
        }
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
