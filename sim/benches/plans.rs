//! Whole plans of real models: resolved, lowered, checked, costed, simulated, memory replayed.

use criterion::{Criterion, criterion_group, criterion_main};
use pipewright_ir::memory;
use pipewright_ir::metrics::Metrics;
use pipewright_ir::plan::{self, Plan};
use pipewright_ir::scenario::Scenario;
use pipewright_sim::cost::AnalyticCost;
use pipewright_sim::cost::analytic::parameters_of;
use pipewright_sim::{Engine, Options};
use std::hint::black_box;

/// GPT-3 175B on 1024 A100: tensor 8, pipeline 16, data 8.
fn gpt3(global_batch: u32, pipeline: u32, nodes: u32) -> Plan {
    let text = format!(
        r#"{{ "schema_version": 1, "name": "gpt3-175b",
          "model": {{ "num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "vocab_size": 51200 }},
          "cluster": {{ "preset": "dgx-a100-80g", "nodes": {nodes}, "stack": "a100-megatron" }},
          "parallel": {{ "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": {pipeline},
                         "data_parallel_size": 8, "zero_stage": 1 }},
          "training": {{ "global_batch_size": {global_batch}, "micro_batch_size": 1, "seq_length": 2048,
                         "recompute": "full", "dtype": "bf16", "overlap_grad_reduce": true }},
          "schedules": ["1f1b"] }}"#
    );
    let scenario: Scenario = serde_json::from_str(&text).expect("a scenario");
    plan::resolve(&scenario, &|_| Err(String::new())).expect("a legal scenario").remove(0)
}

/// A plan at the detail of stages: the inner loop of a search for the best plan.
fn stage_detail(plan: &Plan) -> f64 {
    let parameters = parameters_of(plan, &|file| Err(file.to_owned())).expect("a stack");
    let (_, cost) = AnalyticCost::of_plan(plan, &parameters).expect("a model");
    let schedule = plan.schedule(&plan.workload()).expect("a lawful schedule");
    let mut engine = Engine::new(&schedule);
    engine.set_costs(&schedule, &cost);
    let timeline = engine.run(&Options::default());
    let metrics = Metrics::of(&schedule, &timeline);
    metrics.makespan + metrics.ranks.iter().map(|r| memory::total(&r.memory.peak.live) as f64).sum::<f64>()
}

fn segment_detail(plan: &Plan) -> f64 {
    let parameters = parameters_of(plan, &|file| Err(file.to_owned())).expect("a stack");
    let (programs, cost) = AnalyticCost::of_plan(plan, &parameters).expect("a model");
    let schedule = plan.schedule(&plan.workload()).expect("a lawful schedule").segmented(&programs);
    let mut engine = Engine::new(&schedule);
    engine.set_costs(&schedule, &cost);
    engine.run(&Options::default()).makespan()
}

fn full(plan: &Plan) -> f64 {
    let parameters = parameters_of(plan, &|file| Err(file.to_owned())).expect("a stack");
    let (_, cost) = AnalyticCost::of_plan(plan, &parameters).expect("a model");
    let schedule = plan.schedule(&plan.workload()).expect("a lawful schedule");
    let mut engine = Engine::new(&schedule);
    engine.set_costs(&schedule, &cost);
    engine.replicated(&schedule, &plan.mesh).run(&Options::default()).makespan()
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plans");
    group.sample_size(20);
    // 16 microbatches on 4 ranks: a plan as a search tries thousands of.
    let small = gpt3(128, 4, 32);
    group.bench_function("stage detail, p=4 m=16", |b| b.iter(|| stage_detail(black_box(&small))));
    let large = gpt3(1536, 16, 128);
    group.bench_function("175B on 1024, stage detail", |b| b.iter(|| stage_detail(black_box(&large))));
    group.bench_function("175B on 1024, segment detail", |b| b.iter(|| segment_detail(black_box(&large))));
    let mesh = gpt3(256, 8, 64);
    group.bench_function("512 devices, each", |b| b.iter(|| full(black_box(&mesh))));
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
