//! What the messages of a program carry, as matrices: what goes to, or comes from, the ranks of a group stands rank after
//! rank in the rows.
//!
//! One law: a message and its delivery are each other's inverse, so a group of one rank changes nothing.

use super::attention::split_columns;
use super::pass::Pair;
use super::{Transformer, need};
use crate::error::TaskError;
use crate::kernels::dropout::{Dropout, Rows};
use crate::kernels::loss;
use crate::stage_module::At;
use burn::tensor::Tensor;
use pipewright_ir::scenario::{Attention, Recompute};
use pipewright_ir::segments::{Operand, Phase, Site};

/// Rows of sequences `[B S, W]` cut into `ranks` shards of each sequence, shard after shard.
fn by_rank(x: &Tensor<2>, batch: usize, ranks: usize) -> Tensor<2> {
    let [rows, width] = x.dims();
    let shard = rows / batch.max(1) / ranks.max(1);
    if batch == 1 || ranks == 1 {
        return x.clone();
    }
    x.clone().reshape([batch, ranks, shard, width]).swap_dims(0, 1).reshape([rows, width])
}

/// Shards of each sequence, one rank's after the other's, as rows of whole sequences: the inverse of [`by_rank`].
fn from_ranks(x: Tensor<2>, batch: usize, ranks: usize) -> Tensor<2> {
    let [rows, width] = x.dims();
    let shard = rows / batch.max(1) / ranks.max(1);
    if batch == 1 || ranks == 1 {
        return x;
    }
    x.reshape([ranks, batch, shard, width]).swap_dims(0, 1).reshape([rows, width])
}

impl Transformer {
    /// What a message carries.
    pub(super) fn outgoing(&mut self, at: At, operand: Operand) -> Result<Tensor<2>, TaskError> {
        let (batch, tensor, sharded) = (self.spec.batch, self.spec.tensor.of, self.spec.shards_sequence);
        match operand {
            Operand::AtHand => {
                let pass = self.pass(at.microbatch)?;
                let x = match at.phase {
                    Phase::Weight => pass.hand.take().or_else(|| pass.gradient.take()),
                    _ => pass.hand.take(),
                };
                let x = need(x, "the tensor at hand")?;
                // What is reduced or scattered is whole; what is gathered is a shard.
                let expected = self.rows_of(at)?;
                Ok(if sharded && x.dims()[0] == expected { by_rank(&x, batch, tensor) } else { x })
            }
            Operand::Normed(site) => need(self.norm_kept(at, site)?.output.take(), "the output of a norm"),
            Operand::Loss => need(self.pass(at.microbatch)?.head.statistics.take(), "the statistics of the logits"),
            Operand::Projected if at.phase == Phase::Input => self.gradients_to_their_tokens(at),
            Operand::Projected => self.projected_to_their_heads(at),
            Operand::Attended if at.phase == Phase::Input => {
                let gradient = need(self.kept(at)?.attention.gradient.take(), "the gradient of the core's output")?;
                Ok(self.heads_by_rank(&gradient))
            }
            Operand::Attended => {
                let x = need(self.kept(at)?.attention.attended.take(), "the output of the core")?;
                Ok(by_rank(&x, batch, self.spec.context.of))
            }
            Operand::Ring { keys_and_values, gradients } => {
                let kept = &mut self.kept(at)?.attention;
                let mut parts = Vec::new();
                if keys_and_values {
                    // The own block before the first step, then the one that has just come.
                    let pair = kept.next.as_ref().or(kept.pair.as_ref()).cloned();
                    parts.push(need(pair, "the keys and values")?.joined());
                }
                if gradients {
                    let made = need(kept.travelling.take(), "the gradients of a block of keys and values")?;
                    let sum = match kept.incoming.take() {
                        Some(before) => before.plus(made),
                        None => made,
                    };
                    parts.push(sum.joined());
                }
                Ok(Tensor::cat(parts, 1))
            }
            Operand::Dispatched | Operand::Parameters(_) | Operand::Gradients(_) => {
                Err(TaskError::Missing("a message of experts"))
            }
        }
    }

