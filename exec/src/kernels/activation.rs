//! The activations of an MLP.
//!
//! One law: backward reads the input alone; what the forward made is not kept for it.

use super::cpu::{Values, make};
use super::maths::{gauss, sigmoid, tanh};
use burn::tensor::{Tensor, activation};

/// Which activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x` times the normal distribution function (Hendrycks and Gimpel 2016).
    Gelu,
    /// Its approximation with a hyperbolic tangent, as GPT-2.
    GeluTanh,
    /// `silu(gate) * up` (Shazeer 2020) of `[N, 2 F]`, the gate's columns first.
    SwiGlu,
}

/// `sqrt(2 / pi)`, and the factor of the cube.
const TANH: (f32, f32) = (0.797_884_6, 0.044_715);

/// Value and slope of the approximation of GELU.
#[inline(always)]
fn gelu_tanh(x: f32) -> (f32, f32) {
    let (a, b) = TANH;
    let t = tanh(a * (x + b * x * x * x));
    let slope = a * (1.0 + 3.0 * b * x * x);
    (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
}

/// Columns of the output of `[N, columns]`.
fn width(columns: usize, kind: Activation) -> usize {
    if kind == Activation::SwiGlu { columns / 2 } else { columns }
}

/// The activation of `x` `[N, F]`, or `[N, 2 F]` of a gated one: `[N, F]`.
pub fn forward(x: &Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n, columns] = x.dims();
    let f = width(columns, kind);
    let Some(values) = Values::of(x) else { return plain_forward(x, kind) };
    make([n, f], &x.device(), |out| {
        let rows = out.chunks_exact_mut(f).zip(values.slice().chunks_exact(columns));
        for (out, x) in rows {
            match kind {
                Activation::Gelu => out.iter_mut().zip(x).for_each(|(out, x)| *out = x * gauss(*x).0),
                Activation::GeluTanh => out.iter_mut().zip(x).for_each(|(out, x)| *out = gelu_tanh(*x).0),
                Activation::SwiGlu => {
                    let (gate, up) = x.split_at(f);
                    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                        *out = gate * sigmoid(*gate) * up;
                    }
                }
            }
        }
    })
}

/// The gradient of `x` from that of the output `[N, F]`.
pub fn backward(x: &Tensor<2>, kind: Activation, gradient: &Tensor<2>) -> Tensor<2> {
    let [n, columns] = x.dims();
    let f = width(columns, kind);
    let (Some(values), Some(g)) = (Values::of(x), Values::of(gradient)) else {
        return plain_backward(x, kind, gradient);
    };
    make([n, columns], &x.device(), |out| {
        let inputs = values.slice().chunks_exact(columns).zip(g.slice().chunks_exact(f));
        for (out, (x, g)) in out.chunks_exact_mut(columns).zip(inputs) {
            match kind {
                Activation::Gelu => {
                    for ((out, x), g) in out.iter_mut().zip(x).zip(g) {
                        let (cdf, density) = gauss(*x);
                        *out = g * (cdf + x * density);
                    }
                }
                Activation::GeluTanh => {
                    for ((out, x), g) in out.iter_mut().zip(x).zip(g) {
                        *out = g * gelu_tanh(*x).1;
                    }
                }
                Activation::SwiGlu => {
                    let ((gate, up), (dgate, dup)) = (x.split_at(f), out.split_at_mut(f));
                    let inputs = gate.iter().zip(up).zip(g);
                    for ((dgate, dup), ((gate, up), g)) in dgate.iter_mut().zip(dup).zip(inputs) {
                        let s = sigmoid(*gate);
                        *dgate = g * up * s * (1.0 + gate * (1.0 - s));
                        *dup = g * gate * s;
                    }
                }
            }
        }
    })
}

fn halves(x: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let [n, columns] = x.dims();
    (x.clone().slice([0..n, 0..columns / 2]), x.clone().slice([0..n, columns / 2..columns]))
}

fn plain_tanh(x: &Tensor<2>) -> Tensor<2> {
    let (a, b) = TANH;
    ((x.clone() + x.clone().square() * x.clone() * b) * a).tanh()
}

fn plain_forward(x: &Tensor<2>, kind: Activation) -> Tensor<2> {
    match kind {
        Activation::Gelu => activation::gelu(x.clone()),
        Activation::GeluTanh => x.clone() * 0.5 * (plain_tanh(x) + 1.0),
        Activation::SwiGlu => {
            let (gate, up) = halves(x);
            activation::silu(gate) * up
        }
    }
}

fn plain_backward(x: &Tensor<2>, kind: Activation, gradient: &Tensor<2>) -> Tensor<2> {
    let x = x.clone();
    match kind {
        Activation::Gelu => {
            let cdf = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
            let density = (x.clone().square() * -0.5).exp() * (0.5 / std::f64::consts::PI).sqrt();
            gradient.clone() * (cdf + x * density)
        }
        Activation::GeluTanh => {
            let (a, b) = TANH;
            let t = plain_tanh(&x);
            let slope = (x.clone().square() * (3.0 * b) + 1.0) * a;
            let inner = x * 0.5 * (t.clone().square().neg() + 1.0) * slope;
            gradient.clone() * ((t + 1.0) * 0.5 + inner)
        }
        Activation::SwiGlu => {
            let (gate, up) = halves(&x);
            let s = activation::sigmoid(gate.clone());
            let slope = s.clone() * (gate.clone() * (s.clone().neg() + 1.0) + 1.0);
            Tensor::cat(vec![gradient.clone() * up * slope, gradient.clone() * gate * s], 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, gradients, random};
    use super::*;

    #[test]
    fn activations_are_those_of_autodiff() {
        for kind in [Activation::Gelu, Activation::GeluTanh, Activation::SwiGlu] {
            let (x, columns) = (random([7, 34]) * 2.5, width(34, kind));
            let g = random([7, columns]);
            assert_close(&forward(&x, kind), &plain_forward(&x, kind), 1e-5);
            let (dx, _) = gradients(&x, &random([1]), &g, |x, _: Tensor<1>| plain_forward(&x, kind));
            assert_close(&backward(&x, kind, &g), &dx, 1e-5);
            assert_close(&plain_backward(&x, kind, &g), &dx, 1e-5);
        }
    }
}
