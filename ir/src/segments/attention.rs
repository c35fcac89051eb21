//! Attention of a layer: projections, core attention, and how sequence parallelism shares the core.
//!
//! - Ulysses (Jacobs et al. 2023): `qkv | all-to-all | core | all-to-all | out`, with all of the sequence and some of the
//!   heads in the core.
//! - Ring (Li et al. 2021): `qkv | n x (a block of the core beside KV to the next) | out`; backward sends the gradients of
//!   keys and values round too.

use super::kernel::{AttentionKernel, Collective, CollectiveKind, Kernel};
use super::layer::{Border, Linear, elementwise};
use super::operation::{Operand, Operation, Site};
use super::writer::Writer;
use super::{Cut, Phase};
use crate::mesh::Axis;
use crate::model::{LatentAttention, PositionEmbedding};
use crate::scenario::{Attention as AttentionKind, SequenceParallel};

/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;

/// How the core is shared over the context-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Whole,
    Ulysses,
    Ring,
}

/// Attention of one rank.
pub(super) struct Attention<'a> {
    cut: &'a Cut<'a>,
    sharing: Sharing,
    /// Query heads and key-value heads of this rank outside the core.
    heads: u64,
    groups: u64,
    qk_dim: u64,
    v_dim: u64,
    /// From the hidden size to queries, keys and values; the last one comes out of the core.
    projections: Vec<Linear>,
    /// Replicated projections (the compressions of latent attention) before them.
    compressions: Vec<Linear>,
    out: Linear,
}

impl<'a> Attention<'a> {
    pub(super) fn new(cut: &'a Cut<'a>) -> Self {
        let (model, t, h) = (cut.model, cut.tensor(), cut.hidden());
        let heads = u64::from(model.num_attention_heads).div_ceil(t);
        // Fewer key-value heads than ranks: they are replicated.
        let groups = u64::from(model.num_query_groups).div_ceil(t);
        let sharing = match cut.setup.sequence_parallel {
            _ if cut.context() == 1 => Sharing::Whole,
            SequenceParallel::Ulysses => Sharing::Ulysses,
            _ => Sharing::Ring,
        };
        let d = u64::from(model.kv_channels);
        let mut attention = Self {
            cut,
            sharing,
            heads,
            groups,
            qk_dim: d,
            v_dim: d,
            projections: vec![Linear::new(h, (heads + 2 * groups) * d)],
            compressions: Vec::new(),
            out: Linear::new(heads * d, h),
        };
        if let Some(latent) = model.latent_attention {
            let [rank, nope, rope, v] =
                [latent.kv_lora_rank, latent.qk_head_dim, latent.qk_pos_emb_head_dim, latent.v_head_dim].map(u64::from);
            (attention.qk_dim, attention.v_dim, attention.groups) = (nope + rope, v, heads);
            attention.compressions = vec![Linear::new(h, rank + rope)];
            attention.projections = vec![Linear::new(rank, heads * (nope + v))];
            match latent.q_lora_rank.map(u64::from) {
                Some(q) => {
                    attention.compressions.push(Linear::new(h, q));
                    attention.projections.push(Linear::new(q, heads * (nope + rope)));
                }
                None => attention.projections.push(Linear::new(h, heads * (nope + rope))),
            }
            attention.out = Linear::new(heads * v, h);
        }
        attention
    }

    pub(super) fn forward(&self, w: &mut Writer, phase: Phase) {
        let (m, width) = (self.cut.tokens(), self.cut.width());
        let linears = self.compressions.iter().chain(&self.projections);
        w.compute(phase, Operation::Projections, linears.map(|l| l.forward(m, width)));
        self.rope(w, phase);
        self.core(w, phase);
        w.compute(phase, Operation::Output, [self.out.forward(m, width)]);
    }

