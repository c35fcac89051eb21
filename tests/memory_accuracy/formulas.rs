//! Closed forms: cases A7 and A8, Korthikanti's formulas and figures, the zero-bubble paper's table, ZeRO's divisions.

use crate::replay::{Case, GIB, order};
use pipewright::ir::footprint::{State, Until, layer, layer_bytes, memory_stack, output_gradients};
use pipewright::ir::ids::Rank;
use pipewright::ir::memory::peak_activations;
use pipewright::ir::mesh::Mesh;
use pipewright::ir::model::{ModelShape, PositionEmbedding};
use pipewright::ir::scenario::{Attention, Dtype, Recompute};
use pipewright::ir::segments::{Cut, Programs};
use pipewright::ir::setup::Setup;
use pipewright::ir::task::MemoryClass;

/// Training of a GPT in 16 bits with dropout and standard attention, as in Korthikanti et al.
pub(crate) fn mixed() -> Setup {
    Setup { dtype: Dtype::Fp16, hidden_dropout: 0.1, attention_dropout: 0.1, ..Setup::default() }
}

/// A GPT of Korthikanti et al., 8 tensor-parallel ranks.
pub(crate) fn korthikanti(
    hidden: u32,
    heads: u32,
    layers: &[u32],
    b: u64,
    sharded: bool,
    recompute: Recompute,
) -> Case {
    Case {
        model: ModelShape::gpt(layers.iter().sum(), hidden, heads, 51_200, 2048),
        mesh: Mesh { tensor: 8, ..Mesh::default() },
        setup: Setup { recompute: vec![recompute], megatron_sequence_parallel: sharded, ..mixed() },
        micro_batch_size: b,
        seq_length: 2048,
        layers: layers.to_vec(),
        stack: "megatron-lm",
    }
}

fn bytes_of_a_layer(case: &Case) -> u64 {
    layer_bytes(&case.cut(), case.setup.recompute[0], false, &case.stack())
}

#[test]
fn a8_activation_bytes_of_a_layer() {
    let case = |sharded, recompute| korthikanti(12288, 96, &[96], 1, sharded, recompute);
    let mut alone = case(false, Recompute::None);
    alone.mesh.tensor = 1;
    assert_eq!(bytes_of_a_layer(&alone), 2_868_903_936);
    assert_eq!(bytes_of_a_layer(&case(false, Recompute::None)), 578_813_952);
    assert_eq!(bytes_of_a_layer(&case(true, Recompute::None)), 358_612_992);
    assert_eq!(bytes_of_a_layer(&case(true, Recompute::Selective)), 106_954_752);
    assert_eq!(bytes_of_a_layer(&case(false, Recompute::Full)), 50_331_648);
    assert_eq!(bytes_of_a_layer(&case(true, Recompute::Full)), 50_331_648);
    // Flash attention keeps what selective recomputation keeps, and the log-sum-exp in fp32.
    let mut flash = case(true, Recompute::None);
    flash.setup.attention = Attention::Flash;
    assert_eq!(bytes_of_a_layer(&flash), 106_954_752 + 2048 * 96 * 4 / 8);
    for (sharded, recompute, mib) in [
        (false, Recompute::None, 840),
        (true, Recompute::None, 490),
        (true, Recompute::Selective, 170),
        (false, Recompute::Full, 80),
    ] {
        assert_eq!(bytes_of_a_layer(&korthikanti(20480, 128, &[105], 1, sharded, recompute)), mib << 20);
    }
}

#[test]
fn a8_the_first_stage_holds_96_layers_worth() {
    let case = korthikanti(12288, 96, &[12; 8], 1, true, Recompute::Selective);
    let replay = case.replay(&order("1f1b", [8, 16, 1]));
    let activations = replay.ranks[0].peak.live[MemoryClass::Activations.index()];
    assert_eq!(activations, 96 * 106_954_752);
    assert_eq!(activations as f64 / GIB, 9.5625);
    // Memory returns to its start.
    for rank in &replay.ranks {
        assert_eq!(rank.points.first().unwrap().live, rank.points.last().unwrap().live);
    }
}

#[test]
fn korthikanti_layer_formulas_hold_at_any_shape() {
    for (h, a, s, b, t) in [(4096, 32, 1024, 2, 4), (6144, 64, 2048, 4, 8), (25600, 160, 2048, 1, 8)] {
        for sharded in [false, true] {
            let mut case = korthikanti(h, a, &[1], b, sharded, Recompute::None);
            (case.mesh.tensor, case.seq_length) = (t, s);
            let (h, a, t) = (u64::from(h), u64::from(a), u64::from(t));
            let sbh = s * b * h;
            let linear = if sharded { sbh * 34 / t } else { sbh * 10 + sbh * 24 / t };
            let core = 5 * a * s * s * b / t;
            assert_eq!(bytes_of_a_layer(&case), linear + core);
            case.setup.recompute = vec![Recompute::Selective];
            assert_eq!(bytes_of_a_layer(&case), linear);
        }
    }
}

