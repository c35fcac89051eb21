//! The executor's own forward and backward against an independent model under burn's autodiff.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/plain_transformer.rs"]
mod plain_transformer;

use burn::tensor::Device;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::pieces;
use pipewright_exec::reference::{self, set_parameters};
use pipewright_exec::run::{Job, Named, RunOptions, run};
use pipewright_exec::stage_module::StageModule as _;
use pipewright_exec::transformer::{StageSpec, Transformer, on_one_device};
use pipewright_exec::worker::Batches;
use pipewright_ir::ids::Stage;
use pipewright_ir::mesh::Mesh;
use pipewright_ir::model::{ActivationFunction, ModelShape, Normalization, Numerics, PositionEmbedding, RopeScaling};
use pipewright_ir::passes::{add_optimizer_step, add_send_recv};
use pipewright_ir::scenario::{Attention, Recompute};
use pipewright_ir::schedule::Draft;
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::segments::{Cut, Programs};
use pipewright_ir::setup::Setup;
use pipewright_ir::workload::Workload;
use plain_transformer::{Gradients, Sequences, loss_and_gradients};
use std::time::Duration;

const SEED: u64 = 11;
const MICROBATCHES: u32 = 2;
const BATCH: usize = 2;
const SEQ_LENGTH: usize = 24;
/// Largest difference, as a share of a tensor's largest number.
const TOLERANCE: f64 = 1e-5;

