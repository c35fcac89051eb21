//! The MLP of a layer, or its experts.
//!
//! Experts (Megatron-core's dropless dispatch, tokens spread evenly):
//! `router | all-to-all | experts | all-to-all`, the shared experts before the way back.

use super::kernel::{CollectiveKind, Kernel};
use super::layer::{Border, Linear, elementwise};
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
            w.compute(phase, "mlp", self.dense.forward(m, width));
            return;
        };
        w.compute(phase, "router", [e.router.forward(m, width)]);
        w.compute(phase, "router", e.permute());
        self.dispatch(w, phase, e, 1);
        w.compute(phase, "experts", e.sort());
        w.compute(phase, "experts", e.pair.forward(e.rows, width));
        w.compute(phase, "experts", e.sort());
        w.compute(phase, "experts", e.shared.iter().flat_map(|pair| pair.forward(m, width)));
        self.dispatch(w, phase, e, 1);
        w.compute(phase, "experts", e.permute());
    }

    pub(super) fn backward(&self, w: &mut Writer, border: &Border<'_>) {
        let (m, width) = (self.cut.tokens(), self.cut.width());
        border.gather(w, Phase::Input, 1);
        let Some(e) = &self.experts else {
            let Pair { up, down, .. } = self.dense;
            w.compute(Phase::Input, "mlp", [down.input(m, width)]);
            w.compute(Phase::Weight, "mlp", [down.weight(m, self.cut)]);
            border.gather(w, Phase::Weight, 3);
            w.compute(Phase::Input, "mlp", [self.dense.activation_backward(m, width), up.input(m, width)]);
            border.reduce(w, Phase::Input, 2);
            w.compute(Phase::Weight, "mlp", [up.weight(m, self.cut)]);
            return;
        };
        let pairs = || [(e.pair, e.rows)].into_iter().chain(e.shared.map(|pair| (pair, m)));
        w.compute(Phase::Input, "experts", e.permute());
        self.dispatch(w, Phase::Input, e, 1);
        w.compute(Phase::Input, "experts", e.sort());
        let input = pairs().flat_map(|(pair, rows)| {
            [pair.down.input(rows, width), pair.activation_backward(rows, width), pair.up.input(rows, width)]
        });
        w.compute(Phase::Input, "experts", input);
        w.compute(Phase::Input, "experts", e.sort());
        self.dispatch(w, Phase::Input, e, 2);
        let weight =
            pairs().flat_map(|(pair, rows)| [pair.down.weight(rows, self.cut), pair.up.weight(rows, self.cut)]);
        w.compute(Phase::Weight, "experts", weight);
        w.compute(Phase::Input, "router", e.permute());
        w.compute(Phase::Input, "router", [e.router.input(m, width)]);
        border.reduce(w, Phase::Input, 2);
        w.compute(Phase::Weight, "router", [e.router.weight(m, self.cut)]);
    }

    fn dispatch(&self, w: &mut Writer, phase: Phase, experts: &Experts, joined_after: usize) {
        if self.cut.mesh.expert > 1 {
            w.send(phase, CollectiveKind::AllToAll, Axis::Expert, experts.dispatched, joined_after);
        }
    }
}
