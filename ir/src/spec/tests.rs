//! Each rule, broken once on purpose; and the deadlocks of the field cases (A11).

use super::{Rule, Semantics, Violation};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::passes::{
    add_data_reduction, add_gradient_clipping, add_gradient_reduction, add_optimizer_step, add_send_recv,
    add_tensor_reduction, add_tied_reduction,
};
use crate::schedule::Draft;
use crate::schedules::{Chunks, FAMILIES, Family, ScheduleParams, find};
use crate::task::{Task, Touch};
use crate::workload::{StageWorkload, Workload};

fn order(family: &str, p: u32, m: u32, v: u32) -> PipelineOrder {
    find(family).unwrap().order(&ScheduleParams::new(p, m, v)).unwrap()
}

fn full(family: &str, p: u32, m: u32, v: u32) -> PipelineOrder {
    all_passes(&order(family, p, m, v))
}

fn all_passes(order: &PipelineOrder) -> PipelineOrder {
    add_optimizer_step(add_tied_reduction(add_gradient_reduction(add_send_recv(order))))
}

fn draft(order: &PipelineOrder) -> Draft {
    let stage = StageWorkload { activations: 7, output: 3, gradients: 5, parameters: 5, tied: 2, ..Default::default() };
    Draft::lower(
        order,
        &Workload { rank_overhead: 1, stages: vec![stage; order.placement.stages() as usize], ..Workload::default() },
    )
}

fn violations(order: &PipelineOrder) -> Vec<Violation> {
    draft(order).check(Semantics::Eager)
}

fn rules(order: &PipelineOrder) -> Vec<Rule> {
    let mut rules: Vec<Rule> = violations(order).iter().map(|v| v.rule).collect();
    rules.dedup();
    rules
}

/// The position of an action in a rank's program.
fn at(order: &PipelineOrder, rank: usize, action: &str) -> usize {
    order.ranks[rank].iter().position(|a| a.to_string() == action).unwrap()
}

/// Legal parameters of a family, small and large, with every knob that it takes.
fn legal(family: &Family) -> Vec<ScheduleParams> {
    let shapes = (1..=4).flat_map(|p| (1..=9).map(move |m| (p, m))).chain([
        (2, 16),
        (3, 16),
        (4, 10),
        (4, 12),
        (5, 12),
        (6, 12),
        (6, 15),
        (8, 16),
    ]);
    let mut legal = Vec::new();
    for (p, m) in shapes {
        let chunks: &[u32] = match family.chunks {
            Chunks::One => &[1],
            Chunks::Two => &[2],
            Chunks::Any => &[1, 2, 3],
        };
        for plain in chunks.iter().map(|v| ScheduleParams::new(p, m, *v)) {
            let groups = (1..=m).filter(|_| family.knobs.group).map(Some);
            let slices = [1, 3].into_iter().filter(|_| family.knobs.slices).map(Some);
            let grouped = groups.map(|g| ScheduleParams { microbatch_group_size: g, ..plain.clone() });
            let sliced = slices.map(|k| ScheduleParams { num_seq_splits: k, ..plain.clone() });
            legal.extend(grouped.chain(sliced).filter(|params| family.faults(params).is_empty()));
            legal.extend(Some(plain).filter(|params| family.faults(params).is_empty()));
        }
    }
    legal
}

#[test]
fn every_family_keeps_the_law_under_every_semantics() {
    for family in &FAMILIES {
        let legal = legal(family);
        assert!(legal.len() >= 9, "{} has {} legal plans", family.name, legal.len());
        for params in legal {
            let order = all_passes(&family.order(&params).unwrap());
            for semantics in Semantics::ALL {
                let ScheduleParams { ranks, microbatches, chunks, microbatch_group_size, num_seq_splits, .. } = params;
                let what = (ranks, microbatches, chunks, microbatch_group_size, num_seq_splits);
                assert_eq!(draft(&order).check(semantics), [], "{} {what:?} under {semantics:?}", family.name);
            }
        }
    }
}

