use burn::tensor::Tensor;
#[derive(Clone, Copy, Debug)]
pub struct AdamW { pub lr: f64, pub beta1: f32, pub beta2: f32, pub eps: f32, pub weight_decay: f32 }
pub fn adamw(value: Tensor<1>, g: &Tensor<1>, m: Tensor<1>, v: Tensor<1>, n: &AdamW, step: u64) -> (Tensor<1>, Tensor<1>, Tensor<1>) {
    let t = step as i32;
    let m = m * n.beta1 + g.clone() * (1.0 - n.beta1);
    let v = v * n.beta2 + g.clone().square() * (1.0 - n.beta2);
    let mh = m.clone() / (1.0 - n.beta1.powi(t));
    let vh = v.clone() / (1.0 - n.beta2.powi(t));
    let value = value * (1.0 - n.lr * f64::from(n.weight_decay)) - mh / (vh.sqrt() + n.eps) * n.lr;
    (value, m, v)
}
pub fn sgd(value: Tensor<1>, g: &Tensor<1>, before: Option<Tensor<1>>, lr: f64, momentum: f64) -> (Tensor<1>, Option<Tensor<1>>) {
    if momentum == 0.0 { return (value - g.clone() * lr, None); }
    let v = match before { Some(b) => b * momentum + g.clone(), None => g.clone() };
    (value - v.clone() * lr, Some(v))
}
pub fn scaled(t: Tensor<1>, factor: f32) -> Tensor<1> { t * factor }
pub fn sum_of_squares(t: &Tensor<1>) -> f64 { t.clone().into_data().iter::<f32>().map(|x| f64::from(x) * f64::from(x)).sum() }