/// A number below 1 of no order (SplitMix64, Steele et al. 2014).
fn scattered(words: [u64; 2]) -> f64 {
    let mut x = words[0].wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(words[1]).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Sequences of no order.
struct Scattered {
    vocab_size: u32,
}

impl Batches for Scattered {
    fn microbatch(&self, _: u64, microbatch: u64) -> (Vec<u32>, Vec<u32>) {
        let token = |row: usize, at: usize| {
            let sequence = microbatch * BATCH as u64 + row as u64;
            (scattered([1000 + sequence, at as u64]) * f64::from(self.vocab_size)) as u32
        };
        let from = |first: usize| {
            (0..BATCH)
                .flat_map(|row| (0..SEQ_LENGTH).map(move |at| (row, at + first)))
                .map(|(r, a)| token(r, a))
                .collect()
        };
        (from(0), from(1))
    }

    fn sequences(&self) -> u64 {
        BATCH as u64
    }

    fn seq_length(&self) -> usize {
        SEQ_LENGTH
    }
}

fn gpt2(tied: bool, activation: ActivationFunction) -> ModelShape {
    let numerics = Numerics { activation, ..Numerics::default() };
    let own = !tied;
    ModelShape { untie_embeddings_and_output_weights: own, numerics, ..ModelShape::gpt(2, 32, 4, 61, 30) }
}

fn llama(tied: bool) -> ModelShape {
    ModelShape {
        ffn_hidden_size: 56,
        num_query_groups: 2,
        untie_embeddings_and_output_weights: !tied,
        gated_linear_unit: true,
        normalization: Normalization::RmsNorm,
        position_embedding: PositionEmbedding::Rope,
        add_bias_linear: false,
        add_qkv_bias: false,
        numerics: Numerics {
            activation: ActivationFunction::Silu,
            layernorm_epsilon: 1e-6.into(),
            ..Numerics::default()
        },
        ..ModelShape::gpt(3, 48, 6, 61, 64)
    }
}

fn qwen2() -> ModelShape {
    let mut shape = ModelShape { add_qkv_bias: true, ..llama(true) };
    shape.numerics.rotary_base = 1e6.into();
    shape
}

/// Waves of 6, 63, 628 and 6283 tokens: the first stays, the second is blended, the others are stretched.
fn llama3() -> ModelShape {
    let mut shape = llama(false);
    shape.numerics.rope_scaling = Some(RopeScaling::Llama3 {
        factor: 8.0.into(),
        low_freq_factor: 1.0.into(),
        high_freq_factor: 4.0.into(),
        original_max_position_embeddings: 128,
    });
    shape
}

fn is_gpt2(shape: &ModelShape) -> bool {
    shape.position_embedding == PositionEmbedding::Learned
}

/// First values under which nothing hides: scales are not 1, biases not 0, and attention is not even.
fn parameters(module: &Transformer) -> Named {
    let mut named = pieces::assemble(pieces::parameters(module.blocks()).iter());
    for (number, (name, values)) in named.iter_mut().enumerate() {
        let is_norm = name.contains("norm") || name.contains("ln_");
        let mean = if is_norm && name.ends_with("weight") { 1.0 } else { 0.0 };
        for (at, value) in values.iter_mut().enumerate() {
            *value = (mean + 0.8 * (scattered([number as u64, at as u64]) - 0.5)) as f32;
        }
    }
    named
}

fn with_parameters(mut module: Transformer, device: &Device) -> (Transformer, Named) {
    let named = parameters(&module);
    set_parameters(&mut module, &named, device);
    (module, named)
}

/// What one step of one device makes of a model: loss, gradients, and the parameters it began with.
fn by_kernels(shape: &ModelShape, attention: Attention) -> (f64, Named, Named) {
    let device = Device::flex();
    let setup = Setup { attention, ..Setup::default() };
    let (module, programs) = on_one_device(shape, &setup, SEED, [BATCH, SEQ_LENGTH], &device).unwrap();
    let (module, named) = with_parameters(module, &device);
    let options = reference::Options {
        microbatches: MICROBATCHES,
        steps: 1,
        optimizer: OptimizerConfig::sgd(0.0),
        clip_grad: None,
        keep: 1,
    };
    let batches = Scattered { vocab_size: shape.vocab_size };
    let mut made = reference::train(module, &programs, &device, &batches, &options, &mut |_, _| {}).unwrap();
    (made.losses[0], made.gradients.remove(0), named)
}

/// The same by the whole executor on one rank.
fn by_run(shape: &ModelShape, setup: &Setup) -> (f64, Named, Named) {
    let mesh = Mesh::default();
    let cut = Cut { model: shape, mesh: &mesh, setup, micro_batch_size: BATCH as u64, seq_length: SEQ_LENGTH as u64 };
    let programs = Programs::new(&cut, &[shape.whole()], false);
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(1, MICROBATCHES, 1)).unwrap();
    let draft = Draft::lower(&add_optimizer_step(add_send_recv(&order)), &Workload::abstract_stages(1));
    let schedule = draft.seal().unwrap().segmented(&programs);
    let whole = |on: &Device| {
        let spec = StageSpec::whole(shape, setup, SEED, BATCH, SEQ_LENGTH);
        Transformer::new(spec, on).map(|module| with_parameters(module, on)).map_err(|error| error.to_string())
    };
    let options = RunOptions {
        steps: 1,
        optimizer: OptimizerConfig::sgd(0.0),
        keep_gradients: true,
        timeout: Duration::from_secs(60),
        count_memory: false,
    };
    let job = Job { schedule: &schedule, programs: &programs, mesh: &mesh, setup };
    let batches = Scattered { vocab_size: shape.vocab_size };
    let build = |_: Stage, _: usize, on: &Device| Ok(whole(on)?.0);
    let mut made = run(job, &[Device::flex()], &build, &batches, &options, &mut |_, _| {}).unwrap();
    (made.losses[0], made.gradients.remove(0), whole(&Device::flex()).unwrap().1)
}

/// The same by autodiff, both microbatches as one.
fn by_autodiff(shape: &ModelShape, named: &Named) -> (f64, Gradients) {
    let batches = Scattered { vocab_size: shape.vocab_size };
    let all: Vec<_> = (0..u64::from(MICROBATCHES)).map(|microbatch| batches.microbatch(0, microbatch)).collect();
    let tokens: Vec<u32> = all.iter().flat_map(|(tokens, _)| tokens.clone()).collect();
    let targets: Vec<u32> = all.iter().flat_map(|(_, targets)| targets.clone()).collect();
    let sequences = Sequences { tokens: &tokens, targets: &targets, seq_length: SEQ_LENGTH };
    loss_and_gradients(shape, is_gpt2(shape), named, &sequences)
}

