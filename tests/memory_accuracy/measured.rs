//! Measured peaks: SimuMax's B200 table, the zero-bubble paper's tables 4 and 6, BigScience's topology sweep.

use crate::formulas::mixed;
use crate::replay::{Case, GIB, MIB, order};
use crate::shapes::{padded, simumax_model};
use pipewright::ir::footprint::layer_bytes;
use pipewright::ir::mesh::Mesh;
use pipewright::ir::model::{ModelShape, PositionEmbedding};
use pipewright::ir::scenario::{Attention, Dtype, Recompute, SequenceParallel};
use pipewright::ir::schedules::{ScheduleParams, find};
use pipewright::ir::setup::Setup;
use pipewright::ir::unit_costs::{StageTimes, UnitCosts};
use std::collections::BTreeMap;

/// Rows of a table of `tests/reference_data`, cut into words.
fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect())
}

fn number(word: &str) -> u32 {
    word.parse().unwrap()
}

/// Errors of predictions, as shares of what was measured.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    fn add(&mut self, predicted: f64, measured: f64) {
        self.0.push(predicted / measured - 1.0);
    }

    fn mean(&self) -> f64 {
        self.0.iter().map(|e| e.abs()).sum::<f64>() / self.0.len() as f64
    }

    fn largest(&self) -> f64 {
        self.0.iter().map(|e| e.abs()).fold(0.0, f64::max)
    }

    fn bias(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    fn show(&self, what: &str) -> String {
        let [mean, largest, bias] = [self.mean(), self.largest(), self.bias()].map(|e| e * 100.0);
        format!("{what}: {} rows, mean {mean:.2} %, largest {largest:.2} %, bias {bias:+.2} %", self.0.len())
    }
}

#[test]
fn simumax_peaks_of_every_rank_are_within_1_5_percent() {
    let mut errors = Errors::default();
    for row in rows(include_str!("../reference_data/simumax_b200.txt")) {
        let [layers, tp, cp, ep, pp, dp, seq, m] = std::array::from_fn(|i| number(row[i + 1]));
        let model = simumax_model(row[0], layers);
        let vocab_size = padded(model.vocab_size, tp);
        let case = Case {
            model: ModelShape { vocab_size, ..model },
            mesh: Mesh { tensor: tp, context: cp, data: dp, pipeline: pp, expert: ep, ..Mesh::default() },
            setup: Setup {
                dtype: Dtype::Bf16,
                attention: Attention::Flash,
                sequence_parallel: SequenceParallel::Ulysses,
                megatron_sequence_parallel: true,
                zero_stage: 1,
                cross_entropy_fusion: true,
                ..Setup::default()
            },
            micro_batch_size: 1,
            seq_length: u64::from(seq),
            layers: vec![layers / pp; pp as usize],
            stack: "megatron-core",
        };
        let predicted = case.replay(&order("1f1b", [pp, m, 1])).allocated();
        for (rank, measured) in row[10..].iter().enumerate() {
            let predicted = predicted[rank * pp as usize / 8] / MIB;
            errors.add(predicted, f64::from(number(measured)));
        }
    }
    println!("{}", errors.show("SimuMax B200, per rank"));
    assert_eq!(errors.0.len(), 256);
    assert!(errors.mean() <= 0.015, "{}", errors.show("SimuMax B200"));
    assert!(errors.largest() <= 0.015, "{}", errors.show("SimuMax B200"));
}

/// Layers of `stages` stages with embedding and head counted as a layer each.
fn counting_ends(layers: u32, stages: u32) -> Vec<u32> {
    let (share, more) = ((layers + 2) / stages, (layers + 2) % stages);
    // The larger ones first behind the first stage, which has the embedding.
    (0..stages)
        .map(|s| share + u32::from((1..=more).contains(&s)) - u32::from(s == 0) - u32::from(s + 1 == stages))
        .collect()
}

fn zero_bubble_case(row: &[&str], chunks: u32) -> Case {
    let [layers, heads, hidden, p, b] = std::array::from_fn(|i| number(row[i + 1]));
    Case {
        model: ModelShape::gpt(layers, hidden, heads, 50304, 1024),
        mesh: Mesh { pipeline: p, ..Mesh::default() },
        setup: mixed(),
        micro_batch_size: u64::from(b),
        seq_length: 1024,
        layers: counting_ends(layers, p * chunks),
        stack: "megatron-lm",
    }
}

