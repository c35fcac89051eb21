//! Attention on the CPU: head by head and some queries at a time, so that their scores stay in the cache.
//!
//! Queries, keys and values are read where they are, also as columns of a wider matrix; so no head is ever copied out.

use super::super::cpu::{Rows, Values, is_cpu};
use super::super::dropout::Dropout;
use super::super::gemm::{Matrix, multiply};
use super::super::maths;
use super::{Attended, AttentionShape, Gradients, NOTHING, Operands, Sight};
use burn::tensor::{Tensor, TensorData};
use pulp::Arch;

/// Queries of a tile.
const QUERIES: usize = 64;
/// Keys of a tile.
const KEYS: usize = 1024;

/// What a kernel reads.
struct Input {
    queries: Rows,
    keys: Rows,
    values: Rows,
    shape: AttentionShape,
    /// Of each query how many keys it sees.
    seen: Vec<usize>,
    query_positions: Vec<usize>,
    key_positions: Vec<usize>,
}

/// Some queries of one head against some keys.
#[derive(Clone, Copy)]
struct Tile {
    sequence: usize,
    head: usize,
    /// First query and how many.
    query: usize,
    queries: usize,
    /// First key and how many.
    key: usize,
    keys: usize,
}

impl Input {
    fn new(operands: &Operands<'_>) -> Option<Self> {
        let Operands { queries, keys, values, shape, sight } = operands;
        let [queries, keys, values] = [queries, keys, values].map(|x| Rows::by_row(x));
        Some(Self {
            queries: queries?,
            keys: keys?,
            values: values?,
            shape: *shape,
            seen: sight.seen(),
            query_positions: sight.query_positions(),
            key_positions: sight.key_positions(),
        })
    }

    /// The tiles of one head, those that see anything.
    fn tiles(&self, sequence: usize, head: usize, keys: usize) -> impl Iterator<Item = Tile> + '_ {
        (0..self.seen.len()).step_by(QUERIES).flat_map(move |query| {
            let queries = QUERIES.min(self.seen.len() - query);
            let most = self.seen.get(query + queries - 1).copied().unwrap_or(0);
            (0..most).step_by(keys).map(move |key| Tile {
                sequence,
                head,
                query,
                queries,
                key,
                keys: keys.min(most - key),
            })
        })
    }

    fn heads(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let heads = self.shape.heads;
        (0..self.shape.batch).flat_map(move |sequence| (0..heads).map(move |head| (sequence, head)))
    }

    /// The part of a matrix of queries (or of the same shape) that a tile has.
    fn of_queries<'m>(&self, matrix: Matrix<'m>, tile: Tile) -> Matrix<'m> {
        let row = tile.sequence * self.seen.len() + tile.query;
        matrix.part([row, tile.head * self.shape.dim], [tile.queries, self.shape.dim])
    }

    /// The part of a matrix of keys or values that a tile has.
    fn of_keys<'m>(&self, matrix: Matrix<'m>, tile: Tile) -> Matrix<'m> {
        let row = tile.sequence * self.key_positions.len() + tile.key;
        matrix.part([row, tile.head / self.shape.sharing() * self.shape.dim], [tile.keys, self.shape.dim])
    }

    /// Where the rows of a tile's queries begin in a dense matrix of their shape, and where those of its keys.
    fn places(&self, tile: Tile) -> [usize; 2] {
        let AttentionShape { heads, groups, dim, .. } = self.shape;
        let query = (tile.sequence * self.seen.len() + tile.query) * heads * dim + tile.head * dim;
        let group = tile.head / self.shape.sharing();
        [query, (tile.sequence * self.key_positions.len() + tile.key) * groups * dim + group * dim]
    }

    /// Scaled scores of a tile, `[queries, keys]`.
    fn scores(&self, tile: Tile, out: &mut [f32]) {
        let queries = self.of_queries(Matrix::of(&self.queries), tile);
        let keys = self.of_keys(Matrix::of(&self.keys), tile).transposed();
        multiply(out, tile.keys, false, queries, keys, self.shape.scale());
    }

    /// How many of a tile's keys its `i`th query sees.
    fn seen_in(&self, tile: Tile, i: usize) -> usize {
        self.seen.get(tile.query + i).map_or(0, |seen| seen.saturating_sub(tile.key).min(tile.keys))
    }

    /// Multiplies the probabilities of a tile by what they are kept with.
    fn drop_out(&self, tile: Tile, sight: &Sight<'_>, values: &mut [f32]) {
        let Some(dropout) = self.dropout(tile, sight) else { return };
        for (i, row) in values.chunks_exact_mut(tile.keys).enumerate().take(tile.queries) {
            let query = self.query_positions.get(tile.query + i).copied().unwrap_or(0) as u64;
            for (x, key) in row.iter_mut().zip(self.key_positions.get(tile.key..).unwrap_or(&[])) {
                *x *= dropout.factor(query << 32 | *key as u64);
            }
        }
    }

    fn dropout(&self, tile: Tile, sight: &Sight<'_>) -> Option<Dropout> {
        let sequence = sight.sequences.get(tile.sequence).copied().unwrap_or(0);
        Some(sight.dropout?.of_head(sequence, sight.first_head + tile.head))
    }

    fn tensor(&self, values: Vec<f32>, rows: usize, heads: usize, like: &Tensor<2>) -> Tensor<2> {
        Tensor::from_data(TensorData::new(values, [self.shape.batch * rows, heads * self.shape.dim]), &like.device())
    }
}

