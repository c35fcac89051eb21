//! What must not get lost: bytes, floating-point operations, memory, and time between the ways to simulate one plan.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright::ir::action::Op;
use pipewright::ir::breakdown::{Breakdown, Part, Steps};
use pipewright::ir::communication::{MessageKind, Network, traffic};
use pipewright::ir::flops::{self, Flops, Throughput};
use pipewright::ir::ids::Rank;
use pipewright::ir::memory;
use pipewright::ir::mesh::{Axis, Mesh};
use pipewright::ir::metrics::Metrics;
use pipewright::ir::plan::{self, Plan};
use pipewright::ir::schedule::Schedule;
use pipewright::ir::segments::{CollectiveKind, Programs};
use pipewright::ir::task::{Lane, Task};
use pipewright::ir::timeline::Timeline;
use pipewright::ir::workload::{StageWorkload, Workload};
use pipewright::sim::cost::analytic::{SegmentCost, parameters_of};
use pipewright::sim::cost::{AnalyticCost, CostModel};
use pipewright::sim::{Engine, Options, full, simulate};
use std::collections::BTreeMap;

/// Layers, hidden size, heads and vocabulary of the model of every test.
const GPT: (u64, u64, u64, u64) = (8, 1024, 16, 32_768);
/// Tokens of a sequence.
const SEQ: u64 = 2048;

/// A plan for each schedule. `parallel` and `training` are more keys of these objects.
fn plans(parallel: &str, training: &str, schedules: &str) -> Vec<Plan> {
    let (layers, hidden, heads, vocabulary) = GPT;
    let text = format!(
        r#"{{ "schema_version": 1, "name": "conservation", "cluster": {{ "preset": "dgx-a100-80g" }},
        "model": {{ "num_layers": {layers}, "hidden_size": {hidden}, "num_attention_heads": {heads},
                    "vocab_size": {vocabulary} }},
        "parallel": {{ {parallel} }},
        "training": {{ "micro_batch_size": 2, "num_microbatches": 8, "seq_length": {SEQ}, "dtype": "bf16" {training} }},
        "schedules": {schedules} }}"#
    );
    let scenario = serde_json::from_str(&text).unwrap();
    plan::resolve(&scenario, &|_| Err("no files".to_owned())).unwrap()
}

fn sizes(t: u32, c: u32, d: u32, p: u32) -> String {
    format!(
        r#""tensor_model_parallel_size": {t}, "context_parallel_size": {c}, "data_parallel_size": {d},
           "pipeline_model_parallel_size": {p}"#
    )
}

/// Everything of a plan.
struct Case {
    plan: Plan,
    programs: Programs,
    cost: AnalyticCost,
    whole: Schedule,
    cut: Schedule,
}

impl Case {
    fn new(plan: Plan) -> Self {
        let parameters = parameters_of(&plan, &|_| Err(String::new())).unwrap();
        let (programs, cost) = AnalyticCost::of_plan(&plan, &parameters).unwrap();
        let whole = plan.schedule(&plan.workload(&programs, &parameters.memory_stack().unwrap())).unwrap();
        let cut = whole.segmented(&programs);
        Self { plan, programs, cost, whole, cut }
    }

    fn at_stages(&self) -> Timeline {
        simulate(&self.whole, &self.cost, &Options::default())
    }

    fn at_segments(&self) -> Timeline {
        simulate(&self.cut, &SegmentCost::new(&self.cost, &self.programs), &Options::default())
    }

    /// How long a receive blocks a task of compute.
    fn received(&self, task: &Task) -> f64 {
        let [forward, backward] = self.cost.received[task.action.stage.index()];
        match task.action.op {
            _ if task.step.continues => 0.0,
            Op::Forward => forward,
            Op::FullBackward | Op::BackwardInput => backward,
            _ => 0.0,
        }
    }

    fn breakdown(&self) -> Breakdown {
        let steps = Steps { programs: &self.programs, times: &self.cost.steps, received: &self.cost.received };
        Breakdown::of(&self.cut, &self.at_segments(), &self.whole, Some(&steps))
    }

