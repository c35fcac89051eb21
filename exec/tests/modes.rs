//! Every way of splitting the work trains as one device does.
mod support;

use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::verify;
use support::{GPT, LLAMA, plan, reference, run};

fn assert_lossless(model: &str, parallel: &str, training: &str, schedule: &str) {
    let plan = plan(model, parallel, training, schedule);
    let optimizer = OptimizerConfig::adamw(1e-3);
    let run = run(&plan, optimizer, 3);
    let found = verify::compare(&run, &reference(&plan, optimizer, 3, &run), &optimizer);
    assert!(found.ok(), "{parallel} | {training} | {schedule}: {found:?}");
}

#[test]
fn one_rank() {
    assert_lossless(GPT, "", r#""num_microbatches": 4"#, r#""1f1b""#);
    assert_lossless(LLAMA, "", r#""num_microbatches": 4"#, r#""1f1b""#);
}

#[test]
fn pipelines() {
    for schedule in ["gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe"] {
        assert_lossless(
            GPT,
            r#""pipeline_model_parallel_size": 2"#,
            r#""num_microbatches": 4"#,
            &format!("{schedule:?}"),
        );
    }
    assert_lossless(LLAMA, r#""pipeline_model_parallel_size": 2"#, r#""num_microbatches": 4"#, r#""zb-h1""#);
    assert_lossless(LLAMA, r#""pipeline_model_parallel_size": 2"#, r#""num_microbatches": 4"#, r#""seq1f1b""#);
}

#[test]
fn tensor_parallel() {
    for t in [2, 4] {
        for model in [GPT, LLAMA] {
            assert_lossless(
                model,
                &format!(r#""tensor_model_parallel_size": {t}"#),
                r#""num_microbatches": 2"#,
                r#""1f1b""#,
            );
        }
    }
}

#[test]
fn megatron_sequence_parallel() {
    for model in [GPT, LLAMA] {
        assert_lossless(
            model,
            r#""tensor_model_parallel_size": 2, "sequence_parallel": "megatron""#,
            r#""num_microbatches": 2"#,
            r#""1f1b""#,
        );
    }
}

#[test]
fn context_parallel() {
    for kind in ["ring", "ulysses"] {
        for c in [2, 4] {
            for model in [GPT, LLAMA] {
                let parallel = format!(r#""context_parallel_size": {c}, "sequence_parallel": "{kind}""#);
                assert_lossless(model, &parallel, r#""num_microbatches": 2"#, r#""1f1b""#);
            }
        }
    }
}

#[test]
fn data_parallel_and_zero() {
    for zero in 0..4 {
        let parallel = format!(r#""data_parallel_size": 2, "zero_stage": {zero}"#);
        assert_lossless(GPT, &parallel, r#""num_microbatches": 2"#, r#""1f1b""#);
        assert_lossless(LLAMA, &parallel, r#""num_microbatches": 2, "overlap_grad_reduce": true"#, r#""1f1b""#);
    }
}

#[test]
fn recompute() {
    for kind in ["selective", "full"] {
        for attention in ["standard", "flash"] {
            let training = format!(r#""num_microbatches": 2, "recompute": "{kind}", "attention": "{attention}""#);
            assert_lossless(GPT, r#""tensor_model_parallel_size": 2"#, &training, r#""1f1b""#);
        }
    }
}

#[test]
fn three_dimensions() {
    let parallel = r#""pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2, "data_parallel_size": 2, "zero_stage": 1"#;
    assert_lossless(GPT, parallel, r#""num_microbatches": 4, "clip_grad": 0.5"#, r#""1f1b""#);
    assert_lossless(LLAMA, parallel, r#""num_microbatches": 4, "clip_grad": 0.5"#, r#""zb-h1""#);
}

#[test]
fn dropout() {
    let training = r#""num_microbatches": 2, "dropout": true"#;
    assert_lossless(GPT, r#""tensor_model_parallel_size": 2, "sequence_parallel": "megatron""#, training, r#""1f1b""#);
    assert_lossless(GPT, r#""context_parallel_size": 2, "sequence_parallel": "ring""#, training, r#""1f1b""#);
    assert_lossless(GPT, r#""context_parallel_size": 2, "sequence_parallel": "ulysses""#, training, r#""1f1b""#);
}

/// Several axes at once, with every kind of sequence parallelism.
#[test]
fn everything_at_once() {
    let all = r#""pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2, "context_parallel_size": 2, "data_parallel_size": 2"#;
    let training = r#""num_microbatches": 2, "clip_grad": 0.5, "dropout": true, "overlap_grad_reduce": true"#;
    for kind in ["ring", "ulysses"] {
        for zero in [0, 1, 3] {
            let parallel = format!(r#"{all}, "sequence_parallel": "{kind}", "zero_stage": {zero}"#);
            assert_lossless(LLAMA, &parallel, training, r#""1f1b""#);
        }
    }
    assert_lossless(GPT, &format!(r#"{all}, "sequence_parallel": "ring""#), training, r#""zb-h1""#);
}

/// A vocabulary of no round number, more ranks than key-value heads, a tied head on another stage.
#[test]
fn odd_sizes() {
    let odd = GPT.replace(r#""vocab_size": 256"#, r#""vocab_size": 260"#);
    assert_lossless(&odd, r#""tensor_model_parallel_size": 4"#, r#""num_microbatches": 2"#, r#""1f1b""#);
    let one_group = LLAMA.replace(r#""num_query_groups": 2"#, r#""num_query_groups": 1"#);
    let parallel = r#""tensor_model_parallel_size": 4, "data_parallel_size": 2, "zero_stage": 1"#;
    assert_lossless(&one_group, parallel, r#""num_microbatches": 2"#, r#""1f1b""#);
    let tied = GPT
        .replace(r#""untie_embeddings_and_output_weights": true"#, r#""untie_embeddings_and_output_weights": false"#);
    for zero in 0..4 {
        let parallel = format!(
            r#""pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2, "data_parallel_size": 2, "zero_stage": {zero}"#
        );
        assert_lossless(&tied, &parallel, r#""num_microbatches": 2, "clip_grad": 0.5"#, r#""1f1b""#);
    }
}

/// Slices of sequences on tensor-parallel ranks.
#[test]
fn slices() {
    let parallel = r#""pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2"#;
    for model in [GPT, LLAMA] {
        assert_lossless(model, parallel, r#""num_microbatches": 2"#, r#""seq1f1b""#);
    }
}

/// Megatron's sequence parallelism on the tensor-parallel ranks, another kind on the context-parallel ones.
#[test]
fn two_kinds_of_sequence_parallelism() {
    for kind in ["ring", "ulysses"] {
        let parallel = format!(
            r#""tensor_model_parallel_size": 2, "context_parallel_size": 2, "sequence_parallel": ["{kind}", "megatron"]"#
        );
        for model in [GPT, LLAMA] {
            assert_lossless(model, &parallel, r#""num_microbatches": 2, "dropout": true"#, r#""1f1b""#);
        }
    }
}

#[test]
fn recompute_by_stage() {
    let parallel = r#""pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2"#;
    for attention in ["standard", "flash"] {
        let training =
            format!(r#""num_microbatches": 4, "recompute": ["full", "selective"], "attention": "{attention}""#);
        for model in [GPT, LLAMA] {
            assert_lossless(model, parallel, &training, r#""zb-h1""#);
        }
    }
}

#[test]
fn other_schedules_on_every_axis() {
    let parallel = r#""pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2, "data_parallel_size": 2"#;
    let interleaved = r#"{ "name": "interleaved-1f1b", "virtual_pipeline_model_parallel_size": 2 }"#;
    for schedule in [r#""gpipe""#, interleaved, r#""zb-v""#, r#""dualpipe""#] {
        for model in [GPT, LLAMA] {
            assert_lossless(model, parallel, r#""num_microbatches": 4"#, schedule);
        }
    }
}
