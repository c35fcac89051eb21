//! Numbers of the model that devices hold, put together by name.
//!
//! One law: what two devices both hold must be the same bits; where it is not, that is said and not averaged.

use crate::parameter::{Block, Parameter};
use crate::run::Named;
use crate::shard::Shard;
use burn::tensor::Tensor;
use std::collections::BTreeMap;
use std::ops::Range;

/// Numbers of one named tensor that one device holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The device's part of the tensor.
    pub shard: Shard,
    /// Which of its flat numbers these are.
    pub part: Range<usize>,
    /// The numbers.
    pub values: Vec<f32>,
}

/// What a device has to step of each parameter.
pub fn parameters(blocks: &[Block]) -> Vec<Piece> {
    pieces(blocks, Parameter::main)
}

/// The gradients of that; parameters without one are left out.
pub fn gradients(blocks: &[Block]) -> Vec<Piece> {
    pieces(blocks, Parameter::final_gradient)
}

fn pieces(blocks: &[Block], of: impl Fn(&Parameter) -> Option<Tensor<1>>) -> Vec<Piece> {
    let mut found = Vec::new();
    for parameter in blocks.iter().flat_map(|block| &block.parameters) {
        let Some(tensor) = of(parameter) else { continue };
        let values: Vec<f32> = tensor.into_data().iter().collect();
        for (held, part, at) in parameter.owned_parts() {
            let values = values.get(at..at + part.len()).unwrap_or(&[]).to_vec();
            found.push(Piece { shard: held.shard.clone(), part, values });
        }
    }
    found
}

/// Whole tensors by name, out of the pieces of all devices. Where two devices hold different bits of a number the second
/// one's tensor is given as well, so that a comparison sees both; a number that nobody holds is no number.
pub fn assemble<'p>(pieces: impl Iterator<Item = &'p Piece>) -> Named {
    let mut whole: BTreeMap<&str, Vec<Vec<f32>>> = BTreeMap::new();
    for piece in pieces {
        let copies = whole.entry(&piece.shard.name).or_default();
        let len = piece.shard.whole_len();
        let fits = |copy: &Vec<f32>| {
            piece.places().zip(&piece.values).all(|(at, value)| {
                copy.get(at).is_none_or(|known| known.is_nan() || known.to_bits() == value.to_bits())
            })
        };
        let at = copies.iter().position(fits).unwrap_or_else(|| {
            // What differs is seen; all else of it is what is known.
            let copy = copies.first().cloned().unwrap_or_else(|| vec![f32::NAN; len]);
            copies.push(copy);
            copies.len() - 1
        });
        let Some(copy) = copies.get_mut(at) else { continue };
        for (at, value) in piece.places().zip(&piece.values) {
            if let Some(slot) = copy.get_mut(at) {
                *slot = *value;
            }
        }
    }
    whole.into_iter().flat_map(|(name, copies)| copies.into_iter().map(move |c| (name.to_owned(), c))).collect()
}

impl Piece {
    /// The places of its numbers in the whole tensor, flat row major.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let wanted = self.part.clone();
        self.shard.runs().flat_map(move |(start, range)| {
            let from = wanted.start.max(start);
            let to = wanted.end.min(start + range.len());
            let first = range.start;
            (from..to.max(from)).map(move |own| first + own - start)
        })
    }
}