/// One payload of each family's program after the other is changed: the two ends of a message, or the members of a
/// reduction over ranks, no longer agree.
#[test]
fn every_changed_size_of_a_message_is_found() {
    let (mut messages, mut reductions) = (0, 0);
    for family in &FAMILIES {
        let v = if family.chunks == Chunks::Two { 2 } else { family.default_chunks(Some(2)) };
        let order = add_gradient_reduction(add_send_recv(&family.order(&ScheduleParams::new(4, 8, v)).unwrap()));
        let lawful = draft(&add_tied_reduction(order));
        for i in lawful.graph.node_indices() {
            let Task { action, peer: Some(_), .. } = lawful.graph[i] else { continue };
            let mut changed = lawful.clone();
            changed.graph[i].payload += 1;
            let expected = if action.op.is_collective() { Rule::Collective } else { Rule::MessageSize };
            let found: Vec<Rule> = changed.check(Semantics::Eager).iter().map(|v| v.rule).collect();
            assert!(
                !found.is_empty() && found.iter().all(|rule| *rule == expected),
                "{} {action}: {found:?}",
                family.name
            );
            *(if action.op.is_collective() { &mut reductions } else { &mut messages }) += 1;
        }
    }
    println!("sizes changed: {messages} of messages, {reductions} of reductions");
    assert!(messages > 1000 && reductions > 10, "{messages} {reductions}");
}

#[test]
fn r14_slice_order() {
    let order = |cells: &str| PipelineOrder::from_csv(cells, 1).unwrap();
    assert_eq!(rules(&order("0F0.0,0F0.1,0B0.1,0B0.0")), []);
    let forwards = violations(&order("0F0.1,0F0.0,0B0.1,0B0.0"));
    assert!(forwards.iter().any(|v| v.rule == Rule::SliceOrder && v.help.contains("move 0F0.0 before 0F0.1")));
    let backwards = violations(&order("0F0.0,0F0.1,0B0.0,0B0.1"));
    assert!(backwards.iter().any(|v| v.rule == Rule::SliceOrder && v.help.contains("move 0B0.1 before 0B0.0")));
}

#[test]
fn r02_two_pipes_share_the_microbatches() {
    let lost = PipelineOrder { microbatches: 5, ..add_send_recv(&order("chimera", 2, 4, 1)) };
    assert_eq!(rules(&lost), [Rule::ExactlyOnce]);
    assert!(violations(&lost)[0].help.contains("use 4 or 6"), "{:?}", violations(&lost));
}

#[test]
fn r15_no_part_stands_before_what_it_needs() {
    let order = |cell: &str| PipelineOrder::from_csv(&format!("0F0,1F0,{cell}"), 1).unwrap();
    assert_eq!(rules(&order("(1B0;0B0)FUSED")), []);
    let turned = order("(0B0;1B0)FUSED");
    assert_eq!(rules(&turned), [Rule::Compound]);
    assert!(violations(&turned)[0].help.contains("move 1B0 before 0B0"), "{:?}", violations(&turned));
    assert_eq!(rules(&order("0B0,1B0")), [Rule::DeadlockFree], "apart it is a rank that waits for itself");
}

#[test]
fn r01_in_range() {
    let mut order = full("1f1b", 2, 2, 1);
    order.ranks[0].push(Action::new(Stage::new(9), Op::Forward, Microbatch::new(0)));
    order.ranks[1].push(Action::new(Stage::new(1), Op::Forward, Microbatch::new(2)));
    let found = violations(&order);
    assert_eq!(found.iter().map(|v| v.rule).collect::<Vec<_>>(), [Rule::InRange, Rule::InRange]);
    assert!(found[0].help.contains("0 to 1"), "{}", found[0].help);
}

#[test]
fn r02_exactly_once() {
    let mut order = full("gpipe", 2, 2, 1);
    let forward = at(&order, 0, "0F1");
    let duplicate = order.ranks[0][forward];
    order.ranks[0].insert(forward, duplicate);
    assert_eq!(rules(&order), [Rule::ExactlyOnce]);

    let mut order = full("gpipe", 1, 2, 1);
    let forward = at(&order, 0, "0F1");
    order.ranks[0].remove(forward);
    assert!(violations(&order)[0].message.contains("0F1 is missing"));

    let mut order = full("gpipe", 1, 1, 1);
    order.ranks[0][1].op = Op::BackwardInput;
    assert!(violations(&order)[0].message.contains("0W0 is missing"));
    order.ranks[0].insert(2, Action::new(Stage::new(0), Op::BackwardWeight, Microbatch::new(0)));
    assert_eq!(violations(&order), []);
    order.ranks[0].insert(3, Action::new(Stage::new(0), Op::FullBackward, Microbatch::new(0)));
    assert!(violations(&order)[0].message.contains("beside a split backward"));
}

