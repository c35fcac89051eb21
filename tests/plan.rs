//! The checker: what is refused, with the numbers of the rule and the nearest legal values, and what `plan` tells of what
//! is legal. Field case A4, its rows a to m, is here whole.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str], scenario: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pipewright"))
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(scenario.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A scenario of these parts, with a small model unless they say otherwise.
fn scenario(parts: &Value) -> String {
    let mut all = json!({
        "schema_version": 1, "name": "checked", "schedules": ["1f1b"],
        "model": { "num_layers": 96, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 51200 },
        "training": { "seq_length": 2048, "global_batch_size": 1536, "micro_batch_size": 1 },
    });
    for (key, value) in parts.as_object().unwrap() {
        all[key] = value.clone();
    }
    all.to_string()
}

/// The answer to a legal scenario.
fn accepted(parts: &Value) -> Value {
    let output = run(&["plan", "-", "--json"], &scenario(parts));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The faults of a scenario, each as `path: message / help`.
fn refused(parts: &Value) -> Vec<String> {
    let output = run(&["plan", "-", "--json"], &scenario(parts));
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], false);
    let text = |fault: &Value, key: &str| fault[key].as_str().unwrap().to_owned();
    let faults = answer["faults"].as_array().unwrap();
    faults.iter().map(|f| format!("{}: {} / {}", text(f, "path"), text(f, "message"), text(f, "help"))).collect()
}

/// A scenario has one fault, at this knob, that mentions all of these.
fn refused_for(parts: &Value, path: &str, mentioned: &[&str]) {
    let faults = refused(parts);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with(&format!("{path}: ")), "{faults:?}");
    for part in mentioned {
        assert!(faults[0].contains(part), "{part} is not in {}", faults[0]);
    }
}

