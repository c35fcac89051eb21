//! Field case A12 through the real executor: arithmetic that tensor parallelism gets wrong.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use burn::tensor::{Device, Tensor};
use pipewright_exec::error::TaskError;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::parameter::Block;
use pipewright_exec::pieces;
use pipewright_exec::reference::set_parameters;
use pipewright_exec::run::{Job, Named, Run, RunOptions, run};
use pipewright_exec::stage_module::{At, Feed, Output, StageModule};
use pipewright_exec::transformer::{StageSpec, Transformer};
use pipewright_exec::worker::Batches;
use pipewright_ir::ids::{LayerRange, Microbatch, Stage};
use pipewright_ir::mesh::{Axis, Mesh};
use pipewright_ir::model::{ActivationFunction, ModelShape, Normalization, Numerics, PositionEmbedding, StagePart};
use pipewright_ir::passes::{add_optimizer_step, add_send_recv};
use pipewright_ir::scenario::SequenceParallel;
use pipewright_ir::schedule::Draft;
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::segments::{Cut, Operand, Operation, Programs};
use pipewright_ir::setup::Setup;
use pipewright_ir::workload::Workload;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Sequences that walk over the whole vocabulary.
struct Walk {
    vocab_size: u64,
    batch: u64,
    seq_length: usize,
}

impl Batches for Walk {
    fn microbatch(&self, _: u64, _: u64) -> (Vec<u32>, Vec<u32>) {
        let all = self.batch * self.seq_length as u64;
        let token = |at: u64| u32::try_from(at * self.vocab_size / (all + 1)).unwrap();
        ((0..all).map(token).collect(), (1..=all).map(token).collect())
    }

    fn sequences(&self) -> u64 {
        self.batch
    }

    fn seq_length(&self) -> usize {
        self.seq_length
    }
}

/// One step of one microbatch, a stage a pipeline rank.
fn step<M: StageModule>(
    shape: &ModelShape,
    parts: &[StagePart],
    mesh: &Mesh,
    setup: &Setup,
    batches: &Walk,
    wrap: impl Fn(Transformer, usize, &Device) -> M + Sync,
) -> Run {
    let seq_length = batches.seq_length as u64;
    let cut = Cut { model: shape, mesh, setup, micro_batch_size: batches.batch, seq_length };
    let programs = Programs::new(&cut, parts, false);
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(mesh.pipeline, 1, 1)).unwrap();
    let draft = Draft::lower(&add_optimizer_step(add_send_recv(&order)), &Workload::abstract_stages(mesh.pipeline));
    let schedule = draft.seal().unwrap().segmented(&programs);
    let devices = vec![Device::flex(); usize::try_from(mesh.devices()).unwrap()];
    let options = RunOptions {
        steps: 1,
        optimizer: OptimizerConfig::sgd(0.0),
        keep_gradients: false,
        timeout: Duration::from_secs(60),
        count_memory: false,
    };
    let job = Job { schedule: &schedule, programs: &programs, mesh, setup };
    let build = |stage: Stage, device: usize, on: &Device| {
        let (part, numbers) = (parts[stage.index()], [5, batches.batch, seq_length]);
        let spec = StageSpec::of(shape, part, stage.index(), setup, mesh, device as u64, numbers);
        Transformer::new(spec, on).map(|module| wrap(module, device, on)).map_err(|error| error.to_string())
    };
    run(job, &devices, &build, batches, &options, &mut |_, _| {}).unwrap()
}

/// What the devices of the first stage were seen to make: output, and the gradient of a bias.
type Seen = Mutex<BTreeMap<usize, (Vec<f32>, Vec<f32>)>>;

/// A stage that notes what it makes, and starts its backward from ones.
struct Watched<'a> {
    module: Transformer,
    device: usize,
    bias: &'static str,
    seen: &'a Seen,
}