#[test]
fn r03_placement() {
    let mut order = full("gpipe", 2, 1, 1);
    let moved = order.ranks[0].remove(0);
    order.ranks[1].insert(0, moved);
    assert!(rules(&order).contains(&Rule::Placement));
}

#[test]
fn r04_forward_first() {
    let mut order = full("gpipe", 1, 1, 1);
    order.ranks[0].swap(0, 1);
    assert_eq!(rules(&order), [Rule::ForwardFirst, Rule::DeadlockFree]);
}

#[test]
fn r05_input_before_weight() {
    let mut order = full("gpipe", 1, 1, 1);
    order.ranks[0][1].op = Op::BackwardWeight;
    order.ranks[0].insert(2, Action::new(Stage::new(0), Op::BackwardInput, Microbatch::new(0)));
    assert_eq!(rules(&order), [Rule::InputBeforeWeight, Rule::DeadlockFree]);
}

#[test]
fn r06_message_pairs() {
    for (rank, action) in [(0, "0SEND_F1"), (1, "1RECV_F1"), (1, "1SEND_B0"), (0, "0RECV_B0")] {
        let mut order = full("1f1b", 2, 2, 1);
        let place = at(&order, rank, action);
        let removed = order.ranks[rank].remove(place);
        let found = violations(&order);
        assert_eq!(found[0].rule, Rule::MessagePairs);
        assert!(found[0].message.contains(&format!("{action} is missing on rank {rank}")), "{}", found[0].message);
        // A message too many is refused as well.
        order.ranks[rank].insert(place, removed);
        order.ranks[rank].insert(place, removed);
        assert!(rules(&order).contains(&Rule::MessagePairs));
    }
    let mut order = full("1f1b", 2, 1, 1);
    order.ranks[1].push(Action::new(Stage::new(1), Op::SendForward, Microbatch::new(0)));
    assert!(violations(&order)[0].message.contains("1SEND_F0 has no stage at its other end"));
}

#[test]
fn r07_message_size() {
    let mut draft = draft(&full("1f1b", 2, 1, 1));
    let send = draft.graph.node_indices().find(|n| draft.graph[*n].action.op == Op::SendForward).unwrap();
    draft.graph[send].payload = 4;
    for semantics in Semantics::ALL {
        let found = draft.check(semantics);
        assert_eq!(found.iter().map(|v| v.rule).collect::<Vec<_>>(), [Rule::MessageSize], "a size is never a deadlock");
        assert!(found[0].message.contains("sends 4 bytes, but 1RECV_F0 expects 3"), "{}", found[0].message);
    }
}

#[test]
fn r08_channel_order() {
    let mut order = full("gpipe", 2, 2, 1);
    let (a, b) = (at(&order, 0, "0SEND_F0"), at(&order, 0, "0SEND_F1"));
    let send = order.ranks[0].remove(a);
    order.ranks[0].insert(b, send);
    assert_eq!(rules(&order), [Rule::ChannelOrder]);
}

#[test]
fn r09_message_place() {
    let mut order = full("gpipe", 2, 1, 1);
    order.ranks[0].swap(0, 1);
    assert_eq!(rules(&order), [Rule::MessagePlace]);
    let mut order = full("gpipe", 2, 1, 1);
    order.ranks[1].swap(0, 1);
    assert_eq!(rules(&order), [Rule::MessagePlace]);
}

#[test]
fn r10_deadlock_of_two_orders_that_contradict_each_other() {
    // Rank 0 wants the backward of microbatch 1 before it runs the forward of 0, which rank 1 runs first.
    let csv = "0F1,0B1,0F0,0B0\n1F0,1B0,1F1,1B1\n";
    let order = add_optimizer_step(add_send_recv(&PipelineOrder::from_csv(csv, 2).unwrap()));
    let found = violations(&order);
    assert_eq!(found.iter().map(|v| v.rule).collect::<Vec<_>>(), [Rule::ChannelOrder, Rule::DeadlockFree]);
    let text = &found[1].message;
    assert!(text.contains("rank 0 waits at 0RECV_B1") && text.contains("rank 1 waits at 1RECV_F0"), "{text}");
}

