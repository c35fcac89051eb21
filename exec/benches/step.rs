//! `cargo bench -p pipewright-exec --bench step`: the executor beside a plain training loop of the same model, and the
//! step time of schedules, as one JSON line. `-- loop`, `-- 1f1b` or `-- interleaved` measures one of them for a moment,
//! for a script that takes turns with a peer.
//!
//! The model is that of the peer in README.md: 8 layers, hidden 256, 8 heads, sequences of 128, vocabulary 256,
//! microbatches of 4, 8 microbatches, untied head, fp32, SGD. All measurements take turns, step by step, so that a
//! machine that slows down slows them all.
#![expect(clippy::unwrap_used, reason = "a bench of something that cannot be built should stop")]
#![expect(clippy::print_stdout, reason = "its result")]

use pipewright_exec::data::TextData;
use pipewright_exec::device::Device;
use pipewright_exec::memory::keep_freed_memory;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::reference;
use pipewright_exec::run::{Job, Run, RunOptions, run};
use pipewright_exec::transformer::{StageSpec, Transformer, on_one_device};
use pipewright_exec::worker::TextBatches;
use pipewright_ir::ids::{LayerRange, Stage};
use pipewright_ir::mesh::Mesh;
use pipewright_ir::model::{ModelShape, StagePart};
use pipewright_ir::passes::{add_optimizer_step, add_send_recv};
use pipewright_ir::schedule::{Draft, Schedule};
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::segments::{Cut, Programs};
use pipewright_ir::setup::Setup;
use pipewright_ir::workload::Workload;
use std::path::Path;
use std::time::Duration;

const MICROBATCHES: u32 = 8;
const TURNS: usize = 6;
/// Steps of a turn; the first warms up and is not counted.
const STEPS: u64 = 4;

fn shape() -> ModelShape {
    ModelShape { untie_embeddings_and_output_weights: true, ..ModelShape::gpt(8, 256, 8, 256, 128) }
}

fn part(stage: u32, stages: u32) -> StagePart {
    let layers = shape().num_layers / stages;
    let layers = LayerRange { start: stage * layers, end: (stage + 1) * layers };
    StagePart { layers, embedding: stage == 0, head: stage + 1 == stages }
}

fn batches() -> TextBatches {
    let text: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let text = TextData::from_bytes(text, Path::new("bench"), 128, 0).unwrap();
    TextBatches { text, micro_batch_size: 4 }
}

fn programs(stages: u32) -> Programs {
    let (model, mesh, setup) = (shape(), Mesh::default(), Setup::default());
    let cut = Cut { model: &model, mesh: &mesh, setup: &setup, micro_batch_size: 4, seq_length: 128 };
    Programs::new(&cut, &(0..stages).map(|stage| part(stage, stages)).collect::<Vec<_>>(), false)
}

fn schedule(family: &str, p: u32, v: u32) -> Schedule {
    let order = find(family).unwrap().order(&ScheduleParams::new(p, MICROBATCHES, v)).unwrap();
    let program = add_optimizer_step(add_send_recv(&order));
    Draft::lower(&program, &Workload::abstract_stages(p * v)).seal().unwrap().segmented(&programs(p * v))
}

fn pipeline(schedule: &Schedule) -> Run {
    let stages = schedule.placement().stages();
    let (programs, setup) = (programs(stages), Setup::default());
    let mesh = Mesh { pipeline: schedule.placement().ranks(), ..Mesh::default() };
    let build = |stage: Stage, device: usize, on: &Device| {
        let part = part(stage.number(), stages);
        let spec = StageSpec::of(&shape(), part, stage.index(), &setup, &mesh, device as u64, [0, 4, 128]);
        Transformer::new(spec, on).map_err(|e| e.to_string())
    };
    let options = RunOptions {
        steps: STEPS,
        optimizer: OptimizerConfig::sgd(0.01),
        keep_gradients: false,
        timeout: Duration::from_secs(600),
        count_memory: false,
    };
    let devices = vec![Device::flex(); schedule.ranks()];
    let job = Job { schedule, programs: &programs, mesh: &mesh, setup: &setup };
    run(job, &devices, &build, &batches(), &options, &mut |_, _| {}).unwrap()
}

/// Sum of all task times of each counted step [s].
fn task_seconds(run: &Run) -> Vec<f64> {
    let step = |step| run.timeline.step(step).spans.iter().map(|s| s.duration()).sum();
    (1..run.timeline.steps()).map(step).collect()
}

fn plain() -> Vec<f64> {
    let device = Device::flex();
    let (module, programs) = on_one_device(&shape(), &Setup::default(), 0, [4, 128], &device).unwrap();
    let optimizer = OptimizerConfig::sgd(0.01);
    let options = reference::Options { microbatches: MICROBATCHES, steps: STEPS, optimizer, clip_grad: None, keep: 0 };
    let reference = reference::train(module, &programs, &device, &batches(), &options, &mut |_, _| {}).unwrap();
    reference.step_seconds[1..].to_vec()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    keep_freed_memory();
    let alone = match std::env::args().nth(1).as_deref() {
        Some("loop") => Some(plain()),
        Some("1f1b") => Some(pipeline(&schedule("1f1b", 2, 1)).step_seconds().split_off(1)),
        Some("interleaved") => Some(pipeline(&schedule("interleaved-1f1b", 2, 2)).step_seconds().split_off(1)),
        // cargo itself passes `--bench`.
        _ => None,
    };
    if let Some(seconds) = alone {
        println!("{{\"step_s_median\": {:.4}}}", median(seconds));
        return;
    }
    let (one, two, four) = (schedule("gpipe", 1, 1), schedule("1f1b", 2, 1), schedule("interleaved-1f1b", 2, 2));
    let [mut loop_seconds, mut tasks, mut whole, mut pp2, mut interleaved] = [const { Vec::new() }; 5];
    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        let plain = plain();
        let run = pipeline(&one);
        let sums = task_seconds(&run);
        ratios.push(median(sums.clone()) / median(plain.clone()));
        loop_seconds.extend(plain);
        tasks.extend(sums);
        whole.extend(run.step_seconds().split_off(1));
        pp2.extend(pipeline(&two).step_seconds().split_off(1));
        interleaved.extend(pipeline(&four).step_seconds().split_off(1));
    }
    println!(
        "{{\"plain_loop_s\": {:.4}, \"one_rank_tasks_s\": {:.4}, \"one_rank_step_s\": {:.4}, \"tasks_over_loop\": {:.4}, \
         \"pp2_1f1b_step_s\": {:.4}, \"pp2_interleaved_v2_step_s\": {:.4}}}",
        median(loop_seconds),
        median(tasks),
        median(whole),
        median(ratios),
        median(pp2),
        median(interleaved)
    );
}