    pub(super) fn backward(&self, w: &mut Writer, border: &Border<'_>, selective: bool) {
        let (m, width) = (self.cut.tokens(), self.cut.width());
        border.gather(w, Phase::Input, 1);
        w.compute(Phase::Input, Operation::Output, [self.out.input(m, width)]);
        w.compute(Phase::Weight, Operation::Output, [self.out.weight(m, self.cut)]);
        if selective && self.cut.setup.attention == AttentionKind::Standard {
            self.core(w, Phase::Recompute);
        }
        self.core_backward(w);
        self.rope(w, Phase::Input);
        // The input of the projections was kept sharded; it is gathered beside their I, for W.
        border.gather_normed(w, Site::Attention, 3);
        let linears = || self.compressions.iter().chain(&self.projections);
        w.compute(Phase::Input, Operation::Projections, linears().map(|l| l.input(m, width)));
        border.reduce(w, Phase::Input, 2);
        w.compute(Phase::Weight, Operation::Projections, linears().map(|l| l.weight(m, self.cut)));
    }

    fn rope(&self, w: &mut Writer, phase: Phase) {
        if let Some(latent) = self.cut.model.latent_attention {
            self.assemble(w, phase, latent);
        } else if self.cut.model.position_embedding == PositionEmbedding::Rope {
            let numbers = self.cut.tokens() * (self.heads + self.groups) * self.qk_dim;
            w.compute(phase, Operation::Rope, [elementwise(2 * numbers * self.cut.width(), 2)]);
        }
    }

    /// Latent attention: the compressed queries and keys are normalised, and queries, keys and values are put together of
    /// their parts with and without position.
    fn assemble(&self, w: &mut Writer, phase: Phase, latent: LatentAttention) {
        let (tokens, width) = (self.cut.tokens(), self.cut.width());
        let compressed = u64::from(latent.kv_lora_rank) + latent.q_lora_rank.map_or(0, u64::from);
        let passes = if phase == Phase::Input { 4 } else { 2 };
        let parts = self.heads * (2 * self.qk_dim + self.v_dim);
        let kernels =
            [elementwise(passes * tokens * compressed * width, 2), elementwise(2 * tokens * parts * width, 2)];
        w.compute(phase, Operation::Rope, kernels);
    }

    /// Bytes of queries, keys and values of this rank, and of the core's output \[B\].
    fn around_the_core(&self) -> [u64; 2] {
        let per_token = self.heads * self.qk_dim + self.groups * (self.qk_dim + self.v_dim);
        [per_token, self.heads * self.v_dim].map(|n| self.cut.tokens() * n * self.cut.width())
    }

    fn core(&self, w: &mut Writer, phase: Phase) {
        let [before, after] = self.around_the_core();
        let to_all = |bytes| Collective { kind: CollectiveKind::AllToAll, axis: Axis::Context, bytes };
        match self.sharing {
            Sharing::Whole => w.compute(phase, Operation::Core(0), self.part(false, 1)),
            Sharing::Ulysses => {
                w.send(phase, to_all(before), Operand::Projected, 1);
                w.compute(phase, Operation::Core(0), self.part(false, 1));
                w.send(phase, to_all(after), Operand::Attended, 1);
            }
            Sharing::Ring => {
                for block in 0..self.cut.mesh.context {
                    if block + 1 < self.cut.mesh.context {
                        self.pass_on(w, phase, true, false, 2);
                    }
                    w.begin_segment();
                    w.compute(phase, Operation::Core(block), self.part(false, self.cut.context()));
                }
            }
        }
    }