#[test]
fn r11_collective() {
    let mut order = full("gpipe", 3, 1, 1);
    let place = at(&order, 2, "2REDUCE_TIED");
    order.ranks[2].remove(place);
    let found = violations(&order);
    assert_eq!(found[0].rule, Rule::Collective);
    assert!(found[0].message.contains("rank 2"), "{}", found[0].message);

    let mut draft = draft(&full("gpipe", 2, 1, 1));
    let member = draft.graph.node_indices().find(|n| draft.graph[*n].action.op == Op::ReduceTied).unwrap();
    draft.graph[member].payload = 99;
    assert_eq!(draft.check(Semantics::Eager)[0].rule, Rule::Collective);
}

#[test]
fn r11_only_the_ends_hold_a_copy() {
    let mut order = full("gpipe", 3, 1, 1);
    order.ranks[1].push(Action::whole_stage(Stage::new(1), Op::ReduceTied));
    assert!(
        violations(&order).iter().any(|v| v.rule == Rule::Collective && v.message.contains("stage 1 holds no copy"))
    );
}

#[test]
fn r13_a_local_reduction_stands_for_both_copies() {
    let mut order = full("interleaved-1f1b", 1, 2, 2);
    let (optimizer, reduction) = (at(&order, 0, "1OPTIMIZER_STEP"), at(&order, 0, "0REDUCE_TIED"));
    let moved = order.ranks[0].remove(optimizer);
    order.ranks[0].insert(reduction, moved);
    assert!(rules(&order).contains(&Rule::StepEnd));
}

#[test]
fn r12_buffers() {
    let sound = draft(&full("1f1b", 2, 2, 1));
    let find = |touch: Touch| sound.effects.iter().position(|e| e.touch == touch).unwrap();
    for (effect, becomes, says) in [
        (find(Touch::Free), Touch::Use, "never freed"),
        (find(Touch::Allocate), Touch::Use, "before it is allocated"),
        (find(Touch::Use), Touch::Free, "after it is freed"),
        (find(Touch::Use), Touch::Allocate, "second time"),
    ] {
        let mut broken = sound.clone();
        broken.effects[effect].touch = becomes;
        let found = broken.check(Semantics::Eager);
        assert!(found.iter().all(|v| v.rule == Rule::Buffers), "{found:?}");
        assert!(found.iter().any(|v| v.message.contains(says)), "{says}: {found:?}");
    }
}

#[test]
fn r13_step_end() {
    let mut order = full("gpipe", 2, 2, 1);
    let place = at(&order, 0, "0OPTIMIZER_STEP");
    let optimizer = order.ranks[0].remove(place);
    assert!(violations(&order).iter().any(|v| v.message.contains("0OPTIMIZER_STEP is missing")));
    let backward = at(&order, 0, "0B1");
    order.ranks[0].insert(backward, optimizer);
    assert!(rules(&order).contains(&Rule::StepEnd));

    let mut order = full("gpipe", 2, 2, 1);
    let (reduction, backward) = (at(&order, 1, "1REDUCE_TIED"), at(&order, 1, "1B1"));
    let moved = order.ranks[1].remove(reduction);
    order.ranks[1].insert(backward, moved);
    assert!(violations(&order).iter().any(|v| v.rule == Rule::StepEnd && v.message.contains("1REDUCE_TIED")));
}