/// Lets the vector unit do it.
fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(work)
}

pub(super) fn forward(operands: &Operands<'_>) -> Option<Attended> {
    let Operands { queries, shape, sight, .. } = operands;
    let input = Input::new(operands)?;
    let (sq, width) = (input.seen.len(), shape.heads * shape.dim);
    let mut output = vec![0.0f32; shape.batch * sq * width];
    let mut lse = vec![NOTHING; shape.batch * shape.heads * sq];
    let mut scores = vec![0.0f32; QUERIES * KEYS.min(input.key_positions.len())];
    for (sequence, head) in input.heads() {
        let lse_from = (sequence * shape.heads + head) * sq;
        // Of each query the largest score so far and the sum of exponentials.
        let (mut tops, mut sums) = ([f32::NEG_INFINITY; QUERIES], [0.0f32; QUERIES]);
        for tile in input.tiles(sequence, head, KEYS) {
            if tile.key == 0 {
                (tops, sums) = ([f32::NEG_INFINITY; QUERIES], [0.0f32; QUERIES]);
            }
            let tile_scores = &mut scores[..tile.queries * tile.keys];
            input.scores(tile, tile_scores);
            let [from, _] = input.places(tile);
            vectorised(|| {
                for (i, row) in tile_scores.chunks_exact_mut(tile.keys).enumerate() {
                    let (seen, unseen) = row.split_at_mut(input.seen_in(tile, i));
                    unseen.fill(0.0);
                    let top = maths::largest(seen).max(tops[i]);
                    seen.iter_mut().for_each(|x| *x = maths::exp(*x - top));
                    let before = if tile.key == 0 { 0.0 } else { maths::exp(tops[i] - top) };
                    if tile.key > 0 {
                        let at = from + i * width;
                        output[at..at + shape.dim].iter_mut().for_each(|x| *x *= before);
                    }
                    sums[i] = sums[i] * before + maths::sum(seen);
                    tops[i] = top;
                }
            });
            input.drop_out(tile, sight, tile_scores);
            let weights = Matrix::dense(tile_scores, [tile.queries, tile.keys]);
            let values = input.of_keys(Matrix::of(&input.values), tile);
            multiply(&mut output[from..], width, tile.key > 0, weights, values, 1.0);
            let last = tile.key + tile.keys == input.seen[tile.query + tile.queries - 1];
            for i in (0..tile.queries).filter(|i| last && sums[*i] > 0.0) {
                let at = from + i * width;
                let inverse = sums[i].recip();
                output[at..at + shape.dim].iter_mut().for_each(|x| *x *= inverse);
                lse[lse_from + tile.query + i] = tops[i] + sums[i].ln();
            }
        }
    }
    let output = input.tensor(output, sq, shape.heads, queries);
    let lse = Tensor::from_data(TensorData::new(lse, [shape.batch, shape.heads, sq]), &queries.device());
    Some(Attended { output, lse })
}