/// Korthikanti et al., figure 1, digitised [GiB]: parameters and optimizer, activations without and with sequence
/// parallelism and selective recomputation. 530B is interleaved, 3 chunks a rank. Parameters counts are `12 L H^2`.
#[test]
fn korthikanti_figure_1() {
    let forms = [(false, Recompute::None), (true, Recompute::Selective)];
    for (h, a, layers, b, p, v, state, activations) in [
        (6144, 64, 48, 4, 1, 1, 45.5625, [59.25, 9.5625]),
        (20480, 128, 105, 1, 35, 3, 31.640_625, [114.023_437_5, 23.076_171_875]),
        (25600, 160, 128, 1, 64, 1, 32.958_984_375, [131.25, 26.5625]),
    ] {
        for ((sharded, recompute), gib) in forms.into_iter().zip(activations) {
            let each = vec![layers / (p * v); (p * v) as usize];
            let case = korthikanti(h, a, &each, b, sharded, recompute);
            let family = if v > 1 { "interleaved-1f1b" } else { "1f1b" };
            let replay = case.replay(&order(family, [p, 3 * p, v]));
            let chunks = u64::from(peak_activations(&replay.schedule, Rank(0)));
            let bytes = chunks * u64::from(layers / (p * v)) * bytes_of_a_layer(&case);
            assert_eq!(bytes as f64 / GIB, gib);
            let parameters = u64::from(layers / p) * 12 * u64::from(h).pow(2) / 8;
            let held = State::new(&case.cut(), &case.stack(), parameters, 0);
            assert_eq!((held.parameters + held.gradients + held.optimizer) as f64 / GIB, state);
        }
    }
}

/// Korthikanti et al., figure 7, digitised: percent of the tensor-parallel baseline.
#[test]
fn korthikanti_figure_7_within_a_seventh_of_a_point() {
    for (h, a, b, percents) in [
        (6144, 64, 4, [66.84, 49.42, 16.18, 7.64]),
        (20480, 128, 1, [58.31, 62.04, 20.27, 9.42]),
        (25600, 160, 1, [58.31, 62.04, 20.27, 9.42]),
    ] {
        let bytes = |sharded, recompute| bytes_of_a_layer(&korthikanti(h, a, &[1], b, sharded, recompute)) as f64;
        let baseline = bytes(false, Recompute::None);
        let forms = [
            (true, Recompute::None),
            (false, Recompute::Selective),
            (true, Recompute::Selective),
            (false, Recompute::Full),
        ];
        for ((sharded, recompute), percent) in forms.into_iter().zip(percents) {
            let predicted = bytes(sharded, recompute) / baseline * 100.0;
            assert!((predicted - percent).abs() <= 1.0 / 7.0, "{h} {predicted:.2} {percent}");
        }
    }
}

/// Qi et al. 2024, table 1: from I to W a layer keeps `32 s b h` bytes.
#[test]
fn a_split_backward_keeps_32_sbh() {
    let mut case = korthikanti(4096, 32, &[1], 2, false, Recompute::None);
    case.mesh.tensor = 1;
    let cut = case.cut();
    let inputs = layer(&cut, false).into_iter().filter(|tensor| tensor.until == Until::Weight);
    let kept: u64 = inputs.chain(output_gradients(&cut, false)).map(|tensor| tensor.bytes(&cut)).sum();
    assert_eq!(kept, 32 * 2048 * 2 * 4096);
}

#[test]
fn a7_the_heaviest_stage_of_an_uneven_layout() {
    let case = Case {
        model: ModelShape {
            ffn_hidden_size: 64,
            untie_embeddings_and_output_weights: true,
            position_embedding: PositionEmbedding::Rope,
            add_bias_linear: false,
            add_qkv_bias: false,
            ..ModelShape::gpt(8, 16, 2, 32, 8)
        },
        mesh: Mesh { pipeline: 4, ..Mesh::default() },
        setup: mixed(),
        micro_batch_size: 1,
        seq_length: 8,
        layers: vec![1, 2, 2, 3],
        stack: "megatron-lm",
    };
    let programs = Programs::new(&case.cut(), &case.parts(), false);
    let counts: Vec<u64> = programs.stages.iter().map(|stage| stage.parameters).collect();
    assert_eq!(counts, [3648, 6272, 6272, 9952]);
    let replay = case.replay(&order("1f1b", [4, 8, 1]));
    let state: Vec<u64> = replay
        .ranks
        .iter()
        .map(|rank| {
            let classes = [MemoryClass::Parameters, MemoryClass::Gradients, MemoryClass::Optimizer];
            classes.iter().map(|class| rank.peak.live[class.index()]).sum()
        })
        .collect();
    assert_eq!(state.iter().max(), Some(&179_136));
    assert_eq!(state.iter().position(|bytes| *bytes == 179_136), Some(3));
    assert_eq!(179_136, 18 * counts[3]);
}

#[test]
fn zero_divides_by_the_copies_and_experts_have_fewer() {
    let mesh = Mesh { data: 8, context: 2, expert: 4, ..Mesh::default() };
    let model = ModelShape::gpt(1, 16, 2, 32, 8);
    let stack = memory_stack("megatron-core").unwrap();
    for (zero_stage, [p, g, o], [ep, eg, eo]) in [
        (0, [1, 1, 1], [1, 1, 1]),
        (1, [1, 1, 16], [1, 1, 4]),
        (2, [1, 16, 16], [1, 4, 4]),
        (3, [16, 16, 16], [4, 4, 4]),
    ] {
        let setup = Setup { dtype: Dtype::Bf16, zero_stage, ..Setup::default() };
        let cut = Cut { model: &model, mesh: &mesh, setup: &setup, micro_batch_size: 1, seq_length: 8 };
        let (n, e) = (1600 - 320, 320);
        let expected = State {
            parameters: 2 * n / p + 2 * e / ep,
            gradients: 4 * n / g + 4 * e / eg,
            optimizer: 12 * n / o + 12 * e / eo,
        };
        assert_eq!(State::new(&cut, &stack, 1600, e), expected);
    }
}
