//! `model`: how many parameters the model has, and each stage.

use super::args::ModelArgs;
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::ir::ids::Stage;
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    /// A tied weight counted once.
    parameters: u64,
    /// Parameters that one token goes through: all of them in a dense model.
    parameters_active: u64,
    layers: u32,
    stages: Vec<StageRow>,
}

#[derive(Serialize)]
struct StageRow {
    stage: u32,
    /// First layer and one past the last.
    layers: [u32; 2],
    /// A tied weight counted where it stands.
    parameters: u64,
}

pub(crate) fn run(args: &ModelArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    let (Some(plan), Some(model)) = (loaded.plans.first(), loaded.plans.first().and_then(|p| p.model.as_ref())) else {
        let help = "for example \"model\": { \"num_layers\": 8, \"hidden_size\": 256, \"num_attention_heads\": 8 }";
        return Err(Failure::Usage { message: "the scenario has no model".to_owned(), help: help.to_owned() });
    };
    let stage = |s: u32| {
        let part = plan.part(Stage::new(s));
        StageRow { stage: s, layers: [part.layers.start, part.layers.end], parameters: model.part_parameters(part) }
    };
    let answer = Answer {
        schema_version: 1,
        parameters: model.parameters(),
        parameters_active: model.parameters(),
        layers: model.num_layers,
        stages: (0..plan.placement().stages()).map(stage).collect(),
    };
    if args.json {
        output::json(&answer)?;
        return Ok(exit::FINE);
    }
    let mut text =
        format!("{} parameters in {} layers, as {} lays them out:\n", answer.parameters, answer.layers, plan.name);
    for row in &answer.stages {
        let [start, end] = row.layers;
        let layers = if start < end { format!("layers {start} to {}", end - 1) } else { "no layers".to_owned() };
        text.push_str(&format!(
            "  stage {:>3}  {layers:<16} {:>15} parameters
",
            row.stage, row.parameters
        ));
    }
    output::result(&text)?;
    Ok(exit::FINE)
}