fn warnings(answer: &Value) -> String {
    answer["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

const SIZE: &str = "pipeline_model_parallel_size";

#[test]
fn a4a_interleaving_wants_a_multiple_of_the_ranks() {
    let schedules = json!([{ "name": "interleaved", "virtual_pipeline_model_parallel_size": 2 }]);
    let parts = json!({ "schedules": schedules, "parallel": { SIZE: 4 }, "training": { "num_microbatches": 10 } });
    refused_for(&parts, "training.num_microbatches", &["10 % 4 = 2", "8 or 12", "microbatch_group_size_per_vp_stage"]);
}

#[test]
fn a4b_says_how_the_number_of_microbatches_came_about() {
    let schedules = json!([{ "name": "interleaved", "virtual_pipeline_model_parallel_size": 2 }]);
    let parts = json!({ "schedules": schedules, "parallel": { SIZE: 6, "data_parallel_size": 8 },
                        "training": { "global_batch_size": 24, "micro_batch_size": 1, "seq_length": 64 } });
    let mentioned =
        ["3 % 6 = 3", "global_batch_size 24 / (micro_batch_size 1 * data_parallel_size 8) = 3", "m = 6", "m * 8"];
    refused_for(&parts, "training.global_batch_size", &mentioned);
}

#[test]
fn a4c_layers_that_do_not_divide_are_all_there() {
    let model = json!({ "num_layers": 30, "hidden_size": 64, "num_attention_heads": 4 });
    let answer = accepted(&json!({ "model": model, "parallel": { SIZE: 4 } }));
    let stages = answer["schedules"][0]["stages"].as_array().unwrap();
    let layers: Vec<u64> =
        stages.iter().map(|s| s["layers"][1].as_u64().unwrap() - s["layers"][0].as_u64().unwrap()).collect();
    assert_eq!(layers, [8, 8, 7, 7]);
}

fn heads(heads: u32, groups: u32) -> Value {
    json!({ "num_layers": 2, "hidden_size": heads * 64, "num_attention_heads": heads, "num_query_groups": groups,
            "ffn_hidden_size": 17920, "vocab_size": 17920 })
}

#[test]
fn a4d_and_a4e_no_head_is_cut() {
    let over = |tensor: u32| json!({ "tensor_model_parallel_size": tensor });
    let knob = "parallel.tensor_model_parallel_size";
    let parts = json!({ "model": heads(28, 4), "parallel": over(8) });
    refused_for(&parts, knob, &["28 % 8 = 4", "use 1, 2, 4;", "28 with replication"]);
    let parts = json!({ "model": heads(40, 10), "parallel": over(4) });
    refused_for(&parts, knob, &["10 key-value heads: 10 % 4 = 2", "use 1, 2, 5, 10;", "20, 40 with replication"]);
    let text = warnings(&accepted(&json!({ "model": heads(28, 4), "parallel": over(28) })));
    assert!(text.contains("each head is on 7 ranks"), "{text}");
}

#[test]
fn a4k_ulysses_shares_out_whole_heads() {
    let parallel = json!({ "context_parallel_size": 16, "sequence_parallel": "ulysses" });
    let mentioned = ["40 % 16 = 8", "1, 2, 4, 8, 40;"];
    refused_for(&json!({ "model": heads(40, 8), "parallel": parallel }), "parallel.context_parallel_size", &mentioned);
}

#[test]
fn a4f_the_global_batch_is_a_multiple_of_microbatch_and_replicas() {
    let parts = json!({ "parallel": { "data_parallel_size": 8 },
                        "training": { "global_batch_size": 2048, "micro_batch_size": 3 } });
    refused_for(&parts, "training.global_batch_size", &["2048 % 24 = 8", "2040 or 2064"]);
}

#[test]
fn a4g_the_sizes_make_the_world() {
    let sizes = json!({ "tensor_model_parallel_size": 4, SIZE: 12, "data_parallel_size": 7, "world_size": 384 });
    let training = json!({ "num_microbatches": 12, "seq_length": 64 });
    let mentioned = ["4*12*7 = 336", "384", "DP=8"];
    refused_for(&json!({ "parallel": sizes, "training": training }), "parallel.data_parallel_size", &mentioned);
    // The same from a cluster of 48 nodes, and without the replicas it is right.
    let cluster = json!({ "preset": "jean-zay-a100", "nodes": 48 });
    let mut sizes = json!({ "tensor_model_parallel_size": 4, SIZE: 12, "data_parallel_size": 7 });
    let parts = json!({ "cluster": cluster, "parallel": sizes, "training": training });
    refused_for(&parts, "parallel.data_parallel_size", &[&mentioned[..], &["48 nodes x 8 = 384 GPUs"]].concat());
    sizes["data_parallel_size"] = Value::Null;
    let answer = accepted(&json!({ "cluster": cluster, "parallel": sizes, "training": training }));
    assert_eq!((&answer["mesh"]["sizes"]["dp"], &answer["mesh"]["devices"]), (&json!(8), &json!(384)));
    // No number of replicas helps.
    let sizes = json!({ "tensor_model_parallel_size": 4, SIZE: 10 });
    let parts = json!({ "cluster": cluster, "parallel": sizes, "training": training });
    refused_for(&parts, "cluster.nodes", &["4*10 = 40", "384 % 40 = 24", "360 or 400 devices"]);
}

#[test]
fn a4h_a_v_needs_two_stages_a_rank() {
    for name in ["ZBV", "DualPipeV"] {
        let parts = json!({ "schedules": [{ "name": name, "virtual_pipeline_model_parallel_size": 1 }], "parallel": { SIZE: 4 } });
        let path = "schedules[0].virtual_pipeline_model_parallel_size";
        refused_for(&parts, path, &["2 stages a rank = 8 stages", "not 4"]);
    }
}

#[test]
fn a4i_sharded_gradients_and_a_pipeline_are_warned_of() {
    for stage in [2, 3] {
        let parallel = json!({ SIZE: 2, "data_parallel_size": 4, "zero_stage": stage });
        let text = warnings(&accepted(&json!({ "parallel": parallel })));
        assert!(text.contains("accumulates over all its microbatches, here 384"), "{text}");
        assert!(text.contains("use ZeRO 1"), "{text}");
    }
    let text = warnings(&accepted(&json!({ "parallel": { SIZE: 2, "zero_stage": 1 } })));
    assert!(text.contains("there is one: it changes nothing") && !text.contains("accumulates"), "{text}");
}

#[test]
fn a4j_a_zigzag_ring_cuts_into_twice_its_ranks() {
    let parts = |kind: &str, tokens: u32| {
        json!({ "parallel": { "context_parallel_size": 4, "sequence_parallel": kind },
                "training": { "seq_length": tokens, "num_microbatches": 4 } })
    };
    for kind in ["ring", "zigzag"] {
        let mentioned = ["2 * 4 = 8", "2999 % 8 = 7", "multiple of 8", "pad to 3000"];
        refused_for(&parts(kind, 2999), "training.seq_length", &mentioned);
        accepted(&parts(kind, 3000));
    }
    // Contiguous runs need no more than a multiple of the ranks.
    refused_for(&parts("ring-contiguous", 2999), "training.seq_length", &["2999 % 4 = 3", "2996", "pad to 3000"]);
    accepted(&parts("ring-contiguous", 2996));
}

#[test]
fn a4l_eight_samples_do_not_make_three_equal_microbatches() {
    let training = json!({ "global_batch_size": 8, "num_microbatches": 3, "seq_length": 64 });
    refused_for(&json!({ "training": training }), "training.num_microbatches", &["8 % 3 = 2", "2 or 4"]);
}

#[test]
fn a4m_a_single_microbatch_is_legal_and_three_quarters_idle() {
    let parts = json!({ "parallel": { SIZE: 4 }, "training": { "num_microbatches": 1 } });
    let text = warnings(&accepted(&parts));
    assert!(text.contains("1 microbatches do not fill 4 ranks") && text.contains("75 %"), "{text}");
}

#[test]
fn all_faults_come_at_once_each_at_its_knob() {
    let parts = json!({
        "cluster": { "preset": "dgx-1-v100", "nodes": 3 },
        "parallel": { "tensor_model_parallel_size": 3, SIZE: 2, "data_parallel_size": 4, "zero_stage": 4,
                      "expert_model_parallel_size": 2, "sequence_parallel": ["ring", "ulysses"], "order": "tp-dp-xx" },
        "training": { "global_batch_size": 10, "seq_length": 100, "dtype": "bf16", "gradient_dtype": "fp16",
                      "recompute": ["full", "none", "full"], "clip_grad": -1 },
    });
    let faults = refused(&parts);
    for expected in [
        "parallel.order: `xx` is no axis",
        "parallel.order: pp has 2 ranks, but no place",
        "training.clip_grad: training.clip_grad is -1",
        "training.global_batch_size: global_batch_size 10 is not a multiple",
        "parallel.zero_stage: there is no ZeRO stage 4",
        "parallel.tensor_model_parallel_size: tensor_model_parallel_size 3 does not share out 16 attention heads: 16 % 3 = 1",
        "parallel.tensor_model_parallel_size: tensor_model_parallel_size 3 does not divide ffn_hidden_size 4096",
        "pad the vocabulary to 51201",
        "parallel.expert_model_parallel_size: expert_model_parallel_size is 2, but the model has no experts",
        "parallel.sequence_parallel: the kinds ring, ulysses of sequence parallelism do not go together",
        "parallel.sequence_parallel: ring works on the context-parallel ranks, of which there is one",
        "training.dtype: V100-SXM2-32GB has no bf16 arithmetic / use \"fp16\" or \"fp32\"",
        "training.gradient_dtype: gradients in fp16 do not go with weights in bf16",
        "training.recompute: recompute has 3 entries for 2 stages",
    ] {
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected} is not in {faults:#?}");
    }
}

#[test]
fn megatron_sequence_parallelism_needs_tensor_ranks_and_a_length_they_divide() {
    let parts = |tensor: u32, context: u32, tokens: u32, kinds: Value| {
        json!({ "parallel": { "tensor_model_parallel_size": tensor, "context_parallel_size": context, "sequence_parallel": kinds },
                "training": { "seq_length": tokens, "num_microbatches": 4 } })
    };
    refused_for(&parts(1, 1, 64, json!("megatron")), "parallel.sequence_parallel", &["there is one"]);
    refused_for(&parts(8, 1, 100, json!("megatron")), "training.seq_length", &["100 % 8 = 4", "96", "104"]);
    // Beside a context-parallel size it goes with a zigzag ring.
    let answer = accepted(&parts(4, 2, 64, json!("megatron")));
    assert_eq!(answer["training"]["sequence_parallel"], json!(["megatron", "ring"]));
    let answer = accepted(&parts(4, 2, 64, json!(["ulysses", "megatron"])));
    assert_eq!(answer["training"]["sequence_parallel"], json!(["megatron", "ulysses"]));
    refused_for(
        &parts(4, 3, 18, json!(["megatron", "ring"])),
        "training.seq_length",
        &["multiple of 12", "18 % 12 = 6"],
    );
}

#[test]
fn the_cluster_decides_formats_and_replicas_unless_told() {
    let on = |preset: &str| accepted(&json!({ "cluster": { "preset": preset, "nodes": 2 } }));
    let formats = |answer: &Value| {
        ["dtype", "gradient_dtype", "attention"].map(|key| answer["training"][key].as_str().unwrap().to_owned())
    };
    let a100 = on("dgx-a100-80g");
    assert_eq!(formats(&a100), ["bf16", "fp32", "flash"]);
    assert_eq!(a100["mesh"]["sizes"]["dp"], 16);
    assert_eq!(a100["training"]["clip_grad"], 1.0);
    assert_eq!(formats(&on("dgx-1-v100")), ["fp16", "fp16", "standard"]);
    let without = accepted(&json!({}));
    assert_eq!(formats(&without), ["fp32", "fp32", "standard"]);
    assert_eq!((&without["training"]["clip_grad"], &without["cluster"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_cluster_of_ones_own_and_unknown_ones() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut hardware: Value = serde_json::from_str(include_str!("../ir/clusters/dgx-h100.json")).unwrap();
    hardware["name"] = json!("mine");
    hardware["gpus_per_node"] = json!(4);
    let file = folder.join("my-cluster.json");
    std::fs::write(&file, hardware.to_string()).unwrap();
    let answer = accepted(&json!({ "cluster": { "file": file, "nodes": 3 } }));
    assert_eq!((&answer["cluster"]["name"], &answer["mesh"]["devices"]), (&json!("mine"), &json!(12)));
    hardware["gpu"]["memroy"] = json!(1);
    std::fs::write(&file, hardware.to_string()).unwrap();
    refused_for(
        &json!({ "cluster": { "file": file, "nodes": 3 } }),
        "cluster.file",
        &["memroy", "pipewright schema cluster"],
    );
    refused_for(&json!({ "cluster": { "preset": "dgx-a100" } }), "cluster.preset", &["dgx-a100-80g", "vtrain-a100"]);
    refused_for(&json!({ "cluster": { "nodes": 1 } }), "cluster", &["either a preset or a file"]);
    let parts = json!({ "cluster": { "preset": "dgx-h100", "nodes": 2, "gpus": 17 }, "parallel": { "data_parallel_size": 17 },
                        "training": { "num_microbatches": 1 } });
    refused_for(&parts, "cluster.gpus", &["17 GPUs do not fit in 2 nodes x 8 = 16"]);
    let parts = json!({ "cluster": { "preset": "dgx-h100", "nodes": 2 }, "parallel": { "world_size": 32 },
                        "training": { "num_microbatches": 1 } });
    refused_for(&parts, "parallel.world_size", &["world_size is 32", "2 nodes x 8 = 16 GPUs"]);
}

#[test]
fn tensor_parallelism_across_nodes_is_warned_of() {
    let parallel = |order: &str| json!({ "tensor_model_parallel_size": 8, SIZE: 2, "order": order });
    let cluster = json!({ "preset": "dgx-a100-80g", "nodes": 4 });
    let inside = accepted(&json!({ "cluster": cluster, "parallel": parallel("tp-cp-ep-dp-pp") }));
    assert!(!warnings(&inside).contains("reach over"), "{}", warnings(&inside));
    let across = accepted(&json!({ "cluster": cluster, "parallel": parallel("pp-tp-dp") }));
    let text = warnings(&across);
    assert!(
        text.contains("reach over 2 nodes of 8 GPUs")
            && text.contains("25.0 GB/s")
            && text.contains("300 over NVSwitch"),
        "{text}"
    );
}

#[test]
fn what_changes_nothing_is_said() {
    let training = json!({ "num_microbatches": 8, "seq_length": 64, "recompute": "selective", "tp_comm_overlap": true,
                           "overlap_param_gather": true });
    let parts = json!({ "cluster": { "preset": "dgx-h100", "gpus": 1 }, "training": training });
    let text = warnings(&accepted(&parts));
    for part in ["flash attention keeps none", "tp_comm_overlap needs", "overlap_param_gather needs"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// BLOOM's plan: 8 x 12 x 4 on 48 nodes, 70 layers and embedding and head as 12 x 6 (field case A6).
fn bloom() -> Value {
    json!({
        "name": "bloom", "cluster": { "preset": "jean-zay-a100", "nodes": 48 },
        "model": { "num_layers": 70, "hidden_size": 14336, "num_attention_heads": 112, "vocab_size": 250880 },
        "parallel": { "tensor_model_parallel_size": 4, SIZE: 12, "data_parallel_size": 8, "zero_stage": 1,
                      "account_for_embedding_in_pipeline_split": true, "account_for_loss_in_pipeline_split": true },
        "training": { "global_batch_size": 2048, "micro_batch_size": 2, "seq_length": 2048 },
    })
}

#[test]
fn a6_bloom_has_128_microbatches_and_72_units_over_12_stages() {
    let answer = accepted(&bloom());
    assert_eq!(answer["batch"]["num_microbatches"], 128);
    let stages = answer["schedules"][0]["stages"].as_array().unwrap();
    let layers: Vec<u64> =
        stages.iter().map(|s| s["layers"][1].as_u64().unwrap() - s["layers"][0].as_u64().unwrap()).collect();
    assert_eq!(layers, [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]);
    let groups = answer["groups"].as_array().unwrap();
    let names: Vec<&str> = groups.iter().map(|g| g["group"].as_str().unwrap()).collect();
    assert_eq!(names, ["tp", "dp", "pp"]);
    assert_eq!(groups[1]["first"], json!([0, 4, 8, 12, 16, 20, 24, 28]));
    let crossing: Vec<&Value> = groups.iter().map(|g| &g["nodes"]).collect();
    assert_eq!(crossing, [1, 4, 12]);
    assert_eq!(stages[11]["first_device"], 352);
    // The same in Megatron's notation, and as balanced FLOPs.
    let mut written = bloom();
    written["parallel"]["layout"] = json!("Ettttt|(tttttt|)*10tttttL");
    assert_eq!(&accepted(&written)["schedules"][0]["stages"], &answer["schedules"][0]["stages"]);
    written["parallel"]["layout"] = json!("balanced");
    let balanced = &accepted(&written)["schedules"][0]["stages"];
    assert_eq!(balanced[11]["layers"], json!([66, 70]), "a head of 250,880 tokens weighs as much as 1.4 layers");
}

/// A variant has devices, groups and switches of its own; what it shares with the first is not said again.
#[test]
fn every_variant_is_planned_with_its_own_devices() {
    let mut parts = bloom();
    parts["variants"] = json!([
        { "name": "as it is", "set": {} },
        { "name": "tp 8", "set": { "parallel.tensor_model_parallel_size": 8, "parallel.data_parallel_size": 4 } },
    ]);
    let answer = accepted(&parts);
    let [first, second] = &answer["schedules"].as_array().unwrap()[..] else { panic!("two variants") };
    assert_eq!((&answer["mesh"]["sizes"]["tp"], first.get("mesh")), (&json!(4), None));
    assert_eq!((&second["mesh"]["sizes"]["tp"], &second["groups"][1]["size"]), (&json!(8), &json!(4)));
    let text = String::from_utf8(run(&["plan", "-"], &scenario(&parts)).stdout).unwrap();
    assert!(text.contains("\ntp 8: 384 devices = tp 8 x cp 1 x dp 4 x pp 12, innermost first\n"), "{text}");
    assert_eq!(text.matches("training: ").count(), 1, "{text}");
    assert_eq!(text.matches("batch: ").count(), 2, "{text}");
}

#[test]
fn plan_prints_what_people_need() {
    let output = run(&["plan", "-"], &scenario(&bloom()));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "384 devices = tp 4 x cp 1 x dp 8 x pp 12, innermost first",
        "48 nodes of 8 A100-SXM4-80GB",
        "2048 sequences = 8 replicas x 128 microbatches of 2, 2048 tokens each = 4194304 tokens",
        "bf16, gradients fp32, standard attention, recompute none, ZeRO 1",
        "0 4 8 12 ... 28",
        "1 to 10",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // What is refused for people is refused with its place.
    let mut wrong = bloom();
    wrong["parallel"]["tensor_model_parallel_size"] = json!(6);
    let output = run(&["plan", "-"], &scenario(&wrong));
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}
