//! The token embedding, as far as a rank's shard of the vocabulary goes.
//!
//! One law: a token of another shard gives zeros and takes no gradient, so that the sum over the ranks is the embedding.

use super::cpu::{Rows, Values, edit, is_cpu, make};
use super::vocabulary::{place, places};
use burn::tensor::{IndexingUpdateOp, Tensor};

/// The rows of `tokens` in a shard `[V, H]` that begins with token `first`: `[N, H]`.
pub fn forward(table: &Tensor<2>, tokens: &[u32], first: usize) -> Tensor<2> {
    let [v, h] = table.dims();
    let Some(rows) = Rows::by_row(table) else {
        let (index, here) = places(tokens, first, v, table);
        return table.clone().select(0, index) * here;
    };
    make([tokens.len(), h], &table.device(), |out| {
        for (out, token) in out.chunks_exact_mut(h).zip(tokens) {
            let from = place(*token, first, v).map(|at| at * rows.strides[0]);
            if let Some(row) = from.and_then(|from| rows.storage().get(from..from + h)) {
                out.copy_from_slice(row);
            }
        }
    })
}

/// The gradient of a shard of `rows` rows from that of its output `[N, H]`, added to `onto` `[V, H]`.
pub fn weight(gradient: &Tensor<2>, tokens: &[u32], first: usize, rows: usize, onto: Option<Tensor<2>>) -> Tensor<2> {
    let [_, h] = gradient.dims();
    let zeros = || Tensor::<2>::zeros([rows, h], &gradient.device()).cast(gradient.dtype());
    let onto = onto.unwrap_or_else(zeros);
    let Some(values) = Values::of(gradient).filter(|_| is_cpu(&onto)) else {
        let (index, here) = places(tokens, first, rows, gradient);
        return onto.select_assign(0, index, gradient.clone() * here, IndexingUpdateOp::Add);
    };
    let changed = edit(onto, |out| {
        for (row, token) in values.slice().chunks_exact(h).zip(tokens) {
            let from = place(*token, first, rows).map(|at| at * h);
            if let Some(out) = from.and_then(|from| out.get_mut(from..from + h)) {
                out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
            }
        }
    });
    changed.unwrap_or_else(|onto| onto)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_close, random, wide};
    use super::*;
    use burn::tensor::{DType, Int};

    #[test]
    fn shards_sum_to_the_whole_there_and_back() {
        let (table, tokens) = (random([9, 4]), [3u32, 0, 8, 3, 5]);
        let whole = forward(&table, &tokens, 0);
        let rows = Tensor::<1, Int>::from_ints([3, 0, 8, 3, 5], &table.device());
        assert_close(&whole, &table.clone().select(0, rows), 0.0);
        let shard = |from: usize, to: usize| table.clone().slice([from..to, 0..4]);
        assert_close(&(forward(&shard(0, 5), &tokens, 0) + forward(&shard(5, 9), &tokens, 5)), &whole, 0.0);
        let (gradient, onto) = (random([5, 4]), random([9, 4]));
        let made = weight(&gradient, &tokens, 0, 9, Some(onto.clone()));
        let part = |from: usize, to: usize| onto.clone().slice([from..to, 0..4]);
        let parts = vec![
            weight(&gradient, &tokens, 0, 5, Some(part(0, 5))),
            weight(&gradient, &tokens, 5, 4, Some(part(5, 9))),
        ];
        assert_close(&Tensor::cat(parts, 0), &made, 0.0);
        let f64 = |x: &Tensor<2>| x.clone().cast(DType::F64);
        assert_close(&made, &wide(&weight(&f64(&gradient), &tokens, 0, 9, Some(f64(&onto)))), 1e-6);
        assert_close(&whole, &wide(&forward(&f64(&table), &tokens, 0)), 0.0);
    }
}