/// Peak of the heaviest rank [GiB]. ZB-1p and ZB-2p are what the paper's scheduler finds in the memory of `p` and `2 p`
/// microbatches. In that of `p` it is ZB-H1; in that of `2 p` it has more forwards in flight on later ranks than ZB-H2,
/// because its W take half the time of F and I and messages take some, as here.
fn zero_bubble_peak(row: &[&str]) -> f64 {
    let [layers, p, m] = [1, 4, 6].map(|i| number(row[i]));
    let named = |family, v| zero_bubble_case(row, v).replay(&order(family, [p, m, v])).most() / GIB;
    match row[7] {
        "1F1B" => named("1f1b", 1),
        "1F1B-I" => named("interleaved-1f1b", (layers + 2) / p),
        "ZB-1p" => named("zb-h1", 1),
        "ZB-V" => named("zb-v", 2),
        _ => {
            let [forward, backward_input, backward_weight] = [2.0, 2.0, 1.0];
            let costs = UnitCosts { forward, backward_input, backward_weight, hop: 0.1, ..UnitCosts::default() };
            let params = ScheduleParams {
                times: StageTimes::of(&costs, p, p),
                max_activations: Some(vec![2.0 * f64::from(p); p as usize]),
                // Enough that every rank fills up; the search takes long with more.
                ..ScheduleParams::new(p, m.min(2 * p + 8), 1)
            };
            let order = find("auto").unwrap().order(&params).unwrap();
            zero_bubble_case(row, 1).replay_with(&order, &costs).most() / GIB
        }
    }
}

#[test]
fn zero_bubble_peaks_are_within_4_percent_in_the_mean() {
    let table: Vec<_> = rows(include_str!("../reference_data/zero_bubble.txt")).collect();
    // Rows that differ only in how many microbatches come after the pipeline is full have one peak.
    let mut shapes: BTreeMap<Vec<&str>, Vec<&Vec<&str>>> = BTreeMap::new();
    for row in &table {
        shapes.entry([&row[1..6], &row[7..8]].concat()).or_default().push(row);
    }
    let mut errors = Errors::default();
    std::thread::scope(|scope| {
        let peaks: Vec<_> = shapes.values().map(|rows| (rows, scope.spawn(|| zero_bubble_peak(rows[0])))).collect();
        for (rows, peak) in peaks {
            let predicted = peak.join().unwrap();
            for row in rows {
                errors.add(predicted, f64::from(number(row[8])));
            }
        }
    });
    println!("{}", errors.show("zero bubble, tables 4 and 6"));
    assert_eq!(errors.0.len(), 56);
    assert!(errors.mean() <= 0.04, "{}", errors.show("zero bubble"));
    assert!(errors.largest() <= 0.08, "{}", errors.show("zero bubble"));
}

/// Usable of an A100's 81,920 MiB [B]: the rest is the driver's. Assumed, not from a row.
const A100_USABLE: f64 = 79.3 * GIB;

fn bloom_case(row: &[&str]) -> (Case, u32) {
    let [hidden, layers, heads, dp, tp, pp, b, batch] = std::array::from_fn(|i| number(row[i + 1]));
    let bf16 = row[9] == "bf16";
    let vocabulary = padded(number(row[10]), tp);
    let model = ModelShape {
        position_embedding: PositionEmbedding::Alibi,
        embedding_norm: true,
        ..ModelShape::gpt(layers, hidden, heads, vocabulary, 2048)
    };
    let [dtype, gradient_dtype] = if bf16 { [Dtype::Bf16, Dtype::Fp32] } else { [Dtype::Fp16; 2] };
    let even = |s: u32| layers / pp + u32::from(s < layers % pp);
    let case = Case {
        model,
        mesh: Mesh { tensor: tp, data: dp, pipeline: pp, ..Mesh::default() },
        setup: Setup { dtype, gradient_dtype, recompute: vec![Recompute::Full], zero_stage: 1, ..mixed() },
        micro_batch_size: u64::from(b),
        seq_length: 2048,
        layers: if bf16 { counting_ends(layers, pp) } else { (0..pp).map(even).collect() },
        stack: "megatron-deepspeed",
    };
    (case, batch / dp / b)
}

/// Line 957 of the source (206B in 82 layers, TP 4, PP 12, DP 8, microbatch 2, bf16) ran out of memory and is predicted to
/// need 67 GiB: nothing known of it accounts for the missing 13. Every other label is right.
const BLOOM_WRONG: [&str; 1] = ["957"];

#[test]
fn bloom_rows_that_ran_out_of_memory_are_told_from_those_that_ran() {
    let (mut errors, mut wrong, mut labels) = (Errors::default(), Vec::new(), 0);
    for row in rows(include_str!("../reference_data/bloom_topology.txt")) {
        let (case, m) = bloom_case(&row);
        let needed = case.replay(&order("1f1b", [case.mesh.pipeline, m, 1])).most();
        labels += 1;
        if (needed > A100_USABLE) != (row[11] == "oom") {
            wrong.push(row[0]);
        }
        if let Ok(measured) = row[11].parse::<f64>() {
            // The allocator keeps about one layer's tensors that it would hand back before it ran out.
            let cache = layer_bytes(&case.cut(), Recompute::None, false, &case.stack()) as f64;
            let shown = (needed + cache).min(A100_USABLE).max(needed);
            errors.add(shown / GIB, measured);
        }
    }
    println!("{}", errors.show("BLOOM, nvidia-smi"));
    assert_eq!((labels, errors.0.len()), (64, 29));
    assert_eq!(wrong, BLOOM_WRONG);
    assert!(errors.mean() <= 0.04, "{}", errors.show("BLOOM"));
}