impl StageModule for Watched<'_> {
    fn begin_forward(&mut self, microbatch: Microbatch, feed: Feed) -> Result<(), TaskError> {
        self.module.begin_forward(microbatch, feed)
    }

    fn begin_backward(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<2>>,
        split: bool,
    ) -> Result<(), TaskError> {
        self.module.begin_backward(microbatch, gradient.map(|gradient| gradient.ones_like()), split)
    }

    fn compute(&mut self, at: At, operation: Operation) -> Result<(), TaskError> {
        self.module.compute(at, operation)
    }

    fn message(&mut self, at: At, operand: Operand) -> Result<Tensor<2>, TaskError> {
        self.module.message(at, operand)
    }

    fn deliver(&mut self, at: At, operand: Operand, tensor: Tensor<2>) -> Result<(), TaskError> {
        self.module.deliver(at, operand, tensor)
    }

    fn end_forward(&mut self, microbatch: Microbatch) -> Result<Output, TaskError> {
        let output = self.module.end_forward(microbatch)?;
        if let Output::Hidden(hidden) = &output {
            let values = hidden.clone().into_data().iter().collect();
            self.seen.lock().unwrap().entry(self.device).or_default().0 = values;
        }
        Ok(output)
    }

    fn end_backward(&mut self, microbatch: Microbatch, split: bool) -> Result<Option<Tensor<2>>, TaskError> {
        let made = self.module.end_backward(microbatch, split)?;
        for piece in pieces::gradients(self.module.blocks()) {
            if piece.shard.name == self.bias {
                self.seen.lock().unwrap().entry(self.device).or_default().1 = piece.values;
            }
        }
        Ok(made)
    }

    fn end_weight(&mut self, microbatch: Microbatch) -> Result<(), TaskError> {
        self.module.end_weight(microbatch)
    }

    fn blocks(&self) -> &[Block] {
        self.module.blocks()
    }

    fn blocks_mut(&mut self) -> &mut [Block] {
        self.module.blocks_mut()
    }

    fn tied(&self) -> Option<(usize, usize)> {
        self.module.tied()
    }
}

/// Where GELU by tanh gives `y`, for `y` above 0.
fn before_gelu(y: f64) -> f64 {
    let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    let (mut low, mut high) = (0.0, y + 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if gelu(middle) < y { low = middle } else { high = middle }
    }
    low
}

/// Everything 0 but the MLP of the first layer: 1, 2, 3, 4 inside, then a row-parallel product and its bias.
fn row_parallel(module: &Transformer) -> Named {
    let values = |name: &str, len: usize| match name {
        "transformer.h.0.mlp.c_fc.bias" => [1.0, 2.0, 3.0, 4.0].map(|y| before_gelu(y) as f32).to_vec(),
        "transformer.h.0.mlp.c_proj.weight" => vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, -1.0],
        "transformer.h.0.mlp.c_proj.bias" => vec![10.0, 20.0],
        _ => vec![0.0; len],
    };
    let held = module.blocks().iter().flat_map(|block| &block.parameters).flat_map(|parameter| parameter.held());
    held.map(|held| (held.shard.name.clone(), values(&held.shard.name, held.shard.whole_len()))).collect()
}

/// Output and gradient of the bias on every tensor-parallel rank of a stage with [`row_parallel`], from ones behind it.
fn row_parallel_on_two_ranks(setup: &Setup, seq_length: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let shape =
        ModelShape { ffn_hidden_size: 4, untie_embeddings_and_output_weights: true, ..ModelShape::gpt(2, 2, 2, 8, 2) };
    let shape =
        ModelShape { numerics: Numerics { activation: ActivationFunction::GeluTanh, ..shape.numerics }, ..shape };
    let layer = |start| LayerRange { start, end: start + 1 };
    let parts = [
        StagePart { layers: layer(0), embedding: true, head: false },
        StagePart { layers: layer(1), embedding: false, head: true },
    ];
    let mesh = Mesh { pipeline: 2, tensor: 2, ..Mesh::default() };
    let seen = Seen::default();
    let batches = Walk { vocab_size: 8, batch: 1, seq_length };
    step(&shape, &parts, &mesh, setup, &batches, |mut module, device, on| {
        if mesh.coordinate(device as u64, Axis::Pipeline) == 0 {
            let named = row_parallel(&module);
            set_parameters(&mut module, &named, on);
        }
        Watched { module, device, bias: "transformer.h.0.mlp.c_proj.bias", seen: &seen }
    });
    let first_stage = |(device, _): &(usize, _)| mesh.coordinate(*device as u64, Axis::Pipeline) == 0;
    seen.into_inner().unwrap().into_iter().filter(first_stage).map(|(_, seen)| seen).collect()
}

fn assert_close(values: &[f32], expected: &[f32]) {
    let close = values.iter().zip(expected).all(|(x, expected)| (x - expected).abs() <= 1e-6 * expected.abs());
    assert!(values.len() == expected.len() && close, "{values:?} is not {expected:?}");
}

