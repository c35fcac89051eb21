//! Temporary: step time of the reference GPT on one thread.
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use pipewright_exec::data::TextData;
use pipewright_exec::gpt::GptStage;
use pipewright_exec::optimizer::{Optimizer, OptimizerConfig};
use pipewright_exec::stage_module::StageModule;
use pipewright_ir::ids::LayerRange;
use pipewright_ir::model::{ModelShape, StagePart};
use std::time::Instant;
#[global_allocator]
static A: pipewright_exec::memory::CountingAllocator = pipewright_exec::memory::CountingAllocator;
fn main() {
    if std::env::args().nth(1).is_some() { println!("keep {}", pipewright_exec::memory::keep_freed_memory()); }
    let shape = ModelShape { num_layers: 8, hidden_size: 256, num_attention_heads: 8, ffn_hidden_size: 1024, vocab_size: 256, max_position_embeddings: 128, untie_embeddings_and_output_weights: true };
    let part = StagePart { layers: LayerRange { start: 0, end: 8 }, embedding: true, head: true };
    let device = Device::flex().autodiff();
    std::thread::spawn(move || {
    let mut m = GptStage::new(&shape, part, 0, &device).unwrap();
    let text = TextData::read("scenarios/data/alice.txt".as_ref(), 128, 0).unwrap();
    let mut opt = Optimizer::new(OptimizerConfig::sgd(0.01));
    for step in 0..6 {
        let t = Instant::now();
        let mut acc = GradientsAccumulator::new();
        let (mut tf, mut tb, mut l) = (0.0, 0.0, 0.0);
        pipewright_exec::memory::reset_peak(0);
        for mb in 0..8 {
            let (x, y) = text.batch_tensors(step, mb, 4, &device);
            let t = Instant::now();
            let loss = m.loss(m.forward(m.embed(x)), y);
            l += loss.clone().into_scalar::<f32>() / 4096.0;
            tf += t.elapsed().as_secs_f64();
            let t = Instant::now();
            let g = (loss / 4096.0).backward();
            tb += t.elapsed().as_secs_f64();
            acc.accumulate(&m, GradientsParams::from_grads(g, &m));
        }
        m = opt.step(m, acc.grads());
        println!("step {:.3}s fwd {tf:.3} bwd {tb:.3} loss {l:.5} peak {:.0} MB", t.elapsed().as_secs_f64(), pipewright_exec::memory::peak(0) as f64 / 1e6);
    } }).join().unwrap();
}
