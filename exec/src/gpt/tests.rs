//! Tests of the GPT's parts against the whole.
//!
//! One law: a split model is compared with the unsplit one, never with itself.

use super::*;
use crate::autodiff::backward_from;
use crate::parameters::{count, gradients_by_name, parameters_by_name, put_gradient, take_gradient};
use burn::optim::{GradientsAccumulator, GradientsParams};
use pipewright_ir::ids::LayerRange;
use std::collections::BTreeMap;

fn shape(untied: bool) -> ModelShape {
    ModelShape { ffn_hidden_size: 48, untie_embeddings_and_output_weights: untied, ..ModelShape::gpt(4, 16, 2, 32, 12) }
}

fn part(start: u32, end: u32) -> StagePart {
    StagePart { layers: LayerRange { start, end }, embedding: start == 0, head: end == 4 }
}

fn build(shape: &ModelShape, start: u32, end: u32) -> GptStage {
    GptStage::new(shape, part(start, end), 11, &Device::flex().autodiff()).unwrap()
}

fn tokens(shift: i32) -> Tensor<2, Int> {
    let values: Vec<i32> = (0..20).map(|i| (i * 7 + shift) % 32).collect();
    Tensor::from_data(burn::tensor::TensorData::new(values, [2, 10]), &Device::flex().autodiff())
}

type Named = Vec<(String, Vec<f32>)>;

/// Loss and gradients of the model on one stage.
fn whole(shape: &ModelShape) -> (f32, Named) {
    let model = build(shape, 0, 4);
    let loss = model.loss(model.forward(model.embed(tokens(0), 0)), tokens(7));
    let value = loss.clone().into_scalar::<f32>();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    (value, gradients_by_name(&model, &grads))
}

/// Loss and gradients over two stages that exchange plain tensors, a tied weight's two gradients added.
fn split(shape: &ModelShape) -> (f32, Named) {
    let (first, last) = (build(shape, 0, 2), build(shape, 2, 4));
    let out = first.forward(first.embed(tokens(0), 0));
    let input = out.clone().inner().autodiff().require_grad();
    let loss = last.loss(last.forward(input.clone()), tokens(7));
    let value = loss.clone().into_scalar::<f32>();
    let mut tape = loss.backward();
    let grad = input.grad_remove(&mut tape).unwrap();
    let mut last_grads = GradientsParams::from_grads(tape, &last);
    let mut first_grads = GradientsParams::from_grads(backward_from(out, grad).unwrap(), &first);
    if !shape.untie_embeddings_and_output_weights {
        let head = take_gradient(&last, &mut last_grads, TOKEN_EMBEDDING).unwrap();
        let embedding = take_gradient(&first, &mut first_grads, TOKEN_EMBEDDING).unwrap();
        put_gradient(&first, &mut first_grads, TOKEN_EMBEDDING, head + embedding).unwrap();
    }
    let mut all = gradients_by_name(&first, &first_grads);
    all.extend(gradients_by_name(&last, &last_grads));
    (value, all)
}

#[test]
fn a_split_model_has_the_whole_model_s_loss_and_gradients() {
    for untied in [true, false] {
        let shape = shape(untied);
        let ((loss, grads), (split_loss, split_grads)) = (whole(&shape), split(&shape));
        assert_eq!(loss, split_loss);
        assert!((loss / 20.0 - 32f32.ln()).abs() < 0.3, "mean loss {}", loss / 20.0);
        let names: Vec<_> = grads.iter().map(|(name, _)| name).collect();
        assert_eq!(names, split_grads.iter().map(|(name, _)| name).collect::<Vec<_>>());
        for ((name, a), (_, b)) in grads.iter().zip(&split_grads) {
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "{name} differs by {worst}");
            assert!(a.iter().any(|x| *x != 0.0), "{name} has no gradient");
        }
    }
}

#[test]
fn every_split_starts_from_the_same_numbers() {
    let shape = shape(false);
    let whole: BTreeMap<_, _> = parameters_by_name(&build(&shape, 0, 4)).into_iter().collect();
    for (start, end) in [(0, 1), (1, 3), (3, 4)] {
        for (name, values) in parameters_by_name(&build(&shape, start, end)) {
            assert_eq!(values, whole[&name], "{name}");
        }
    }
    assert_eq!(whole.len(), 2 + 4 * 12 + 2);
    assert!(whole["transformer.h.3.ln_1.weight"].iter().all(|x| *x == 1.0));
    assert!(whole["transformer.h.0.mlp.c_fc.bias"].iter().all(|x| *x == 0.0));
}

#[test]
fn parameter_counts_are_the_shape_s() {
    for untied in [true, false] {
        let shape = shape(untied);
        for (start, end) in [(0, 4), (0, 2), (2, 4), (1, 2)] {
            let stage = build(&shape, start, end);
            assert_eq!(count(&stage), shape.part_parameters(part(start, end)));
            let named: usize = parameters_by_name(&stage).iter().map(|(_, v)| v.len()).sum();
            assert_eq!(named as u64, count(&stage));
        }
    }
}

#[test]
fn recomputing_without_a_tape_gives_the_same_bits() {
    let model = build(&shape(true), 0, 4);
    let with_tape = model.forward(model.embed(tokens(0), 0)).inner();
    let plain = model.valid();
    let without = plain.forward(plain.embed(tokens(0).inner(), 0));
    assert!(!without.is_autodiff());
    assert_eq!(with_tape.into_data(), without.into_data());
}

#[test]
fn accumulated_gradients_are_the_sum_in_call_order() {
    let model = build(&shape(true), 0, 4);
    let run = |shift| {
        let loss = model.loss(model.forward(model.embed(tokens(shift), 0)), tokens(shift + 7));
        GradientsParams::from_grads(loss.backward(), &model)
    };
    let mut sum = GradientsAccumulator::new();
    sum.accumulate(&model, run(0));
    sum.accumulate(&model, run(3));
    let sum = gradients_by_name(&model, &sum.grads());
    let (a, b) = (gradients_by_name(&model, &run(0)), gradients_by_name(&model, &run(3)));
    for ((s, a), b) in sum.iter().zip(&a).zip(&b) {
        assert!(s.1.iter().zip(a.1.iter().zip(&b.1)).all(|(s, (a, b))| *s == a + b), "{}", s.0);
    }
}

#[test]
fn a_tied_gradient_is_taken_and_put_by_name() {
    let last = build(&shape(false), 2, 4);
    let mut grads = GradientsParams::new();
    let missing = take_gradient(&last, &mut grads, TOKEN_EMBEDDING).unwrap_err();
    assert_eq!(missing.to_string(), "there is no gradient of transformer.wte.weight");
    let wrong = put_gradient(&last, &mut grads, TOKEN_EMBEDDING, Tensor::zeros([3, 16], &Device::flex()));
    assert!(wrong.unwrap_err().to_string().contains("[32, 16]"));
    assert!(take_gradient(&last, &mut grads, "transformer.ln_f.weight").is_err(), "a vector is no matrix");
    assert!(take_gradient(&build(&shape(false), 1, 2), &mut grads, TOKEN_EMBEDDING).is_err());
    put_gradient(&last, &mut grads, TOKEN_EMBEDDING, Tensor::ones([32, 16], &Device::flex())).unwrap();
    assert_eq!(take_gradient(&last, &mut grads, TOKEN_EMBEDDING).unwrap().dims(), [32, 16]);
}
