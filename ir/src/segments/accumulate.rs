//! Gradients of weights that are added up by passes of their own, where the multiplications that make them do not.
//!
//! One law: the multiplications stay as they are; only what they write, and the passes behind them, differ.

use super::kernel::Kernel;
use super::layer::elementwise;
use super::{Block, Body, Cut, Operation, Phase};

/// Bytes that adding the gradient of one weight to those of the microbatches before reads and writes \[B\].
pub(super) fn bytes(cut: &Cut<'_>) -> u64 {
    cut.width() + 2 * cut.setup.gradient_dtype.bytes()
}

/// The block, with the passes of an unfused accumulation behind every multiplication that makes a weight's gradient.
pub(super) fn unfused(cut: &Cut<'_>, mut block: Block) -> Block {
    if cut.setup.gradient_accumulation_fusion {
        return block;
    }
    for step in block.backward.iter_mut().filter(|step| step.phase == Phase::Weight) {
        let Body::Compute(kernels) = &mut step.body else { continue };
        let mut passes = Vec::new();
        for kernel in kernels.iter_mut() {
            if let Kernel::Gemm { m, n, count, output, .. } = kernel {
                *output = cut.width();
                passes.push(elementwise(m.saturating_mul(*n).saturating_mul(*count).saturating_mul(bytes(cut)), 1));
            }
        }
        step.operations.extend((!passes.is_empty()).then_some(Operation::Accumulate));
        kernels.extend(passes);
    }
    block
}
