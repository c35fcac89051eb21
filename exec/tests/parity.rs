//! Splitting changes nothing: every schedule's losses, gradients and parameters against one device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright_exec::data::TextData;
use pipewright_exec::device::Device;
use pipewright_exec::gpt::GptStage;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::reference::{self, Reference};
use pipewright_exec::run::{Run, RunOptions, run};
use pipewright_exec::verify::{Comparison, compare};
use pipewright_exec::worker::TextBatches;
use pipewright_ir::ids::{LayerRange, Rank, Stage};
use pipewright_ir::model::{ModelShape, StagePart};
use pipewright_ir::order::PipelineOrder;
use pipewright_ir::passes::{accumulate, add_optimizer_step, add_send_recv, add_tied_reduction};
use pipewright_ir::schedule::{Draft, Schedule};
use pipewright_ir::schedules::{FAMILIES, ScheduleParams};
use pipewright_ir::task::Lane;
use pipewright_ir::workload::Workload;
use std::path::Path;
use std::time::Duration;

const STEPS: u64 = 3;
const LR: f64 = 1e-2;

/// A tiny model and its batches.
struct Case {
    shape: ModelShape,
    batches: TextBatches,
    optimizer: OptimizerConfig,
}

impl Case {
    fn new(tied: bool, optimizer: OptimizerConfig) -> Self {
        let shape = ModelShape {
            num_layers: 4,
            hidden_size: 16,
            num_attention_heads: 2,
            ffn_hidden_size: 64,
            vocab_size: 256,
            max_position_embeddings: 12,
            untie_embeddings_and_output_weights: !tied,
        };
        let text: Vec<u8> = (0..997_u32).map(|i| (i * i % 251) as u8).collect();
        let text = TextData::from_bytes(text, Path::new("test"), 12, 5).unwrap();
        Self { shape, batches: TextBatches { text, micro_batch_size: 2 }, optimizer }
    }

    fn reference(&self, microbatches: u32) -> Reference {
        let device = Device::flex().autodiff();
        let layers = LayerRange { start: 0, end: self.shape.num_layers };
        let module = GptStage::new(&self.shape, StagePart { layers, embedding: true, head: true }, 3, &device).unwrap();
        let options = reference::Options { microbatches, steps: STEPS, optimizer: self.optimizer, keep: STEPS };
        reference::train(module, &device, &self.batches, &options, &mut |_, _| {}).unwrap()
    }

    fn schedule(&self, order: &PipelineOrder, rounds: u32) -> Schedule {
        let mut program = add_send_recv(&accumulate(order, rounds));
        if !self.shape.untie_embeddings_and_output_weights {
            program = add_tied_reduction(program);
        }
        let workload = Workload::abstract_stages(order.placement.stages());
        Draft::lower(&add_optimizer_step(program), &workload).seal().unwrap()
    }

    fn run(&self, schedule: &Schedule) -> Run {
        let stages = schedule.placement().stages();
        let layers = self.shape.num_layers / stages;
        let build = |stage: Stage, device: &Device| {
            let layers = LayerRange { start: stage.number() * layers, end: (stage.number() + 1) * layers };
            let part = StagePart { layers, embedding: stage.number() == 0, head: stage.number() + 1 == stages };
            GptStage::new(&self.shape, part, 3, device).map_err(|e| e.to_string())
        };
        let devices = vec![Device::flex(); schedule.ranks()];
        let options = RunOptions {
            steps: STEPS,
            optimizer: self.optimizer,
            keep_gradients: true,
            timeout: Duration::from_secs(60),
            count_memory: false,
        };
        run::<GptStage>(schedule, &devices, &build, &self.batches, &options, &mut |_, _| {}).unwrap()
    }

    fn compare(&self, order: &PipelineOrder, rounds: u32, reference: &Reference) -> Comparison {
        let schedule = self.schedule(order, rounds);
        let run = self.run(&schedule);
        assert_observed_order(&schedule, &run);
        compare(&run, reference, &self.optimizer)
    }
}

