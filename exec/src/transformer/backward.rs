//! The operations of a backward: gradients of inputs, and gradients of weights.

use super::pass::VectorGradient;
use super::weights::LinearPlaces;
use super::{Transformer, need};
use crate::error::TaskError;
use crate::kernels::norm::NormWeights;
use crate::kernels::{activation, embedding, linear, loss, norm, residual};
use crate::stage_module::At;
use burn::tensor::Tensor;
use pipewright_ir::ids::Microbatch;
use pipewright_ir::segments::{BlockKind, Operation, Site};

impl Transformer {
    /// The gradient of an operation's input.
    pub(super) fn backward_input(&mut self, at: At, operation: Operation) -> Result<(), TaskError> {
        match operation {
            Operation::Loss => self.loss_backward(at),
            Operation::Head => self.head_input(at),
            Operation::Norm(site) => self.norm_backward(at, site),
            Operation::Residual(site) => self.residual_backward(at, site),
            Operation::MlpDown => self.down_input(at),
            Operation::Activation => self.activation_backward(at),
            Operation::MlpUp => self.up_input(at),
            Operation::Output => self.output_input(at),
            Operation::Core(block) => self.core_backward(at, block),
            Operation::Rope => self.rotate_back(at),
            Operation::Projections => self.projections_input(at),
            Operation::Embedding
            | Operation::Router
            | Operation::Permute
            | Operation::Experts
            | Operation::Accumulate => Err(TaskError::Missing("an operation of experts")),
        }
    }

    /// The gradients of an operation's weights, added to those of the microbatches before.
    pub(super) fn backward_weight(&mut self, at: At, operation: Operation) -> Result<(), TaskError> {
        self.add_vectors(at.microbatch)?;
        match operation {
            Operation::Head => self.head_weight(at),
            Operation::MlpDown => self.down_weight(at),
            Operation::MlpUp => self.up_weight(at),
            Operation::Output => self.output_weight(at),
            Operation::Projections => self.projections_weight(at),
            Operation::Embedding => self.embedding_weight(at),
            // The operation itself adds.
            Operation::Accumulate => Ok(()),
            _ => Err(TaskError::Missing("an operation of experts")),
        }
    }

    fn loss_backward(&mut self, at: At) -> Result<(), TaskError> {
        let first = self.spec.vocabulary().start;
        let pass = self.pass(at.microbatch)?;
        let logits = need(pass.head.logits.take(), "the logits")?;
        let statistics = need(pass.head.statistics.take(), "the statistics of the logits")?;
        let targets = need(pass.targets.as_ref(), "the targets")?;
        let scale = (1.0 / pass.step_tokens as f64) as f32;
        pass.head.logits = Some(loss::backward(logits, &statistics, targets, first, scale));
        Ok(())
    }

    fn head_input(&mut self, at: At) -> Result<(), TaskError> {
        let weight = self.head_matrix()?;
        let pass = self.pass(at.microbatch)?;
        let gradient = need(pass.head.logits.as_ref(), "the gradient of the logits")?;
        pass.hand = Some(linear::input(gradient, &weight, linear::Layout::OutIn));
        Ok(())
    }

    fn head_weight(&mut self, at: At) -> Result<(), TaskError> {
        let (block, parameter) = need(self.head, "the head")?;
        let head = &mut self.pass(at.microbatch)?.head;
        let x = need(head.norm.output.take(), "the input of the head")?;
        let gradient = need(head.logits.take(), "the gradient of the logits")?;
        let weight = self.parameter_mut(block, parameter)?;
        let onto = weight.take_gradient_matrix();
        weight.set_gradient(linear::weight(&x, &gradient, linear::Layout::OutIn, onto));
        Ok(())
    }

    /// A norm: its gradient joins that of the stream.
    fn norm_backward(&mut self, at: At, site: Site) -> Result<(), TaskError> {
        let (block, places) = self.norm_places(at, site)?;
        let (scale, shift) = self.norm_weights(block, places)?;
        let weights = NormWeights { scale: &scale, shift: shift.as_ref(), epsilon: self.epsilon() };
        let kept = self.norm_kept(at, site)?;
        let input = need(kept.input.take(), "the input of a norm")?;
        let statistics = need(kept.statistics.take(), "the statistics of a norm")?;
        let pass = self.pass(at.microbatch)?;
        let (gradient, onto) = match site {
            Site::Embedding => (need(pass.gradient.take(), "the gradient of the residual stream")?, None),
            _ => (need(pass.hand.take(), "the gradient of a norm's output")?, pass.gradient.take()),
        };
        let gradients = norm::backward(&input, &statistics, &weights, &gradient, onto);
        pass.gradient = Some(gradients.input);
        let vectors = [(Some(places.scale), Some(gradients.scale)), (places.shift, gradients.shift)];
        pass.vectors.extend(vectors.into_iter().filter_map(|(parameter, gradient)| {
            Some(VectorGradient { block, parameter: parameter?, gradient: gradient? })
        }));
        if pass.split { Ok(()) } else { self.add_vectors(at.microbatch) }
    }

    /// Adds the gradients of vectors that are made: at once in a whole backward, in W where it is apart.
    pub(super) fn add_vectors(&mut self, microbatch: Microbatch) -> Result<(), TaskError> {
        for vector in std::mem::take(&mut self.pass(microbatch)?.vectors) {
            self.parameter_mut(vector.block, vector.parameter)?.add_gradient(vector.gradient);
        }
        Ok(())
    }

