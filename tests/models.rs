//! Models against what is published of them: totals, stages, ranks, FLOPs; config.json files as they are found in the wild.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright::ir::ids::LayerRange;
use pipewright::ir::model::{self, ActivationFunction, ModelShape, Numerics, RopeScaling, StagePart};
use pipewright::ir::plan::{Plan, model_shape, resolve};
use pipewright::ir::scenario::{Model, Recompute, Scenario};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};

fn import(config: &Value) -> ModelShape {
    model_shape(&model::import(config).unwrap(), 1, None).unwrap()
}

fn preset(name: &str) -> ModelShape {
    model_shape(&model::preset(name).unwrap(), 1, None).unwrap()
}

/// The fields of `base`, and those of `more` over them.
fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// A config.json of Llama's fields.
fn llama(model_type: &str, [hidden, layers, heads, groups, inner, vocabulary]: [u32; 6], more: Value) -> Value {
    let config = json!({
        "model_type": model_type, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": groups, "intermediate_size": inner, "vocab_size": vocabulary, "hidden_act": "silu",
        "rope_scaling": null, "torch_dtype": "bfloat16", "eos_token_id": [1, 2], "max_position_embeddings": 8192,
    });
    with(config, more)
}

#[test]
fn a5_configs_have_their_published_totals() {
    let gpt2 = |hidden: u32, layers: u32, heads: u32| {
        json!({ "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_ctx": 1024,
                "n_positions": 1024, "vocab_size": 50257, "n_inner": null, "activation_function": "gelu_new" })
    };
    let untied = || json!({ "tie_word_embeddings": false });
    for (config, parameters) in [
        (gpt2(768, 12, 12), 124_439_808),
        (gpt2(1600, 48, 25), 1_557_611_200),
        (llama("llama", [4096, 32, 32, 8, 14336, 128_256], untied()), 8_030_261_248),
        (llama("llama", [8192, 80, 64, 8, 28672, 128_256], untied()), 70_553_706_496),
        (llama("mistral", [4096, 32, 32, 8, 14336, 32000], untied()), 7_241_732_096),
        (llama("qwen2", [3584, 28, 28, 4, 18944, 152_064], untied()), 7_615_616_512),
        (llama("qwen2", [8192, 80, 64, 8, 29568, 152_064], untied()), 72_706_203_648),
    ] {
        assert_eq!(import(&config).parameters(), parameters, "{config}");
    }
}

/// Totals of public checkpoints. Each is what its shape gives by hand; where a release counts something else, that is said.
const PUBLISHED: [(&str, u64); 25] = [
    ("gpt2", 124_439_808),
    ("gpt2-medium", 354_823_168),
    ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200),
    ("bloom-176b", 176_247_271_424),
    // Without the buffers that the first release stored.
    ("gpt-neox-20b", 20_554_567_680),
    ("llama-2-7b", 6_738_415_616),
    ("llama-2-13b", 13_015_864_320),
    ("llama-2-70b", 68_976_648_192),
    ("llama-3-8b", 8_030_261_248),
    ("llama-3-70b", 70_553_706_496),
    // With 8 key-value heads; the first release stored each twice, for 16 devices: 410,081,247,232.
    ("llama-3.1-405b", 405_853_388_800),
    ("mistral-7b", 7_241_732_096),
    ("mixtral-8x7b", 46_702_792_704),
    ("mixtral-8x22b", 140_630_071_296),
    ("qwen2.5-0.5b", 494_032_768),
    ("qwen2.5-7b", 7_615_616_512),
    ("qwen3-8b", 8_190_735_360),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-235b-a22b", 235_093_634_560),
    ("gemma-2b", 2_506_172_416),
    ("gemma-7b", 8_537_680_896),
    ("gemma-2-9b", 9_241_705_984),
    ("deepseek-v2", 235_741_434_880),
    // Without multi-token prediction; with the router's biases.
    ("deepseek-v3", 671_026_419_200),
];

#[test]
fn presets_have_their_published_totals() {
    for (name, parameters) in PUBLISHED {
        assert_eq!(preset(name).parameters(), parameters, "{name}");
    }
    assert_eq!(preset("deepseek-v2-lite").parameters(), 15_706_484_224);
    // 410,081,247,232 is the first release of Llama 3.1 405B.
    let repeated = Model { num_query_groups: Some(16), ..model::preset("llama-3.1-405b").unwrap() };
    assert_eq!(model_shape(&repeated, 1, None).unwrap().parameters(), 410_081_247_232);
}

