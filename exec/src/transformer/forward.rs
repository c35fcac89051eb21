//! The operations of a forward, and of a forward that backward does again.

use super::pass::{LayerKept, NormKept};
use super::{Transformer, need};
use crate::error::TaskError;
use crate::kernels::dropout::{Dropout, Rows};
use crate::kernels::norm::NormWeights;
use crate::kernels::{activation, embedding, linear, loss, norm, residual};
use crate::stage_module::At;
use burn::tensor::Tensor;
use pipewright_ir::ids::Microbatch;
use pipewright_ir::scenario::Recompute;
use pipewright_ir::segments::{BlockKind, Operation, Phase, Site};

impl Transformer {
    /// One operation of a forward.
    pub(super) fn forward(&mut self, at: At, operation: Operation) -> Result<(), TaskError> {
        match operation {
            Operation::Embedding => self.embed(at),
            Operation::Norm(site) => self.norm(at, site),
            Operation::Residual(Site::Embedding) => self.add_positions(at),
            Operation::Residual(site) => self.add(at, site),
            Operation::Projections => self.project(at),
            Operation::Rope => self.rotate(at),
            Operation::Core(block) => self.core(at, block),
            Operation::Output => self.leave_attention(at),
            Operation::MlpUp => self.up(at),
            Operation::Activation => self.activate(at),
            Operation::MlpDown => self.down(at),
            Operation::Head => self.head_forward(at),
            Operation::Loss => self.loss_statistics(at),
            Operation::Router | Operation::Permute | Operation::Experts | Operation::Accumulate => {
                Err(TaskError::Missing("an operation of experts"))
            }
        }
    }

    fn embed(&mut self, at: At) -> Result<(), TaskError> {
        let table = self.matrix(0, 0)?;
        let first = self.spec.vocabulary().start;
        let pass = self.pass(at.microbatch)?;
        pass.hand = Some(embedding::forward(&table, &pass.tokens, first));
        Ok(())
    }

    /// Positions, where they are learned, and dropout.
    fn add_positions(&mut self, at: At) -> Result<(), TaskError> {
        let learned = self.embedding.positions.map(|places| self.matrix(0, places)).transpose()?;
        let dropout = self.hidden_dropout(at, Site::Embedding)?;
        let (batch, hidden) = (self.spec.batch, self.spec.hidden());
        let pass = self.pass(at.microbatch)?;
        let mut x = need(pass.hand.take(), "the embedding")?;
        if let Some(table) = learned {
            let rows = pass.shard.iter().map(|run| table.clone().slice([run.clone(), 0..hidden]));
            let one: Tensor<3> = Tensor::cat(rows.collect(), 0).unsqueeze();
            x = super::pass::by_row(super::pass::by_sequence(&x, batch) + one);
        }
        pass.stream = Some(match &dropout {
            Some((dropout, rows)) => residual::backward(&x, Some((dropout, rows))),
            None => x,
        });
        Ok(())
    }

    fn norm(&mut self, at: At, site: Site) -> Result<(), TaskError> {
        let (block, places) = self.norm_places(at, site)?;
        let (scale, shift) = self.norm_weights(block, places)?;
        let weights = NormWeights { scale: &scale, shift: shift.as_ref(), epsilon: self.epsilon() };
        let pass = self.pass(at.microbatch)?;
        if site == Site::Attention && at.phase == Phase::Recompute {
            // The input of the layer is all that forward has kept.
            pass.stream = pass.layers.get(&at.layer).and_then(|kept| kept.norms[0].input.clone());
        }
        // Behind an embedding without anything to add the stream is still at hand.
        let input = need(pass.hand.take().or_else(|| pass.stream.take()), "the residual stream")?;
        let (output, statistics) = norm::forward(&input, &weights);
        if site == Site::Embedding {
            pass.stream = Some(output);
            pass.embedding_norm = NormKept { input: Some(input), statistics: Some(statistics), output: None };
            return Ok(());
        }
        pass.hand = Some(output.clone());
        pass.stream = (site != Site::Head).then(|| input.clone());
        let kept = NormKept { input: Some(input), statistics: Some(statistics), output: Some(output) };
        *self.norm_kept(at, site)? = kept;
        Ok(())
    }

