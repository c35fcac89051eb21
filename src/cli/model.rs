//! `model`: what the model has of parameters and FLOPs, whole and cut as each plan cuts it; of a scenario or of a Hugging
//! Face config.json alone.

use super::args::ModelArgs;
use super::failure::Failure;
use super::{exit, load, locate, output};
use pipewright::ir::ids::{Rank, Stage};
use pipewright::ir::model::{self, ModelShape};
use pipewright::ir::plan::{Plan, model_shape};
use pipewright::ir::scenario::Recompute;
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    /// The shape in words.
    model: String,
    /// A tied weight counted once, multi-token prediction not counted.
    parameters: u64,
    /// Parameters that one token goes through: all of them in a dense model.
    parameters_active: u64,
    /// Parameters of multi-token prediction, without the embedding and head that it shares.
    parameters_mtp: u64,
    layers: u32,
    /// Rows of the query-key-value projection on one tensor-parallel rank.
    qkv_rows_per_rank: u64,
    tensor_model_parallel_size: u32,
    expert_model_parallel_size: u32,
    stages: Vec<StageRow>,
    /// Parameters of a device on each pipeline rank: those of its stages, after tensor and expert parallelism.
    parameters_per_rank: Vec<u64>,
    flops: Flops,
}

#[derive(Serialize)]
struct StageRow {
    stage: u32,
    /// First layer and one past the last.
    layers: [u32; 2],
    /// A tied weight counted where it stands.
    parameters: u64,
    /// On one tensor- and expert-parallel rank, the most of any.
    parameters_per_rank: u64,
}

/// FLOPs of forward and backward.
#[derive(Serialize)]
struct Flops {
    formula: &'static str,
    /// Tokens of a sequence.
    seq_length: u64,
    /// Model FLOPs of a token: what MFU counts.
    model_per_token: u128,
    /// Hardware FLOPs of a token: what HFU counts.
    hardware_per_token: Hardware,
    /// Model FLOPs of a token in multi-token prediction, in none of the others.
    mtp_per_token: u64,
    /// Tokens of a step of all replicas; 0 where nothing says.
    tokens_per_step: u64,
    model_per_step: u128,
    hardware_per_step: Hardware,
}

#[derive(Serialize)]
struct Hardware {
    none: u128,
    selective: u128,
    full: u128,
}

/// What the FLOPs are a sum of.
const FORMULA: &str = "forward: 2 FLOPs a token and number of every matrix it goes through (a tied head too) + 2 s A (D_qk + D_v) \
a layer; backward: twice that; causal masks not halved. For a GPT: 72 B L s h^2 (1 + s/(6h) + V/(12hL))";

/// Tokens of a sequence where nothing says how long one is, unless the model has fewer positions.
const SEQ_LENGTH: u32 = 4096;

pub(crate) fn run(args: &ModelArgs) -> Result<u8, Failure> {
    let file = &args.source.file;
    let (text, folder) = load::read(file)?;
    let (title, answer) = match hugging_face(&text, file)? {
        Some(shape) => (String::new(), whole(&shape)),
        None => {
            let loaded = load::load_text(text, folder, file, &args.source.schedule)?;
            let planned = loaded.plans.first().and_then(|plan| Some((plan, plan.model.as_ref()?)));
            let Some((plan, shape)) = planned else {
                let help = "for example \"model\": { \"preset\": \"gpt2\" }";
                return Err(Failure::Usage { message: "the scenario has no model".to_owned(), help: help.to_owned() });
            };
            (format!(", as {} lays them out", plan.name), cut(shape, plan))
        }
    };
    if args.json {
        output::json(&answer)?;
    } else {
        output::result(&for_people(&answer, &title))?;
    }
    Ok(exit::FINE)
}

/// The shape of a text that is a Hugging Face config.json and no scenario.
fn hugging_face(text: &str, file: &str) -> Result<Option<ModelShape>, Failure> {
    let Ok(config) = locate::parse(text) else { return Ok(None) };
    if config.get("model_type").is_none() || config.get("schema_version").is_some() {
        return Ok(None);
    }
    let shape = model::import(&config).and_then(|model| model_shape(&model, 1, None));
    let draw = |faults: Vec<_>| faults.into_iter().map(|fault| load::place(text, file, fault)).collect();
    shape.map(Some).map_err(|faults| Failure::Faults(draw(faults)))
}

/// The answer for a model that no plan cuts.
fn whole(shape: &ModelShape) -> Answer {
    let parameters = shape.parameters();
    let stage = StageRow { stage: 0, layers: [0, shape.num_layers], parameters, parameters_per_rank: parameters };
    let seq = shape.max_position_embeddings.min(SEQ_LENGTH);
    let seq = if shape.max_position_embeddings > 1 { seq } else { SEQ_LENGTH };
    answer(shape, (1, 1), vec![stage], vec![parameters], u64::from(seq), 0)
}

