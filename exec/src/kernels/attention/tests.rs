use super::super::tests::{assert_close, random, wide};
use super::*;
use burn::tensor::{DType, Device};

const SHAPE: AttentionShape = AttentionShape { batch: 2, heads: 4, groups: 2, dim: 8 };
const DROPOUT: Dropout = Dropout { key: 5, rate: 0.3 };

fn sight<'a>(queries: &'a [Range<usize>], keys: &'a [Range<usize>], dropout: Option<Dropout>) -> Sight<'a> {
    Sight { queries, keys, sequences: &[4, 5], first_head: 3, dropout }
}

fn operands<'a>(q: &'a Tensor<2>, k: &'a Tensor<2>, v: &'a Tensor<2>, sight: &Sight<'a>) -> Operands<'a> {
    Operands { queries: q, keys: k, values: v, shape: SHAPE, sight: *sight }
}

struct Case {
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    g: Tensor<2>,
}

impl Case {
    fn new(queries: usize, keys: usize) -> Self {
        Self {
            q: random([2 * queries, 32]),
            k: random([2 * keys, 16]),
            v: random([2 * keys, 16]),
            g: random([2 * queries, 32]),
        }
    }

    fn forward(&self, sight: &Sight<'_>) -> Attended {
        forward(&operands(&self.q, &self.k, &self.v, sight))
    }

    fn backward(&self, attended: &Attended, sight: &Sight<'_>) -> Gradients {
        backward(&operands(&self.q, &self.k, &self.v, sight), attended, &self.g)
    }
}

fn rows(x: &Tensor<2>, from: usize, to: usize) -> Tensor<2> {
    let [n, w] = x.dims();
    x.clone().reshape([2, n / 2, w]).slice([0..2, from..to, 0..w]).reshape([2 * (to - from), w])
}

fn assert_gradients(a: &Gradients, b: &Gradients, tolerance: f32) {
    assert_close(&a.queries, &b.queries, tolerance);
    assert_close(&a.keys, &b.keys, tolerance);
    assert_close(&a.values, &b.values, tolerance);
}

#[test]
fn lean_and_standard_are_those_of_autodiff() {
    // More rows than a tile has.
    let (case, runs) = (Case::new(150, 150), [0..150]);
    for dropout in [None, Some(DROPOUT)] {
        let sight = sight(&runs, &runs, dropout);
        let leaf = |x: &Tensor<2>| x.clone().autodiff().require_grad();
        let (q, k, v) = (leaf(&case.q), leaf(&case.k), leaf(&case.v));
        // The mask and what drops out are constants: probabilities come from the plain form.
        let (_, probabilities) = plain::forward_standard(&operands(&case.q, &case.k, &case.v, &sight));
        let split = |x: Tensor<2>, heads: usize| x.reshape([2, 150, heads, 8]).swap_dims(1, 2);
        let twice = |x: Tensor<4>| x.reshape([2, 2, 1, 150 * 8]).repeat_dim(2, 2).reshape([2, 4, 150, 8]);
        let hidden = probabilities.clone().equal_elem(0.0);
        let scores = split(q.clone(), 4).matmul(twice(split(k.clone(), 2)).transpose()) * 8f32.sqrt().recip();
        let weights = burn::tensor::activation::softmax(scores.mask_fill(hidden, -1e30), 3);
        let weights = match plain::kept(&probabilities, &sight) {
            Some(factors) => weights * factors.autodiff(),
            None => weights,
        };
        let y = weights.matmul(twice(split(v.clone(), 2))).swap_dims(1, 2).reshape([300, 32]);
        let grads = (y.clone() * case.g.clone().autodiff()).sum().backward();
        let of = |x: &Tensor<2>| x.grad(&grads).unwrap();
        let want = Gradients { queries: of(&q), keys: of(&k), values: of(&v) };
        let lean = case.forward(&sight);
        assert_close(&lean.output, &y.clone().inner(), 1e-5);
        assert_gradients(&case.backward(&lean, &sight), &want, 1e-5);
        let (output, kept) = forward_standard(&operands(&case.q, &case.k, &case.v, &sight));
        assert_close(&output, &y.inner(), 1e-5);
        assert_close(&kept, &probabilities, 1e-5);
        let standard = backward_standard(&operands(&case.q, &case.k, &case.v, &sight), &kept, &case.g);
        assert_gradients(&standard, &want, 1e-5);
    }
}