pub(super) fn backward(operands: &Operands<'_>, attended: &Attended, gradient: &Tensor<2>) -> Option<Gradients> {
    let Operands { queries, shape, sight, .. } = operands;
    let input = Input::new(operands)?;
    let (output, lse) = (Values::of(&attended.output)?, Values::of(&attended.lse)?);
    let gradient = Values::of(gradient)?;
    let (sq, width) = (input.seen.len(), shape.heads * shape.dim);
    let probabilities = |tile: Tile, scores: &mut [f32], along: &mut [f32; QUERIES]| {
        input.scores(tile, scores);
        let lse_from = (tile.sequence * shape.heads + tile.head) * sq + tile.query;
        let [from, _] = input.places(tile);
        vectorised(|| {
            for (i, row) in scores.chunks_exact_mut(tile.keys).enumerate() {
                let (seen, unseen) = row.split_at_mut(input.seen_in(tile, i));
                unseen.fill(0.0);
                let lse = lse.slice()[lse_from + i];
                seen.iter_mut().for_each(|x| *x = maths::exp(*x - lse));
                let at = from + i * width..from + i * width + shape.dim;
                along[i] = maths::dot(&output.slice()[at.clone()], &gradient.slice()[at]);
            }
        });
    };
    Some(gradients(&input, gradient.slice(), sight, KEYS, probabilities, queries))
}

pub(super) fn forward_standard(operands: &Operands<'_>) -> Option<(Tensor<2>, Tensor<4>)> {
    let Operands { queries, shape, sight, .. } = operands;
    let input = Input::new(operands)?;
    let (sq, sk, width) = (input.seen.len(), input.key_positions.len(), shape.heads * shape.dim);
    let mut output = vec![0.0f32; shape.batch * sq * width];
    let mut probabilities = vec![0.0f32; shape.batch * shape.heads * sq * sk];
    let mut scores = vec![0.0f32; QUERIES * sk];
    for (sequence, head) in input.heads() {
        for tile in input.tiles(sequence, head, sk.max(1)) {
            let tile_scores = &mut scores[..tile.queries * tile.keys];
            input.scores(tile, tile_scores);
            let first = ((sequence * shape.heads + head) * sq + tile.query) * sk;
            vectorised(|| {
                for (i, row) in tile_scores.chunks_exact_mut(tile.keys).enumerate() {
                    let (seen, unseen) = row.split_at_mut(input.seen_in(tile, i));
                    unseen.fill(0.0);
                    let top = maths::largest(seen);
                    seen.iter_mut().for_each(|x| *x = maths::exp(*x - top));
                    let inverse = maths::sum(seen).recip();
                    seen.iter_mut().for_each(|x| *x *= inverse);
                    let at = first + i * sk;
                    probabilities[at..at + seen.len()].copy_from_slice(seen);
                }
            });
            input.drop_out(tile, sight, tile_scores);
            let weights = Matrix::dense(tile_scores, [tile.queries, tile.keys]);
            let values = input.of_keys(Matrix::of(&input.values), tile);
            multiply(&mut output[input.places(tile)[0]..], width, false, weights, values, 1.0);
        }
    }
    let output = input.tensor(output, sq, shape.heads, queries);
    let dims = [shape.batch, shape.heads, sq, sk];
    Some((output, Tensor::from_data(TensorData::new(probabilities, dims), &queries.device())))
}

