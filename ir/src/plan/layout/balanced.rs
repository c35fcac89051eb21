//! A layout that evens out the FLOPs of the stages.
//!
//! One law: the heaviest stage is as light as any cut into runs of layers allows.

use crate::ids::LayerRange;
use crate::model::{ModelShape, StagePart};

/// Layers of each stage; every stage but the last has one at least, where there are enough.
pub(super) fn layout(model: &ModelShape, stages: u32, seq_length: u32) -> Vec<u32> {
    let seq = u64::from(seq_length.max(1));
    let layers = model.num_layers;
    let weight = |s: u32, start: u32, end: u32| {
        let part = StagePart { layers: LayerRange { start, end }, embedding: s == 0, head: s + 1 == stages };
        model.forward_flops(part, 1, seq)
    };
    // The earliest first layer of each stage when none weighs more than `most`: from the back, each takes all it can.
    let earliest = |most: u64| -> Option<Vec<u32>> {
        let mut starts = vec![0; stages as usize];
        let mut end = layers;
        for s in (0..stages).rev() {
            // The stages before this one need a layer each.
            let start = first(s.min(end), end, |start| weight(s, start, end) <= most)?;
            starts[s as usize] = start;
            end = start;
        }
        (end == 0).then_some(starts)
    };
    let (mut light, mut heavy) = (0, (0..stages).map(|s| weight(s, 0, layers)).max().unwrap_or(0));
    while heavy - light > 1 {
        let middle = light + (heavy - light) / 2;
        if earliest(middle).is_some() { heavy = middle } else { light = middle }
    }
    let Some(earliest) = earliest(heavy) else { return super::even_layout(layers, stages) };
    // From the front: what is left shared out evenly, as far as the limit and the stages behind allow.
    let mut start = 0;
    let share = |s: u32| {
        let next = earliest.get(s as usize + 1).copied().unwrap_or(layers);
        let even = start + (layers - start).div_ceil(stages - s);
        let most = first(start, layers, |end| end == layers || weight(s, start, end + 1) > heavy).unwrap_or(layers);
        let end = even.min(most).max(next).min(layers);
        let size = end - start;
        start = end;
        size
    };
    (0..stages).map(share).collect()
}

/// The first number from `low` to `high` for which `holds`, which stays so from there on; `None` where not even for `high`.
fn first(low: u32, high: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    if !holds(high) {
        return None;
    }
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of a large vocabulary weighs as much as several layers.
    #[test]
    fn the_last_stage_has_fewer_layers_for_its_head() {
        // A layer is 2 (12 H^2) + 4 S H FLOPs a token, a head 2 V H: with H = 8 and V = 96 one layer and a bit.
        let model = ModelShape::gpt(15, 8, 2, 96, 1);
        let sizes = layout(&model, 4, 1);
        assert_eq!(sizes, [4, 4, 4, 3]);
        let large = ModelShape::gpt(16, 8, 2, 400, 1);
        let sizes = layout(&large, 4, 1);
        assert_eq!(sizes.iter().sum::<u32>(), 16);
        assert!(sizes[3] <= 1, "{sizes:?}");
    }

    /// No other cut has a lighter heaviest stage.
    #[test]
    fn it_is_the_best_of_all_cuts() {
        for (layers, stages, vocab) in [(7, 3, 10), (9, 3, 200), (8, 4, 500), (5, 5, 96), (6, 2, 1000)] {
            let model = ModelShape::gpt(layers, 8, 2, vocab, 1);
            let heaviest = |sizes: &[u32]| {
                let mut start = 0;
                let weights = sizes.iter().enumerate().map(|(s, n)| {
                    let layers = LayerRange { start, end: start + n };
                    start += n;
                    model.forward_flops(StagePart { layers, embedding: s == 0, head: s + 1 == sizes.len() }, 1, 1)
                });
                weights.max().unwrap()
            };
            let sizes = layout(&model, stages, 1);
            assert_eq!(sizes.iter().sum::<u32>(), layers);
            let best = cuts(layers, stages).iter().map(|cut| heaviest(cut)).min().unwrap();
            assert_eq!(heaviest(&sizes), best, "{layers} layers, {stages} stages, vocabulary {vocab}: {sizes:?}");
        }
    }

    /// All ways to cut, with at least one layer a stage but the last.
    fn cuts(layers: u32, stages: u32) -> Vec<Vec<u32>> {
        if stages == 1 {
            return vec![vec![layers]];
        }
        let first = (1..=layers).flat_map(|n| cuts(layers - n, stages - 1).into_iter().map(move |rest| (n, rest)));
        first.map(|(n, rest)| [vec![n], rest].concat()).collect()
    }
}
