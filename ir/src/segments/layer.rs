//! A transformer layer: attention, then the MLP or the experts, each between a way in and a way out of the
//! tensor-parallel region.
//!
//! ```text
//! forward    norm | all-gather*  | attention | reduce | add, norm | all-gather* | mlp | reduce | add
//! backward   add  | all-gather*  | mlp I     | reduce beside mlp W | ...        | attention I | reduce beside W
//! ```
//! `reduce` is an all-reduce, or a reduce-scatter under Megatron's sequence parallelism; messages with * are only there
//! under it (Narayanan et al. 2021, section 2.3; Korthikanti et al. 2022, section 4.2).

use super::attention::Attention;
use super::kernel::{Collective, CollectiveKind, Kernel};
use super::mlp::Mlp;
use super::operation::{Operand, Operation, Site};
use super::writer::Writer;
use super::{Block, Cut, Phase};
use crate::mesh::Axis;
use crate::model::Weight;
use crate::scenario::Recompute;

/// A linear layer of one rank: `[K] -> [N]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    /// Inputs.
    pub(super) k: u64,
    /// Outputs.
    pub(super) n: u64,
    /// Matrices of this size: experts.
    pub(super) count: u64,
}

impl Linear {
    pub(super) fn new(k: u64, n: u64) -> Self {
        Self { k, n, count: 1 }
    }

    fn gemm(self, m: u64, n: u64, k: u64, width: u64) -> Kernel {
        Kernel::Gemm { m, n, k, count: self.count, width, output: width, grouped: self.count > 1 }
    }

    pub(super) fn forward(self, m: u64, width: u64) -> Kernel {
        self.gemm(m, self.n, self.k, width)
    }

    pub(super) fn input(self, m: u64, width: u64) -> Kernel {
        self.gemm(m, self.k, self.n, width)
    }

    /// The gradient is added to that of the microbatches before: read and written, in the format of gradients. Under
    /// ZeRO-3 it is written once, and what is scattered is added.
    pub(super) fn weight(self, m: u64, cut: &Cut<'_>) -> Kernel {
        let passes = if cut.setup.zero_stage == 3 { 1 } else { 2 };
        let output = passes * cut.setup.gradient_dtype.bytes();
        let (n, k, count) = (self.k, m, self.count);
        Kernel::Gemm { m: self.n, n, k, count, width: cut.width(), output, grouped: count > 1 }
    }
}

/// Work limited by memory: so many bytes in so many launches.
pub(super) fn elementwise(bytes: u64, launches: u32) -> Kernel {
    Kernel::Elementwise { bytes, launches }
}

/// Between the tensor-parallel regions: what stands on sequence shards under Megatron's sequence parallelism.
pub(super) struct Border<'a> {
    cut: &'a Cut<'a>,
    /// Bytes of `[B, S, H]` where the regions need it whole \[B\].
    whole: u64,
    /// Numbers of `[B, S, H]` between the regions.
    numbers: u64,
}

impl<'a> Border<'a> {
    pub(super) fn new(cut: &'a Cut<'a>) -> Self {
        let whole = cut.tokens().saturating_mul(cut.hidden()).saturating_mul(cut.width());
        Self { cut, whole, numbers: cut.shard_tokens().saturating_mul(cut.hidden()) }
    }

    /// Gathers the sequence before a region, forward.
    pub(super) fn gather(&self, w: &mut Writer, phase: Phase, joined_after: usize) {
        if self.cut.shards_sequence() {
            w.send(phase, self.message(CollectiveKind::AllGather), Operand::AtHand, joined_after);
        }
    }

    /// Gathers the output of a norm again, which was kept as a shard, for the gradients of the weights behind it.
    pub(super) fn gather_normed(&self, w: &mut Writer, site: Site, joined_after: usize) {
        if self.cut.shards_sequence() {
            w.send(Phase::Weight, self.message(CollectiveKind::AllGather), Operand::Normed(site), joined_after);
        }
    }

