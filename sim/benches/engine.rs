//! `cargo bench -p pipewright-sim`: tasks per second of the engine, and the whole way from parameters to a timeline.
#![expect(clippy::unwrap_used, reason = "a bench of something that cannot be built should stop")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipewright_ir::passes::{add_optimizer_step, add_send_recv};
use pipewright_ir::schedule::{Draft, Schedule};
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::unit_costs::{StageTimes, UnitCosts};
use pipewright_ir::workload::Workload;
use pipewright_sim::{Engine, Options, cost::UnitCost};
use std::hint::black_box;

fn build(p: u32, m: u32) -> Schedule {
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(p, m, 1)).unwrap();
    let program = add_optimizer_step(add_send_recv(&order));
    Draft::lower(&program, &Workload::abstract_stages(p)).seal().unwrap()
}

fn compile(schedule: &Schedule) -> Engine {
    let mut engine = Engine::new(schedule);
    engine.set_costs(schedule, &UnitCost::new(&UnitCosts::default(), schedule));
    engine
}

fn run(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("run a compiled 1F1B");
    for (p, m) in [(16, 108), (16, 1080), (16, 10800)] {
        let schedule = build(p, m);
        let engine = compile(&schedule);
        group.throughput(Throughput::Elements(schedule.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(schedule.len()), &engine, |b, engine| {
            b.iter(|| black_box(engine.run(&Options::default())));
        });
    }
    group.finish();
}

fn whole(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("1F1B p=16 m=256");
    group.bench_function("build and check", |b| b.iter(|| black_box(build(16, 256))));
    let schedule = build(16, 256);
    group.bench_function("compile", |b| b.iter(|| black_box(compile(&schedule))));
    group.bench_function("build, check and simulate", |b| {
        b.iter(|| black_box(compile(&build(16, 256)).run(&Options::default())));
    });
    group.finish();
}

/// Families that search: the whole of `auto` for a plan of the usual size, and each family for a large one.
fn search(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("build an order that adapts");
    group.sample_size(10);
    for (family, [p, m, v]) in [
        ("auto", [8, 32, 1]),
        ("auto", [8, 32, 2]),
        ("auto", [16, 64, 2]),
        ("zb-h1", [64, 512, 1]),
        ("zb-h2", [64, 512, 1]),
        ("zb-v", [64, 512, 2]),
        ("v-half", [64, 512, 2]),
        ("v-min", [64, 512, 2]),
    ] {
        // Not F = I = W, so that no canonical order ends the search.
        let costs = UnitCosts { forward: 10.0, backward_input: 13.0, backward_weight: 7.0, ..UnitCosts::default() };
        let params = ScheduleParams { times: StageTimes::of(&costs, p, p * v), ..ScheduleParams::new(p, m, v) };
        let name = format!("{family} p={p} m={m} v={v}");
        group.bench_function(name, |b| b.iter(|| black_box(find(family).unwrap().order(&params).unwrap())));
    }
    group.finish();
}

criterion_group!(benches, run, whole, search);
criterion_main!(benches);
