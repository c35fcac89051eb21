//! `cargo bench -p pipewright-sim`: tasks per second of the engine, and the whole way from parameters to a timeline.
#![expect(clippy::unwrap_used, reason = "a bench of something that cannot be built should stop")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipewright_ir::passes::{add_optimizer_step, add_send_recv};
use pipewright_ir::schedule::{Draft, Schedule};
use pipewright_ir::schedules::{FAMILIES, ScheduleParams, find};
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

/// Every family at p = 64, m = 512 with as many chunks as it may have up to 2: order, messages, law, simulation. Costs
/// are not F = I = W, so that no canonical order spares a family its search.
fn families(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("p=64 m=512, build, check and simulate");
    group.sample_size(10);
    for family in FAMILIES.iter().filter(|family| family.name != "auto") {
        let params = uneven(64, 512, family.default_chunks(Some(2)));
        if !family.faults(&params).is_empty() {
            continue;
        }
        group.bench_function(family.name, |b| {
            b.iter(|| {
                let order = add_send_recv(&family.order(&params).unwrap());
                let stages = order.placement.stages();
                let schedule = Draft::lower(&order, &Workload::abstract_stages(stages)).seal().unwrap();
                black_box(compile(&schedule).run(&Options::default()))
            });
        });
    }
    group.finish();
}

fn uneven(p: u32, m: u32, v: u32) -> ScheduleParams {
    let costs = UnitCosts { forward: 10.0, backward_input: 13.0, backward_weight: 7.0, ..UnitCosts::default() };
    ScheduleParams { times: StageTimes::of(&costs, p, p * v), ..ScheduleParams::new(p, m, v) }
}

/// The whole search of `auto`.
fn search(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("auto");
    group.sample_size(10);
    for [p, m, v] in [[8, 32, 1], [8, 32, 2], [16, 64, 2]] {
        let params = uneven(p, m, v);
        let name = format!("p={p} m={m} v={v}");
        group.bench_function(name, |b| b.iter(|| black_box(find("auto").unwrap().order(&params).unwrap())));
    }
    group.finish();
}

criterion_group!(benches, run, whole, families, search);
criterion_main!(benches);