pub(super) fn backward_standard(
    operands: &Operands<'_>,
    probabilities: &Tensor<4>,
    gradient: &Tensor<2>,
) -> Option<Gradients> {
    let Operands { queries, shape, sight, .. } = operands;
    if !is_cpu(probabilities) {
        return None;
    }
    let input = Input::new(operands)?;
    let (kept, gradient) = (Values::of(probabilities)?, Values::of(gradient)?);
    let (sq, sk, width) = (input.seen.len(), input.key_positions.len(), shape.heads * shape.dim);
    let read = |tile: Tile, scores: &mut [f32], along: &mut [f32; QUERIES]| {
        let first = ((tile.sequence * shape.heads + tile.head) * sq + tile.query) * sk;
        for (i, row) in scores.chunks_exact_mut(tile.keys).enumerate() {
            row.copy_from_slice(&kept.slice()[first + i * sk..first + i * sk + tile.keys]);
        }
        // Output times gradient, the output from the probabilities.
        let mut output = vec![0.0f32; tile.queries * shape.dim];
        let mut weights = scores.to_vec();
        input.drop_out(tile, sight, &mut weights);
        let values = input.of_keys(Matrix::of(&input.values), tile);
        multiply(&mut output, shape.dim, false, Matrix::dense(&weights, [tile.queries, tile.keys]), values, 1.0);
        let [from, _] = input.places(tile);
        for (i, row) in output.chunks_exact(shape.dim).enumerate() {
            along[i] = maths::dot(row, &gradient.slice()[from + i * width..from + i * width + shape.dim]);
        }
    };
    Some(gradients(&input, gradient.slice(), sight, sk.max(1), read, queries))
}

/// The gradients, tile by tile. `probabilities` gives those of a tile, and of each of its queries the sum of output times
/// gradient.
fn gradients(
    input: &Input,
    gradient: &[f32],
    sight: &Sight<'_>,
    keys_of_tile: usize,
    probabilities: impl Fn(Tile, &mut [f32], &mut [f32; QUERIES]),
    like: &Tensor<2>,
) -> Gradients {
    let shape = input.shape;
    let (sq, sk, dim) = (input.seen.len(), input.key_positions.len(), shape.dim);
    let (width, key_width) = (shape.heads * dim, shape.groups * dim);
    let mut of_queries = vec![0.0f32; shape.batch * sq * width];
    let [mut of_keys, mut of_values] = [(); 2].map(|()| vec![0.0f32; shape.batch * sk * key_width]);
    let most = QUERIES * keys_of_tile.min(sk);
    let [mut weights, mut of_weights, mut dropped] = [(); 3].map(|()| vec![0.0f32; most]);
    let gradient = Matrix::dense(gradient, [shape.batch * sq, width]);
    for (sequence, head) in input.heads() {
        for tile in input.tiles(sequence, head, keys_of_tile) {
            let size = tile.queries * tile.keys;
            let (weights, of_weights) = (&mut weights[..size], &mut of_weights[..size]);
            let mut along = [0.0f32; QUERIES];
            probabilities(tile, weights, &mut along);
            let [query, key] = input.places(tile);
            let out_gradient = input.of_queries(gradient, tile);
            let kept: &[f32] = if sight.dropout.is_some() {
                dropped[..size].copy_from_slice(weights);
                input.drop_out(tile, sight, &mut dropped[..size]);
                &dropped[..size]
            } else {
                weights
            };
            let turned = Matrix::dense(kept, [tile.queries, tile.keys]).transposed();
            multiply(&mut of_values[key..], key_width, true, turned, out_gradient, 1.0);
            let values = input.of_keys(Matrix::of(&input.values), tile).transposed();
            multiply(of_weights, tile.keys, false, out_gradient, values, 1.0);
            input.drop_out(tile, sight, of_weights);
            let scale = shape.scale();
            vectorised(|| {
                let rows = of_weights.chunks_exact_mut(tile.keys).zip(weights.chunks_exact(tile.keys));
                for ((row, weights), along) in rows.zip(&along) {
                    for (x, weight) in row.iter_mut().zip(weights) {
                        *x = weight * (*x - along) * scale;
                    }
                }
            });
            let of_scores = Matrix::dense(of_weights, [tile.queries, tile.keys]);
            let keys = input.of_keys(Matrix::of(&input.keys), tile);
            multiply(&mut of_queries[query..], width, true, of_scores, keys, 1.0);
            let queries = input.of_queries(Matrix::of(&input.queries), tile);
            multiply(&mut of_keys[key..], key_width, true, of_scores.transposed(), queries, 1.0);
        }
    }
    Gradients {
        queries: input.tensor(of_queries, sq, shape.heads, like),
        keys: input.tensor(of_keys, sk, shape.groups, like),
        values: input.tensor(of_values, sk, shape.groups, like),
    }
}
