//! LayerNorm and RMSNorm over the hidden size.
//!
//! With `n = (x - mean) / std` and `g = gradient * scale`, LayerNorm's backward is `(g - mean(g) - n mean(g n)) / std` (Ba et
//! al. 2016); RMSNorm (Zhang and Sennrich 2019) is the same without the means of `x` and `g`.
//!
//! One law: a norm without a shift is RMSNorm.

use super::cpu::{Values, edit, is_cpu, make};
use super::maths;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// The weights of a norm.
#[derive(Clone, Copy, Debug)]
pub struct NormWeights<'a> {
    /// Scale `[H]`.
    pub scale: &'a Tensor<1>,
    /// Shift `[H]` of LayerNorm.
    pub shift: Option<&'a Tensor<1>>,
    /// Added to the variance.
    pub epsilon: f64,
}

/// What a backward gives.
#[derive(Clone, Debug)]
pub struct NormGradients {
    /// Of the input `[N, H]`.
    pub input: Tensor<2>,
    /// Of the scale `[H]`.
    pub scale: Tensor<1>,
    /// Of the shift `[H]`.
    pub shift: Option<Tensor<1>>,
}

/// The norm of `x` `[N, H]`, and of each row its mean (0 for RMSNorm) and the inverse of its spread, `[N, 2]`.
pub fn forward(x: &Tensor<2>, weights: &NormWeights<'_>) -> (Tensor<2>, Tensor<2>) {
    fast_forward(x, weights).unwrap_or_else(|| plain_forward(x, weights))
}

/// The gradients, from those of the output; the input's is added to `onto`.
pub fn backward(
    x: &Tensor<2>,
    statistics: &Tensor<2>,
    weights: &NormWeights<'_>,
    gradient: &Tensor<2>,
    onto: Option<Tensor<2>>,
) -> NormGradients {
    let read = [x, statistics, gradient].map(Values::of);
    match (read, Values::of(weights.scale), onto.as_ref().is_none_or(is_cpu)) {
        ([Some(x), Some(statistics), Some(gradient)], Some(scale), true) => {
            let centred = weights.shift.is_some();
            fast_backward(&x, &statistics, &scale, centred, &gradient, onto, &weights.scale.device())
        }
        _ => plain_backward(x, statistics, weights, gradient, onto),
    }
}

fn fast_forward(x: &Tensor<2>, weights: &NormWeights<'_>) -> Option<(Tensor<2>, Tensor<2>)> {
    let [n, h] = x.dims();
    let (values, scale) = (Values::of(x)?, Values::of(weights.scale)?);
    let shift = weights.shift.map(Values::of);
    let shift = match &shift {
        Some(None) => return None,
        Some(Some(shift)) => Some(shift.slice()),
        None => None,
    };
    let epsilon = weights.epsilon as f32;
    let mut statistics = vec![0.0f32; 2 * n];
    let out = make([n, h], &x.device(), |out| {
        let rows = out.chunks_exact_mut(h).zip(values.slice().chunks_exact(h));
        for ((out, x), statistics) in rows.zip(statistics.chunks_exact_mut(2)) {
            let mean = if shift.is_some() { maths::sum(x) / h as f32 } else { 0.0 };
            for (out, x) in out.iter_mut().zip(x) {
                *out = x - mean;
            }
            let inverse = (maths::dot(out, out) / h as f32 + epsilon).sqrt().recip();
            statistics.copy_from_slice(&[mean, inverse]);
            match shift {
                Some(shift) => {
                    for ((out, scale), shift) in out.iter_mut().zip(scale.slice()).zip(shift) {
                        *out = *out * inverse * scale + shift;
                    }
                }
                None => {
                    for (out, scale) in out.iter_mut().zip(scale.slice()) {
                        *out *= inverse * scale;
                    }
                }
            }
        }
    });
    let statistics = make([n, 2], &x.device(), |out| out.copy_from_slice(&statistics));
    Some((out, statistics))
}

fn fast_backward(
    x: &Values,
    statistics: &Values,
    scale: &Values,
    centred: bool,
    g: &Values,
    onto: Option<Tensor<2>>,
    device: &Device,
) -> NormGradients {
    let h = scale.slice().len();
    let n = statistics.slice().len() / 2;
    let (mut dscale, mut dshift, mut weighted) = (vec![0.0f32; h], vec![0.0f32; h], vec![0.0f32; 2 * h]);
    let rows = |out: &mut [f32]| {
        let inputs = x.slice().chunks_exact(h).zip(g.slice().chunks_exact(h));
        let rows = out.chunks_exact_mut(h).zip(inputs).zip(statistics.slice().chunks_exact(2));
        for ((out, (x, g)), statistics) in rows {
            let (mean, inverse) = (statistics[0], statistics[1]);
            let (normal, gs) = weighted.split_at_mut(h);
            for ((((normal, gs), (x, g)), scale), (dscale, dshift)) in normal
                .iter_mut()
                .zip(gs.iter_mut())
                .zip(x.iter().zip(g))
                .zip(scale.slice())
                .zip(dscale.iter_mut().zip(dshift.iter_mut()))
            {
                *normal = (x - mean) * inverse;
                *gs = g * scale;
                *dscale += g * *normal;
                *dshift += g;
            }
            let along = maths::dot(normal, gs) / h as f32;
            let middle = if centred { maths::sum(gs) / h as f32 } else { 0.0 };
            for ((out, normal), gs) in out.iter_mut().zip(normal.iter()).zip(gs.iter()) {
                *out += (gs - middle - normal * along) * inverse;
            }
        }
    };
    let input = match onto {
        Some(onto) => edit(onto, rows).unwrap_or_else(|onto| onto),
        None => make([n, h], device, rows),
    };
    let vector = |values: Vec<f32>| Tensor::<1>::from_data(TensorData::new(values, [h]), device);
    NormGradients { input, scale: vector(dscale), shift: centred.then(|| vector(dshift)) }
}

