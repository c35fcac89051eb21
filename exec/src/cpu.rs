//! Row kernels for burn's CPU backend, where its own operations call the scalar maths library for every element.
//!
//! One law: each kernel computes what burn's operation computes, to 1e-6 of its scale, in an order that depends on
//! shapes alone; for a tensor that is not fp32 on the CPU the answer is
//! `None`, and burn's operation must be used.
//!
//! The loops are plain; `pulp` compiles them for the vector unit found at run time.

use burn::backend::{DispatchDevice, Flex};
use burn::tensor::{DType, Tensor, TensorData};
use pulp::Arch;

/// Partial sums kept side by side, so that a reduction fills a vector register.
const LANES: usize = 16;

/// GELU (exact form) of every element.
pub(crate) fn gelu<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    on_cpu([x], |[x], out| {
        for (out, x) in out.iter_mut().zip(x) {
            *out = x * gauss(*x).0;
        }
    })
}

/// The gradient of [`gelu`] at `x` times `grad`.
pub(crate) fn gelu_backward<const D: usize>(x: &Tensor<D>, grad: &Tensor<D>) -> Option<Tensor<D>> {
    on_cpu([x, grad], |[x, grad], out| {
        for ((out, x), grad) in out.iter_mut().zip(x).zip(grad) {
            let (cdf, density) = gauss(*x);
            *out = grad * (cdf + x * density);
        }
    })
}

/// Softmax of `scale` times scores `[.., S, T]` over the last dimension, where the rows are the last `S` of `T` tokens
/// and each sees the tokens up to itself alone; the others become exactly 0.
pub(crate) fn causal_softmax<const D: usize>(scores: &Tensor<D>, scale: f32) -> Option<Tensor<D>> {
    let [s, t] = [scores.dims()[D - 2], scores.dims()[D - 1]];
    let before = t.checked_sub(s)?;
    on_cpu([scores], |[scores], out| {
        for (r, (out, x)) in out.chunks_exact_mut(t).zip(scores.chunks_exact(t)).enumerate() {
            let seen = before + r % s + 1;
            softmax_row(&x[..seen], &mut out[..seen], scale);
        }
    })
}

/// Runs `kernel` over the row-major values of tensors of one shape; the output (zeros at first) has that shape too.
fn on_cpu<const N: usize, const D: usize>(
    inputs: [&Tensor<D>; N],
    kernel: impl FnOnce([&[f32]; N], &mut [f32]),
) -> Option<Tensor<D>> {
    let fits = |x: &Tensor<D>| {
        !x.is_autodiff() && x.dtype() == DType::F32 && matches!(x.device().as_dispatch(), DispatchDevice::Flex(_))
    };
    let dims = inputs[0].dims();
    let len: usize = dims.iter().product();
    if len == 0 || !inputs.iter().all(|x| fits(x) && x.dims() == dims) {
        return None;
    }
    let mut buffers = Vec::with_capacity(N);
    for x in inputs {
        buffers.push(x.clone().try_into_primitive::<Flex>().ok()?.to_contiguous());
    }
    let mut out = vec![0.0f32; len];
    let mut slices = [&[][..]; N];
    for (slice, buffer) in slices.iter_mut().zip(&buffers) {
        // A contiguous view may start inside a larger buffer.
        let start = buffer.layout().start_offset();
        *slice = buffer.storage::<f32>().get(start..start + len)?;
    }
    Arch::new().dispatch(|| kernel(slices, &mut out));
    Some(Tensor::from_data(TensorData::new(out, dims), &inputs[0].device()))
}

#[inline(always)]
fn softmax_row(x: &[f32], out: &mut [f32], scale: f32) {
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (top, x) in tops.iter_mut().zip(block) {
            *top = if *x > *top { *x } else { *top };
        }
    }
    let top = tops.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    for (out, x) in out.iter_mut().zip(x) {
        *out = exp_negative((x - top) * scale);
    }
    let mut sums = [0.0f32; LANES];
    let (blocks, rest) = out.as_chunks::<LANES>();
    for block in blocks {
        for (sum, e) in sums.iter_mut().zip(block) {
            *sum += e;
        }
    }
    let inverse = (sums.iter().sum::<f32>() + rest.iter().sum::<f32>()).recip();
    for e in out {
        *e *= inverse;
    }
}