/// In every queue of every rank, tasks ran in the order of the schedule and one after another.
fn assert_observed_order(schedule: &Schedule, run: &Run) {
    for step in 0..run.timeline.steps() {
        for rank in 0..schedule.ranks() {
            for queue in 0..Lane::queues(schedule.placement().ranks()) {
                let tasks = schedule.program(Rank::at(rank)).filter(|(_, t)| t.queue() == queue);
                let spans: Vec<_> = tasks.map(|(id, _)| run.timeline.span(step, id)).collect();
                // The time of a receive runs from when its message was sent, which may be during the one before.
                let receive = queue >= Lane::ALL.len();
                assert!(spans.windows(2).all(|w| w[0].end <= if receive { w[1].end } else { w[1].start }));
                assert!(spans.iter().all(|s| s.end > 0.0 && s.end >= s.start), "every task ran");
            }
        }
    }
}

/// (p, v) for a model of four layers.
fn shapes(interleaves: bool) -> Vec<(u32, u32)> {
    if interleaves { vec![(2, 2), (1, 2), (1, 4), (2, 1)] } else { vec![(2, 1), (4, 1), (1, 1)] }
}

#[test]
fn every_schedule_equals_one_device_for_every_number_of_microbatches() {
    for tied in [false, true] {
        let case = Case::new(tied, OptimizerConfig::sgd(LR));
        for m in 1..=8 {
            let reference = case.reference(m);
            for family in &FAMILIES {
                for (p, v) in shapes(family.interleaves) {
                    // One group of all microbatches is legal for every m.
                    let group = family.interleaves.then_some(m);
                    let params = ScheduleParams { microbatch_group_size: group, ..ScheduleParams::new(p, m, v) };
                    let order = family.order(&params).unwrap();
                    let found = case.compare(&order, 1, &reference);
                    let name = format!("{} p={p} v={v} m={m} tied={tied}", family.name);
                    assert!(found.ok(), "{name}: {found:?}");
                    // Untied, no addition changes its place, so not a bit may differ.
                    assert!(tied || found.exact(), "{name}: {found:?}");
                }
            }
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    /// Random plans run in the schedule's order (checked inside) and change nothing. `p` may exceed the cores.
    #[test]
    fn random_plans_run_in_the_order_of_the_schedule(
        family in 0..FAMILIES.len(),
        shape in 0..3_usize,
        m in 1..10_u32,
        rounds in 1..3_u32,
        tied in proptest::bool::ANY,
    ) {
        let family = &FAMILIES[family];
        let (p, v) = shapes(family.interleaves)[shape];
        let group = family.interleaves.then_some(m);
        let params = ScheduleParams { microbatch_group_size: group, ..ScheduleParams::new(p, m, v) };
        let case = Case::new(tied, OptimizerConfig::adamw(LR));
        let found = case.compare(&family.order(&params).unwrap(), rounds, &case.reference(m * rounds));
        proptest::prop_assert!(found.ok() && (tied || found.exact()), "{found:?}");
    }
}

#[test]
fn two_accumulation_rounds_equal_one_device_with_twice_the_microbatches() {
    for (tied, optimizer) in [(false, OptimizerConfig::adamw(LR)), (true, OptimizerConfig::adamw(LR))] {
        let case = Case::new(tied, optimizer);
        let reference = case.reference(8);
        for family in &FAMILIES {
            for (p, v) in shapes(family.interleaves) {
                let order = family.order(&ScheduleParams::new(p, 4, v)).unwrap();
                let found = case.compare(&order, 2, &reference);
                assert!(found.ok() && (tied || found.exact()), "{} p={p} v={v} tied={tied}: {found:?}", family.name);
            }
        }
    }
}

#[test]
fn training_learns() {
    let case = Case::new(false, OptimizerConfig::adamw(LR));
    let losses = case.reference(4).losses;
    let start = f64::from(case.shape.vocab_size).ln();
    assert!((losses[0] - start).abs() < 0.1, "the first loss is near ln V: {losses:?}");
    assert!(losses[2] < losses[0] - 0.1, "the loss falls: {losses:?}");
}

#[test]
fn a_run_repeats_to_the_bit() {
    let case = Case::new(true, OptimizerConfig::adamw(LR));
    let order = pipewright_ir::schedules::find("1f1b").unwrap().order(&ScheduleParams::new(2, 4, 1)).unwrap();
    let schedule = case.schedule(&order, 1);
    let (a, b) = (case.run(&schedule), case.run(&schedule));
    assert_eq!(a.losses, b.losses);
    assert_eq!(a.gradients, b.gradients);
    assert_eq!(a.parameters, b.parameters);
}
