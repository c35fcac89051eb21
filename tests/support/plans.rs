//! Random plans: a legal order with its passes, random costs and sizes.

use pipewright::ir::action::{Action, Op};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{
    accumulate, add_gradient_reduction, add_optimizer_step, add_send_recv, add_tied_reduction,
};
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::schedules::{Chunks, FAMILIES, Family, ScheduleParams};
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::ir::workload::{StageWorkload, Workload};
use proptest::collection::vec;
use proptest::prelude::*;

/// A plan drawn at random.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Compute alone.
    pub(crate) order: PipelineOrder,
    /// With messages, and perhaps a tied reduction and an optimizer.
    pub(crate) program: PipelineOrder,
    pub(crate) costs: UnitCosts,
    pub(crate) workload: Workload,
    pub(crate) steps: usize,
    pub(crate) barrier: bool,
}

impl Plan {
    /// The task graph, which must keep the law.
    pub(crate) fn sealed(&self) -> Schedule {
        Draft::lower(&self.program, &self.workload).seal().unwrap()
    }
}

/// The program as text: a failing case fits on a page.
impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { program, costs, workload, steps, barrier, .. } = self;
        let m = program.microbatches;
        write!(f, "m={m} steps={steps} barrier={barrier} {costs:?}\n{}{:?}", program.to_csv(true), workload.stages)
    }
}

/// A cost: nothing, a small whole number, or any.
fn cost() -> impl Strategy<Value = f64> {
    prop_oneof![2 => Just(0.0), 4 => (0_u32..8).prop_map(f64::from), 4 => 0.0..10.0_f64]
}

/// A size [B]: nothing, or some.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 3 => 1_u64..1000]
}

fn stage_workload() -> impl Strategy<Value = StageWorkload> {
    vec(size(), 8).prop_map(|n| StageWorkload {
        parameters: n[0],
        gradients: n[1],
        optimizer: n[2],
        activations: n[3],
        output: n[4],
        forward_workspace: n[5],
        backward_workspace: n[6],
        optimizer_workspace: n[7],
        ..StageWorkload::default()
    })
}

/// Every way to set the knobs of a family, plain first where that is legal.
fn legal_params(p: u32, m: u32, v: u32, family: &Family) -> Vec<ScheduleParams> {
    let plain = ScheduleParams::new(p, m, v);
    let grouped = (1..=m).map(|g| ScheduleParams { microbatch_group_size: Some(g), ..plain.clone() });
    let sliced = (1..=3).map(|k| ScheduleParams { num_seq_splits: Some(k), ..plain.clone() });
    let all = std::iter::once(plain.clone()).chain(grouped).chain(sliced);
    all.filter(|params| family.faults(params).is_empty()).collect()
}

/// Any legal order up to 8 ranks, 24 microbatches and 4 chunks: the next legal one where a family does not take the numbers.
pub(crate) fn any_order() -> impl Strategy<Value = PipelineOrder> {
    (0..FAMILIES.len(), 0_u32..8, 0_u32..24, 1_u32..=4, any::<prop::sample::Index>()).prop_map(
        |(family, p, m, v, knobs)| {
            let family = &FAMILIES[family];
            let v = if family.chunks == Chunks::Two { 2 } else { family.default_chunks(Some(v)) };
            let shapes = (p..p + 8).flat_map(|p| (m..m + 24).map(move |m| (p % 8 + 1, m % 24 + 1)));
            let legal = shapes.map(|(p, m)| legal_params(p, m, v, family)).find(|legal| !legal.is_empty()).unwrap();
            family.order(&legal[knobs.index(legal.len())]).unwrap()
        },
    )
}

/// The same program with every backward in two halves, each weight gradient `delay` places of its rank later.
pub(crate) fn split_backward(order: &PipelineOrder, delay: usize) -> PipelineOrder {
    let split = |actions: &Vec<Action>| {
        let mut halves = Vec::with_capacity(actions.len() * 2);
        let mut waiting: std::collections::VecDeque<(usize, Action)> = std::collections::VecDeque::new();
        for (i, action) in actions.iter().enumerate() {
            // Nothing comes between the parts of a compound action.
            while !action.joins_previous && waiting.front().is_some_and(|(due, _)| *due <= i) {
                halves.extend(waiting.pop_front().map(|(_, weight)| weight));
            }
            if action.op == Op::FullBackward {
                halves.push(Action { op: Op::BackwardInput, ..*action });
                let weight = Action { op: Op::BackwardWeight, joins_previous: false, ..*action };
                waiting.push_back((i + delay, weight));
            } else {
                halves.push(*action);
            }
        }
        halves.extend(waiting.into_iter().map(|(_, weight)| weight));
        halves
    };
    PipelineOrder { ranks: order.ranks.iter().map(split).collect(), ..order.clone() }
}

/// Any plan.
pub(crate) fn any_plan() -> impl Strategy<Value = Plan> {
    let order = (any_order(), prop::option::weighted(0.3, 0_usize..6), 1_u32..=2).prop_map(|(order, delay, rounds)| {
        let order = delay.map_or_else(|| order.clone(), |delay| split_backward(&order, delay));
        accumulate(&order, rounds)
    });
    order.prop_flat_map(|order| {
        let stages = order.placement.stages() as usize;
        let scale = prop_oneof![Just(Vec::new()), vec(cost(), stages)];
        let workload = (vec(stage_workload(), stages), size(), size());
        (Just(order), vec(cost(), 5), scale, workload, any::<[bool; 3]>(), 1_usize..=3).prop_map(
            |(order, costs, stage_scale, (mut stages, logits, tied), [optimizer, reduce, barrier], steps)| {
                let reduce = reduce && stages.len() > 1;
                if let Some(last) = stages.last_mut() {
                    last.logits = logits;
                    last.tied = tied;
                }
                stages[0].tied = tied;
                let mut program = add_gradient_reduction(add_send_recv(&order));
                program = if reduce { add_tied_reduction(program) } else { program };
                program = if optimizer { add_optimizer_step(program) } else { program };
                let costs = UnitCosts {
                    forward: costs[0],
                    backward_input: costs[1],
                    backward_weight: costs[2],
                    hop: costs[3],
                    optimizer: costs[4],
                    stage_scale,
                    overlapped_forward_backward: None,
                };
                Plan { order, program, costs, workload: Workload { stages, ..Workload::default() }, steps, barrier }
            },
        )
    })
}