    fn core_backward(&self, w: &mut Writer) {
        let [before, after] = self.around_the_core();
        let to_all = |bytes| Collective { kind: CollectiveKind::AllToAll, axis: Axis::Context, bytes };
        match self.sharing {
            Sharing::Whole => w.compute(Phase::Input, Operation::Core(0), self.part(true, 1)),
            Sharing::Ulysses => {
                w.send(Phase::Input, to_all(after), Operand::Attended, 1);
                w.compute(Phase::Input, Operation::Core(0), self.part(true, 1));
                w.send(Phase::Input, to_all(before), Operand::Projected, 1);
            }
            Sharing::Ring => {
                // The gradients of a block follow it one step behind: they are there once its step is computed. Those of
                // a rank's own block stay at home, where the others come back to.
                for block in 0..self.cut.mesh.context {
                    let (keys_and_values, gradients) = (block + 1 < self.cut.mesh.context, block >= 2);
                    if keys_and_values || gradients {
                        self.pass_on(w, Phase::Input, keys_and_values, gradients, 2);
                    }
                    w.begin_segment();
                    w.compute(Phase::Input, Operation::Core(block), self.part(true, self.cut.context()));
                }
                self.pass_on(w, Phase::Input, false, true, 1);
            }
        }
    }

    /// A message to the next rank of the ring.
    fn pass_on(&self, w: &mut Writer, phase: Phase, keys_and_values: bool, gradients: bool, joined_after: usize) {
        let bytes = (u64::from(keys_and_values) + u64::from(gradients)) * self.keys_and_values();
        let collective = Collective { kind: CollectiveKind::Exchange, axis: Axis::Context, bytes };
        w.send(phase, collective, Operand::Ring { keys_and_values, gradients }, joined_after);
    }

    /// Keys and values that travel round the ring \[B\].
    fn keys_and_values(&self) -> u64 {
        self.cut.tokens() * self.groups * (self.qk_dim + self.v_dim) * self.cut.width()
    }

    /// The core of one rank, or one of the `blocks` blocks of a ring.
    fn part(&self, backward: bool, blocks: u64) -> Vec<Kernel> {
        let (batch, c) = (self.cut.micro_batch_size, self.cut.context());
        let (heads, queries, keys) = match self.sharing {
            Sharing::Whole => (self.heads, self.cut.seq_length, self.cut.seq_length),
            Sharing::Ulysses => (self.heads.div_ceil(c), self.cut.seq_length, self.cut.seq_length),
            Sharing::Ring => (self.heads, self.cut.seq_length.div_ceil(c), self.cut.seq_length.div_ceil(blocks)),
        };
        let (qk_dim, v_dim, width) = (self.qk_dim, self.v_dim, self.cut.width());
        if self.cut.setup.attention == AttentionKind::Flash {
            // Every block of a contiguous ring is waited for by a rank that computes all of it.
            let masked =
                self.sharing != Sharing::Ring || self.cut.setup.sequence_parallel != SequenceParallel::RingContiguous;
            let kernel = AttentionKernel { batch, heads, queries, keys, qk_dim, v_dim, masked, backward };
            return vec![Kernel::Attention(kernel)];
        }
        let count = batch * heads;
        let gemm = |m, n, k| Kernel::Gemm { m, n, k, count, width, output: width, grouped: false };
        let scores = count * queries * keys;
        let dropout = if self.cut.setup.drops_attention() { 2 * width + 1 } else { 0 };
        let launches = 1 + u32::from(self.cut.setup.drops_attention());
        // Biases are added, and heads put in order for the batched multiplications and back: all read and written once.
        let copies = elementwise(2 * self.around_the_core().iter().sum::<u64>(), 2);
        if backward {
            // Gradients of the probabilities and the values, then of queries and keys.
            vec![
                copies,
                gemm(queries, keys, v_dim),
                gemm(keys, v_dim, queries),
                elementwise(scores * (3 * width + dropout), launches),
                gemm(queries, qk_dim, keys),
                gemm(keys, qk_dim, queries),
            ]
        } else {
            // Unfused: mask, copy to fp32, softmax in fp32, and back.
            let (softmax, launches) = if self.cut.setup.masked_softmax_fusion {
                (2 * width, launches)
            } else {
                (1 + 2 * (width + FP32) + 2 * FP32, launches + 3)
            };
            let softmax = elementwise(scores * (softmax + dropout), launches);
            vec![copies, gemm(queries, keys, qk_dim), softmax, gemm(queries, v_dim, keys)]
        }
    }
}