    fn message(&self, kind: CollectiveKind) -> Collective {
        Collective { kind, axis: Axis::Tensor, bytes: self.whole }
    }

    /// Sums the partial results of a region.
    pub(super) fn reduce(&self, w: &mut Writer, phase: Phase, joined_after: usize) {
        if self.cut.tensor() > 1 {
            let scatter = self.cut.shards_sequence();
            let beside = scatter || phase != Phase::Input || self.cut.setup.async_tensor_model_parallel_allreduce;
            let joined_after = if beside { joined_after } else { 1 };
            let kind = if scatter { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
            w.send(phase, self.message(kind), Operand::AtHand, joined_after);
        }
    }

    /// A norm, forward: reads and writes once.
    pub(super) fn norm(&self, w: &mut Writer, phase: Phase, site: Site) {
        w.compute(phase, Operation::Norm(site), [elementwise(2 * self.numbers * self.cut.width(), 1)]);
    }

    /// A norm, backward: reads the gradient and the input, twice for its weights' gradients, and writes the gradient.
    pub(super) fn norm_backward(&self, w: &mut Writer, site: Site) {
        w.compute(Phase::Input, Operation::Norm(site), [elementwise(4 * self.numbers * self.cut.width(), 2)]);
    }

    /// Bias, dropout and the residual, forward: reads two, writes one, and the dropout's mask of a byte.
    pub(super) fn add(&self, w: &mut Writer, phase: Phase, site: Site) {
        let mask = u64::from(self.cut.setup.drops_hidden());
        w.compute(phase, Operation::Residual(site), [elementwise(self.numbers * (3 * self.cut.width() + mask), 1)]);
    }

    /// Backward of the same: the mask once more, and the sum of the two gradients that meet at the residual.
    pub(super) fn add_backward(&self, w: &mut Writer, site: Site) {
        let dropout = if self.cut.setup.drops_hidden() { 2 * self.cut.width() + 1 } else { 0 };
        let launches = 1 + u32::from(self.cut.setup.drops_hidden());
        w.compute(
            Phase::Input,
            Operation::Residual(site),
            [elementwise(self.numbers * (3 * self.cut.width() + dropout), launches)],
        );
    }
}

/// The block of a layer.
pub(super) fn block(cut: &Cut<'_>, recompute: Recompute, experts: bool) -> Block {
    let (attention, mlp, border) = (Attention::new(cut), Mlp::new(cut, experts), Border::new(cut));
    let forward = |w: &mut Writer, phase: Phase| {
        border.norm(w, phase, Site::Attention);
        border.gather(w, phase, 1);
        attention.forward(w, phase);
        border.reduce(w, phase, 1);
        border.add(w, phase, Site::Attention);
        border.norm(w, phase, Site::Mlp);
        border.gather(w, phase, 1);
        mlp.forward(w, phase);
        border.reduce(w, phase, 1);
        border.add(w, phase, Site::Mlp);
    };
    let mut w = Writer::default();
    forward(&mut w, Phase::Forward);
    let mut b = Writer::default();
    if recompute == Recompute::Full {
        forward(&mut b, Phase::Recompute);
    }
    border.add_backward(&mut b, Site::Mlp);
    mlp.backward(&mut b, &border);
    border.norm_backward(&mut b, Site::Mlp);
    border.add_backward(&mut b, Site::Attention);
    attention.backward(&mut b, &border, recompute == Recompute::Selective);
    border.norm_backward(&mut b, Site::Attention);
    let weights = cut.model.layer_weights(experts);
    let of_experts: Vec<Weight> = weights.iter().filter(|weight| weight.experts.is_some()).copied().collect();
    let (parameters, expert_parameters) = (cut.sum(&weights), cut.sum(&of_experts));
    let partial_parameters = cut.partial(&weights);
    Block { forward: w.steps, backward: b.steps, parameters, expert_parameters, partial_parameters }
}