/// In fp32, whatever the format of `x`.
fn plain_forward(x: &Tensor<2>, weights: &NormWeights<'_>) -> (Tensor<2>, Tensor<2>) {
    let dtype = x.dtype();
    let x = statistics_of(x);
    let mean = if weights.shift.is_some() { x.clone().mean_dim(1) } else { x.clone().mean_dim(1).zeros_like() };
    let inverse = ((x.clone() - mean.clone()).square().mean_dim(1) + weights.epsilon).sqrt().recip();
    let statistics = Tensor::cat(vec![mean, inverse], 1);
    let y = normal(&x, &statistics) * statistics_of(weights.scale).unsqueeze::<2>();
    let y = match weights.shift {
        Some(shift) => y + statistics_of(shift).unsqueeze::<2>(),
        None => y,
    };
    (y.cast(dtype), statistics)
}

fn plain_backward(
    x: &Tensor<2>,
    statistics: &Tensor<2>,
    weights: &NormWeights<'_>,
    gradient: &Tensor<2>,
    onto: Option<Tensor<2>>,
) -> NormGradients {
    let ([n, h], dtype) = (x.dims(), x.dtype());
    let normal = normal(&statistics_of(x), statistics);
    let gradient = statistics_of(gradient);
    let scale = (gradient.clone() * normal.clone()).sum_dim(0).reshape([h]);
    let shift = weights.shift.map(|_| gradient.clone().sum_dim(0).reshape([h]));
    let g = gradient * statistics_of(weights.scale).unsqueeze::<2>();
    let along = (g.clone() * normal.clone()).mean_dim(1);
    let centred = if weights.shift.is_some() { g.clone() - g.mean_dim(1) } else { g };
    let input = ((centred - normal * along) * statistics.clone().slice([0..n, 1..2])).cast(dtype);
    let input = match onto {
        Some(onto) => onto + input,
        None => input,
    };
    NormGradients { input, scale, shift }
}

/// Rows with mean 0 and spread 1.
fn normal(x: &Tensor<2>, statistics: &Tensor<2>) -> Tensor<2> {
    let [n, _] = x.dims();
    (x.clone() - statistics.clone().slice([0..n, 0..1])) * statistics.clone().slice([0..n, 1..2])
}

/// 16-bit numbers as fp32; wider ones as they are.
fn statistics_of<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    if matches!(x.dtype(), DType::BF16 | DType::F16) { x.clone().cast(DType::F32) } else { x.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, gradients, random, wide};
    use super::*;

    #[test]
    fn norms_are_those_of_autodiff() {
        let (x, g, scale, shift) = (random([9, 33]) * 3.0 + 1.0, random([9, 33]), random([33]), random([33]));
        for shift in [Some(&shift), None] {
            let plain = |x: Tensor<2>, scale: Tensor<1>| {
                let c = if shift.is_some() { x.clone() - x.mean_dim(1) } else { x };
                let inverse = (c.clone().square().mean_dim(1) + 1e-5).sqrt().recip();
                c * inverse * scale.unsqueeze::<2>()
            };
            let weights = NormWeights { scale: &scale, shift, epsilon: 1e-5 };
            let (y, statistics) = forward(&x, &weights);
            let want = plain(x.clone(), scale.clone());
            let want = shift.map_or(want.clone(), |shift| want + shift.clone().unsqueeze::<2>());
            assert_close(&y, &want, 1e-5);
            let (dx, dscale) = gradients(&x, &scale, &g, plain);
            let onto = random([9, 33]);
            let made = backward(&x, &statistics, &weights, &g, Some(onto.clone()));
            assert_close(&made.input, &(onto + dx.clone()), 1e-5);
            assert_close(&made.scale, &dscale, 1e-4);
            assert_eq!(made.shift.is_some(), shift.is_some());
            if let Some(dshift) = made.shift {
                assert_close(&dshift, &g.clone().sum_dim(0).reshape([33]), 1e-5);
            }
            let (slow, slow_statistics) = plain_forward(&x, &weights);
            assert_close(&y, &slow, 1e-5);
            let slow = plain_backward(&x, &slow_statistics, &weights, &g, None);
            assert_close(&wide(&slow.input), &dx, 1e-5);
        }
    }
}
