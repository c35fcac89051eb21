//! The operations of a transformer, forward and backward, as functions of plain tensors.
//!
//! Each has a fast way for fp32 on burn's CPU backend, one or two passes over memory (`cpu.rs`), and one in burn's own
//! operations for every other device and format.
//!
//! One law: no function knows of ranks, microbatches or schedules; the order of its additions depends on shapes alone.
//!
//! Shapes: `N = B S` rows, a token each, sequence after sequence; `H` hidden size, `A` heads, `G` key-value heads, `D` size
//! of a head, `V` vocabulary.

pub mod activation;
pub mod attention;
mod cpu;
pub mod dropout;
pub mod embedding;
mod gemm;
pub mod linear;
pub mod loss;
mod maths;
pub mod norm;
pub mod optimizer;
pub mod residual;
pub mod rope;
mod vocabulary;

#[cfg(test)]
mod tests {
    //! What the tests of all kernels share.

    use burn::tensor::{DType, Device, Distribution, Tensor};

    pub(super) fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
    }

    /// A tensor of another format as fp32.
    pub(super) fn wide<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
        x.clone().cast(DType::F32)
    }

    /// Asserts that two tensors differ nowhere by more than `tolerance`, of numbers above 1 as a share of them.
    pub(super) fn assert_close<const D: usize>(a: &Tensor<D>, b: &Tensor<D>, tolerance: f32) {
        assert_eq!(a.dims(), b.dims());
        let (a, b): (Vec<f32>, Vec<f32>) =
            (a.clone().into_data().iter().collect(), b.clone().into_data().iter().collect());
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
        assert!(worst <= tolerance && a.iter().any(|x| *x != 0.0), "largest difference {worst}");
    }

    /// The gradients that autodiff gives of `x` and `w` when `f` of them gets the gradient `g`.
    pub(super) fn gradients<const W: usize>(
        x: &Tensor<2>,
        w: &Tensor<W>,
        g: &Tensor<2>,
        f: impl Fn(Tensor<2>, Tensor<W>) -> Tensor<2>,
    ) -> (Tensor<2>, Tensor<W>) {
        let (x, w) = (x.clone().autodiff().require_grad(), w.clone().autodiff().require_grad());
        let y = f(x.clone(), w.clone());
        let grads = (y * g.clone().autodiff()).sum().backward();
        let zeros = || w.clone().inner().zeros_like();
        (x.grad(&grads).unwrap(), w.grad(&grads).unwrap_or_else(zeros))
    }
}
