//! The tensors that a transformer layer keeps from forward to backward.
//!
//! With `a` heads and a sequence of `s` the table of a GPT layer sums to `s b h (34 + 5 a s / h)` bytes; over `t`
//! tensor-parallel ranks to `s b h (10 + 24 / t + 5 a s / (h t))`, and under Megatron's sequence parallelism to a `t`-th
//! (Korthikanti et al. 2022, arXiv:2205.05198, equations 1, 2 and 4). As there, the norms' statistics are left out: 2
//! numbers a token.
//!
//! Experts: Megatron-core's all-to-all dispatcher, tokens spread evenly, probabilities applied with the activation.
//!
//! One law: a tensor is in the table once, by the operation whose backward reads it.

use crate::scenario::{Attention, SequenceParallel};
use crate::segments::Cut;

/// Over which ranks a tensor is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divided {
    /// Over the tensor-parallel ranks.
    Tensor,
    /// Over the tensor-parallel ranks under Megatron's sequence parallelism; whole on each without it.
    Sequence,
    /// Whole on every rank.
    Not,
}

/// Which half of backward reads a tensor last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// I: the gradient of the operation's input.
    Input,
    /// W: the gradient of the operation's weight.
    Weight,
}

/// One tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What it is.
    pub name: &'static str,
    /// The operation whose backward reads it.
    pub operation: &'static str,
    /// Numbers of one token.
    pub numbers: u64,
    /// Bytes of one number \[B\].
    pub width: u64,
    /// Over which ranks it is divided.
    pub divided: Divided,
    /// Which half of backward reads it last.
    pub until: Until,
    /// Whether it is made again under selective recomputation: core attention.
    pub core_attention: bool,
}

impl Kept {
    /// Bytes of one microbatch on one rank \[B\].
    pub fn bytes(&self, cut: &Cut<'_>) -> u64 {
        let ranks = match self.divided {
            Divided::Tensor => cut.tensor(),
            Divided::Sequence if cut.shards_sequence() => cut.tensor(),
            Divided::Sequence | Divided::Not => 1,
        };
        cut.tokens().saturating_mul(self.numbers).saturating_mul(self.width).div_ceil(ranks)
    }
}

/// Collects the rows of a table.
struct Table {
    rows: Vec<Kept>,
    width: u64,
}

impl Table {
    fn add(&mut self, name: &'static str, operation: &'static str, numbers: u64, divided: Divided, until: Until) {
        self.rows.push(Kept { name, operation, numbers, width: self.width, divided, until, core_attention: false });
    }

    /// A row of numbers of another width: masks of a byte, statistics in fp32.
    fn add_wide(&mut self, name: &'static str, operation: &'static str, numbers: u64, divided: Divided, width: u64) {
        let until = Until::Input;
        self.rows.push(Kept { name, operation, numbers, width, divided, until, core_attention: false });
    }

    /// A row of `a s` numbers a token, made again under selective recomputation.
    fn add_scores(&mut self, name: &'static str, operation: &'static str, numbers: u64, width: u64) {
        let (divided, until) = (Divided::Tensor, Until::Input);
        self.rows.push(Kept { name, operation, numbers, width, divided, until, core_attention: true });
    }
}

/// Numbers of one token in the tensors around core attention, over all tensor-parallel ranks.
pub(super) struct Core {
    pub(super) queries: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) output: u64,
}

impl Core {
    pub(super) fn new(cut: &Cut<'_>) -> Self {
        let (model, t) = (cut.model, cut.tensor());
        let heads = u64::from(model.num_attention_heads);
        if let Some(latent) = model.latent_attention {
            let qk = u64::from(latent.qk_head_dim) + u64::from(latent.qk_pos_emb_head_dim);
            let v = u64::from(latent.v_head_dim);
            return Self { queries: heads * qk, keys: heads * qk, values: heads * v, output: heads * v };
        }
        let d = u64::from(model.kv_channels);
        // Fewer key-value heads than ranks are replicated.
        let groups = u64::from(model.num_query_groups).div_ceil(t) * t;
        Self { queries: heads * d, keys: groups * d, values: groups * d, output: heads * d }
    }
}

/// What a layer keeps: attention, then the MLP, or its experts where `experts`.
pub fn layer(cut: &Cut<'_>, experts: bool) -> Vec<Kept> {
    let mut table = Table { rows: Vec::new(), width: cut.width() };
    attention(cut, &mut table);
    let (h, model) = (cut.hidden(), cut.model);
    if !model.shared_norm {
        table.add("norm 2 input (residual stream)", "norm 2", h, Divided::Sequence, Until::Input);
        table.add("norm 2 output", "fc1", h, Divided::Sequence, Until::Weight);
    }
    match model.mixture_of_experts.filter(|_| experts) {
        Some(moe) => {
            let [topk, ffn, shared] =
                [moe.moe_router_topk, moe.moe_ffn_hidden_size, moe.moe_shared_expert_intermediate_size].map(u64::from);
            table.add("dispatched tokens", "expert fc1", topk * h, Divided::Not, Until::Weight);
            mlp(cut, &mut table, ["expert fc1 output", "expert activation output"], topk * ffn);
            if shared > 0 {
                mlp(cut, &mut table, ["shared fc1 output", "shared activation output"], shared);
            }
        }
        None => mlp(cut, &mut table, ["fc1 output", "activation output"], u64::from(model.ffn_hidden_size)),
    }
    if model.post_norms {
        table.add("MLP output", "norm behind the MLP", h, Divided::Sequence, Until::Input);
    }
    if cut.setup.drops_hidden() {
        table.add_wide("dropout mask behind the MLP", "bias-dropout-add", h, Divided::Sequence, MASK);
    }
    table.rows
}