#[test]
fn every_preset_is_a_legal_model_of_about_the_size_in_its_name() {
    for name in model::preset_names() {
        let shape = model_shape(&model::preset(name).unwrap(), 1, Some(1024)).unwrap();
        let size = name.rsplit('-').find_map(|word| {
            let (digits, unit) = word.split_at_checked(word.len() - 1)?;
            let unit = [("b", 1e9), ("m", 1e6), ("t", 1e12)].into_iter().find(|(u, _)| *u == unit)?.1;
            Some(digits.parse::<f64>().ok()? * unit)
        });
        // Names that say the active, the per-expert or only a rounded size are checked elsewhere.
        let named_otherwise = ["qwen3-30b", "mixtral", "mpt"].iter().any(|start| name.starts_with(start));
        let Some(size) = size.filter(|_| !named_otherwise) else { continue };
        let ratio = shape.parameters() as f64 / size;
        assert!((0.85..1.26).contains(&ratio), "{name}: {} is {ratio} of its name", shape.parameters());
    }
}

#[test]
fn active_parameters_leave_out_the_experts_a_token_does_not_meet() {
    assert_eq!(preset("mixtral-8x7b").active_parameters(), 12_879_925_248);
    assert_eq!(preset("qwen3-30b-a3b").active_parameters(), 3_353_032_704);
    let v3 = preset("deepseek-v3");
    // The release says 36.6 B of the main model without the embedding, and 11.5 B in its prediction module.
    assert_eq!(v3.active_parameters(), 37_552_297_472);
    assert_eq!(v3.active_parameters() - v3.token_embedding_parameters(), 36_625_618_432);
    // The checkpoint has 684,489,830,400 numbers in BF16 and FP8 (not its biases of routers), embedding and head twice.
    let biases = 58 * 256 + 256;
    let stored = v3.parameters() + v3.mtp_parameters() + 2 * v3.token_embedding_parameters() - biases;
    assert_eq!(stored, 684_489_830_400);
    let dense = preset("llama-3-8b");
    assert_eq!(dense.active_parameters(), dense.parameters());
}