#[test]
fn r13_parts_are_summed_over_the_tensor_parallel_ranks_once_and_in_their_place() {
    let lawful = |family: &str, p: u32, v: u32| {
        let program = add_gradient_reduction(add_send_recv(&order(family, p, 4, v)));
        let program = add_tensor_reduction(add_data_reduction(program));
        add_optimizer_step(add_gradient_clipping(add_tied_reduction(program)))
    };
    for (family, v) in [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("dualpipe", 1)] {
        assert_eq!(violations(&lawful(family, 2, v)), [], "{family}");
    }
    // What is wrong when rank 0's `action` is moved to where `to` stands.
    let moved = |action: &str, to: &str| {
        let mut order = lawful("zb-h1", 2, 1);
        let (from, to) = (at(&order, 0, action), at(&order, 0, to));
        let action = order.ranks[0].remove(from);
        order.ranks[0].insert(to - usize::from(from < to), action);
        violations(&order).iter().map(|v| (v.rule, v.message.clone())).collect::<Vec<_>>()
    };
    for (action, to, wrong) in [
        ("0REDUCE_TENSOR", "0W3", "0REDUCE_TENSOR stands before 0W3"),
        ("0REDUCE_TENSOR", "0REDUCE_DATA", "0REDUCE_TENSOR stands before 0REDUCE_DATA"),
        ("0CLIP_GRAD", "0REDUCE_TENSOR", "0CLIP_GRAD stands before 0REDUCE_TENSOR"),
        ("0OPTIMIZER_STEP", "0REDUCE_TENSOR", "0OPTIMIZER_STEP stands before 0REDUCE_TENSOR"),
    ] {
        let found = moved(action, to);
        let fits = |(rule, message): &(Rule, String)| *rule == Rule::StepEnd && message.starts_with(wrong);
        assert!(found.iter().any(fits), "{wrong}: {found:?}");
    }
    let mut order = lawful("1f1b", 2, 1);
    let place = at(&order, 1, "1REDUCE_TENSOR");
    let twice = order.ranks[1][place];
    order.ranks[1].insert(place, twice);
    assert_eq!(violations(&order)[0].message, "1REDUCE_TENSOR stands more than once");
    order.ranks[1].drain(place..place + 2);
    assert_eq!(violations(&order)[0].message, "1REDUCE_TENSOR is missing");
}

/// The four programs of field case A11 (microbatches and stages as there), and whether each comes to its end.
const FIELD_DEADLOCKS: [(&str, bool); 4] = [
    ("0SEND_F1,0RECV_B0\n1SEND_B0,1RECV_F1\n", false),
    ("0SEND_F1,0RECV_B0\n1RECV_F1,1SEND_B0\n", true),
    ("2SEND_F1,0F1,0SEND_F2,2RECV_B0,2B0\n3RECV_F1,3SEND_B0,3F1,1RECV_F2,1F2\n", false),
    ("2SEND_F1,0F1,2RECV_B0,0SEND_F2,2B0\n3RECV_F1,3SEND_B0,3F1,1RECV_F2,1F2\n", true),
];

#[test]
fn a11_find_the_deadlock_before_running() {
    let deadlocks = |csv: &str, semantics| {
        let order = PipelineOrder::from_csv(csv, 3).unwrap();
        let found = Draft::lower(&order, &Workload::default()).check(semantics);
        found.into_iter().filter(|v| v.rule == Rule::DeadlockFree).collect::<Vec<_>>()
    };
    for (csv, ends) in FIELD_DEADLOCKS {
        assert_eq!(deadlocks(csv, Semantics::Rendezvous).is_empty(), ends, "{csv}");
        assert!(deadlocks(csv, Semantics::Eager).is_empty(), "buffered sends are fine: {csv}");
    }
    let text = deadlocks(FIELD_DEADLOCKS[0].0, Semantics::Rendezvous)[0].message.clone();
    assert_eq!(
        text,
        "deadlock under rendezvous sends: rank 0 waits at 0SEND_F1 for rank 1, rank 1 waits at 1SEND_B0 for rank 0"
    );
    let text = deadlocks(FIELD_DEADLOCKS[2].0, Semantics::Rendezvous)[0].message.clone();
    assert!(text.contains("rank 0 waits at 0SEND_F2") && text.contains("rank 1 waits at 3SEND_B0"), "{text}");
}

#[test]
fn a11_streams_of_two_ranks_pair_up_head_to_head() {
    let csv = FIELD_DEADLOCKS[0].0;
    let order = PipelineOrder::from_csv(csv, 3).unwrap();
    let found = Draft::lower(&order, &Workload::default()).check(Semantics::StreamFifo);
    assert!(found.iter().any(|v| v.message.contains("deadlock under stream-fifo sends")), "{found:?}");
}