/// Bytes of a number of a dropout mask \[B\].
const MASK: u64 = 1;
/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;

fn attention(cut: &Cut<'_>, table: &mut Table) {
    let (h, model, core) = (cut.hidden(), cut.model, Core::new(cut));
    let heads = u64::from(model.num_attention_heads);
    table.add("norm 1 input (residual stream)", "norm 1", h, Divided::Sequence, Until::Input);
    table.add("norm 1 output", "qkv", h, Divided::Sequence, Until::Weight);
    if let Some(latent) = model.latent_attention {
        let kv = u64::from(latent.kv_lora_rank);
        let rope = u64::from(latent.qk_pos_emb_head_dim);
        if let Some(q) = latent.q_lora_rank.map(u64::from) {
            table.add("compressed queries", "query norm", q, Divided::Sequence, Until::Input);
            table.add("query norm output", "query up-projection", q, Divided::Sequence, Until::Weight);
        }
        table.add("compressed keys and values", "key-value norm", kv + rope, Divided::Sequence, Until::Input);
        table.add("key-value norm output", "key-value up-projection", kv, Divided::Sequence, Until::Weight);
    }
    if model.qk_layernorm {
        table.add("queries before their norm", "query norm", core.queries, Divided::Tensor, Until::Input);
        table.add("keys before their norm", "key norm", core.keys, Divided::Tensor, Until::Input);
    }
    for (name, numbers) in [("queries", core.queries), ("keys", core.keys), ("values", core.values)] {
        table.add(name, "core attention", numbers, Divided::Tensor, Until::Input);
    }
    if cut.setup.attention == Attention::Standard {
        let scores = heads.saturating_mul(cut.seq_length);
        table.add_scores("softmax output", "softmax", scores, table.width);
        if cut.setup.drops_attention() {
            table.add_scores("probabilities behind dropout", "product with the values", scores, table.width);
            table.add_scores("attention dropout mask", "dropout", scores, MASK);
        }
    } else {
        table.add_wide("log-sum-exp", "core attention", heads, Divided::Tensor, FP32);
        if cut.context() > 1 && cut.setup.sequence_parallel == SequenceParallel::Ulysses {
            let name = "core attention output before the all-to-all";
            table.add(name, "core attention", core.output, Divided::Tensor, Until::Input);
        }
    }
    table.add("core attention output", "output projection", core.output, Divided::Tensor, Until::Weight);
    if model.post_norms {
        table.add("attention output", "norm behind attention", h, Divided::Sequence, Until::Input);
    }
    if cut.setup.drops_hidden() {
        table.add_wide("dropout mask behind attention", "bias-dropout-add", h, Divided::Sequence, MASK);
    }
}

/// Two linear layers with an activation between; `inner` numbers of a token.
fn mlp(cut: &Cut<'_>, table: &mut Table, [up, activation]: [&'static str; 2], inner: u64) {
    table.add(up, "activation", projections(cut) * inner, Divided::Tensor, Until::Input);
    table.add(activation, "fc2", inner, Divided::Tensor, Until::Weight);
}

/// Projections before the activation: the gate is a second one.
pub(super) fn projections(cut: &Cut<'_>) -> u64 {
    if cut.model.gated_linear_unit { 2 } else { 1 }
}

/// The gradients of the linear layers' outputs, which a backward in two parts keeps from I to W. With the inputs that
/// the table of [`layer`] keeps until W, a GPT layer has `32 s b h` bytes (Qi et al. 2024, arXiv:2401.10241, table 1).
pub fn output_gradients(cut: &Cut<'_>, experts: bool) -> Vec<Kept> {
    let mut table = Table { rows: Vec::new(), width: cut.width() };
    let (h, model, core) = (cut.hidden(), cut.model, Core::new(cut));
    let mut add = |name, numbers, divided| table.add(name, "weight gradient", numbers, divided, Until::Weight);
    if let Some(latent) = model.latent_attention {
        let [kv, nope, rope, v] =
            [latent.kv_lora_rank, latent.qk_head_dim, latent.qk_pos_emb_head_dim, latent.v_head_dim].map(u64::from);
        let heads = u64::from(model.num_attention_heads);
        add("compressed keys and values", kv + rope, Divided::Sequence);
        add("compressed queries", latent.q_lora_rank.map_or(0, u64::from), Divided::Sequence);
        add("keys and values", heads * (nope + v), Divided::Tensor);
        add("queries", core.queries, Divided::Tensor);
    } else {
        add("qkv output", core.queries + core.keys + core.values, Divided::Tensor);
    }
    add("output projection output", h, Divided::Not);
    match model.mixture_of_experts.filter(|_| experts) {
        Some(moe) => {
            let [topk, ffn, shared] =
                [moe.moe_router_topk, moe.moe_ffn_hidden_size, moe.moe_shared_expert_intermediate_size].map(u64::from);
            add("expert fc1 output", projections(cut) * topk * ffn, Divided::Tensor);
            add("expert fc2 output", topk * h, Divided::Not);
            add("shared fc1 output", projections(cut) * shared, Divided::Tensor);
            add("shared fc2 output", if shared > 0 { h } else { 0 }, Divided::Not);
        }
        None => {
            add("fc1 output", projections(cut) * u64::from(model.ffn_hidden_size), Divided::Tensor);
            add("fc2 output", h, Divided::Not);
        }
    }
    table.rows
}
