//! Attention of a layer: projections, positions, the core in its ways of sharing a sequence, and all of it backward.
//!
//! - Whole: all keys of the sequence are here.
//! - Ulysses (Jacobs et al. 2023): between two all-to-alls a rank has all of the sequence and some of the heads.
//! - Ring (Li et al. 2021): blocks of keys and values come by; partial results are merged by their log-sum-exp (Liu et al.
//!   2023). Backward sends the gradient of a block on behind it, until it is home.
//! - Slices of a sequence (Sun et al. 2024): a slice sees the keys and values of those before it.

use super::pass::{Pair, SliceCache};
use super::{Transformer, need};
use crate::error::TaskError;
use crate::kernels::attention::{self, Attended, AttentionShape, Operands, Sight};
use crate::kernels::linear;
use crate::kernels::rope::{self, Rotation};
use crate::positions::{self, Runs};
use crate::stage_module::At;
use burn::tensor::Tensor;
use pipewright_ir::scenario::{Attention, Recompute, SequenceParallel};
use pipewright_ir::segments::{BlockKind, Phase};
use std::ops::Range;

/// The columns of queries, keys and values side by side, of so many heads and key-value heads of `dim`.
pub(super) fn split_columns(x: &Tensor<2>, heads: usize, groups: usize, dim: usize) -> (Tensor<2>, Pair) {
    let [rows, _] = x.dims();
    (x.clone().slice([0..rows, 0..heads * dim]), Pair::of(x, heads * dim, groups * dim))
}

impl Transformer {
    /// How the context-parallel ranks share the core, if they do.
    pub(super) fn ulysses(&self) -> bool {
        self.spec.context.of > 1 && self.spec.sequence_parallel == SequenceParallel::Ulysses
    }

    pub(super) fn ring(&self) -> bool {
        self.spec.context.of > 1 && !self.ulysses()
    }

    fn keeps_probabilities(&self) -> bool {
        self.spec.attention == Attention::Standard && !self.ring()
    }

    /// Query heads in this device's core, by their numbers in the model, and the key-value heads that they need.
    pub(super) fn core_heads(&self, context_rank: usize) -> (Range<usize>, Range<usize>) {
        let (heads, groups) = (self.spec.heads(), self.spec.groups());
        if !self.ulysses() {
            return (heads, groups);
        }
        let each = heads.len().div_ceil(self.spec.context.of);
        let from = heads.start + (each * context_rank).min(heads.len());
        let own = from..(from + each).min(heads.end);
        let per_group = (self.spec.shape.num_attention_heads / self.spec.shape.num_query_groups.max(1)).max(1) as usize;
        let needed = own.start / per_group..own.end.div_ceil(per_group);
        (own, needed)
    }

    fn attention_shape(&self) -> AttentionShape {
        let (heads, groups) = self.core_heads(self.spec.context.rank);
        AttentionShape { batch: self.spec.batch, heads: heads.len(), groups: groups.len(), dim: self.spec.head_dim() }
    }