    fn network(&self, gpus_per_node: u32) -> Network<'_> {
        Network { mesh: &self.plan.mesh, setup: &self.plan.setup, programs: Some(&self.programs), gpus_per_node }
    }

    fn named(&self) -> String {
        let mesh = self.plan.mesh;
        format!("{} t{} c{} d{} p{}", self.plan.name, mesh.tensor, mesh.context, mesh.data, mesh.pipeline)
    }
}

/// Plans of every axis and switch that has messages.
fn cases() -> Vec<Case> {
    let with = |parallel: &str, more: &str, training: &str| {
        let parallel = if more.is_empty() { parallel.to_owned() } else { format!("{parallel}, {more}") };
        plans(&parallel, training, r#"["1f1b"]"#)
    };
    let sequence = |kind: &str| format!(r#""sequence_parallel": "{kind}""#);
    let zero = |stage: u32| format!(r#""zero_stage": {stage}"#);
    let mut plans = Vec::new();
    plans.extend(with(&sizes(1, 1, 1, 4), "", ""));
    plans.extend(with(&sizes(4, 1, 1, 2), "", ""));
    plans.extend(with(&sizes(4, 1, 2, 2), &sequence("megatron"), r#", "recompute": "full""#));
    plans.extend(with(&sizes(2, 2, 1, 2), &sequence("ring"), ""));
    plans.extend(with(&sizes(2, 2, 2, 2), &sequence("ulysses"), r#", "recompute": "selective""#));
    plans.extend(with(&sizes(2, 1, 4, 2), &zero(1), r#", "clip_grad": 1.0"#));
    plans.extend(with(&sizes(1, 1, 8, 1), &zero(3), ""));
    plans.push(experts());
    plans.into_iter().map(Case::new).collect()
}

/// Mixtral 8x7B, its experts over four ranks.
fn experts() -> Plan {
    let text = r#"{ "schema_version": 1, "name": "experts", "cluster": { "preset": "dgx-a100-80g" },
        "model": { "preset": "mixtral-8x7b" },
        "parallel": { "expert_model_parallel_size": 4, "data_parallel_size": 8, "pipeline_model_parallel_size": 2 },
        "training": { "micro_batch_size": 1, "num_microbatches": 4, "seq_length": 4096, "dtype": "bf16" },
        "schedules": ["1f1b"] }"#;
    let scenario = serde_json::from_str(text).unwrap();
    plan::resolve(&scenario, &|_| Err("no files".to_owned())).unwrap().remove(0)
}

/// Gradients of experts go over the two ranks that hold the same ones, all others over the eight replicas.
#[test]
fn gradients_of_experts_are_summed_over_those_that_hold_them() {
    let case = Case::new(experts());
    let stage = &case.programs.stages[0];
    let [experts, others] = [stage.expert_parameters, stage.parameters - stage.expert_parameters];
    let bytes = case.plan.setup.gradient_dtype.bytes();
    let rows = traffic(&case.cut, &case.network(8)).remove(0);
    let all: Vec<_> = rows.iter().filter(|row| row.axis == Axis::Data).collect();
    // Of n bytes over r ranks 2 n (r - 1) / r.
    assert_eq!(all.iter().map(|row| row.sent).sum::<u64>(), experts * bytes + others * bytes * 7 / 4);
    assert!(experts > 4 * others);
}

/// Norms under Megatron's sequence parallelism, and key-value heads fewer than ranks, as the list of weights has them.
#[test]
fn what_is_summed_over_tensor_parallel_ranks_is_what_they_share_and_see_in_parts() {
    let plan = |t: u32, groups: u32, more: &str| {
        let text = format!(
            r#"{{ "schema_version": 1, "name": "partial", "cluster": {{ "preset": "dgx-a100-80g" }},
            "model": {{ "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "num_query_groups": {groups} }},
            "parallel": {{ {} {more} }},
            "training": {{ "num_microbatches": 4, "seq_length": 2048, "dtype": "bf16" }}, "schedules": ["zb-h1"] }}"#,
            sizes(t, 1, 2, 2)
        );
        plan::resolve(&serde_json::from_str(&text).unwrap(), &|_| Err(String::new())).unwrap().remove(0)
    };
    let sequence = r#", "sequence_parallel": "megatron""#;
    // Two norms of 2 H in each of 4 layers, the last stage's final norm, and a key-value head of 64 with its bias.
    let (norms, last, head) = (4 * 2 * 2 * 1024, 2 * 1024, 4 * (2 * 64 * 1024 + 2 * 64));
    for (t, groups, more, expected) in [
        (1, 16, "", None),
        (4, 16, "", None),
        (4, 16, sequence, Some([norms, norms + last])),
        (4, 2, "", Some([head, head])),
        (4, 2, sequence, Some([norms + head, norms + last + head])),
        (4, 4, sequence, Some([norms, norms + last])),
    ] {
        let case = Case::new(plan(t, groups, more));
        for schedule in [&case.whole, &case.cut] {
            let sums: Vec<(usize, u64, f64)> = schedule
                .tasks()
                .filter(|(_, task)| task.action.op == Op::ReduceTensor)
                .map(|(_, task)| (task.rank.index(), task.payload, case.cost.duration(task)))
                .collect();
            // Gradients of bf16 are summed in fp32.
            let bytes: Vec<(usize, u64)> = sums.iter().map(|(rank, bytes, _)| (*rank, *bytes)).collect();
            let expected = expected.map_or_else(Vec::new, |numbers| vec![(0, numbers[0] * 4), (1, numbers[1] * 4)]);
            assert_eq!(bytes, expected, "{} of {groups}{more}", case.named());
            assert!(sums.iter().all(|(_, _, time)| *time > 0.0 && *time < 1e-3));
        }
        let traffic_at = |schedule: &Schedule| {
            let rows = traffic(schedule, &case.network(8)).remove(0);
            let kind = MessageKind::Collective(CollectiveKind::AllReduce);
            rows.iter()
                .find(|row| (row.axis, row.kind) == (Axis::Tensor, kind))
                .map_or((0, 0), |r| (r.messages, r.sent))
        };
        // At the detail of stages it is the only message over the axis: of n bytes 2 n (t - 1) / t are sent.
        let sent = expected.map_or((0, 0), |numbers| (1, numbers[0] * 4 * 2 * 3 / 4));
        assert_eq!(traffic_at(&case.whole), sent, "{} of {groups}{more}", case.named());
        assert!(traffic_at(&case.cut).1 >= sent.1);
    }
}

/// Bytes that each member of a group sends to each other one, worked out message by message.
fn wire(kind: CollectiveKind, ranks: u64, bytes: u64) -> Vec<(u64, u64, u64)> {
    let next = |i: u64| (i + 1) % ranks;
    let shard = bytes / ranks;
    // One round of a ring: everyone sends a shard on.
    let rounds = |n: u64| (0..n).flat_map(|_| (0..ranks).map(|i| (i, next(i), shard))).collect::<Vec<_>>();
    match kind {
        CollectiveKind::AllReduce => rounds(2 * (ranks - 1)),
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => rounds(ranks - 1),
        CollectiveKind::Exchange => (0..ranks).map(|i| (i, next(i), bytes)).collect(),
        CollectiveKind::AllToAll => {
            let to = |i: u64| (0..ranks).filter(move |j| *j != i).map(move |j| (i, j, shard));
            (0..ranks).flat_map(to).collect()
        }
    }
}

#[test]
fn what_a_group_sends_is_what_it_receives_and_what_the_report_says() {
    for kind in [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::Exchange,
    ] {
        for ranks in [2, 4, 8] {
            let bytes = 64 * ranks;
            let (mut sent, mut received) = (vec![0; 8], vec![0; 8]);
            for (from, to, bytes) in wire(kind, ranks, bytes) {
                sent[from as usize] += bytes;
                received[to as usize] += bytes;
            }
            let mesh = Mesh { tensor: u32::try_from(ranks).unwrap(), ..Mesh::default() };
            let said = pipewright::ir::segments::Collective { kind, axis: Axis::Tensor, bytes }.sent(&mesh);
            assert!((0..ranks as usize).all(|i| sent[i] == said && received[i] == said), "{kind:?} {ranks}");
        }
    }
}

#[test]
fn bytes_sent_are_bytes_received_on_every_axis() {
    let mut seen: Vec<(Axis, MessageKind)> = Vec::new();
    for case in cases() {
        let network = case.network(8);
        let mut totals: BTreeMap<(Axis, MessageKind), (u64, u64)> = BTreeMap::new();
        for row in traffic(&case.cut, &network).iter().flatten() {
            assert!(row.across_nodes <= row.sent as f64, "{} {row:?}", case.named());
            let total = totals.entry((row.axis, row.kind)).or_default();
            total.0 += row.sent;
            total.1 += row.received;
        }
        for (kind, (sent, received)) in totals {
            assert!(sent == received && sent > 0, "{} {kind:?}: {sent} sent, {received} received", case.named());
            seen.push(kind);
        }
    }
    for kind in [
        (Axis::Tensor, MessageKind::Collective(CollectiveKind::AllReduce)),
        (Axis::Tensor, MessageKind::Collective(CollectiveKind::AllGather)),
        (Axis::Tensor, MessageKind::Collective(CollectiveKind::ReduceScatter)),
        (Axis::Context, MessageKind::Collective(CollectiveKind::Exchange)),
        (Axis::Context, MessageKind::Collective(CollectiveKind::AllToAll)),
        (Axis::Expert, MessageKind::Collective(CollectiveKind::AllToAll)),
        (Axis::Data, MessageKind::Collective(CollectiveKind::AllReduce)),
        (Axis::Data, MessageKind::Collective(CollectiveKind::ReduceScatter)),
        (Axis::Data, MessageKind::Collective(CollectiveKind::AllGather)),
        (Axis::Pipeline, MessageKind::Collective(CollectiveKind::AllReduce)),
        (Axis::Pipeline, MessageKind::SendForward),
        (Axis::Pipeline, MessageKind::SendBackward),
    ] {
        assert!(seen.contains(&kind), "no case has {kind:?}");
    }
}

/// BLOOM's run: one hop carries 2 x 2048 x 14336 numbers of 2 bytes = 112 MiB each way (field case A6).
#[test]
fn a6_a_hop_carries_the_hidden_states_of_a_microbatch() {
    let case = &cases()[0];
    let network = case.network(2);
    let rows = traffic(&case.cut, &network);
    let forward = rows[0].iter().find(|row| row.kind == MessageKind::SendForward).unwrap();
    assert_eq!((forward.messages, forward.sent), (8, 8 * 2 * SEQ * GPT.1 * 2));
    // Two devices a node: 0 and 1, then 2 and 3. Only the hop between the nodes leaves one.
    let across: Vec<f64> = rows
        .iter()
        .map(|rank| rank.iter().filter(|r| r.kind == MessageKind::SendForward).map(|r| r.across_nodes).sum())
        .collect();
    assert_eq!(across, [0.0, forward.sent as f64, 0.0, 0.0]);
}

/// A ring of 8 over 2 nodes has 2 of its 8 edges between them; of an all-to-all 4 of 7 parts go there.
#[test]
fn the_share_across_nodes_is_that_of_a_ring_and_of_an_all_to_all() {
    let plan = plans(&sizes(1, 8, 1, 1), "", r#"["1f1b"]"#).remove(0);
    let share = |plan: Plan| {
        let case = Case::new(plan);
        let network = case.network(4);
        let rows = traffic(&case.cut, &network).remove(0);
        let row = rows.iter().find(|row| row.axis == Axis::Context).copied().unwrap();
        (row.kind, row.across_nodes / row.sent as f64)
    };
    let ulysses = plans(&format!(r#"{}, "sequence_parallel": "ulysses""#, sizes(1, 8, 1, 1)), "", r#"["1f1b"]"#);
    assert_eq!(share(plan), (MessageKind::Collective(CollectiveKind::Exchange), 0.25));
    let (kind, all) = share(ulysses.into_iter().next().unwrap());
    assert_eq!(kind, MessageKind::Collective(CollectiveKind::AllToAll));
    assert!((all - 4.0 / 7.0).abs() < 1e-12);
}

/// `72 B L s h^2 (1 + s / 6h + V / 12hL)` in whole numbers, of one microbatch.
fn narayanan(batch: u64) -> u128 {
    let [b, l, s, h, v] = [batch, GPT.0, SEQ, GPT.1, GPT.3].map(u128::from);
    72 * b * l * s * h * h + 12 * b * l * s * s * h + 6 * b * s * h * v
}

fn exact(n: u128) -> f64 {
    n as f64
}

#[test]
fn flops_of_the_segments_sum_to_the_formula_of_the_model() {
    for (t, c, p) in [(1, 1, 1), (2, 1, 4), (8, 1, 2), (1, 4, 2), (4, 2, 2), (2, 4, 8)] {
        for kind in ["ring", "ulysses"] {
            for (recompute, attention) in [
                ("none", "standard"),
                ("selective", "standard"),
                ("full", "standard"),
                ("none", "flash"),
                ("selective", "flash"),
                ("full", "flash"),
            ] {
                let parallel = format!(r#"{}, "sequence_parallel": "{kind}""#, sizes(t, c, 2, p));
                let parallel = if c > 1 { parallel } else { sizes(t, c, 2, p) };
                let training = format!(r#", "recompute": "{recompute}", "attention": "{attention}""#);
                let case = Case::new(plans(&parallel, &training, r#"["1f1b"]"#).remove(0));
                let shares = f64::from(t * c);
                let micro = flops::of_microbatch(&case.programs);
                let named = format!("{} {kind} {recompute} {attention}", case.named());
                assert_eq!(micro.model() * shares, exact(narayanan(2)), "{named}");
                assert_eq!(micro.forward * shares * 3.0, exact(narayanan(2)), "{named}");
                let [b, l, s, h] = [2, GPT.0, SEQ, GPT.1].map(u128::from);
                let again = match (recompute, attention) {
                    ("full", _) => 24 * b * l * s * h * h + 4 * b * l * s * s * h,
                    ("selective", "standard") => 4 * b * l * s * s * h,
                    // A fused backward computes the scores again by itself, which nobody counts.
                    _ => 0,
                };
                assert_eq!(micro.recompute * shares, exact(again), "{named}");
                // All devices, all microbatches.
                let step = flops::of_step(&case.whole, &case.programs, &case.plan.mesh);
                assert_eq!(step.model(), 16.0 * exact(narayanan(2)), "{named}");
                assert_eq!(case.plan.model_flops(), Some(step.model()), "{named}");
                // Segment by segment.
                let tasks = case.cut.tasks().map(|(_, task)| case.cut.work(task).flops).sum::<f64>();
                let all = tasks * shares * 2.0;
                assert!((all / step.hardware() - 1.0).abs() < 1e-12, "{named}");
            }
        }
    }
}

/// With full recomputation the hardware computes `96 B L s h^2 (1 + s / 6h + V / 16hL)` (Narayanan et al. 2021).
#[test]
fn flops_with_full_recomputation_are_those_of_the_paper() {
    let case = Case::new(plans(&sizes(2, 1, 1, 2), r#", "recompute": "full""#, r#"["1f1b"]"#).remove(0));
    let [b, l, s, h, v] = [2, GPT.0, SEQ, GPT.1, GPT.3].map(u128::from);
    let paper = 96 * b * l * s * h * h + 16 * b * l * s * s * h + 6 * b * s * h * v;
    let flops: Flops = flops::of_step(&case.whole, &case.programs, &case.plan.mesh);
    assert_eq!(flops.hardware(), 8.0 * exact(paper));
    let throughput = Throughput::of(&case.plan, &case.whole, &case.programs, 2.0).unwrap();
    assert_eq!(throughput.tokens_per_second(), (8 * 2 * SEQ) as f64 / 2.0);
    assert_eq!(throughput.mfu(), 8.0 * exact(narayanan(2)) / (2.0 * 4.0 * 312e12));
    assert_eq!(throughput.hfu() / throughput.mfu(), throughput.hardware_tflops_per_gpu() / throughput.tflops_per_gpu());
}

/// Sizes for memory, another for each stage.
fn workload(stages: u64) -> Workload {
    let stage = |s: u64| StageWorkload {
        parameters: 100 + s,
        gradients: 40 + s,
        optimizer: 300 + s,
        activations: 70 + s,
        output: 10 + s,
        forward_workspace: 5,
        backward_workspace: 60,
        optimizer_workspace: 9,
        ..StageWorkload::default()
    };
    Workload { stages: (0..stages).map(stage).collect(), ..Workload::default() }
}

const SCHEDULES: &str =
    r#"["gpipe", "1f1b", "zb-h1", { "name": "interleaved-1f1b", "virtual_pipeline_model_parallel_size": 2 }]"#;

#[test]
fn memory_returns_to_where_it_began_at_every_detail() {
    for plan in plans(&sizes(2, 1, 2, 2), "", SCHEDULES) {
        let stages = plan.placement().stages();
        let case = Case::new(plan);
        let whole = case.plan.schedule(&workload(u64::from(stages))).unwrap();
        let cut = whole.segmented(&case.programs);
        let cost = SegmentCost::new(&case.cost, &case.programs);
        for (schedule, timeline) in [
            (&whole, simulate(&whole, &case.cost, &Options::default())),
            (&cut, simulate(&cut, &cost, &Options::default())),
        ] {
            let metrics = Metrics::of(schedule, &timeline);
            for (r, rank) in metrics.ranks.iter().enumerate() {
                let rest = memory::persistent(schedule, Rank::at(r));
                assert_eq!(rank.memory.points.last().unwrap().live, rest, "{} rank {r}", case.named());
                assert!(memory::total(&rank.memory.peak.live) > memory::total(&rest));
            }
        }
    }
}

#[test]
fn folded_and_full_simulations_agree_in_time_and_memory() {
    for order in ["tp-cp-dp-pp", "dp-tp-pp-cp"] {
        for more in ["", r#", "zero_stage": 1"#, r#", "sequence_parallel": "ulysses""#] {
            let parallel = format!(r#"{}, "order": "{order}" {more}"#, sizes(2, 2, 2, 2));
            for plan in plans(&parallel, "", SCHEDULES) {
                let case = Case::new(plan);
                let cost = SegmentCost::new(&case.cost, &case.programs);
                for (schedule, segments) in [(&case.whole, false), (&case.cut, true)] {
                    let mut engine = Engine::new(schedule);
                    if segments {
                        engine.set_costs(schedule, &cost);
                    } else {
                        engine.set_costs(schedule, &case.cost);
                    }
                    let folded = engine.run(&Options::default());
                    let all = engine.replicated(schedule, &case.plan.mesh).run(&Options::default());
                    assert_eq!(all.makespan(), folded.makespan(), "{}", case.named());
                    let replicas = full::split(&all, &case.plan.mesh);
                    assert_eq!(replicas.len(), 8);
                    let expected = Metrics::of(schedule, &folded);
                    for replica in &replicas {
                        assert_eq!(Metrics::of(schedule, replica), expected, "{}", case.named());
                    }
                }
            }
        }
    }
}

/// At the detail of segments a step lasts as long as at that of stages, to rounding, where no message goes on beside the
/// action behind it.
#[test]
fn segments_take_as_long_as_their_stages() {
    for (t, c, d, p) in [(1, 1, 1, 4), (4, 1, 1, 2), (2, 2, 1, 4), (2, 2, 2, 2), (8, 1, 2, 4)] {
        for more in ["", r#", "sequence_parallel": "megatron""#, r#", "sequence_parallel": "ulysses""#] {
            if (more.contains("megatron") && (c > 1 || t == 1)) || (more.contains("ulysses") && c == 1) {
                continue;
            }
            for training in [r#", "recompute": "full""#, r#", "recompute": "selective", "attention": "flash""#] {
                let parallel = format!("{}{more}", sizes(t, c, d, p));
                let interleaved =
                    r#"["1f1b", { "name": "interleaved-1f1b", "virtual_pipeline_model_parallel_size": 2 }]"#;
                for plan in plans(&parallel, training, interleaved) {
                    let case = Case::new(plan);
                    let (stages, segments) = (case.at_stages().makespan(), case.at_segments().makespan());
                    let apart = segments / stages - 1.0;
                    assert!(apart.abs() < 1e-9, "{}{more}{training}: {stages} and {segments}", case.named());
                }
            }
        }
    }
}

/// Where messages do go on beside the next action, segments are no slower, and not by much faster.
#[test]
fn messages_between_actions_only_save_time() {
    let zero = format!(r#"{}, "zero_stage": 3"#, sizes(1, 1, 8, 1));
    let sequence = format!(r#"{}, "sequence_parallel": "megatron""#, sizes(4, 1, 1, 4));
    for (parallel, schedules) in [(zero.as_str(), r#"["1f1b"]"#), (sequence.as_str(), r#"["gpipe", "zb-h1", "zb-v"]"#)]
    {
        for plan in plans(parallel, "", schedules) {
            let case = Case::new(plan);
            let apart = case.at_segments().makespan() / case.at_stages().makespan() - 1.0;
            assert!((-0.1..1e-9).contains(&apart), "{}: {apart}", case.named());
        }
    }
}

#[test]
fn the_parts_of_a_step_sum_to_it_on_every_rank() {
    let more = plans(&sizes(2, 1, 2, 4), r#", "clip_grad": 1.0, "recompute": "full""#, SCHEDULES);
    let blocking: Vec<Case> =
        plans(&sizes(2, 1, 2, 4), r#", "overlap_p2p_comm": false"#, SCHEDULES).into_iter().map(Case::new).collect();
    assert!(blocking.iter().all(|case| case.cost.received.iter().flatten().any(|time| *time > 0.0)));
    for case in cases().into_iter().chain(more.into_iter().map(Case::new)).chain(blocking) {
        let breakdown = case.breakdown();
        let shares = |parts: f64| (parts / breakdown.makespan - 1.0).abs() < 1e-12;
        assert!(shares(breakdown.mean().total()), "{}", case.named());
        for (rank, parts) in breakdown.ranks.iter().enumerate() {
            assert!(shares(parts.total()), "{} rank {rank}", case.named());
            let least = Part::ALL.iter().map(|part| parts.get(*part)).fold(f64::INFINITY, f64::min);
            assert!(least > -1e-9 * breakdown.makespan, "{} rank {rank}: {least}", case.named());
        }
        // Compute is what the compute lane does, whatever else goes on.
        let metrics = Metrics::of(&case.cut, &case.at_segments());
        for (at, (rank, parts)) in metrics.ranks.iter().zip(&breakdown.ranks).enumerate() {
            let idle: f64 = Part::ALL
                .iter()
                .filter(|part| matches!(part, Part::Exposed(_) | Part::Bubble(_)))
                .map(|part| parts.get(*part))
                .sum();
            // A receive that blocks is on the compute lane.
            let compute = case.cut.program(Rank::at(at)).filter(|(_, task)| task.lane == Lane::Compute);
            let blocked: f64 = compute.map(|(_, task)| case.received(task)).sum();
            assert!((idle - blocked - rank.idle).abs() < 1e-9 * breakdown.makespan, "{}", case.named());
        }
    }
}

/// Backward of a run with several phases is shared out: matrices take as long for inputs as for weights, and forward again
/// as long as forward.
#[test]
fn runs_are_shared_out_by_their_phases() {
    let plan = plans(&sizes(1, 1, 1, 1), r#", "recompute": "full""#, r#"["1f1b"]"#).remove(0);
    let parts = Case::new(plan).breakdown().mean();
    let [forward, again, input, weight] =
        [Part::Forward, Part::Recompute, Part::BackwardInput, Part::BackwardWeight].map(|part| parts.get(part));
    assert_eq!(parts.get(Part::Backward), 0.0);
    for (time, least, most) in [(again, 0.6, 1.0), (input, 0.8, 2.0), (weight, 0.5, 1.2)] {
        assert!((least..most).contains(&(time / forward)), "{forward} {again} {input} {weight}");
    }
}

/// Without overlap every message of tensor parallelism is waited for; the reduction of gradients too, by the rank whose
/// backward is last.
#[test]
fn messages_without_overlap_are_exposed() {
    let plan = plans(&sizes(4, 1, 2, 1), r#", "overlap_grad_reduce": false"#, r#"["1f1b"]"#).remove(0);
    let breakdown = Case::new(plan).breakdown();
    // One stage: nothing to wait for but messages.
    let bubble = Part::ALL.iter().filter(|part| matches!(part, Part::Bubble(_)));
    let bubble: f64 = bubble.map(|part| breakdown.mean().get(*part).abs()).sum();
    assert!(bubble < 1e-9 * breakdown.makespan);
    let [tensor, _, _, _, data] = breakdown.messages[0];
    assert!(data.total > 0.0 && (data.exposed / data.total - 1.0).abs() < 1e-9);
    // Forward all-reduces are exposed, those of backward hide behind the gradients of weights.
    assert!(tensor.exposed > 0.3 * tensor.total && tensor.exposed < tensor.total);
    assert_eq!(tensor.hidden(), tensor.total - tensor.exposed);
}

/// Bytes of a stage's gradients on their way over the replicas, by axis.
fn gradients(plan: &Plan) -> BTreeMap<Axis, u64> {
    let programs = plan.programs().unwrap();
    let messages = programs.stages[0].buckets.iter().map(|b| programs.step(b.step).unwrap().collective().unwrap());
    let mut bytes = BTreeMap::new();
    messages.for_each(|message| *bytes.entry(message.axis).or_insert(0) += message.bytes);
    bytes
}

#[test]
fn gradients_are_summed_over_context_parallel_ranks_too() {
    let axes = |c, d| {
        let plans = plans(&sizes(1, c, d, 1), "", r#"["1f1b"]"#);
        let (_, cost) =
            AnalyticCost::of_plan(&plans[0], &parameters_of(&plans[0], &|_| Err(String::new())).unwrap()).unwrap();
        assert_eq!(cost.stages[0].reduce > 0.0, c * d > 1, "context {c}, data {d}");
        gradients(&plans[0]).into_keys().collect::<Vec<Axis>>()
    };
    assert_eq!(axes(1, 4), [Axis::Data]);
    assert_eq!(axes(2, 2), [Axis::DataContext]);
    assert_eq!(axes(4, 1), [Axis::DataContext], "context-parallel ranks see other tokens of the same model");
    assert_eq!(axes(1, 1), []);
}

#[test]
fn gradients_of_experts_are_summed_over_the_ranks_that_hold_the_same_experts() {
    let of = |ep: u32| {
        let text = format!(
            r#"{{ "schema_version": 1, "name": "experts", "cluster": {{ "preset": "dgx-h100" }},
            "model": {{ "preset": "mixtral-8x7b", "num_layers": 2 }},
            "parallel": {{ "data_parallel_size": 8, "expert_model_parallel_size": {ep} }},
            "training": {{ "num_microbatches": 2, "seq_length": 4096 }}, "schedules": ["1f1b"] }}"#
        );
        plan::resolve(&serde_json::from_str(&text).unwrap(), &|_| Err("no files".to_owned())).unwrap().remove(0)
    };
    // Three matrices of 4096 x 14336 an expert, eight experts over `ep` ranks, two layers, fp32.
    let experts = |ep: u64| 3 * 4096 * 14336 * (8 / ep) * 2 * 4;
    for ep in [2, 4] {
        assert_eq!(gradients(&of(ep))[&Axis::ExpertData], experts(u64::from(ep)), "{ep} ranks");
        assert_eq!(of(ep).mesh.size(Axis::ExpertData), 8 / ep);
    }
    let alone = gradients(&of(8));
    assert!(!alone.contains_key(&Axis::ExpertData), "every rank has experts of its own");
    assert_eq!(alone[&Axis::Data], gradients(&of(2))[&Axis::Data], "all else is on every rank");
}

/// What the programs of one device compute is what the model's own count says, for every kind of model.
#[test]
fn model_flops_are_those_of_the_shape() {
    for preset in ["gpt3-175b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "qwen2.5-7b", "bloom-176b"] {
        let text = format!(
            r#"{{ "schema_version": 1, "name": "shape", "cluster": {{ "preset": "dgx-h100" }},
            "model": {{ "preset": "{preset}" }}, "parallel": {{ "data_parallel_size": 2 }},
            "training": {{ "micro_batch_size": 1, "num_microbatches": 2, "seq_length": 2048, "dtype": "bf16" }},
            "schedules": ["1f1b"] }}"#
        );
        let scenario = serde_json::from_str(&text).unwrap();
        let plan = plan::resolve(&scenario, &|_| Err("no files".to_owned())).unwrap().remove(0);
        let model = plan.model.clone().unwrap();
        let counted = model.model_flops(model.whole(), 2048, 2048) as f64;
        let computed = flops::of_microbatch(&plan.programs().unwrap()).model();
        assert!((computed / counted - 1.0).abs() < 1e-12, "{preset}: {computed} and {counted}");
        assert_eq!(plan.model_flops(), Some(4.0 * counted));
    }
}
