//! Writes down what docs/lossless.md must say: how far each way of splitting the work is from one device.
//!
//! `PIPEWRIGHT_WRITE=1 cargo test --release -p pipewright-exec --test lossless` writes the page.
mod support;

use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::run::Named;
use std::path::Path;
use support::{GPT, LLAMA, plan, reference, run};

const STEPS: u64 = 5;
/// What Megatron's authors call lossless for tensor parallelism: the mean squared error in fp32.
const LOSSLESS: f64 = 1e-7;

/// A way of splitting: its name, keys of `parallel` and of `training`, the schedule, and whether every addition has its place
/// on one device.
type Mode = (&'static str, &'static str, &'static str, &'static str, bool);

const MODES: [Mode; 16] = [
    ("1F1B, 2 stages", r#""pipeline_model_parallel_size": 2"#, "", "1f1b", true),
    ("ZB-H1, 2 stages", r#""pipeline_model_parallel_size": 2"#, "", "zb-h1", true),
    ("ZB-V, 2 ranks with 2 stages each", r#""pipeline_model_parallel_size": 2"#, "", "zb-v", true),
    ("DualPipe, 2 ranks", r#""pipeline_model_parallel_size": 2"#, "", "dualpipe", false),
    ("Seq1F1B, 2 stages", r#""pipeline_model_parallel_size": 2"#, "", "seq1f1b", false),
    ("full recomputation", "", r#", "recompute": "full""#, "1f1b", true),
    ("selective recomputation", "", r#", "recompute": "selective", "attention": "standard""#, "1f1b", true),
    ("tensor parallel, 2", r#""tensor_model_parallel_size": 2"#, "", "1f1b", false),
    ("tensor parallel, 4", r#""tensor_model_parallel_size": 4"#, "", "1f1b", false),
    (
        "tensor and sequence parallel (Megatron), 2",
        r#""tensor_model_parallel_size": 2, "sequence_parallel": "megatron""#,
        "",
        "1f1b",
        false,
    ),
    (
        "ring attention, zigzag, 4",
        r#""context_parallel_size": 4, "sequence_parallel": "ring""#,
        r#", "attention": "flash""#,
        "1f1b",
        false,
    ),
    (
        "ring attention, contiguous, 4",
        r#""context_parallel_size": 4, "sequence_parallel": "ring-contiguous""#,
        r#", "attention": "flash""#,
        "1f1b",
        false,
    ),
    (
        "Ulysses with ZeRO 3, 2 x 2",
        r#""context_parallel_size": 2, "data_parallel_size": 2, "sequence_parallel": "ulysses", "zero_stage": 3"#,
        "",
        "1f1b",
        false,
    ),
    ("data parallel, 2", r#""data_parallel_size": 2"#, r#", "overlap_grad_reduce": true"#, "1f1b", false),
    ("data parallel with ZeRO 2, 2", r#""data_parallel_size": 2, "zero_stage": 2"#, "", "1f1b", false),
    (
        "data 2 x tensor 2 x pipeline 2, ZeRO 1, dropout, clipping",
        r#""data_parallel_size": 2, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "zero_stage": 1"#,
        r#", "dropout": true, "clip_grad": 0.5"#,
        "1f1b",
        false,
    ),
];

/// Mean squared and largest difference.
#[derive(Default)]
struct Apart {
    squares: f64,
    numbers: f64,
    largest: f64,
}

impl Apart {
    fn add(&mut self, ours: f64, theirs: f64) {
        let difference = (ours - theirs).abs();
        assert!(difference.is_finite(), "a number that is none, or missing");
        self.squares += difference * difference;
        self.numbers += 1.0;
        self.largest = self.largest.max(difference);
    }

    fn of(ours: &[Named], theirs: &[Named]) -> Self {
        let mut apart = Self::default();
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert_eq!(ours.len(), theirs.len(), "every tensor once: all devices agree on what they share");
            for ((name, ours), (other, theirs)) in ours.iter().zip(theirs) {
                assert_eq!((name, ours.len()), (other, theirs.len()));
                ours.iter().zip(theirs).for_each(|(a, b)| apart.add((*a).into(), (*b).into()));
            }
        }
        apart
    }

    /// In words that do not depend on the width of a processor's vectors: a power of ten that it stays below.
    fn words(&self) -> String {
        let mse = self.squares / self.numbers;
        assert!(mse <= LOSSLESS, "{mse}");
        if mse == 0.0 { "0".to_owned() } else { format!("< 1e{}", mse.log10().ceil().max(-16.0)) }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Splitting changes nothing\n\n\
         Mean squared difference from one device after five steps of AdamW in fp32, over all losses, all gradients and all\n\
         parameters of every step; each step starts where the run's began. 0 is equal to the last bit. Models of 4 layers,\n\
         hidden size 32, like GPT-2 and like Llama (grouped queries), untied. For tensor parallelism Megatron's authors call\n\
         1e-7 lossless. The one device computes with the same kernels; it is itself compared with an independent\n\
         transformer under autodiff (`exec/tests/autodiff.rs`).\n\n\
         `PIPEWRIGHT_WRITE=1 cargo test --release -p pipewright-exec --test lossless` writes this page.\n\n\
         | split | model | losses | gradients | parameters |\n|---|---|---|---|---|\n",
    );
    for (name, parallel, training, schedule, exact) in MODES {
        for (kind, model) in [("GPT-2", GPT), ("Llama", LLAMA)] {
            let training = format!(r#""num_microbatches": 4{training}"#);
            let plan = plan(model, parallel, &training, &format!("{schedule:?}"));
            let optimizer = OptimizerConfig::adamw(1e-3);
            let run = run(&plan, optimizer, STEPS);
            let reference = reference(&plan, optimizer, STEPS, &run);
            let mut losses = Apart::default();
            run.losses.iter().zip(&reference.losses).for_each(|(a, b)| losses.add(*a, *b));
            let gradients = Apart::of(&run.gradients, &reference.gradients);
            let parameters = Apart::of(&run.parameters, &reference.parameters);
            let found = [losses, gradients, parameters];
            assert!(!exact || found.iter().all(|apart| apart.largest == 0.0), "{name}, {kind}: not equal to the bit");
            let [losses, gradients, parameters] = found.map(|apart| apart.words());
            page.push_str(&format!("| {name} | {kind} | {losses} | {gradients} | {parameters} |\n"));
        }
    }
    page
}

#[test]
fn every_mode_is_as_close_to_one_device_as_the_page_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lossless.md");
    let page = page();
    if std::env::var_os("PIPEWRIGHT_WRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    // How small roundings are differs between processors; what must be equal to the bit is asserted above.
    let small = |cell: &str| cell.trim() == "0" || cell.trim().starts_with("< 1e-");
    let word = |cell: &str| if small(cell) { "small".to_owned() } else { cell.trim().to_owned() };
    let rough = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('|').map(word).collect::<Vec<_>>().join("|")).collect()
    };
    assert_eq!(
        rough(&std::fs::read_to_string(&file).unwrap()),
        rough(&page),
        "PIPEWRIGHT_WRITE=1 writes the page anew"
    );
}