    /// From the hidden size to queries, keys and values.
    pub(super) fn project(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.projections);
        let (weight, bias, layout) = (self.matrix(block, places.weight)?, self.bias(block, places)?, self.layout());
        let (heads, groups, dim) = (self.spec.heads().len(), self.spec.groups().len(), self.spec.head_dim());
        let x = need(self.pass(at.microbatch)?.hand.take(), "the input of attention")?;
        let projected = linear::forward(&x, &weight, layout, bias.as_ref());
        let (queries, pair) = split_columns(&projected, heads, groups, dim);
        let kept = &mut self.kept(at)?.attention;
        (kept.queries, kept.pair) = (Some(queries), Some(pair));
        Ok(())
    }

    pub(super) fn projections_input(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.projections);
        let (weight, layout) = (self.matrix(block, places.weight)?, self.layout());
        let kept = &mut self.kept(at)?.attention;
        let queries = need(kept.queries_gradient.take(), "the gradient of queries")?;
        let Pair { keys, values } = need(kept.home.take(), "the gradients of keys and values")?;
        let gradient = Tensor::cat(vec![queries, keys, values], 1);
        let hand = linear::input(&gradient, &weight, layout);
        kept.projected_gradient = Some(gradient);
        self.pass(at.microbatch)?.hand = Some(hand);
        Ok(())
    }

    /// Rotary positions of queries and keys.
    pub(super) fn rotate(&mut self, at: At) -> Result<(), TaskError> {
        let kept = &mut self.kept(at)?.attention;
        let queries = need(kept.queries.take(), "the queries")?;
        let Pair { keys, values } = need(kept.pair.take(), "the keys and values")?;
        let [queries, keys] = self.rotated(at, [queries, keys], false)?;
        let kept = &mut self.kept(at)?.attention;
        (kept.queries, kept.pair) = (Some(queries), Some(Pair { keys, values }));
        Ok(())
    }

    pub(super) fn rotate_back(&mut self, at: At) -> Result<(), TaskError> {
        let kept = &mut self.kept(at)?.attention;
        let queries = need(kept.queries_gradient.take(), "the gradient of queries")?;
        let Pair { keys, values } = need(kept.home.take(), "the gradients of keys and values")?;
        let [queries, keys] = self.rotated(at, [queries, keys], true)?;
        let kept = &mut self.kept(at)?.attention;
        (kept.queries_gradient, kept.home) = (Some(queries), Some(Pair { keys, values }));
        Ok(())
    }

    fn rotated(&mut self, at: At, tensors: [Tensor<2>; 2], back: bool) -> Result<[Tensor<2>; 2], TaskError> {
        let (batch, dim) = (self.spec.batch, self.spec.head_dim());
        let pass = need(self.passes.get_mut(&at.microbatch), "the forward of this microbatch")?;
        let of_rows = || Rotation::new(&pass.positions, &self.inverse_frequencies);
        let rotation = pass.rotation.get_or_insert_with(of_rows);
        Ok(tensors.map(|x| rope::rotate(x, batch, dim, rotation, back)))
    }

    /// The positions of the keys that a block of the core has: those of the rank that they came from.
    fn key_positions(&mut self, at: At, block: u32) -> Result<Runs, TaskError> {
        let (spec, context) = (&self.spec, self.spec.context);
        if self.ulysses() {
            return Ok(vec![0..spec.seq_length]);
        }
        if self.ring() {
            let from = (context.rank + context.of - block as usize % context.of) % context.of;
            return Ok(positions::of_rank(spec.seq_length, context.of, from, spec.sequence_parallel));
        }
        let own = self.pass(at.microbatch)?.positions.clone();
        let end = own.last().map_or(0, |run| run.end);
        Ok(if at.microbatch.slice().is_some() { vec![0..end] } else { own })
    }

    fn query_positions(&mut self, at: At) -> Result<Runs, TaskError> {
        if self.ulysses() {
            return Ok(vec![0..self.spec.seq_length]);
        }
        Ok(self.pass(at.microbatch)?.positions.clone())
    }

    /// The keys and values of a block: those that came round the ring, those of all slices so far, or the own ones.
    fn block_pair(&mut self, at: At, block: u32) -> Result<Pair, TaskError> {
        if at.microbatch.slice().is_some() {
            let batch = self.spec.batch;
            let cache = self.slices.get(&(at.microbatch.number(), at.layer));
            return Ok(need(cache, "the keys and values of the slices before")?.all(batch));
        }
        let kept = &mut self.kept(at)?.attention;
        let pair = if block == 0 { kept.pair.clone() } else { kept.next.take() };
        let pair = need(pair, "the keys and values")?;
        kept.block = Some(pair.clone());
        Ok(pair)
    }

    /// What the core's queries see, and what of it drops out.
    fn sight<'a>(
        &mut self,
        at: At,
        queries: &'a Runs,
        keys: &'a Runs,
        sequences: &'a [u64],
    ) -> Result<Sight<'a>, TaskError> {
        let (rate, heads) = (self.spec.attention_dropout, self.core_heads(self.spec.context.rank).0);
        let step = self.pass(at.microbatch)?.step;
        let dropout = self.dropout(rate, step, at.layer, 3);
        Ok(Sight { queries, keys, sequences, first_head: heads.start, dropout })
    }

    /// The core, forward: queries against one block of keys and values.
    pub(super) fn core(&mut self, at: At, block: u32) -> Result<(), TaskError> {
        let (shape, standard) = (self.attention_shape(), self.keeps_probabilities());
        if at.microbatch.slice().is_some() && at.phase == Phase::Forward {
            let own = need(self.kept(at)?.attention.pair.take(), "the keys and values")?;
            let cache: &mut SliceCache = self.slices.entry((at.microbatch.number(), at.layer)).or_default();
            cache.slices.push((own, None));
        }
        let (query_runs, key_runs) = (self.query_positions(at)?, self.key_positions(at, block)?);
        let sequences = self.pass(at.microbatch)?.sequences.clone();
        let pair = self.block_pair(at, block)?;
        let sight = self.sight(at, &query_runs, &key_runs, &sequences)?;
        let drops = standard && self.spec.recompute == Recompute::Selective && at.phase == Phase::Forward;
        let kept = &mut self.kept(at)?.attention;
        let queries = need(kept.queries.as_ref(), "the queries")?;
        let operands = Operands { queries, keys: &pair.keys, values: &pair.values, shape, sight };
        if standard {
            let (output, probabilities) = attention::forward_standard(&operands);
            kept.probabilities = (!drops).then_some(probabilities);
            kept.attended = Some(output);
            return Ok(());
        }
        let part = attention::forward(&operands);
        let merged = match kept.output.take().filter(|_| block > 0) {
            Some((output, lse)) => attention::merge(Attended { output, lse }, part, &shape),
            None => part,
        };
        kept.attended = Some(merged.output.clone());
        kept.output = Some((merged.output, merged.lse));
        Ok(())
    }

    /// The core, backward, for one block of keys and values.
    pub(super) fn core_backward(&mut self, at: At, block: u32) -> Result<(), TaskError> {
        let (shape, standard, ring) = (self.attention_shape(), self.keeps_probabilities(), self.ring());
        let (query_runs, key_runs) = (self.query_positions(at)?, self.key_positions(at, block)?);
        let sequences = self.pass(at.microbatch)?.sequences.clone();
        let pair = self.block_pair(at, block)?;
        let sight = self.sight(at, &query_runs, &key_runs, &sequences)?;
        let kept = &mut self.kept(at)?.attention;
        let queries = need(kept.queries.clone(), "the queries")?;
        let gradient = need(kept.gradient.clone(), "the gradient of the core's output")?;
        let operands = Operands { queries: &queries, keys: &pair.keys, values: &pair.values, shape, sight };
        let made = if standard {
            let probabilities = need(kept.probabilities.take(), "the probabilities")?;
            attention::backward_standard(&operands, &probabilities, &gradient)
        } else {
            let (output, lse) = need(kept.output.clone(), "the output of the core")?;
            let attended = Attended { output, lse };
            attention::backward(&operands, &attended, &gradient)
        };
        kept.queries_gradient = Some(match kept.queries_gradient.take() {
            Some(sum) => sum + made.queries,
            None => made.queries,
        });
        let made = Pair { keys: made.keys, values: made.values };
        if at.microbatch.slice().is_some() {
            let batch = self.spec.batch;
            let cache = need(self.slices.get_mut(&(at.microbatch.number(), at.layer)), "the slices before")?;
            cache.add(&made, batch);
            let (_, own) = need(cache.slices.pop(), "the own slice")?;
            self.kept(at)?.attention.home = own;
        } else if block == 0 {
            kept.home = Some(made);
        } else {
            kept.travelling = Some(made);
        }
        let last = !ring || block as usize + 1 == self.spec.context.of;
        if last {
            let kept = &mut self.kept(at)?.attention;
            (kept.queries, kept.pair, kept.block, kept.output, kept.gradient) = (None, None, None, None, None);
        }
        Ok(())
    }

    /// From the heads to the hidden size.
    pub(super) fn leave_attention(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.output);
        let (weight, layout) = (self.matrix(block, places.weight)?, self.layout());
        let x = need(self.kept(at)?.attention.attended.clone(), "the output of the core")?;
        self.pass(at.microbatch)?.hand = Some(linear::forward(&x, &weight, layout, None));
        Ok(())
    }

    pub(super) fn output_input(&mut self, at: At) -> Result<(), TaskError> {
        let (block, places) = (self.block(BlockKind::Layer, at.layer), self.places(at.layer)?.output);
        let (weight, layout) = (self.matrix(block, places.weight)?, self.layout());
        let gradient = need(self.pass(at.microbatch)?.hand.take(), "the gradient of attention's output")?;
        let kept = &mut self.kept(at)?.attention;
        kept.gradient = Some(linear::input(&gradient, &weight, layout));
        kept.output_gradient = Some(gradient);
        Ok(())
    }
}
