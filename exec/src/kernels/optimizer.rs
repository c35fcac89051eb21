//! One step of an optimizer on flat numbers.
//!
//! One law: an element's new value depends on that element alone, so shares of a parameter step as the whole does.

use super::cpu::{Values, edit, is_cpu};
use burn::tensor::Tensor;

/// The numbers of AdamW (Loshchilov and Hutter 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Weight decay, times the learning rate.
    pub weight_decay: f32,
}

/// Value and moments after step `step`, counted from 1, as `torch.optim.AdamW`.
pub fn adamw(
    value: Tensor<1>,
    gradient: &Tensor<1>,
    first: Tensor<1>,
    second: Tensor<1>,
    numbers: &AdamW,
    step: u64,
) -> (Tensor<1>, Tensor<1>, Tensor<1>) {
    let AdamW { lr, beta1, beta2, eps, weight_decay } = *numbers;
    let power = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
    let (correction1, correction2) = (power(beta1), power(beta2).sqrt());
    let (decay, size) = ((1.0 - lr * f64::from(weight_decay)) as f32, (lr / correction1) as f32);
    let root = (1.0 / correction2) as f32;
    let fast = [&value, &first, &second].into_iter().all(is_cpu);
    let Some(g) = Values::of(gradient).filter(|_| fast) else {
        let first = first * beta1 + gradient.clone() * (1.0 - beta1);
        let second = second * beta2 + gradient.clone().square() * (1.0 - beta2);
        let value = value * decay - first.clone() / (second.clone().sqrt() * root + eps) * size;
        return (value, first, second);
    };
    let moment = |tensor: Tensor<1>, of: fn(f32) -> f32, beta: f32| {
        let changed = edit(tensor, |moment| {
            for (moment, g) in moment.iter_mut().zip(g.slice()) {
                *moment = *moment * beta + of(*g) * (1.0 - beta);
            }
        });
        changed.unwrap_or_else(|tensor| tensor)
    };
    let (first, second) = (moment(first, |g| g, beta1), moment(second, |g| g * g, beta2));
    let value = match (Values::of(&first), Values::of(&second)) {
        (Some(m), Some(v)) => edit(value, |value| {
            for ((value, m), v) in value.iter_mut().zip(m.slice()).zip(v.slice()) {
                *value = *value * decay - m / (v.sqrt() * root + eps) * size;
            }
        })
        .unwrap_or_else(|value| value),
        _ => value,
    };
    (value, first, second)
}

/// Value and velocity after a step of stochastic gradient descent; without momentum there is no velocity. No dampening, as
/// in PyTorch.
pub fn sgd(
    value: Tensor<1>,
    gradient: &Tensor<1>,
    velocity: Option<Tensor<1>>,
    lr: f64,
    momentum: f64,
) -> (Tensor<1>, Option<Tensor<1>>) {
    if momentum == 0.0 {
        return (value - gradient.clone() * lr, None);
    }
    let velocity = match velocity {
        Some(velocity) => velocity * momentum + gradient.clone(),
        None => gradient.clone(),
    };
    (value - velocity.clone() * lr, Some(velocity))
}

/// All numbers times a factor.
pub fn scaled(x: Tensor<1>, factor: f32) -> Tensor<1> {
    edit(x, |values| values.iter_mut().for_each(|value| *value *= factor)).unwrap_or_else(|x| x * factor)
}

/// The sum of the squares, in fp64.
pub fn sum_of_squares(x: &Tensor<1>) -> f64 {
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    let Some(values) = Values::of(x) else {
        return x.clone().into_data().iter::<f32>().map(|x| square(&x)).sum();
    };
    // Eight sums side by side.
    let (blocks, rest) = values.slice().as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for block in blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += square(x);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, random, wide};
    use super::*;
    use burn::tensor::{DType, Device};

    fn one(x: f32) -> Tensor<1> {
        Tensor::from_floats([x], &Device::flex())
    }

    fn number(x: &Tensor<1>) -> f64 {
        f64::from(x.clone().into_scalar::<f32>())
    }

    #[test]
    fn adamw_follows_its_formula() {
        let numbers = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
        let (mut w, mut m, mut v) = (1.0f64, 0.0, 0.0);
        let mut state = (one(1.0), one(0.0), one(0.0));
        for (t, g) in (1..).zip([0.5f64, -1.0, 2.0]) {
            w -= 0.01 * 0.01 * w;
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            w -= 0.01 * (m / (1.0 - 0.9f64.powi(t))) / ((v / (1.0 - 0.999f64.powi(t))).sqrt() + 1e-8);
            state = adamw(state.0, &one(g as f32), state.1, state.2, &numbers, t as u64);
            assert!((number(&state.0) - w).abs() < 1e-6, "{} {w}", number(&state.0));
        }
    }

    #[test]
    fn sgd_follows_its_formula() {
        let mut value = one(1.0);
        for (g, want) in [(1.0, 0.9), (2.0, 0.7)] {
            value = sgd(value, &one(g), None, 0.1, 0.0).0;
            assert!((number(&value) - want).abs() < 1e-6);
        }
        // v = 0.9 v + g.
        let (mut value, mut velocity) = (one(1.0), None);
        for (g, want) in [(1.0, 0.9), (2.0, 0.61), (0.0, 0.349)] {
            (value, velocity) = sgd(value, &one(g), velocity, 0.1, 0.9);
            assert!((number(&value) - want).abs() < 1e-6);
        }
    }

    #[test]
    fn shares_step_as_the_whole_and_formats_agree() {
        let numbers = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        let (w, g, m, v) = (random([37]), random([37]), random([37]), random([37]).abs());
        let (whole, ..) = adamw(w.clone(), &g, m.clone(), v.clone(), &numbers, 5);
        let part = |x: &Tensor<1>| x.clone().slice([11..30]);
        let (share, ..) = adamw(part(&w), &part(&g), part(&m), part(&v), &numbers, 5);
        assert_close(&share, &part(&whole), 0.0);
        let f64 = |x: &Tensor<1>| x.clone().cast(DType::F64);
        let (slow, ..) = adamw(f64(&w), &f64(&g), f64(&m), f64(&v), &numbers, 5);
        assert_close(&whole, &wide(&slow), 1e-6);
        let want: f64 = w.clone().into_data().iter::<f32>().map(|x| f64::from(x).powi(2)).sum();
        assert!((sum_of_squares(&w) - want).abs() < 1e-12);
        assert!((sum_of_squares(&scaled(w, 2.0)) - 4.0 * want).abs() < 1e-12);
    }
}