    /// What came out of attention or MLP, summed over the ranks: bias, dropout, and onto the stream.
    fn add(&mut self, at: At, site: Site) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?);
        let linear = if site == Site::Attention { places.output } else { places.down };
        let bias = self.bias(block, linear)?;
        let dropout = self.hidden_dropout(at, site)?;
        let full = self.spec.recompute == Recompute::Full;
        let pass = self.pass(at.microbatch)?;
        let stream = need(pass.stream.take(), "the residual stream")?;
        let x = need(pass.hand.take(), "what is added to the residual stream")?;
        let dropout = dropout.as_ref().map(|(dropout, rows)| (dropout, rows));
        pass.stream = Some(residual::add(stream, &x, bias.as_ref(), dropout));
        if site == Site::Mlp && full && at.phase == Phase::Forward {
            let kept = pass.layers.entry(at.layer).or_default();
            let input = kept.norms[0].input.take();
            *kept = LayerKept {
                norms: [NormKept { input, ..NormKept::default() }, NormKept::default()],
                ..LayerKept::default()
            };
        }
        if site == Site::Mlp && at.phase == Phase::Recompute {
            pass.stream = None;
        }
        Ok(())
    }

    fn up(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.up);
        let (weight, bias, layout) = (self.matrix(block, places.weight)?, self.bias(block, places)?, self.layout());
        let x = need(self.pass(at.microbatch)?.hand.take(), "the input of the MLP")?;
        let inner = linear::forward(&x, &weight, layout, bias.as_ref());
        self.kept(at)?.inner = Some(inner);
        Ok(())
    }

    fn activate(&mut self, at: At) -> Result<(), TaskError> {
        let kind = self.activation;
        let kept = self.kept(at)?;
        let inner = need(kept.inner.as_ref(), "the inner numbers of the MLP")?;
        kept.activated = Some(activation::forward(inner, kind));
        Ok(())
    }

    fn down(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.down);
        let (weight, layout) = (self.matrix(block, places.weight)?, self.layout());
        let activated = need(self.kept(at)?.activated.clone(), "the inner numbers of the MLP")?;
        self.pass(at.microbatch)?.hand = Some(linear::forward(&activated, &weight, layout, None));
        Ok(())
    }

    fn head_forward(&mut self, at: At) -> Result<(), TaskError> {
        let weight = self.head_matrix()?;
        let pass = self.pass(at.microbatch)?;
        let x = need(pass.hand.take(), "the input of the head")?;
        pass.head.logits = Some(linear::forward(&x, &weight, linear::Layout::OutIn, None));
        Ok(())
    }

    fn loss_statistics(&mut self, at: At) -> Result<(), TaskError> {
        let first = self.spec.vocabulary().start;
        let pass = self.pass(at.microbatch)?;
        let logits = need(pass.head.logits.as_ref(), "the logits")?;
        let targets = need(pass.targets.as_ref(), "the targets")?;
        pass.head.statistics = Some(loss::statistics(logits, targets, first));
        Ok(())
    }

    /// This device's share of the step's loss.
    pub(super) fn loss(&mut self, microbatch: Microbatch) -> Result<f64, TaskError> {
        let pass = self.pass(microbatch)?;
        let statistics = need(pass.head.statistics.as_ref(), "the statistics of the logits")?;
        let losses = loss::losses(statistics).into_data();
        let sum: f64 = losses.iter::<f32>().map(f64::from).sum();
        let loss = sum / pass.step_tokens as f64;
        if loss.is_finite() { Ok(loss) } else { Err(TaskError::NotFinite { microbatch, loss: loss as f32 }) }
    }

    /// The matrix of the head: the embedding's where they are tied and on one stage.
    pub(super) fn head_matrix(&self) -> Result<Tensor<2>, TaskError> {
        let (block, parameter) = need(self.head, "the head")?;
        self.matrix(block, parameter)
    }

    /// The block of a norm and its places there.
    pub(super) fn norm_places(&self, at: At, site: Site) -> Result<(usize, super::NormPlaces), TaskError> {
        Ok(match site {
            Site::Attention => (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.norms[0]),
            Site::Mlp => (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.norms[1]),
            Site::Head => (self.block(BlockKind::Head, at.layer), self.head_norm),
            Site::Embedding => return Err(TaskError::Missing("the norm of the embedding")),
        })
    }

    /// What a norm keeps.
    pub(super) fn norm_kept(&mut self, at: At, site: Site) -> Result<&mut NormKept, TaskError> {
        let pass = self.pass(at.microbatch)?;
        Ok(match site {
            Site::Embedding => &mut pass.embedding_norm,
            Site::Attention => &mut pass.layers.entry(at.layer).or_default().norms[0],
            Site::Mlp => &mut pass.layers.entry(at.layer).or_default().norms[1],
            Site::Head => &mut pass.head.norm,
        })
    }

    /// What drops out of what is added to the stream at a place, on this device's rows of it.
    pub(super) fn hidden_dropout(&mut self, at: At, site: Site) -> Result<Option<(Dropout, Rows)>, TaskError> {
        let (rate, seq_length, width) = (self.spec.hidden_dropout, self.spec.seq_length, self.spec.hidden());
        if rate <= 0.0 {
            return Ok(None);
        }
        let pass = self.pass(at.microbatch)?;
        let (step, ids) = (pass.step, pass.row_ids(&pass.shard, seq_length));
        let place = match site {
            Site::Embedding => 0,
            Site::Attention => 1,
            _ => 2,
        };
        Ok(self.dropout(rate, step, at.layer, place).map(|dropout| (dropout, Rows { ids, width })))
    }
}
