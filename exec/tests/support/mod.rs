//! Plans of a small model, run and compared with one device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use burn::tensor::Device;
use pipewright_exec::data::TextData;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::reference::{self, Reference};
use pipewright_exec::run::{self, Job, Run, RunOptions};
use pipewright_exec::transformer::{StageSpec, Transformer, on_one_device};
use pipewright_exec::worker::TextBatches;
use pipewright_ir::ids::Stage;
use pipewright_ir::plan::{self, Plan};
use pipewright_ir::schedule::Schedule;
use pipewright_ir::segments::Programs;
use pipewright_ir::workload::Workload;
use std::path::Path;
use std::time::Duration;

pub(crate) const SEED: u64 = 7;

/// GPT-2's kind, untied so that nothing is added in another order.
pub(crate) const GPT: &str = r#""num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 256,
    "max_position_embeddings": 32, "untie_embeddings_and_output_weights": true"#;
/// Llama's kind with grouped queries.
pub(crate) const LLAMA: &str = r#""num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2,
    "ffn_hidden_size": 64, "vocab_size": 256, "max_position_embeddings": 32, "position_embedding_type": "rope",
    "normalization": "RMSNorm", "swiglu": true, "add_bias_linear": false,
    "untie_embeddings_and_output_weights": true"#;

/// The plan of a scenario with these keys of `model`, `parallel` and `training`, and this schedule.
pub(crate) fn plan(model: &str, parallel: &str, training: &str, schedule: &str) -> Plan {
    let text = format!(
        r#"{{ "schema_version": 1, "name": "modes", "model": {{ {model} }}, "parallel": {{ {parallel} }},
        "training": {{ "micro_batch_size": 2, "seq_length": 16, {training} }}, "schedules": [{schedule}] }}"#
    );
    let scenario = serde_json::from_str(&text).unwrap();
    plan::resolve(&scenario, &|_| Err("no files".to_owned())).unwrap().remove(0)
}

pub(crate) fn batches(plan: &Plan) -> TextBatches {
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * i / 7 % 251) as u8).collect();
    let text = TextData::from_bytes(bytes, Path::new("text"), plan.batch.seq_length as usize, SEED).unwrap();
    TextBatches { text, micro_batch_size: plan.batch.micro_batch_size as usize }
}

/// The task graph at the detail of segments.
pub(crate) fn schedule(plan: &Plan, programs: &Programs) -> Schedule {
    let workload = Workload::abstract_stages(plan.placement().stages());
    plan.schedule(&workload).unwrap().segmented(programs)
}

pub(crate) fn run(plan: &Plan, optimizer: OptimizerConfig, steps: u64) -> Run {
    let programs = plan.programs().unwrap();
    let schedule = schedule(plan, &programs);
    let devices = vec![Device::flex(); usize::try_from(plan.mesh.devices()).unwrap()];
    let options =
        RunOptions { steps, optimizer, keep_gradients: true, timeout: Duration::from_secs(20), count_memory: false };
    let job = Job { schedule: &schedule, programs: &programs, mesh: &plan.mesh, setup: &plan.setup };
    let build = |stage: Stage, device: usize, on: &Device| {
        let numbers = [SEED, plan.batch.micro_batch_size.into(), plan.batch.seq_length.into()];
        let shape = plan.model.as_ref().unwrap();
        let spec =
            StageSpec::of(shape, plan.part(stage), stage.index(), &plan.setup, &plan.mesh, device as u64, numbers);
        Transformer::new(spec, on).map_err(|error| error.to_string())
    };
    run::run(job, &devices, &build, &batches(plan), &options, &mut |_, _| {}).unwrap()
}

/// One device with the whole batch of a plan.
pub(crate) fn reference(plan: &Plan, optimizer: OptimizerConfig, steps: u64, after: &Run) -> Reference {
    let shape = plan.model.as_ref().unwrap();
    let (b, s) = (plan.batch.micro_batch_size as usize, plan.batch.seq_length as usize);
    let device = Device::flex();
    let (module, programs) = on_one_device(shape, &plan.setup, SEED, [b, s], &device).unwrap();
    let microbatches = plan.batch.microbatches * plan.batch.rounds * plan.mesh.data;
    let options = reference::Options { microbatches, steps, optimizer, clip_grad: plan.setup.clip_grad, keep: steps };
    reference::follow(module, &programs, &device, &batches(plan), &options, &after.parameters, &mut |_, _| {}).unwrap()
}