    /// Takes in what came.
    pub(super) fn incoming(&mut self, at: At, operand: Operand, x: Tensor<2>) -> Result<(), TaskError> {
        let (batch, tensor, sharded) = (self.spec.batch, self.spec.tensor.of, self.spec.shards_sequence);
        match operand {
            Operand::AtHand => {
                let expected = self.rows_of(at)?;
                let x = if sharded && x.dims()[0] == expected { from_ranks(x, batch, tensor) } else { x };
                self.pass(at.microbatch)?.hand = Some(x);
            }
            Operand::Normed(site) => {
                let whole = from_ranks(x, batch, tensor);
                self.norm_kept(at, site)?.output = Some(whole);
            }
            Operand::Loss => {
                let [rows, columns] = x.dims();
                let each = rows / tensor.max(1);
                let parts: Vec<Tensor<2>> =
                    (0..tensor).map(|rank| x.clone().slice([rank * each..(rank + 1) * each, 0..columns])).collect();
                self.pass(at.microbatch)?.head.statistics = Some(loss::merge(&parts));
            }
            Operand::Projected if at.phase == Phase::Input => self.gradients_of_own_tokens(at, &x)?,
            Operand::Projected => {
                let (heads, groups) = self.core_heads(self.spec.context.rank);
                let whole = from_ranks(x, batch, self.spec.context.of);
                let (queries, pair) = split_columns(&whole, heads.len(), groups.len(), self.spec.head_dim());
                let kept = &mut self.kept(at)?.attention;
                (kept.queries, kept.pair) = (Some(queries), Some(pair));
            }
            Operand::Attended if at.phase == Phase::Input => {
                let whole = from_ranks(x, batch, self.spec.context.of);
                self.kept(at)?.attention.gradient = Some(whole);
            }
            Operand::Attended => {
                let own = self.heads_from_ranks(&x);
                self.kept(at)?.attention.attended = Some(own);
            }
            Operand::Ring { keys_and_values, gradients } => {
                let width = self.spec.groups().len() * self.spec.head_dim();
                let kept = &mut self.kept(at)?.attention;
                if keys_and_values {
                    kept.next = Some(Pair::of(&x, 0, width));
                }
                if gradients {
                    let came = Pair::of(&x, if keys_and_values { 2 * width } else { 0 }, width);
                    // The last message brings the gradients of the own block: nothing is made that they could join.
                    if kept.gradient.is_none() && kept.travelling.is_none() {
                        kept.home = Some(match kept.home.take() {
                            Some(own) => own.plus(came),
                            None => came,
                        });
                    } else {
                        kept.incoming = Some(came);
                    }
                }
            }
            Operand::Dispatched | Operand::Parameters(_) | Operand::Gradients(_) => {
                return Err(TaskError::Missing("a message of experts"));
            }
        }
        Ok(())
    }

    /// Rows of a microbatch on this device where its sequence is whole.
    fn rows_of(&mut self, at: At) -> Result<usize, TaskError> {
        let batch = self.spec.batch;
        Ok(batch * crate::positions::count(&self.pass(at.microbatch)?.positions))
    }

    /// Ulysses, forward: the heads of each rank, of this rank's tokens.
    fn projected_to_their_heads(&mut self, at: At) -> Result<Tensor<2>, TaskError> {
        let (own_heads, own_groups, dim) = (self.spec.heads(), self.spec.groups(), self.spec.head_dim());
        let again = self.spec.recompute == Recompute::Selective && self.spec.attention == Attention::Standard;
        let ranks: Vec<_> = (0..self.spec.context.of).map(|rank| self.core_heads(rank)).collect();
        let kept = &mut self.kept(at)?.attention;
        let local = match kept.local.take() {
            Some(local) if at.phase == Phase::Recompute => local,
            _ => {
                let queries = need(kept.queries.take(), "the queries")?;
                (queries, need(kept.pair.take(), "the keys and values")?)
            }
        };
        let (queries, pair) = &local;
        let columns = |x: &Tensor<2>, heads: std::ops::Range<usize>, first: usize| {
            let [rows, _] = x.dims();
            x.clone().slice([0..rows, (heads.start - first) * dim..(heads.end - first) * dim])
        };
        let parts = ranks.into_iter().map(|(heads, groups)| {
            let keys = columns(&pair.keys, groups.clone(), own_groups.start);
            let values = columns(&pair.values, groups, own_groups.start);
            Tensor::cat(vec![columns(queries, heads, own_heads.start), keys, values], 1)
        });
        let message = Tensor::cat(parts.collect(), 0);
        kept.local = again.then_some(local);
        Ok(message)
    }