/// The answer for a model as a plan cuts it.
fn cut(shape: &ModelShape, plan: &Plan) -> Answer {
    let (tp, ep) = (plan.mesh.tensor, plan.mesh.expert);
    let row = |s: u32| {
        let part = plan.part(Stage::new(s));
        StageRow {
            stage: s,
            layers: [part.layers.start, part.layers.end],
            parameters: shape.part_parameters(part),
            parameters_per_rank: shape.rank_parameters(part, tp, ep),
        }
    };
    let stages: Vec<StageRow> = (0..plan.placement().stages()).map(row).collect();
    let held = |rank: usize| {
        let stages_of = plan.placement().stages_of(Rank::at(rank));
        stages_of.filter_map(|s| stages.get(s.index())).map(|row| row.parameters_per_rank).sum()
    };
    let ranks = (0..plan.ranks() as usize).map(held).collect();
    let tokens = plan.batch.tokens().saturating_mul(u64::from(plan.mesh.data));
    let seq = match plan.batch.seq_length {
        0 => SEQ_LENGTH.min(shape.max_position_embeddings.max(1)),
        seq => seq,
    };
    answer(shape, (tp, ep), stages, ranks, u64::from(seq), tokens)
}

fn answer(
    shape: &ModelShape,
    (tp, ep): (u32, u32),
    stages: Vec<StageRow>,
    ranks: Vec<u64>,
    seq: u64,
    tokens: u64,
) -> Answer {
    let part = shape.whole();
    let hardware = |tokens| {
        let of = |recompute| shape.hardware_flops(part, tokens, seq, recompute);
        Hardware { none: of(Recompute::None), selective: of(Recompute::Selective), full: of(Recompute::Full) }
    };
    Answer {
        schema_version: 1,
        model: shape.describe(),
        parameters: shape.parameters(),
        parameters_active: shape.active_parameters(),
        parameters_mtp: shape.mtp_parameters(),
        layers: shape.num_layers,
        qkv_rows_per_rank: shape.rank_qkv_rows(tp),
        tensor_model_parallel_size: tp,
        expert_model_parallel_size: ep,
        stages,
        parameters_per_rank: ranks,
        flops: Flops {
            formula: FORMULA,
            seq_length: seq,
            model_per_token: shape.model_flops(part, 1, seq),
            hardware_per_token: hardware(1),
            mtp_per_token: shape.mtp_forward_flops(1, seq).saturating_mul(3),
            tokens_per_step: tokens,
            model_per_step: shape.model_flops(part, tokens, seq),
            hardware_per_step: hardware(tokens),
        },
    }
}

fn for_people(answer: &Answer, title: &str) -> String {
    let mut text = format!("{}\n\n", answer.model);
    let mut line = |what: &str, value: String| text.push_str(&format!("{what:<42} {value:>26}\n"));
    line("parameters", grouped(u128::from(answer.parameters)));
    if answer.parameters_active != answer.parameters {
        line("  of them for one token", grouped(u128::from(answer.parameters_active)));
    }
    if answer.parameters_mtp > 0 {
        line("  multi-token prediction, not in them", grouped(u128::from(answer.parameters_mtp)));
    }
    let flops = &answer.flops;
    line(&format!("model FLOPs a token at {} tokens", flops.seq_length), grouped(flops.model_per_token));
    line("  hardware, attention recomputed", grouped(flops.hardware_per_token.selective));
    line("  hardware, layers recomputed", grouped(flops.hardware_per_token.full));
    if flops.mtp_per_token > 0 {
        line("  multi-token prediction, not in them", grouped(u128::from(flops.mtp_per_token)));
    }
    if flops.tokens_per_step > 0 {
        line("tokens a step", grouped(u128::from(flops.tokens_per_step)));
        line("model FLOPs a step", format!("{:.4e}", flops.model_per_step as f64));
    }
    let (tp, ep) = (answer.tensor_model_parallel_size, answer.expert_model_parallel_size);
    let split = tp > 1 || ep > 1;
    if tp > 1 {
        line("QKV rows on a tensor-parallel rank", grouped(u128::from(answer.qkv_rows_per_rank)));
    }
    if answer.stages.len() > 1 || split {
        text.push_str(&format!("\nParameters of each stage{title}:\n"));
        for row in &answer.stages {
            let [start, end] = row.layers;
            let layers = if start < end { format!("layers {start} to {}", end - 1) } else { "no layers".to_owned() };
            let whole = grouped(u128::from(row.parameters));
            text.push_str(&format!("  stage {:>3}  {layers:<18} {whole:>19}", row.stage));
            if split {
                let rank = grouped(u128::from(row.parameters_per_rank));
                text.push_str(&format!("  on each rank {rank:>17}"));
            }
            text.push('\n');
        }
    }
    text
}

/// A number with its thousands set apart: `8,030,261,248`.
fn grouped(n: u128) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([7, 124, 1024, 8_030_261_248].map(grouped), ["7", "124", "1,024", "8,030,261,248"]);
    }
}