#[test]
fn other_formats_give_the_same() {
    let (case, runs) = (Case::new(20, 20), [0..8, 30..42]);
    let f64 = |x: &Tensor<2>| x.clone().cast(DType::F64);
    let (q, k, v, g) = (f64(&case.q), f64(&case.k), f64(&case.v), f64(&case.g));
    for dropout in [None, Some(DROPOUT)] {
        let sight = sight(&runs, &runs, dropout);
        let (fast, slow) = (case.forward(&sight), forward(&operands(&q, &k, &v, &sight)));
        assert_close(&fast.output, &wide(&slow.output), 1e-5);
        assert_close(&fast.lse, &wide(&slow.lse), 1e-5);
        let slow = backward(&operands(&q, &k, &v, &sight), &slow, &g);
        let made = case.backward(&fast, &sight);
        assert_close(&made.queries, &wide(&slow.queries), 1e-5);
        assert_close(&made.keys, &wide(&slow.keys), 1e-5);
        assert_close(&made.values, &wide(&slow.values), 1e-5);
    }
}

/// Two ranks in zigzag: each merges the block of the other, and gradients of a block are right for the whole.
#[test]
fn blocks_of_a_ring_make_the_whole() {
    let (case, all) = (Case::new(32, 32), [0..32]);
    for dropout in [None, Some(DROPOUT)] {
        let whole = case.forward(&sight(&all, &all, dropout));
        let want = case.backward(&whole, &sight(&all, &all, dropout));
        let runs = [vec![0..8, 24..32], vec![8..16, 16..24]];
        let of = |x: &Tensor<2>, runs: &[Range<usize>]| {
            let parts: Vec<Tensor<3>> =
                runs.iter().map(|run| rows(x, run.start, run.end).reshape([2, run.len(), x.dims()[1]])).collect();
            Tensor::cat(parts, 1).reshape([32, x.dims()[1]])
        };
        for own in &runs {
            let (q, g) = (of(&case.q, own), of(&case.g, own));
            let part = |keys: &Vec<Range<usize>>| {
                forward(&operands(&q, &of(&case.k, keys), &of(&case.v, keys), &sight(own, keys, dropout)))
            };
            let merged = merge(part(&runs[0]), part(&runs[1]), &SHAPE);
            assert_close(&merged.output, &of(&whole.output, own), 1e-5);
            let back = |keys: &Vec<Range<usize>>| {
                let sight = sight(own, keys, dropout);
                backward(&operands(&q, &of(&case.k, keys), &of(&case.v, keys), &sight), &merged, &g).queries
            };
            assert_close(&(back(&runs[0]) + back(&runs[1])), &of(&want.queries, own), 1e-5);
        }
    }
}

#[test]
fn slices_make_the_whole_and_nothing_looks_ahead() {
    let (case, all) = (Case::new(21, 21), [0..21]);
    let whole = case.forward(&sight(&all, &all, None));
    for (from, to) in [(0, 9), (9, 14), (14, 21)] {
        let (queries, keys) = ([from..to], [0..to]);
        let part = |x: &Tensor<2>, from: usize| rows(x, from, to);
        let slice = forward(&operands(
            &part(&case.q, from),
            &part(&case.k, 0),
            &part(&case.v, 0),
            &sight(&queries, &keys, None),
        ));
        assert_close(&slice.output, &part(&whole.output, from), 1e-5);
    }
    // A block in the future alone gives nothing, and weighs nothing.
    let nothing = forward(&operands(&case.q, &case.k, &case.v, &sight(&all, &[50..71], None)));
    assert!(nothing.output.clone().abs().sum().into_scalar::<f32>() == 0.0);
    assert_close(&merge(whole.clone(), nothing, &SHAPE).output, &whole.output, 0.0);
}

#[test]
fn columns_of_a_wider_matrix_are_read_where_they_are() {
    let wide = random([40, 64]);
    let part = |from: usize, to: usize| wide.clone().slice([0..40, from..to]);
    let (q, k, v) = (part(0, 32), part(32, 48), part(48, 64));
    let (runs, dense) = ([0..20], |x: &Tensor<2>| x.clone() * 1.0);
    let sight = sight(&runs, &runs, None);
    let one = forward(&operands(&q, &k, &v, &sight));
    let other = forward(&operands(&dense(&q), &dense(&k), &dense(&v), &sight));
    assert_close(&one.output, &other.output, 0.0);
}

/// Long sequences go through several tiles of keys.
#[test]
fn tiles_of_keys_are_merged_on_the_way() {
    let shape = AttentionShape { batch: 1, heads: 1, groups: 1, dim: 8 };
    let (q, k, v) = (random([3, 8]), random([2500, 8]), random([2500, 8]));
    let sight = Sight {
        queries: &[5..6, 1100..1101, 2499..2500],
        keys: &[0..2500],
        sequences: &[0],
        first_head: 0,
        dropout: None,
    };
    let all = Operands { shape, ..operands(&q, &k, &v, &sight) };
    let fast = forward(&all);
    let slow = plain::forward(&all);
    assert_close(&fast.output, &slow.output, 1e-5);
    assert_close(&fast.lse, &slow.lse, 1e-5);
    let device = Device::flex();
    let g = Tensor::<2>::ones([3, 8], &device);
    let (a, b) = (backward(&all, &fast, &g), plain::backward(&all, &slow, &g));
    assert_gradients(&a, &b, 1e-5);
}