/// The largest difference of the loss and of each gradient, as a share of the tensor's largest number, and where.
fn worst((loss, gradients): (f64, &Named), (true_loss, true_gradients): &(f64, Gradients)) -> (f64, String) {
    let names: Vec<&str> = gradients.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, true_gradients.keys().collect::<Vec<_>>(), "a gradient of every parameter, once");
    let mut worst = ((loss - true_loss).abs() / true_loss, "the loss".to_owned());
    for (name, values) in gradients {
        let expected = &true_gradients[name];
        assert_eq!(values.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        assert!(largest > 1e-4, "{name} has a gradient, and not {largest}");
        for (value, expected) in values.iter().zip(expected) {
            let difference = (f64::from(*value) - expected).abs() / largest;
            // A value that is no number is no agreement.
            if difference > worst.0 || difference.is_nan() {
                worst = (if difference.is_nan() { f64::INFINITY } else { difference }, name.clone());
            }
        }
    }
    worst
}

fn assert_agrees(what: &str, (loss, gradients, named): &(f64, Named, Named), shape: &ModelShape) {
    let (difference, name) = worst((*loss, gradients), &by_autodiff(shape, named));
    assert!(difference <= TOLERANCE, "{what}: {name} differs by {difference:.2e} of its largest number");
}

#[test]
fn gpt2_is_that_of_autodiff() {
    for activation in [ActivationFunction::Gelu, ActivationFunction::GeluTanh] {
        for tied in [false, true] {
            let shape = gpt2(tied, activation.clone());
            let what = format!("{} tied={tied}", activation.name());
            assert_agrees(&what, &by_kernels(&shape, Attention::Standard), &shape);
        }
    }
}

#[test]
fn llama_is_that_of_autodiff() {
    let wide = ModelShape { kv_channels: 12, num_query_groups: 1, ..llama(false) };
    let ungrouped = ModelShape { num_query_groups: 6, ..llama(true) };
    let shapes = [("untied", llama(false)), ("tied", llama(true)), ("wide heads", wide), ("ungrouped", ungrouped)];
    for (what, shape) in shapes {
        assert_agrees(what, &by_kernels(&shape, Attention::Standard), &shape);
    }
}

#[test]
fn biases_of_qwen2_are_those_of_autodiff() {
    assert_agrees("qwen2", &by_kernels(&qwen2(), Attention::Standard), &qwen2());
}

#[test]
fn stretched_positions_of_llama_3_1_are_those_of_autodiff() {
    assert_agrees("llama3", &by_kernels(&llama3(), Attention::Standard), &llama3());
}

#[test]
fn every_recompute_and_attention_is_that_of_autodiff() {
    for shape in [gpt2(true, ActivationFunction::GeluTanh), llama(false), qwen2()] {
        for attention in [Attention::Standard, Attention::Flash] {
            assert_agrees(attention.name(), &by_kernels(&shape, attention), &shape);
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                let setup = Setup { recompute: vec![recompute], attention, ..Setup::default() };
                let what = format!("{} {}", attention.name(), recompute.name());
                assert_agrees(&what, &by_run(&shape, &setup), &shape);
            }
        }
    }
}

/// A model that differs in one number only is told apart, by far more than the tolerance.
#[test]
fn the_comparison_notices_every_number_of_a_model() {
    let changed = |shape: &ModelShape, change: &dyn Fn(&mut ModelShape)| {
        let mut shape = shape.clone();
        change(&mut shape);
        shape
    };
    let (gpt2, llama) = (gpt2(true, ActivationFunction::GeluTanh), llama3());
    let cases = [
        ("exact GELU", &gpt2, changed(&gpt2, &|shape| shape.numerics.activation = ActivationFunction::Gelu)),
        ("epsilon", &gpt2, changed(&gpt2, &|shape| shape.numerics.layernorm_epsilon = 1e-3.into())),
        ("epsilon", &llama, changed(&llama, &|shape| shape.numerics.layernorm_epsilon = 1e-3.into())),
        ("base", &llama, changed(&llama, &|shape| shape.numerics.rotary_base = 9e3.into())),
        ("unstretched", &llama, changed(&llama, &|shape| shape.numerics.rope_scaling = None)),
    ];
    for (what, shape, other) in cases {
        let (loss, gradients, named) = by_kernels(shape, Attention::Standard);
        let (difference, name) = worst((loss, &gradients), &by_autodiff(&other, &named));
        assert!(difference > 10.0 * TOLERANCE, "{what}: {name} differs by no more than {difference:.2e}");
    }
}