#[test]
fn configs_in_the_wild_mean_what_their_model_type_means() {
    let gemma = |model_type: &str, sizes, more| import(&llama(model_type, sizes, more)).parameters();
    assert_eq!(gemma("gemma", [2048, 18, 8, 1, 16384, 256_000], json!({ "head_dim": 256 })), 2_506_172_416);
    assert_eq!(gemma("gemma2", [3584, 42, 16, 8, 14336, 256_000], json!({ "head_dim": 256 })), 9_241_705_984);
    assert_eq!(gemma("gemma3_text", [1152, 26, 4, 1, 6912, 262_144], json!({ "head_dim": 256 })), 999_885_952);
    assert_eq!(gemma("qwen3", [4096, 36, 32, 8, 12288, 151_936], json!({ "head_dim": 128 })), 8_190_735_360);
    // Qwen3-0.6B: heads of 128 though 1024 / 16 is 64, tied.
    let small = json!({ "tie_word_embeddings": true });
    assert_eq!(gemma("qwen3", [1024, 28, 16, 8, 3072, 151_936], small), 596_049_920);
    // Gemma 3 4B keeps its text model apart and leaves out what the smallest has.
    let seeing = json!({ "model_type": "gemma3", "vision_config": { "hidden_size": 1152 }, "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "model_type": "gemma3_text" } });
    assert_eq!(import(&seeing).parameters(), 3_880_263_168);
    let neox = json!({ "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "vocab_size": 50432, "max_position_embeddings": 2048, "rotary_pct": 0.25,
        "use_parallel_residual": true, "tie_word_embeddings": false });
    assert_eq!(import(&neox).parameters(), 20_554_567_680);
    let mixtral = json!({ "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false });
    let mixtral = import(&llama("mixtral", [4096, 32, 32, 8, 14336, 32000], mixtral));
    assert_eq!(mixtral.parameters(), 46_702_792_704);
    let moe = json!({ "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": false });
    assert_eq!(import(&llama("qwen3_moe", [2048, 48, 32, 4, 6144, 151_936], moe)).parameters(), 30_532_122_624);
    // Llama 2: no key-value heads of its own, or null; a head dim of null.
    let mut llama2 = llama("llama", [4096, 32, 32, 32, 11008, 32000], json!({ "head_dim": null }));
    llama2["num_key_value_heads"] = Value::Null;
    assert_eq!(import(&llama2).parameters(), 6_738_415_616);
    llama2.as_object_mut().unwrap().remove("num_key_value_heads");
    assert_eq!(import(&llama2).parameters(), 6_738_415_616);
}

fn deepseek(more: Value) -> Value {
    let sizes = [7168, 61, 128, 128, 18432, 129_280];
    let config = llama(
        "deepseek_v3",
        sizes,
        json!({
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "topk_method": "noaux_tc",
        }),
    );
    with(config, more)
}

#[test]
fn deepseek_configs_have_latent_attention_experts_and_a_prediction_apart() {
    let v3 = import(&deepseek(json!({})));
    let stretched = preset("deepseek-v3");
    // The release stretches its rotary positions, which this file leaves out.
    let numerics = Numerics { rope_scaling: None, ..stretched.numerics.clone() };
    assert_eq!(v3, ModelShape { max_position_embeddings: 8192, numerics, ..stretched });
    let lite = deepseek(json!({ "model_type": "deepseek_v2", "q_lora_rank": null, "hidden_size": 2048,
        "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
        "vocab_size": 102_400, "num_nextn_predict_layers": null }));
    assert_eq!(import(&lite).parameters(), 15_706_484_224);
    assert_eq!(import(&lite).mtp_parameters(), 0);
}

#[test]
fn wrong_configs_are_refused_at_their_field() {
    let faults = |config: Value| {
        let faults = model::import(&config).unwrap_err();
        faults.into_iter().map(|f| (f.path, format!("{} / {}", f.message, f.help))).collect::<Vec<_>>()
    };
    let unknown = faults(json!({ "model_type": "mamba" }));
    assert!(unknown[0].1.contains("`mamba`") && unknown[0].1.contains("qwen3_moe, deepseek_v2"), "{unknown:?}");
    assert_eq!(faults(json!({ "hidden_size": 1 }))[0].0, "model_type");
    let empty = faults(json!({ "model_type": "llama" }));
    let paths: Vec<&str> = empty.iter().map(|(path, _)| path.as_str()).collect();
    let needed = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"];
    assert_eq!(paths, needed, "all at once");
    let sizes = [4096, 32, 32, 8, 14336, 32000];
    let text = faults(llama("llama", sizes, json!({ "hidden_size": "4096" })));
    assert_eq!(text[0].0, "hidden_size");
    assert!(text[0].1.contains("not a whole number"), "{text:?}");
    let half = faults(llama("llama", sizes, json!({ "attention_bias": true })));
    assert_eq!(half[0].0, "attention_bias");
    assert_eq!(faults(deepseek(json!({ "moe_layer_freq": 2 })))[0].0, "moe_layer_freq");
    let nested = json!({ "model_type": "gemma3", "text_config": { "hidden_size": 2560, "num_hidden_layers": 34 } });
    assert_eq!(faults(nested)[0].0, "text_config.intermediate_size");
}

fn plans(model: Value, more: Value) -> Vec<Plan> {
    let scenario = json!({ "schema_version": 1, "name": "x", "schedules": ["1f1b"],
        "training": { "num_microbatches": 4 } });
    let mut scenario = with(scenario, more);
    scenario["model"] = model;
    let scenario: Scenario = serde_json::from_value(scenario).unwrap();
    resolve(&scenario, &|name| {
        if name == "models/bloom.json" { Ok(bloom().to_string()) } else { Err("not there".to_owned()) }
    })
    .unwrap()
}

/// BLOOM's config.json, which calls its hidden size `n_embed`.
fn bloom() -> Value {
    json!({ "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250_880,
            "offset_alibi": 100, "pretraining_tp": 4, "seq_length": 2048, "attention_softmax_in_fp32": true })
}

#[test]
fn a6_bloom_is_cut_into_its_published_stages() {
    let newer =
        json!({ "model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250_880 });
    assert_eq!(import(&newer).parameters(), 176_247_271_424);
    let layout: Vec<u32> = [5].into_iter().chain([6; 10]).chain([5]).collect();
    let plan = &plans(
        json!({ "hf_config": "models/bloom.json" }),
        json!({ "parallel": { "pipeline_model_parallel_size": 12, "tensor_model_parallel_size": 4, "layout": layout } }),
    )[0];
    let shape = plan.model.as_ref().unwrap();
    assert_eq!(shape.parameters(), 176_247_271_424);
    assert_eq!(shape.layer_parameters(0), 2_466_437_120);
    assert_eq!(shape.token_embedding_parameters(), 3_596_615_680);
    let stages: Vec<u64> =
        (0..12).map(|s| shape.part_parameters(plan.part(pipewright::ir::ids::Stage::new(s)))).collect();
    assert_eq!(stages[0], 15_928_829_952);
    assert!(stages[1..11].iter().all(|n| *n == 14_798_622_720));
    assert_eq!(stages[11], 15_928_829_952);
    assert_eq!(stages.iter().sum::<u64>(), 179_843_887_104);
    let end = StagePart { layers: LayerRange { start: 64, end: 70 }, embedding: false, head: true };
    // Case A6 has 18,395,238,400: without the final norm's 2 h.
    assert_eq!(shape.part_parameters(end), 18_395_238_400 + 28_672, "a block more, were embedding and head no layers");
    // bf16 weights and a checkpoint of 14 B a parameter.
    assert!((shape.parameters() as f64 * 2.0 / 2_f64.powi(30) - 328.29).abs() < 0.01);
    assert!((shape.parameters() as f64 * 14.0 / 1e12 - 2.47).abs() < 0.01);
}

#[test]
fn a7_the_heaviest_stage_is_the_one_with_the_head() {
    let plan = &plans(
        json!({ "num_layers": 8, "hidden_size": 16, "num_attention_heads": 2, "ffn_hidden_size": 64, "vocab_size": 32,
                "add_bias_linear": false, "position_embedding_type": "rope",
                "untie_embeddings_and_output_weights": true }),
        json!({ "parallel": { "pipeline_model_parallel_size": 4, "layout": [1, 2, 2, 3] } }),
    )[0];
    let shape = plan.model.as_ref().unwrap();
    let stages = [0, 1, 2, 3].map(|s| shape.part_parameters(plan.part(pipewright::ir::ids::Stage::new(s))));
    assert_eq!(stages, [3648, 6272, 6272, 9952]);
    assert_eq!(stages[3] * 18, 179_136);
}

#[test]
fn a12_padding_multiplies_with_tensor_parallelism_and_happens_once() {
    let vocabulary = |model: Value, tp: u32| {
        let more = json!({ "parallel": { "tensor_model_parallel_size": tp } });
        plans(model, more)[0].model.as_ref().unwrap().vocab_size
    };
    let gpt2 = || json!({ "preset": "gpt2-medium", "make_vocab_size_divisible_by": 128 });
    assert_eq!([1, 2, 4, 8].map(|tp| vocabulary(gpt2(), tp)), [50304, 50432, 50688, 51200]);
    assert_eq!(vocabulary(json!({ "preset": "gpt2-medium" }), 1), 50257, "no padding unless asked");
    let qwen = json!({ "preset": "qwen2.5-1.5b", "make_vocab_size_divisible_by": 128 });
    assert_eq!(vocabulary(qwen, 2), 152_064);
    let bloom = json!({ "hf_config": "models/bloom.json", "vocab_size": 250_680, "make_vocab_size_divisible_by": 128 });
    assert_eq!(vocabulary(bloom, 4), 250_880);
}

#[test]
fn numbers_of_a_model_are_written_by_megatrons_names_and_cost_nothing() {
    let named = |more: Value| {
        let base = json!({ "num_layers": 2, "hidden_size": 16, "num_attention_heads": 2 });
        plans(with(base, more), json!({}))[0].model.clone().unwrap()
    };
    let written = named(json!({ "layernorm_epsilon": 1e-6, "rotary_base": 5e5, "activation_function": "gelu_tanh",
        "initializer_range": 0.01, "rope_scaling": { "rope_type": "linear", "factor": 4 } }));
    let plain = named(json!({}));
    assert_eq!(plain.numerics, Numerics::default());
    assert_eq!((written.numerics.layernorm_epsilon.0, written.numerics.rotary_base.0), (1e-6, 5e5));
    assert_eq!(written.numerics.activation, ActivationFunction::GeluTanh);
    assert_eq!(written.numerics.rope_scaling, Some(RopeScaling::Linear { factor: 4.0.into() }));
    assert!(written.is_gpt());
    assert_eq!(written.describe(), plain.describe());
    assert_eq!(named(json!({ "swiglu": true })).numerics.activation, ActivationFunction::Silu);
}

#[test]
fn fields_override_the_preset_and_the_config() {
    let shape = |model: Value| plans(model, json!({}))[0].model.clone().unwrap();
    let reduced = shape(json!({ "preset": "llama-3-70b", "num_layers": 12 }));
    assert_eq!(reduced, ModelShape { num_layers: 12, ..preset("llama-3-70b") });
    assert_eq!(shape(json!({ "hf_config": "models/bloom.json", "num_layers": 24 })).num_layers, 24);
    let dense = shape(json!({ "preset": "mixtral-8x7b", "num_experts": 0 }));
    assert_eq!(dense.parameters(), preset("mistral-7b").parameters());
    let plain = shape(json!({ "num_layers": 2, "hidden_size": 16, "num_attention_heads": 2 }));
    assert_eq!(plain, ModelShape::gpt(2, 16, 2, 256, 1));
}

#[test]
fn mpt_sizes_follow_the_length_of_the_sequences() {
    // Parameters in mosaicml/llm-foundry scripts/train/benchmarking/README.md, by model and sequence length.
    for (name, seq, parameters) in [
        ("mpt-125m", 2048, 125_311_488),
        ("mpt-125m", 65536, 174_070_272),
        ("mpt-350m", 512, 354_412_544),
        ("mpt-760m", 4096, 763_616_256),
        ("mpt-1b", 512, 1_312_804_864),
        ("mpt-3b", 2048, 2_651_837_440),
        ("mpt-7b", 2048, 6_658_859_008),
        ("mpt-13b", 32768, 13_011_240_960),
        ("mpt-30b", 8192, 30_019_254_272),
        ("mpt-70b", 2048, 64_862_437_376),
    ] {
        let shape = model_shape(&model::preset(name).unwrap(), 1, Some(seq)).unwrap();
        assert_eq!(shape.parameters(), parameters, "{name} at {seq}");
    }
}

#[test]
fn sc21_iterations_have_the_flops_of_the_paper() {
    // Narayanan et al. 2021, table 1: 140 TFLOP/s a GPU with layers recomputed; 1T: 163 TFLOP/s on 3072 GPUs.
    let one_t = preset("megatron-1t");
    let tokens = 3072 * 2048;
    let flops = one_t.hardware_flops(one_t.whole(), tokens, 2048, Recompute::Full) as f64;
    assert!((flops / (3072.0 * 163e12) - 102.63).abs() < 0.01, "{flops}");
    assert!(flops > u64::MAX as f64, "a step does not fit in 64 bits");
    // 175 B, 1024 GPUs, 300 B tokens at 140 TFLOP/s: 34 days by the paper's rule of 8 FLOPs a token and parameter.
    let gpt3 = preset("gpt3-175b");
    let step = gpt3.hardware_flops(gpt3.whole(), 1536 * 2048, 2048, Recompute::Full) as f64;
    let days = step / (1536.0 * 2048.0) * 300e9 / (1024.0 * 140e12) / 86400.0;
    assert!((days - 34.0).abs() < 1.0, "{days}");
}

#[test]
fn stages_weigh_and_compute_what_the_shape_says() {
    let mut wrong = Vec::new();
    for (name, tp, ep) in [
        ("gpt2", 1, 1),
        ("gpt3-175b", 8, 1),
        ("bloom-176b", 4, 1),
        ("gpt-neox-20b", 4, 1),
        ("llama-3-70b", 8, 1),
        ("qwen2.5-7b", 4, 1),
        ("qwen3-8b", 2, 1),
        ("gemma-7b", 1, 1),
        ("gemma-2-9b", 4, 1),
        ("mixtral-8x7b", 2, 4),
        ("qwen3-30b-a3b", 1, 8),
        ("deepseek-v2", 1, 8),
        ("deepseek-v3", 2, 4),
    ] {
        let layout = |layers: u32| json!([layers / 2, layers - layers / 2]);
        let parallel = json!({ "pipeline_model_parallel_size": 2, "tensor_model_parallel_size": tp,
            "expert_model_parallel_size": ep, "data_parallel_size": ep, "layout": layout(preset(name).num_layers) });
        let training = json!({ "num_microbatches": 4, "micro_batch_size": 2, "seq_length": 1024 });
        let plan = &plans(json!({ "preset": name }), json!({ "parallel": parallel, "training": training }))[0];
        let (shape, programs) = (plan.model.as_ref().unwrap(), plan.programs().unwrap());
        for (s, stage) in programs.stages.iter().enumerate() {
            let part = plan.part(pipewright::ir::ids::Stage::at(s));
            let (is, expected) = (stage.parameters, shape.rank_parameters(part, tp, ep));
            if is != expected {
                wrong.push(format!("{name} stage {s}: {is} parameters for {expected}"));
            }
            let flops: f64 = stage.forward.iter().map(|p| programs.work(p.step).flops).sum();
            let expected = shape.forward_flops(part, 2048, 1024) as f64 / f64::from(tp);
            // Experts get whole rows; routers and compressions of latent attention are computed on every rank.
            let tolerance = match (&shape.mixture_of_experts, tp) {
                (None, _) => 1e-9,
                (Some(_), 1) => 1e-3,
                (Some(_), _) => 0.05,
            };
            if (flops / expected - 1.0).abs() > tolerance {
                wrong.push(format!("{name} stage {s}: {flops:e} FLOPs for {expected:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn faults(model: Value) -> Vec<(String, String)> {
    let mut scenario = json!({ "schema_version": 1, "name": "x", "schedules": ["1f1b"],
        "training": { "num_microbatches": 4, "seq_length": 64 } });
    scenario["model"] = model;
    let scenario: Scenario = serde_json::from_value(scenario).unwrap();
    let read = |name: &str| match name {
        "half.json" => Ok("{ \"model_type\": \"llama\", \"hidden_size\": -1 }".to_owned()),
        "text.json" => Ok("not JSON".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    let found = resolve(&scenario, &read).unwrap_err();
    found.into_iter().map(|f| (f.path, format!("{} / {}", f.message, f.help))).collect()
}

#[test]
fn wrong_models_are_refused_at_the_knob_with_what_would_be_legal() {
    let base = |more: Value| with(json!({ "num_layers": 4, "hidden_size": 56, "num_attention_heads": 28 }), more);
    for (model, path, parts) in [
        (json!({}), "model", &["num_layers", "preset"][..]),
        (base(json!({ "num_query_groups": 5 })), "model.num_query_groups", &["28 % 5 = 3", "use 4 or 7"]),
        (base(json!({ "num_attention_heads": 9 })), "model.num_attention_heads", &["56 % 9 = 2", "use 8 or 14"]),
        (base(json!({ "vocab_size": 0 })), "model.vocab_size", &["is 0"]),
        (base(json!({ "moe_router_topk": 2 })), "model.moe_router_topk", &["num_experts"]),
        (base(json!({ "num_experts": 4, "moe_router_topk": 8 })), "model.moe_router_topk", &["8 of 4", "4 or less"]),
        (base(json!({ "q_lora_rank": 8 })), "model.q_lora_rank", &["kv_lora_rank"]),
        (base(json!({ "num_experts": 4, "first_dense_layers": 5 })), "model.first_dense_layers", &["4 or less"]),
        (base(json!({ "max_position_embeddings": 32 })), "model.max_position_embeddings", &["64 tokens", "32"]),
        (base(json!({ "num_layers": 4_000_000 })), "model.num_layers", &["slip"]),
        (base(json!({ "layernorm_epsilon": -1 })), "model.layernorm_epsilon", &["from 0 to 1", "use 0"]),
        (base(json!({ "rotary_percent": 1.5 })), "model.rotary_percent", &["1.5", "use 1"]),
        (
            base(json!({ "rope_scaling": { "rope_type": "linear", "factor": 0.5 } })),
            "model.rope_scaling.factor",
            &["0.5", "use 1"],
        ),
        (base(json!({ "shared_norm": true, "post_norms": true })), "model.shared_norm", &["keep one of"]),
        (json!({ "preset": "llama-4-70b" }), "model.preset", &["llama-4-70b", "llama-3-70b"]),
        (json!({ "preset": "gpt2", "hf_config": "x" }), "model.hf_config", &["both"]),
        (json!({ "hf_config": "nowhere.json" }), "model.hf_config", &["no such file", "relative"]),
        (json!({ "hf_config": "text.json" }), "model.hf_config", &["not valid JSON"]),
        (json!({ "hf_config": "half.json" }), "model.hf_config", &["half.json", "hidden_size", "-1"]),
    ] {
        let found = faults(model);
        let fits = |(at, text): &(String, String)| at == path && parts.iter().all(|part| text.contains(part));
        assert!(found.iter().any(fits), "{path} {parts:?}: {found:?}");
    }
    assert_eq!(faults(json!({})).len(), 3, "all that is missing, at once");
    // Rotary positions have no end.
    let rope = base(json!({ "max_position_embeddings": 32, "position_embedding_type": "rope" }));
    assert_eq!(plans(rope, json!({ "training": { "num_microbatches": 4, "seq_length": 64 } })).len(), 1);
}

#[test]
fn jobs_of_other_shapes_are_told_apart() {
    let job = |model: Value| plans(model, json!({}))[0].job.clone();
    let llama = job(json!({ "preset": "llama-3-8b" }));
    assert!(llama.starts_with("transformer of 32 layers, hidden 4096, 32 heads of 128 (8 for keys"), "{llama}");
    assert_ne!(llama, job(json!({ "preset": "llama-3-8b", "num_query_groups": 32 })));
    assert!(job(json!({ "preset": "gpt2" })).starts_with("GPT of 12 layers"));
}

fn pipewright(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pipewright")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn file(name: &str, content: &Value) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content.to_string()).unwrap();
    path
}

#[test]
fn a_config_alone_is_answered() {
    let path = file("llama-3-70b.json", &llama("llama", [8192, 80, 64, 8, 28672, 128_256], json!({})));
    let output = pipewright(&["model", path.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["parameters"], 70_553_706_496_u64);
    assert_eq!(answer["parameters_active"], 70_553_706_496_u64);
    assert_eq!(answer["stages"][0]["layers"], json!([0, 80]));
    let flops = &answer["flops"];
    assert_eq!(flops["seq_length"], 4096);
    let full = flops["hardware_per_token"]["full"].as_u64().unwrap();
    assert!(flops["model_per_token"].as_u64().unwrap() < full);
    let text = pipewright(&["model", path.to_str().unwrap()]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("70,553,706,496"));
}

#[test]
fn a_wrong_config_is_drawn_at_its_field() {
    let path = file("wrong.json", &llama("llama", [8192, 80, 64, 8, 28672, 128_256], json!({ "vocab_size": "many" })));
    let output = pipewright(&["model", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("`vocab_size` is \"many\"") && text.contains("here"), "{text}");
}

#[test]
fn a_scenario_is_answered_by_stage_and_rank() {
    let scenario = json!({ "schema_version": 1, "name": "x", "model": { "preset": "llama-3-70b" },
        "parallel": { "pipeline_model_parallel_size": 4, "tensor_model_parallel_size": 8, "data_parallel_size": 2 },
        "training": { "global_batch_size": 16, "micro_batch_size": 1, "seq_length": 8192 },
        "schedules": [{ "name": "interleaved-1f1b", "virtual_pipeline_model_parallel_size": 2 }] });
    let path = file("llama-scenario.json", &scenario);
    let output = pipewright(&["model", path.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["qkv_rows_per_rank"], 1280, "A12.5");
    assert_eq!(answer["stages"].as_array().unwrap().len(), 8);
    let layer = 10 * ((2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) / 8 + 2 * 8192_u64);
    assert_eq!(answer["stages"][1]["parameters_per_rank"], layer);
    let embedding = 128_256 * 8192 / 8;
    let ranks: Vec<u64> =
        answer["parameters_per_rank"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(ranks, [2 * layer + embedding, 2 * layer, 2 * layer, 2 * layer + embedding + 8192]);
    assert_eq!(answer["flops"]["tokens_per_step"], 16 * 8192);
    let text = String::from_utf8_lossy(&pipewright(&["model", path.to_str().unwrap()]).stdout).into_owned();
    assert!(text.contains("on each rank"), "{text}");
}
