use burn::tensor::{Tensor, activation as burn_act};
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation { Gelu, GeluTanh, SwiGlu }
fn halves(u: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let [n, f] = u.dims();
    (u.clone().slice([0..n, 0..f / 2]), u.clone().slice([0..n, f / 2..f]))
}
pub fn forward(u: &Tensor<2>, kind: Activation) -> Tensor<2> {
    match kind {
        Activation::Gelu => burn_act::gelu(u.clone()),
        Activation::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            let t = ((u.clone() + u.clone().powi_scalar(3) * 0.044715) * c).tanh();
            u.clone() * 0.5 * (t + 1.0)
        }
        Activation::SwiGlu => { let (g, up) = halves(u); burn_act::silu(g) * up }
    }
}
pub fn backward(u: &Tensor<2>, kind: Activation, da: &Tensor<2>) -> Tensor<2> {
    match kind {
        Activation::Gelu => {
            let cdf = (u.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
            let density = (u.clone().square() * -0.5).exp() * (0.5 / std::f64::consts::PI).sqrt();
            da.clone() * (cdf + u.clone() * density)
        }
        Activation::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            let t = ((u.clone() + u.clone().powi_scalar(3) * 0.044715) * c).tanh();
            let dt = (u.clone().square() * (3.0 * 0.044715) + 1.0) * c;
            let d = (t.clone() + 1.0) * 0.5 + u.clone() * 0.5 * (t.square().neg() + 1.0) * dt;
            da.clone() * d
        }
        Activation::SwiGlu => {
            let (g, up) = halves(u);
            let s = burn_act::sigmoid(g.clone());
            let dg = da.clone() * up * (s.clone() + g.clone() * s.clone() * (s.clone().neg() + 1.0));
            let dup = da.clone() * g * s;
            Tensor::cat(vec![dg, dup], 1)
        }
    }
}
