//! Temporary: where the time of a layer goes.
use burn::tensor::{Device, Distribution, Tensor, activation, module};
use pipewright_exec::autodiff::backward_from;
use pipewright_exec::ops::*;
use std::time::Instant;
fn bench<const I: usize, const O: usize>(name: &str, f: impl Fn(Tensor<I>) -> Tensor<O>, x: Tensor<I>, g: Tensor<O>) {
    let (mut bf, mut bb) = (f64::MAX, f64::MAX);
    for _ in 0..12 {
        let x = x.clone().autodiff().require_grad();
        let t = Instant::now();
        let y = f(x);
        bf = bf.min(t.elapsed().as_secs_f64());
        let t = Instant::now();
        let gr = backward_from(y, g.clone()).unwrap();
        bb = bb.min(t.elapsed().as_secs_f64());
        drop(gr);
    }
    println!("{name:28} fwd {:7.2} ms  bwd {:7.2} ms", bf * 1e3, bb * 1e3);
}
fn main() {
    if std::env::args().nth(1).is_some() { pipewright_exec::memory::keep_freed_memory(); }
    let d = Device::flex();
    let r3 = |s: [usize; 3]| Tensor::<3>::random(s, Distribution::Normal(0.0, 1.0), &d);
    let w = |i, o| Tensor::<2>::random([i, o], Distribution::Normal(0.0, 0.05), &d).autodiff().require_grad();
    let v = |n| Tensor::<1>::random([n], Distribution::Normal(0.0, 0.05), &d).autodiff().require_grad();
    let mask = causal_mask(128, &d);
    bench("attention", |x| attention(x, &mask, 8), r3([4, 128, 768]), r3([4, 128, 256]));
    let (a, b) = (v(256), v(256));
    bench("layer_norm", |x| layer_norm(x, a.clone(), b.clone(), 1e-5), r3([4, 128, 256]), r3([4, 128, 256]));
    bench("layer_norm burn", |x| module::layer_norm(x, a.clone(), Some(b.clone()), 1e-5), r3([4, 128, 256]), r3([4, 128, 256]));
    bench("gelu burn", |x: Tensor<3>| activation::gelu(x), r3([4, 128, 1024]), r3([4, 128, 1024]));
    bench("add", |x: Tensor<3>| x.clone() + x, r3([4, 128, 256]), r3([4, 128, 256]));
    for (i, o) in [(256, 768), (256, 256), (256, 1024), (1024, 256)] {
        let (w, b) = (w(i, o), v(o));
        bench(&format!("linear {i}x{o}"), |x: Tensor<3>| module::linear(x, w.clone(), Some(b.clone())), r3([4, 128, i]), r3([4, 128, o]));
        bench(&format!("linear {i}x{o} no bias"), |x: Tensor<3>| module::linear(x, w.clone(), None), r3([4, 128, i]), r3([4, 128, o]));
    }

    let best = |name: &str, f: &dyn Fn() -> Tensor<2>| { let mut b = f64::MAX; for _ in 0..20 { let t = Instant::now(); let y = f(); b = b.min(t.elapsed().as_secs_f64()); drop(y); } println!("{name:40} {:.2} ms", b * 1e3); };
    let r2 = |a, b| Tensor::<2>::random([a, b], Distribution::Normal(0.0, 1.0), &d);
    for (n, i, o) in [(512, 256, 1024), (512, 1024, 256), (512, 256, 768), (512, 256, 256)] {
        let (x, w, g) = (r2(n, i), r2(i, o), r2(n, o));
        let wt = Tensor::<2>::from_data(w.clone().transpose().into_data(), &d);
        let xt = Tensor::<2>::from_data(x.clone().transpose().into_data(), &d);
        let gt = Tensor::<2>::from_data(g.clone().transpose().into_data(), &d);
        println!("-- {n} x {i} x {o}: {:.1} MFLOP", 2e-6 * (n * i * o) as f64);
        best("y = x w", &|| x.clone().matmul(w.clone()));
        best("y = x wt.T (contiguous wt)", &|| x.clone().matmul(wt.clone().transpose()));
        best("dx = g w.T view", &|| g.clone().matmul(w.clone().transpose()));
        best("dx = g wt contiguous", &|| g.clone().matmul(wt.clone()));
        best("dx = (w g.T).T", &|| w.clone().matmul(g.clone().transpose()).transpose());
        best("dw = x.T view g", &|| x.clone().transpose().matmul(g.clone()));
        best("dw = xt contiguous g", &|| xt.clone().matmul(g.clone()));
        best("dw = (g.T x).T views", &|| g.clone().transpose().matmul(x.clone()).transpose());
        best("dw = (gt x).T contiguous", &|| gt.clone().matmul(x.clone()).transpose());
        best("dw = xt gt.T", &|| xt.clone().matmul(gt.clone().transpose()));
        best("transpose copy of w", &|| Tensor::<2>::from_data(w.clone().transpose().into_data(), &d));
    }
    let x4 = Tensor::<4>::random([4, 8, 128, 128], Distribution::Normal(0.0, 1.0), &d);
    let b4 = |name: &str, f: &dyn Fn() -> Tensor<4>| { let mut b = f64::MAX; for _ in 0..20 { let t = Instant::now(); let y = f(); b = b.min(t.elapsed().as_secs_f64()); drop(y); } println!("{name:40} {:.2} ms", b * 1e3); };
    b4("scores scale", &|| x4.clone() * 0.3);
    b4("scores + mask", &|| x4.clone() + mask.clone().unsqueeze::<4>());
    b4("softmax", &|| activation::softmax(x4.clone(), 3));
    b4("mul", &|| x4.clone() * x4.clone());
    b4("sum_dim", &|| x4.clone().sum_dim(3));
    let q = Tensor::<4>::random([4, 128, 8, 32], Distribution::Normal(0.0, 1.0), &d).swap_dims(1, 2);
    b4("q k.T views", &|| q.clone().matmul(q.clone().transpose()));
    b4("p v view", &|| x4.clone().matmul(q.clone()));
    b4("p.T g", &|| x4.clone().transpose().matmul(q.clone()));
    let s = x4.clone().sum_dim(3);
    b4("x - col", &|| x4.clone() - s.clone());
}
