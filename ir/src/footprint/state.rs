//! What a parameter weighs: itself, its gradient and its optimizer state, divided by ZeRO.
//!
//! One law: ZeRO 1 divides the optimizer state, 2 the gradients too, 3 the parameters too, over the ranks that hold copies
//! (Rajbhandari et al. 2020, arXiv:1910.02054, section 5). Experts have fewer copies than the rest.

use super::MemoryParameters;
use crate::segments::Cut;

/// Bytes of the state of a stage on one rank \[B\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Weights.
    pub parameters: u64,
    /// Accumulated gradients.
    pub gradients: u64,
    /// Optimizer state: Adam's two moments and the fp32 copy of the weights.
    pub optimizer: u64,
}

impl State {
    /// The state of `parameters` parameters, `experts` of them of experts.
    pub fn new(cut: &Cut<'_>, stack: &MemoryParameters, parameters: u64, experts: u64) -> Self {
        let copies = u64::from(cut.mesh.data.max(1)) * cut.context();
        let expert_copies = (copies / u64::from(cut.mesh.expert.max(1))).max(1);
        let dense = Self::of(cut, stack, parameters.saturating_sub(experts), copies);
        let experts = Self::of(cut, stack, experts, expert_copies);
        Self {
            parameters: dense.parameters.saturating_add(experts.parameters),
            gradients: dense.gradients.saturating_add(experts.gradients),
            optimizer: dense.optimizer.saturating_add(experts.optimizer),
        }
    }

    fn of(cut: &Cut<'_>, stack: &MemoryParameters, count: u64, copies: u64) -> Self {
        let bytes = stack.state.of(cut.setup.dtype);
        let divided = |width: u64, stage| {
            count.saturating_mul(width).div_ceil(if cut.setup.zero_stage >= stage { copies } else { 1 })
        };
        Self {
            parameters: divided(bytes.parameters, 3),
            gradients: divided(cut.setup.gradient_dtype.bytes(), 2),
            optimizer: divided(bytes.sharded, 1).saturating_add(count.saturating_mul(bytes.whole)),
        }
    }
}