    /// Ulysses, backward: the gradients of all tokens' queries, keys and values of this rank's heads, to the tokens' ranks.
    fn gradients_to_their_tokens(&mut self, at: At) -> Result<Tensor<2>, TaskError> {
        let (batch, ranks) = (self.spec.batch, self.spec.context.of);
        let kept = &mut self.kept(at)?.attention;
        let queries = need(kept.queries_gradient.take(), "the gradient of queries")?;
        let Pair { keys, values } = need(kept.home.take(), "the gradients of keys and values")?;
        Ok(by_rank(&Tensor::cat(vec![queries, keys, values], 1), batch, ranks))
    }

    /// What comes of that: of every rank its heads' gradients for this rank's tokens. A key-value head that several ranks
    /// needed gets the sum.
    fn gradients_of_own_tokens(&mut self, at: At, x: &Tensor<2>) -> Result<(), TaskError> {
        let (dim, own_groups, ranks) = (self.spec.head_dim(), self.spec.groups(), self.spec.context.of);
        let [rows, width] = x.dims();
        let each = rows / ranks;
        let mut queries = Vec::new();
        let mut sums: Vec<Option<Pair>> = own_groups.clone().map(|_| None).collect();
        for rank in 0..ranks {
            let (heads, groups) = self.core_heads(rank);
            let part = x.clone().slice([rank * each..(rank + 1) * each, 0..width]);
            let (query, pair) = split_columns(&part, heads.len(), groups.len(), dim);
            queries.push(query);
            for (i, group) in groups.enumerate() {
                let of = |x: &Tensor<2>| x.clone().slice([0..each, i * dim..(i + 1) * dim]);
                let came = Pair { keys: of(&pair.keys), values: of(&pair.values) };
                let Some(sum) = sums.get_mut(group - own_groups.start) else { continue };
                *sum = Some(match sum.take() {
                    Some(sum) => sum.plus(came),
                    None => came,
                });
            }
        }
        let sums: Option<Vec<Pair>> = sums.into_iter().collect();
        let (keys, values) =
            need(sums, "the gradients of keys and values")?.into_iter().map(|pair| (pair.keys, pair.values)).unzip();
        let kept = &mut self.kept(at)?.attention;
        kept.queries_gradient = Some(Tensor::cat(queries, 1));
        kept.home = Some(Pair { keys: Tensor::cat(keys, 1), values: Tensor::cat(values, 1) });
        Ok(())
    }

    /// Columns of this device's heads, rank after rank: those that each needs for its core.
    fn heads_by_rank(&self, x: &Tensor<2>) -> Tensor<2> {
        let (dim, first) = (self.spec.head_dim(), self.spec.heads().start);
        let [rows, _] = x.dims();
        let parts = (0..self.spec.context.of).map(|rank| {
            let (heads, _) = self.core_heads(rank);
            x.clone().slice([0..rows, (heads.start - first) * dim..(heads.end - first) * dim])
        });
        Tensor::cat(parts.collect(), 0)
    }

    /// The inverse.
    fn heads_from_ranks(&self, x: &Tensor<2>) -> Tensor<2> {
        let [rows, width] = x.dims();
        let each = rows / self.spec.context.of.max(1);
        let parts = (0..self.spec.context.of).map(|rank| x.clone().slice([rank * each..(rank + 1) * each, 0..width]));
        Tensor::cat(parts.collect(), 1)
    }

    /// What drops out of the embedding, on all rows of the microbatch.
    pub(super) fn whole_dropout(&mut self, at: At) -> Result<Option<(Dropout, Rows)>, TaskError> {
        let (seq_length, width) = (self.spec.seq_length, self.spec.hidden());
        let Some((dropout, _)) = self.hidden_dropout(at, Site::Embedding)? else { return Ok(None) };
        let pass = self.pass(at.microbatch)?;
        let ids = pass.row_ids(&pass.positions, seq_length);
        Ok(Some((dropout, Rows { ids, width })))
    }
}

#[cfg(test)]
mod tests {
    use super::super::pass::{by_row, by_sequence};
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn shards_of_sequences_go_out_and_come_back() {
        let x =
            Tensor::<2>::from_data([[0.0f32], [1.0], [2.0], [3.0], [10.0], [11.0], [12.0], [13.0]], &Device::flex());
        let out = by_rank(&x, 2, 2);
        let values: Vec<f32> = out.clone().into_data().iter().collect();
        assert_eq!(values, [0.0, 1.0, 10.0, 11.0, 2.0, 3.0, 12.0, 13.0]);
        assert_eq!(from_ranks(out, 2, 2).into_data(), x.clone().into_data());
        assert_eq!(by_row(by_sequence(&x, 2)).into_data(), x.into_data());
    }
}
