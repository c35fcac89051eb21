//! The workload of one stage.
//!
//! One law: what a running task needs beside the kept tensors is the largest of its moments, less what the replay of the
//! schedule counts at that moment anyway: messages, logits, kept tensors of the head.

use super::kept::{Core, Kept, projections};
use super::{MemoryParameters, State, kept, layer_bytes};
use crate::ids::Stage;
use crate::model::StagePart;
use crate::placement::Placement;
use crate::scenario::{Attention, Recompute, SequenceParallel};
use crate::segments::{Cut, Programs, StageProgram};
use crate::workload::{SplitWorkload, StageWorkload};

/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;

/// While a layer is recomputed and run backward, its kept tensors and their gradients: fitted on BLOOM's sweep as 2.9
/// layers, of which the allocator may hand one back.
const RECOMPUTED_COPIES: u64 = 2;

/// Copies of the dispatched tokens alive at the end of an experts' forward: permuted, dispatched, expert output, combined.
const DISPATCH_COPIES: u64 = 4;
/// Copies of `[B, S, H]` there: unpermuted, shared experts' output, their sum.
const EXPERTS_HIDDEN: u64 = 3;

/// What the workload of a stage follows from.
pub(super) struct Facts<'a> {
    pub(super) cut: &'a Cut<'a>,
    pub(super) stack: &'a MemoryParameters,
    pub(super) part: StagePart,
    pub(super) program: &'a StageProgram,
    pub(super) programs: &'a Programs,
    pub(super) placement: &'a Placement,
    pub(super) stage: Stage,
}

