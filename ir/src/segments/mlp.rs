//! The MLP of a layer, or its experts.
//!
//! Experts (Megatron-core's dropless dispatch, tokens spread evenly):
//! `router | all-to-all | experts | all-to-all`, the shared experts before the way back.

use super::kernel::{Collective, CollectiveKind, Kernel};
use super::layer::{Border, Linear, elementwise};
use super::operation::{Operand, Operation, Site};
use super::writer::Writer;
use super::{Cut, Phase};
use crate::mesh::Axis;
use crate::model::MixtureOfExperts;

/// Two linear layers with an activation between.
#[derive(Clone, Copy, Debug)]
struct Pair {
    up: Linear,
    down: Linear,
    /// Inner numbers of a token, of one matrix.
    inner: u64,
}

impl Pair {
    fn new(cut: &Cut<'_>, ffn: u64, count: u64) -> Self {
        let inner = ffn.div_ceil(cut.tensor());
        let matrices = if cut.model.gated_linear_unit { 2 } else { 1 };
        let up = Linear { k: cut.hidden(), n: inner * matrices, count };
        Self { up, down: Linear { k: inner, n: cut.hidden(), count }, inner }
    }

    fn forward(self, m: u64, width: u64) -> [Kernel; 3] {
        let touched = self.up.n + self.inner;
        [self.up.forward(m, width), self.activation(m, touched, width), self.down.forward(m, width)]
    }

    fn activation_backward(self, m: u64, width: u64) -> Kernel {
        self.activation(m, 2 * self.up.n + self.inner, width)
    }

    fn activation(self, m: u64, numbers: u64, width: u64) -> Kernel {
        elementwise(m * self.up.count * numbers * width, 1)
    }
}

/// The experts of one rank.
struct Experts {
    router: Linear,
    pair: Pair,
    /// Tokens of one expert.
    rows: u64,
    shared: Option<Pair>,
    /// Bytes of the tokens on their way to the experts \[B\].
    dispatched: u64,
}

impl Experts {
    fn new(cut: &Cut<'_>, moe: MixtureOfExperts) -> Self {
        let [experts, topk, ffn, shared] =
            [moe.num_experts, moe.moe_router_topk, moe.moe_ffn_hidden_size, moe.moe_shared_expert_intermediate_size]
                .map(u64::from);
        let ranks = u64::from(cut.mesh.expert.max(1));
        let rows = cut.tokens() * topk;
        Self {
            router: Linear::new(cut.hidden(), experts),
            pair: Pair::new(cut, ffn, experts.div_ceil(ranks)),
            rows: (rows * ranks).div_ceil(experts.max(1)),
            shared: (shared > 0).then(|| Pair::new(cut, shared, 1)),
            dispatched: rows * cut.hidden() * cut.width(),
        }
    }
}

impl Experts {
    /// Tokens copied into the order of the experts, or back: read and written once.
    fn permute(&self) -> [Kernel; 1] {
        [elementwise(2 * self.dispatched, 1)]
    }

    /// What came from several ranks, sorted by the experts of this one, or back into the order of the ranks.
    fn sort(&self) -> Option<Kernel> {
        (self.pair.up.count > 1).then(|| elementwise(2 * self.dispatched, 1))
    }
}

/// The MLP or the experts of one rank.
pub(super) struct Mlp<'a> {
    cut: &'a Cut<'a>,
    dense: Pair,
    experts: Option<Experts>,
}

impl<'a> Mlp<'a> {
    pub(super) fn new(cut: &'a Cut<'a>, experts: bool) -> Self {
        let experts = cut.model.mixture_of_experts.filter(|_| experts).map(|moe| Experts::new(cut, moe));
        Self { cut, dense: Pair::new(cut, u64::from(cut.model.ffn_hidden_size), 1), experts }
    }

    pub(super) fn forward(&self, w: &mut Writer, phase: Phase) {
        let (m, width) = (self.cut.tokens(), self.cut.width());
        let Some(e) = &self.experts else {
            let [up, activation, down] = self.dense.forward(m, width);
            w.compute(phase, Operation::MlpUp, [up]);
            w.compute(phase, Operation::Activation, [activation]);
            w.compute(phase, Operation::MlpDown, [down]);
            return;
        };
        w.compute(phase, Operation::Router, [e.router.forward(m, width)]);
        w.compute(phase, Operation::Permute, e.permute());
        self.dispatch(w, phase, e, 1);
        w.compute(phase, Operation::Experts, e.sort());
        w.compute(phase, Operation::Experts, e.pair.forward(e.rows, width));
        w.compute(phase, Operation::Experts, e.sort());
        w.compute(phase, Operation::Experts, e.shared.iter().flat_map(|pair| pair.forward(m, width)));
        self.dispatch(w, phase, e, 1);
        w.compute(phase, Operation::Permute, e.permute());
    }

    pub(super) fn backward(&self, w: &mut Writer, border: &Border<'_>) {
        let (m, width) = (self.cut.tokens(), self.cut.width());
        border.gather(w, Phase::Input, 1);
        let Some(e) = &self.experts else {
            let Pair { up, down, .. } = self.dense;
            w.compute(Phase::Input, Operation::MlpDown, [down.input(m, width)]);
            w.compute(Phase::Weight, Operation::MlpDown, [down.weight(m, self.cut)]);
            border.gather_normed(w, Site::Mlp, 3);
            w.compute(Phase::Input, Operation::Activation, [self.dense.activation_backward(m, width)]);
            w.compute(Phase::Input, Operation::MlpUp, [up.input(m, width)]);
            border.reduce(w, Phase::Input, 2);
            w.compute(Phase::Weight, Operation::MlpUp, [up.weight(m, self.cut)]);
            return;
        };
        let pairs = || [(e.pair, e.rows)].into_iter().chain(e.shared.map(|pair| (pair, m)));
        w.compute(Phase::Input, Operation::Permute, e.permute());
        self.dispatch(w, Phase::Input, e, 1);
        w.compute(Phase::Input, Operation::Experts, e.sort());
        let input = pairs().flat_map(|(pair, rows)| {
            [pair.down.input(rows, width), pair.activation_backward(rows, width), pair.up.input(rows, width)]
        });
        w.compute(Phase::Input, Operation::Experts, input);
        w.compute(Phase::Input, Operation::Experts, e.sort());
        self.dispatch(w, Phase::Input, e, 2);
        let weight =
            pairs().flat_map(|(pair, rows)| [pair.down.weight(rows, self.cut), pair.up.weight(rows, self.cut)]);
        w.compute(Phase::Weight, Operation::Experts, weight);
        w.compute(Phase::Input, Operation::Permute, e.permute());
        w.compute(Phase::Input, Operation::Router, [e.router.input(m, width)]);
        border.reduce(w, Phase::Input, 2);
        w.compute(Phase::Weight, Operation::Router, [e.router.weight(m, self.cut)]);
    }

    fn dispatch(&self, w: &mut Writer, phase: Phase, experts: &Experts, joined_after: usize) {
        if self.cut.mesh.expert > 1 {
            let (kind, axis) = (CollectiveKind::AllToAll, Axis::Expert);
            w.send(phase, Collective { kind, axis, bytes: experts.dispatched }, Operand::Dispatched, joined_after);
        }
    }
}
