use burn::tensor::Tensor;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout { InOut, OutIn }
pub fn forward(x: &Tensor<2>, w: &Tensor<2>, layout: Layout, bias: Option<&Tensor<1>>) -> Tensor<2> {
    let w = match layout { Layout::InOut => w.clone(), Layout::OutIn => w.clone().transpose() };
    let y = x.clone().matmul(w);
    match bias { Some(b) => y + b.clone().unsqueeze::<2>(), None => y }
}
pub fn input(dy: &Tensor<2>, w: &Tensor<2>, layout: Layout) -> Tensor<2> {
    let w = match layout { Layout::InOut => w.clone().transpose(), Layout::OutIn => w.clone() };
    dy.clone().matmul(w)
}
pub fn weight(x: &Tensor<2>, dy: &Tensor<2>, layout: Layout, onto: Option<Tensor<2>>) -> Tensor<2> {
    let g = match layout {
        Layout::InOut => x.clone().transpose().matmul(dy.clone()),
        Layout::OutIn => dy.clone().transpose().matmul(x.clone()),
    };
    match onto { Some(o) => o + g, None => g }
}
pub fn bias(dy: &Tensor<2>, onto: Option<Tensor<1>>) -> Tensor<1> {
    let [_, o] = dy.dims();
    let g = dy.clone().sum_dim(0).reshape([o]);
    match onto { Some(s) => s + g, None => g }
}