impl Facts<'_> {
    pub(super) fn workload(&self) -> StageWorkload {
        let State { parameters, gradients, optimizer } =
            State::new(self.cut, self.stack, self.program.parameters, self.expert_parameters());
        let setup = self.cut.setup;
        let replicated = self.cut.mesh.replicas() > 1;
        let count = self.program.parameters;
        let reduced = if replicated && setup.zero_stage < 3 { count * setup.gradient_dtype.bytes() } else { 0 };
        let gathers = replicated && (1..3).contains(&setup.zero_stage);
        let backward_workspace = self.backward_workspace();
        StageWorkload {
            layers: self.part.layers,
            parameters,
            gradients,
            optimizer,
            activations: self.activations(),
            logits: self.logits()[0],
            output: if self.placement.is_last(self.stage) { 0 } else { self.message() },
            forward_workspace: self.forward_workspace(),
            backward_workspace,
            optimizer_workspace: 0,
            reduced,
            tensor_reduced: self.program.partial_parameters * setup.gradient_dtype.bytes(),
            gathered: if gathers { count * setup.dtype.bytes() } else { 0 },
            tied: self.tied(),
            forward_flops: self.forward_flops(),
            split: Some(SplitWorkload {
                kept: self.kept_for_weights(),
                input_workspace: backward_workspace,
                weight_workspace: self.unsharded_gradients(),
            }),
        }
    }

    /// `[B, S, H]` as it goes from stage to stage \[B\].
    fn message(&self) -> u64 {
        self.hidden(self.cut.shard_tokens())
    }

    fn hidden(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.cut.hidden()).saturating_mul(self.cut.width())
    }

    fn recompute(&self) -> Recompute {
        self.cut.setup.recompute_of(self.stage.index())
    }

    fn has_experts(&self, layer: u32) -> bool {
        self.cut.model.is_moe_layer(layer)
    }

    /// Parameters of experts on one rank.
    fn expert_parameters(&self) -> u64 {
        let [_, (_, layers)] = self.layers();
        let mut weights = if layers > 0 { self.cut.model.layer_weights(true) } else { Vec::new() };
        weights.retain(|weight| weight.experts.is_some());
        self.cut.sum(&weights).saturating_mul(layers)
    }

    /// Layers of the stage without and with experts.
    fn layers(&self) -> [(bool, u64); 2] {
        let layers = self.part.layers.start..self.part.layers.end;
        let with = TryFrom::try_from(layers.filter(|l| self.has_experts(*l)).count()).unwrap_or(u64::MAX);
        [(false, u64::from(self.part.layers.len()).saturating_sub(with)), (true, with)]
    }

    fn sum_of_layers(&self, bytes: impl Fn(bool) -> u64) -> u64 {
        let of = |(experts, n): (bool, u64)| if n > 0 { bytes(experts).saturating_mul(n) } else { 0 };
        self.layers().into_iter().map(of).fold(0, u64::saturating_add)
    }

    /// Whether the input comes as a message, which the replay counts by itself.
    fn receives(&self) -> bool {
        let rank = |stage| self.placement.rank_of(stage);
        self.placement.previous(self.stage).is_some_and(|before| rank(before) != rank(self.stage))
    }

    /// Whether the gradient of the output does.
    fn receives_gradient(&self) -> bool {
        let rank = |stage| self.placement.rank_of(stage);
        self.placement.next(self.stage).is_some_and(|next| rank(next) != rank(self.stage))
    }

    fn activations(&self) -> u64 {
        let mut bytes = self.sum_of_layers(|experts| layer_bytes(self.cut, self.recompute(), experts, self.stack));
        bytes = bytes.saturating_add(self.head_kept());
        if self.stack.keeps_stage_output.value && !self.part.head {
            bytes = bytes.saturating_add(self.message());
        }
        if self.receives() { bytes.saturating_sub(self.message()) } else { bytes }
    }

    /// Input and output of the final norm.
    fn head_kept(&self) -> u64 {
        if self.part.head { 2 * self.message() } else { 0 }
    }

    /// Bytes at the logits: kept from forward to backward, and beside that while forward and while backward runs.
    ///
    /// Fused, loss and gradient are made in place. Otherwise the softmax is kept in fp32; forward has the logits and their
    /// fp32 copy beside it, backward the gradient in fp32 and in the format of training.
    fn logits(&self) -> [u64; 3] {
        if !self.part.head {
            return [0; 3];
        }
        let numbers = self.cut.tokens().saturating_mul(self.cut.vocabulary());
        let width = self.cut.width();
        let cast = if width < FP32 { width } else { 0 };
        let widths = if self.cut.setup.cross_entropy_fusion { [width, 0, 0] } else { [FP32, FP32 + cast, FP32 + cast] };
        widths.map(|w| numbers.saturating_mul(w))
    }

    fn forward_workspace(&self) -> u64 {
        let last = self.part.layers.end.checked_sub(1).filter(|_| !self.part.layers.is_empty());
        let experts = last.filter(|l| self.has_experts(*l)).and(self.cut.model.mixture_of_experts).map_or(0, |moe| {
            let copies = DISPATCH_COPIES * u64::from(moe.moe_router_topk) + EXPERTS_HIDDEN;
            // Logits are not there yet; the head's kept tensors neither.
            copies.saturating_mul(self.hidden(self.cut.tokens())).saturating_sub(self.head_kept() + self.logits()[0])
        });
        experts.max(self.logits()[1]).max(self.ring()).saturating_add(self.gathered())
    }

    fn backward_workspace(&self) -> u64 {
        let [logits, _, logits_backward] = self.logits();
        let (whole, shard) = (self.hidden(self.cut.tokens()), self.message());
        let sharded = self.cut.shards_sequence();
        // The gradient of the final norm's output; its input is gathered for W, and so is the gradient that comes back.
        let head = if self.part.head { logits_backward + shard + if sharded { 2 * whole } else { 0 } } else { 0 };
        let last = self.part.layers.end.checked_sub(1).filter(|_| !self.part.layers.is_empty());
        let layer = last.map_or(0, |layer| self.layer_backward(self.has_experts(layer)));
        // What the head kept is gone when the layers' turn comes.
        let layer = layer.saturating_sub(logits + self.head_kept());
        head.max(layer).max(self.ring()).saturating_add(self.gathered()).saturating_add(self.unsharded_gradients())
    }

    /// Most that backward of one layer needs at once.
    fn layer_backward(&self, experts: bool) -> u64 {
        let (cut, t) = (self.cut, self.cut.tensor());
        if self.recompute() == Recompute::Full {
            return RECOMPUTED_COPIES * layer_bytes(cut, Recompute::None, experts, self.stack);
        }
        let per_rank = |numbers: u64| cut.tokens().saturating_mul(numbers).saturating_mul(cut.width()).div_ceil(t);
        // The gradient of the layer's output, unless the replay counts it as a message; whole again inside the region.
        let output = if self.receives_gradient() { 0 } else { self.message() };
        let gathered = if cut.shards_sequence() { self.hidden(cut.tokens()) } else { 0 };
        // The gradient of the activation's output takes the place of that output.
        let inner = match cut.model.mixture_of_experts.filter(|_| experts) {
            Some(moe) => u64::from(moe.moe_router_topk) * u64::from(moe.moe_ffn_hidden_size),
            None => u64::from(cut.model.ffn_hidden_size),
        };
        let mlp = per_rank(projections(cut) * inner);
        let Core { queries, keys, values, output: core_output } = Core::new(cut);
        let mut attention = per_rank(queries + keys + values + core_output);
        if cut.setup.attention == Attention::Standard {
            // Gradients of the probabilities and of the scores.
            let scores = u64::from(cut.model.num_attention_heads).saturating_mul(cut.seq_length);
            attention = attention.saturating_add(per_rank(scores.saturating_mul(2)));
            if self.recompute() == Recompute::Selective {
                let again = kept::layer(cut, experts).into_iter().filter(|tensor| tensor.core_attention);
                attention = attention.saturating_add(again.map(|tensor| tensor.bytes(cut)).sum());
            }
        }
        output + gathered + mlp.max(attention)
    }

    /// Ring attention: keys and values of the neighbour, and those on their way.
    fn ring(&self) -> u64 {
        let ring = self.cut.context() > 1 && self.cut.setup.sequence_parallel != SequenceParallel::Ulysses;
        if !ring || self.part.layers.is_empty() {
            return 0;
        }
        let Core { keys, values, .. } = Core::new(self.cut);
        2 * self.cut.tokens().saturating_mul(keys + values).saturating_mul(self.cut.width()).div_ceil(self.cut.tensor())
    }

    /// ZeRO 3: the parameters of the present layer and of the next one, gathered.
    fn gathered(&self) -> u64 {
        if self.cut.setup.zero_stage < 3 { 0 } else { 2 * self.largest_layer().saturating_mul(self.cut.width()) }
    }

    /// ZeRO 2 and 3: the gradients of a layer before they are scattered.
    fn unsharded_gradients(&self) -> u64 {
        if self.cut.setup.zero_stage < 2 { 0 } else { self.largest_layer().saturating_mul(self.cut.width()) }
    }

    fn largest_layer(&self) -> u64 {
        let present = self.layers().into_iter().filter(|(_, n)| *n > 0);
        present.map(|(experts, _)| self.cut.layer(Recompute::None, experts).parameters).max().unwrap_or(0)
    }

    /// Kept from I to W: inputs of the linear layers and gradients of their outputs.
    fn kept_for_weights(&self) -> u64 {
        let layers = self.sum_of_layers(|experts| {
            let inputs =
                kept::layer(self.cut, experts).into_iter().filter(|tensor| tensor.until == kept::Until::Weight);
            let gradients = kept::output_gradients(self.cut, experts);
            inputs.chain(gradients).map(|tensor: Kept| tensor.bytes(self.cut)).fold(0, u64::saturating_add)
        });
        // The head's input and the gradient of the logits; the gradient of the embedding's output.
        let logits = self.cut.tokens().saturating_mul(self.cut.vocabulary()).saturating_mul(self.cut.width());
        let head = if self.part.head { self.message().saturating_add(logits) } else { 0 };
        let embedding = if self.part.embedding { self.message() } else { 0 };
        layers.saturating_add(head).saturating_add(embedding)
    }

    /// The gradient of a tied embedding that stands on two stages.
    fn tied(&self) -> u64 {
        let ends = self.part.embedding != self.part.head;
        let tied = ends && !self.cut.model.untie_embeddings_and_output_weights;
        let weight = self.cut.vocabulary() * self.cut.hidden();
        if tied { weight * self.cut.setup.gradient_dtype.bytes() } else { 0 }
    }

    fn forward_flops(&self) -> f64 {
        let steps = self.program.forward.iter().filter_map(|placed| self.programs.step(placed.step));
        steps.map(|step| step.work().flops).sum()
    }
}