/// Distribution function and density of the standard normal distribution at `x`.
///
/// erf by Abramowitz and Stegun 7.1.26 (error below 1.5e-7), whose exponential is that of the density.
#[inline(always)]
fn gauss(x: f32) -> (f32, f32) {
    const INV_SQRT_2PI: f32 = 0.398_942_3;
    let e = exp_negative(-0.5 * x * x);
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = (1.0 + 0.327_591_1 * z).recip();
    let poly = t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4))));
    let tail = 0.5 * poly * e;
    (if x < 0.0 { tail } else { 1.0 - tail }, INV_SQRT_2PI * e)
}

/// `exp(x)` for `x <= 0`, to 2e-7 relative; below -87 the answer stays at `exp(-87)`, about 1e-38.
#[inline(always)]
fn exp_negative(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts: the first product is exact.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p =
        1.0 + r * (1.0 + r * (0.5 + r * (0.166_666_67 + r * (0.041_666_67 + r * (0.008_333_334 + r * 0.001_388_9)))));
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution, activation};

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    fn worst(a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max)
    }

    #[test]
    fn exp_is_exact_to_float_precision() {
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let want = f64::from(x).exp();
            let error = (f64::from(exp_negative(x)) - want).abs() / want;
            assert!(error < 3e-7, "exp({x}) is off by {error}");
        }
        assert_eq!(exp_negative(0.0), 1.0);
        assert!(exp_negative(f32::NEG_INFINITY) < 2e-38);
        assert!(exp_negative(f32::NAN).is_nan(), "a NaN must stay visible");
    }

    #[test]
    fn gelu_and_its_gradient_match_burn() {
        let device = Device::flex();
        let x = Tensor::<2>::random([64, 257], Distribution::Normal(0.0, 3.0), &device);
        let grad = Tensor::<2>::random([64, 257], Distribution::Normal(0.0, 1.0), &device);
        let leaf = x.clone().autodiff().require_grad();
        let y = activation::gelu(leaf.clone());
        assert!(worst(&values(gelu(&x).unwrap()), &values(y.clone().inner())) < 1e-6);
        let grads = crate::autodiff::backward_from(y, grad.clone()).unwrap();
        let ours = gelu_backward(&x, &grad).unwrap();
        assert!(worst(&values(ours), &values(leaf.grad(&grads).unwrap())) < 2e-6);
    }

    #[test]
    fn a_strided_view_is_read_in_its_own_order() {
        let x = Tensor::<2>::random([6, 9], Distribution::Normal(0.0, 1.0), &Device::flex());
        let view = x.clone().slice([1..4, 2..9]).transpose();
        let all = values(gelu(&x).unwrap());
        let want: Vec<f32> = (2..9).flat_map(|c| (1..4).map(move |r| (r, c))).map(|(r, c)| all[r * 9 + c]).collect();
        assert_eq!(values(gelu(&view).unwrap()), want);
    }

    #[test]
    fn causal_softmax_sees_the_past_alone() {
        let device = Device::flex();
        for (s, t) in [(37, 37), (5, 37), (1, 9)] {
            let x = Tensor::<3>::random([3, s, t], Distribution::Normal(0.0, 4.0), &device);
            let mask = crate::ops::causal_mask(s, t, &device).unsqueeze::<3>();
            let want = values(activation::softmax(x.clone() * 0.3 + mask, 2));
            let got = values(causal_softmax(&x, 0.3).unwrap());
            assert!(worst(&got, &want) < 1e-6);
            assert!(got.iter().enumerate().all(|(i, p)| i % t <= t - s + i / t % s || *p == 0.0));
        }
    }

    #[test]
    fn tensors_of_other_kinds_are_left_to_burn() {
        let x = Tensor::<1>::ones([4], &Device::flex());
        assert!(gelu(&x.clone().autodiff()).is_none());
        assert!(gelu(&x.clone().cast(DType::F64)).is_none());
        assert!(gelu_backward(&x, &Tensor::ones([5], &Device::flex())).is_none());
    }
}