/// Wrong: \[32, 41\], the bias added by every rank before the sum; a gradient of \[2, 2\], summed over the ranks.
#[test]
fn a12_a_row_parallel_bias_is_added_once_and_not_32_41() {
    let ranks = row_parallel_on_two_ranks(&Setup::default(), 1);
    assert_eq!(ranks.len(), 2);
    for (output, bias) in &ranks {
        assert_close(output, &[22.0, 21.0]);
        assert_eq!(bias, &[1.0, 1.0], "its gradient is upstream's on every rank");
    }
}

/// The same with the two tokens of a sequence on a rank each. Wrong: a gradient of \[1, 1\], of a rank's own token alone.
#[test]
fn a12_a_row_parallel_bias_sees_the_tokens_of_all_ranks_and_not_1_1() {
    let setup =
        Setup { sequence_parallel: SequenceParallel::Megatron, megatron_sequence_parallel: true, ..Setup::default() };
    let ranks = row_parallel_on_two_ranks(&setup, 2);
    assert_eq!(ranks.len(), 2);
    for (output, bias) in &ranks {
        assert_close(output, &[22.0, 21.0]);
        assert_eq!(bias, &[2.0, 2.0]);
    }
}

/// Wrong: ln (V / t), the vocabulary of a rank alone; with ln 2 more, the ranks' sums of exponentials counted twice.
#[test]
fn a12_the_loss_at_initialisation_is_ln_v_and_not_ln_2_off() {
    for (vocab_size, expected) in [(50_257, 10.825), (128_256, 11.762)] {
        let shape =
            ModelShape { untie_embeddings_and_output_weights: true, ..ModelShape::gpt(1, 8, 2, vocab_size, 16) };
        let batches = Walk { vocab_size: vocab_size.into(), batch: 2, seq_length: 16 };
        let losses = [1, 2].map(|tensor| {
            let mesh = Mesh { tensor, ..Mesh::default() };
            step(&shape, &[shape.whole()], &mesh, &Setup::default(), &batches, |module, _, _| module).losses[0]
        });
        assert!((losses[0] - expected).abs() < 0.05, "V={vocab_size}: {losses:?} are not near {expected}");
        assert!((losses[1] / losses[0] - 1.0).abs() < 1e-6, "V={vocab_size}: {losses:?} are not the same");
    }
}

/// 8 query heads, a key head and a value head of 128 a rank. Wrong: 3072, as many key-value heads as query heads, or keys
/// and values that are not cut.
#[test]
fn a12_a_rank_has_1280_rows_of_qkv_and_not_3072() {
    let shape = ModelShape {
        kv_channels: 128,
        num_query_groups: 8,
        ffn_hidden_size: 8,
        gated_linear_unit: true,
        normalization: Normalization::RmsNorm,
        position_embedding: PositionEmbedding::Rope,
        add_bias_linear: false,
        numerics: Numerics { activation: ActivationFunction::Silu, ..Numerics::default() },
        ..ModelShape::gpt(1, 4, 64, 8, 8)
    };
    let mesh = Mesh { tensor: 8, ..Mesh::default() };
    let mut rows = BTreeMap::<String, Vec<usize>>::new();
    for device in 0..8 {
        let spec = StageSpec::of(&shape, shape.whole(), 0, &Setup::default(), &mesh, device, [5, 1, 8]);
        let module = Transformer::new(spec, &Device::flex()).unwrap();
        let parameters = module.blocks().iter().flat_map(|block| &block.parameters);
        let is_query = |name: &str| name.ends_with("q_proj.weight");
        let qkv: Vec<_> = parameters.filter(|p| p.held().iter().any(|held| is_query(&held.shard.name))).collect();
        assert_eq!(qkv.len(), 1);
        assert_eq!(qkv[0].dims(), [1280, 4], "device {device}");
        for held in qkv[0].held() {
            rows.entry(held.shard.name.clone()).or_default().extend(held.shard.ranges.iter().cloned().flatten());
        }
    }
    let counts: Vec<_> = rows.iter().map(|(name, rows)| (name.as_str(), rows.len())).collect();
    let [q, k, v] = ["q", "k", "v"].map(|part| format!("model.layers.0.self_attn.{part}_proj.weight"));
    assert_eq!(counts, [(k.as_str(), 1024), (q.as_str(), 8192), (v.as_str(), 1024)]);
    assert!(rows.values().all(|rows| rows.iter().copied().eq(0..rows.len())), "the ranks share all rows out");
}
