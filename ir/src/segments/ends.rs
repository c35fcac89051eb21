//! The two ends of the model: the embedding, and the head with the loss, both split over the vocabulary.

use super::accumulate;
use super::kernel::{Collective, CollectiveKind, Kernel};
use super::layer::{Border, Linear, elementwise};
use super::operation::{Operand, Operation, Site};
use super::writer::Writer;
use super::{Block, Cut, Phase};
use crate::mesh::Axis;
use crate::model::{PositionEmbedding, Weight};

/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;

/// The embedding. Ids outside a rank's shard of the vocabulary give zeros, then the shards are summed.
pub(super) fn embedding(cut: &Cut<'_>) -> Block {
    let (border, model, width) = (Border::new(cut), cut.model, cut.width());
    let numbers = cut.tokens().saturating_mul(cut.hidden());
    let learned = model.position_embedding == PositionEmbedding::Learned;
    let mut w = Writer::default();
    w.compute(Phase::Forward, Operation::Embedding, [elementwise(2 * numbers * width, 1)]);
    border.reduce(&mut w, Phase::Forward, 1);
    if learned || cut.setup.drops_hidden() {
        border.add(&mut w, Phase::Forward, Site::Embedding);
    }
    if model.embedding_norm {
        border.norm(&mut w, Phase::Forward, Site::Embedding);
    }
    let mut b = Writer::default();
    if model.embedding_norm {
        border.norm_backward(&mut b, Site::Embedding);
    }
    border.gather(&mut b, Phase::Weight, 1);
    b.compute(Phase::Weight, Operation::Embedding, [elementwise(numbers * (width + 2 * FP32), 1)]);
    if !cut.setup.gradient_accumulation_fusion {
        // The gradient of the whole shard: cleared, filled above, and added to the others.
        let shard = cut.vocabulary().saturating_mul(cut.hidden());
        b.compute(Phase::Weight, Operation::Accumulate, [elementwise(shard * (width + accumulate::bytes(cut)), 2)]);
    }
    block(cut, w, b, &model.embedding_weights())
}

/// The final norm, the head and the loss. The maximum, the sum of exponentials and the target's logit of each token are
/// reduced over the shards of the vocabulary. `own_weight` is false where it shares the embedding's on its stage.
pub(super) fn head(cut: &Cut<'_>, own_weight: bool) -> Block {
    let (border, width, m) = (Border::new(cut), cut.width(), cut.tokens());
    let linear = Linear::new(cut.hidden(), cut.vocabulary());
    let logits = m.saturating_mul(cut.vocabulary());
    let mut w = Writer::default();
    border.norm(&mut w, Phase::Forward, Site::Head);
    border.gather(&mut w, Phase::Forward, 1);
    w.compute(Phase::Forward, Operation::Head, [linear.forward(m, width)]);
    // Unfused: a copy in fp32, then maximum, difference, exponential, sum and quotient one by one.
    let [loss, gradient] = if cut.setup.cross_entropy_fusion { [2 * width; 2] } else { [6 * FP32, 4 * FP32] };
    let launches = if cut.setup.cross_entropy_fusion { 2 } else { 6 };
    w.compute(Phase::Forward, Operation::Loss, [elementwise(logits * loss, launches)]);
    if cut.tensor() > 1 {
        let reductions = if cut.setup.cross_entropy_fusion { 2 } else { 3 };
        let (kind, axis) = (CollectiveKind::AllReduce, Axis::Tensor);
        w.send(Phase::Forward, Collective { kind, axis, bytes: reductions * m * FP32 }, Operand::Loss, 1);
    }
    let mut b = Writer::default();
    let softmax: Kernel = elementwise(logits * gradient, 2);
    border.gather_normed(&mut b, Site::Head, 3);
    b.compute(Phase::Input, Operation::Loss, [softmax]);
    b.compute(Phase::Input, Operation::Head, [linear.input(m, width)]);
    border.reduce(&mut b, Phase::Input, 2);
    b.compute(Phase::Weight, Operation::Head, [linear.weight(m, cut)]);
    border.norm_backward(&mut b, Site::Head);
    let mut weights = cut.model.final_norm_weights();
    weights.extend(own_weight.then(|| cut.model.output_weight()));
    block(cut, w, b, &weights)
}

/// The block of these steps and weights.
fn block(cut: &Cut<'_>, forward: Writer, backward: Writer, weights: &[Weight]) -> Block {
    Block {
        forward: forward.steps,
        backward: backward.steps,
        parameters: cut.sum(weights),
        expert_parameters: 0,
        partial_parameters: cut.partial(weights),
    }
}