    fn residual_backward(&mut self, at: At, site: Site) -> Result<(), TaskError> {
        let dropout = self.hidden_dropout(at, site)?;
        let pass = self.pass(at.microbatch)?;
        let gradient = need(pass.gradient.as_ref(), "the gradient of the residual stream")?;
        let dropout = dropout.as_ref().map(|(dropout, rows)| (dropout, rows));
        pass.hand = Some(residual::backward(gradient, dropout));
        Ok(())
    }

    fn down_input(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.down);
        let (weight, layout) = (self.matrix(block, places.weight)?, self.layout());
        let gradient = need(self.pass(at.microbatch)?.hand.take(), "the gradient of the MLP's output")?;
        let kept = self.kept(at)?;
        kept.activated_gradient = Some(linear::input(&gradient, &weight, layout));
        kept.down_gradient = Some(gradient);
        Ok(())
    }

    fn down_weight(&mut self, at: At) -> Result<(), TaskError> {
        let places = self.places(at.layer)?.down;
        let kept = self.kept(at)?;
        let x = need(kept.activated.take(), "the inner numbers of the MLP")?;
        let gradient = need(kept.down_gradient.take(), "the gradient of the MLP's output")?;
        self.add_linear(at, places, &x, &gradient)
    }

    fn activation_backward(&mut self, at: At) -> Result<(), TaskError> {
        let kind = self.activation;
        let kept = self.kept(at)?;
        let inner = need(kept.inner.take(), "the inner numbers of the MLP")?;
        let gradient = need(kept.activated_gradient.take(), "the gradient behind the activation")?;
        kept.inner_gradient = Some(activation::backward(&inner, kind, &gradient));
        Ok(())
    }

    fn up_input(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.up);
        let (weight, layout) = (self.matrix(block, places.weight)?, self.layout());
        let gradient = need(self.kept(at)?.inner_gradient.clone(), "the gradient before the activation")?;
        self.pass(at.microbatch)?.hand = Some(linear::input(&gradient, &weight, layout));
        Ok(())
    }

    fn up_weight(&mut self, at: At) -> Result<(), TaskError> {
        let places = self.places(at.layer)?.up;
        let kept = self.kept(at)?;
        let x = need(kept.norms[1].output.take(), "the input of the MLP")?;
        let gradient = need(kept.inner_gradient.take(), "the gradient before the activation")?;
        self.add_linear(at, places, &x, &gradient)
    }

    fn output_weight(&mut self, at: At) -> Result<(), TaskError> {
        let places = self.places(at.layer)?.output;
        let kept = &mut self.kept(at)?.attention;
        let x = need(kept.attended.take(), "the output of the core")?;
        let gradient = need(kept.output_gradient.take(), "the gradient of attention's output")?;
        self.add_linear(at, places, &x, &gradient)
    }

    fn projections_weight(&mut self, at: At) -> Result<(), TaskError> {
        let places = self.places(at.layer)?.projections;
        let kept = self.kept(at)?;
        let x = need(kept.norms[0].output.take(), "the input of attention")?;
        let gradient = need(kept.attention.projected_gradient.take(), "the gradients of queries, keys and values")?;
        self.add_linear(at, places, &x, &gradient)
    }

    /// Adds the gradients of a linear layer with input `x` and the gradient of its output.
    fn add_linear(
        &mut self,
        at: At,
        places: LinearPlaces,
        x: &Tensor<2>,
        gradient: &Tensor<2>,
    ) -> Result<(), TaskError> {
        let (block, layout) = (self.block(BlockKind::Layer, at.layer), self.layout());
        let weight = self.parameter_mut(block, places.weight)?;
        let onto = weight.take_gradient_matrix();
        weight.set_gradient(linear::weight(x, gradient, layout, onto));
        if let Some(bias) = places.bias {
            let bias = self.parameter_mut(block, bias)?;
            let onto = bias.take_gradient();
            bias.set_gradient(linear::bias(gradient, onto));
        }
        Ok(())
    }

    /// The rows of this rank's tokens, and the positions.
    fn embedding_weight(&mut self, at: At) -> Result<(), TaskError> {
        let (vocabulary, positions) = (self.spec.vocabulary(), self.embedding.positions);
        let (batch, hidden) = (self.spec.batch, self.spec.hidden());
        let pass = self.pass(at.microbatch)?;
        // Gathered where it is sharded.
        let gradient = need(pass.hand.take().or_else(|| pass.gradient.take()), "the gradient of the embedding")?;
        let (tokens, runs) = (std::mem::take(&mut pass.tokens), pass.positions.clone());
        let gradient = match self.whole_dropout(at)? {
            Some((dropout, rows)) => residual::backward(&gradient, Some((&dropout, &rows))),
            None => gradient,
        };
        if let Some(places) = positions {
            let sum: Tensor<2> = super::pass::by_sequence(&gradient, batch).sum_dim(0).squeeze_dim(0);
            let parameter = self.parameter_mut(0, places)?;
            let dims = [parameter.dims()[0], hidden];
            let mut all = match parameter.take_gradient_matrix() {
                Some(all) => all,
                None => Tensor::zeros(dims, &sum.device()),
            };
            let mut at = 0;
            for run in runs {
                let own = sum.clone().slice([at..at + run.len(), 0..hidden]);
                at += run.len();
                let before = all.clone().slice([run.clone(), 0..hidden]);
                all = all.slice_assign([run, 0..hidden], before + own);
            }
            parameter.set_gradient(all);
        }
        let table = self.parameter_mut(0, 0)?;
        let onto = table.take_gradient_matrix();
        table.set_gradient(embedding::weight(&gradient, &tokens, vocabulary.start, vocabulary.len(), onto));
        Ok(())
    }
}
