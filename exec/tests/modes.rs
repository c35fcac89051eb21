//! Every way of splitting the work trains as one device does.
mod support;

use pipewright_exec::optimizer::OptimizerConfig;
use support::{GPT, LLAMA, compare, plan};

fn assert_lossless(model: &str, parallel: &str, training: &str, schedule: &str) {
    let plan = plan(model, parallel, training, schedule);
    let found = compare(&plan, OptimizerConfig::adamw(1e-3), 3);
    println!("{parallel} | {training} | {schedule}: {found:?}");
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

#[test]
fn dump() {
    let plan = plan(
        GPT,
        r#""context_parallel_size": 2, "sequence_parallel": "ring""#,
        r#""num_microbatches": 1"#,
        r#""1f1b""#,
    );
    let programs = plan.programs().unwrap();
    for (i, p) in programs.stages[0].forward.iter().enumerate().take(12) {
        let ops: Vec<_> = programs.parts(p.step).map(|s| (s.phase, s.operations.clone(), s.collective())).collect();
        println!("{i} {p:?} {ops:?}");
    }
}
