//! Parameters of one device: value, gradient, and the share of them that its optimizer steps.
//!
//! One law: a parameter is flat numbers and the [`Shard`]s that name them; whoever sends, steps, saves or compares it
//! sees only those.

use crate::shard::Shard;
use burn::tensor::{Device, Tensor, TensorData};
use std::ops::Range;

/// Which tensor-parallel ranks hold the same numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// None but this one.
    None,
    /// All.
    All,
    /// So many neighbouring ranks: those that share a key-value head.
    Neighbours(u32),
}

/// A named tensor, or part of one, in a parameter.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its name and place.
    pub shard: Shard,
    /// Who else holds it.
    pub copies: Copies,
    /// Whether those that hold it see different tokens or heads, so that their gradients must be summed.
    pub summed: bool,
}

/// A parameter of one device: one tensor for its kernels, made of one named tensor or of several one behind the other.
#[derive(Debug)]
pub struct Parameter {
    dims: Vec<usize>,
    held: Vec<Held>,
    /// `None` while ZeRO-3 has it released.
    value: Option<Tensor<1>>,
    /// Sum over the microbatches so far.
    gradient: Option<Tensor<1>>,
    /// What the optimizer steps, where that is not the value itself: a share under ZeRO.
    main: Option<Tensor<1>>,
    /// The gradient of what the optimizer steps, where that is not the gradient itself.
    reduced: Option<Tensor<1>>,
    /// First and second moments, or the momentum, of what the optimizer steps.
    pub(crate) moments: Vec<Tensor<1>>,
    /// How many ways it is shared out over the replicas, and which share is this device's.
    shares: (usize, usize),
}

impl Parameter {
    /// A parameter of shape `dims` whose numbers are those of `held`, one behind the other.
    pub fn new(dims: Vec<usize>, held: Vec<Held>, values: Vec<f32>, device: &Device) -> Self {
        let len = values.len();
        let value = Some(Tensor::from_data(TensorData::new(values, [len]), device));
        Self { dims, held, value, gradient: None, main: None, reduced: None, moments: Vec::new(), shares: (1, 0) }
    }

    /// Leaves this device the `share`th of `shares` equal shares to step; with `release` it keeps nothing else between
    /// uses.
    pub(crate) fn share_out(&mut self, shares: usize, share: usize, release: bool) {
        self.shares = (shares, share);
        if let Some(value) = &self.value {
            self.main = Some(self.pieces(value.clone()).slice([share..share + 1]).reshape([self.piece()]));
        }
        if release {
            self.value = None;
        }
    }

    /// Numbers.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The named tensors that it is made of.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Numbers of one share, padding included.
    pub(crate) fn piece(&self) -> usize {
        self.len().div_ceil(self.shares.0)
    }

    /// Its flat numbers that this device steps.
    pub fn owned(&self) -> Range<usize> {
        let from = (self.piece() * self.shares.1).min(self.len());
        from..(from + self.piece()).min(self.len())
    }

    /// Flat numbers as `[shares, piece]`, padded with zeros.
    fn pieces(&self, flat: Tensor<1>) -> Tensor<2> {
        let (shares, piece) = (self.shares.0, self.piece());
        let padding = shares * piece - self.len();
        let flat = if padding == 0 {
            flat
        } else {
            let zeros = Tensor::zeros([padding], &flat.device());
            Tensor::cat(vec![flat, zeros], 0)
        };
        flat.reshape([shares, piece])
    }

    /// The value, if it is here.
    pub(crate) fn value(&self) -> Option<Tensor<1>> {
        self.value.clone()
    }

    /// The value as a matrix.
    pub(crate) fn matrix(&self) -> Option<Tensor<2>> {
        let [rows, columns] = <[usize; 2]>::try_from(self.dims.as_slice()).ok()?;
        self.value.clone().map(|value| value.reshape([rows, columns]))
    }

    /// The gradient so far as a matrix, taken out: what adds to it gives it back.
    pub(crate) fn take_gradient_matrix(&mut self) -> Option<Tensor<2>> {
        let [rows, columns] = <[usize; 2]>::try_from(self.dims.as_slice()).ok()?;
        self.gradient.take().map(|gradient| gradient.reshape([rows, columns]))
    }

    /// The gradient so far, taken out.
    pub(crate) fn take_gradient(&mut self) -> Option<Tensor<1>> {
        self.gradient.take()
    }

    /// Adds to the gradient, flat.
    pub fn add_gradient(&mut self, gradient: Tensor<1>) {
        self.gradient = Some(match self.gradient.take() {
            Some(sum) => sum + gradient,
            None => gradient,
        });
    }

    /// The values, flat; empty while they are released.
    pub fn values(&self) -> Vec<f32> {
        self.value.clone().map_or_else(Vec::new, |value| value.into_data().iter().collect())
    }

    /// Puts the gradient in its place.
    pub(crate) fn set_gradient<const D: usize>(&mut self, gradient: Tensor<D>) {
        let len = self.len();
        self.gradient = Some(gradient.reshape([len]));
    }

    /// Takes the gradient as `[shares, piece]` to be scattered: zeros where no microbatch has made one.
    pub(crate) fn take_gradient_pieces(&mut self, device: &Device) -> Tensor<2> {
        let gradient = self.gradient.take().unwrap_or_else(|| Tensor::zeros([self.len()], device));
        self.pieces(gradient)
    }

    /// Adds to the gradient of this device's share.
    pub(crate) fn add_reduced(&mut self, piece: Tensor<1>) {
        self.reduced = Some(match self.reduced.take() {
            Some(sum) => sum + piece,
            None => piece,
        });
    }

    /// The gradient of what the optimizer steps: that of the share, or of everything.
    pub(crate) fn final_gradient(&self) -> Option<Tensor<1>> {
        self.reduced.clone().or_else(|| self.gradient.clone())
    }

    /// How many numbers that is.
    pub(crate) fn final_len(&self) -> usize {
        if self.reduced.is_some() { self.piece() } else { self.len() }
    }

    /// Takes the same.
    pub(crate) fn take_final_gradient(&mut self) -> Option<Tensor<1>> {
        self.reduced.take().or_else(|| self.gradient.take())
    }

    /// Puts the same in its place.
    pub(crate) fn set_final_gradient(&mut self, gradient: Tensor<1>) {
        if self.is_shared_out() {
            self.reduced = Some(gradient);
        } else {
            self.gradient = Some(gradient);
        }
    }

    /// What the optimizer steps, taken out.
    pub(crate) fn take_main(&mut self) -> Option<Tensor<1>> {
        if self.is_shared_out() { self.main.take() } else { self.value.take() }
    }

    /// Puts it in its place.
    pub(crate) fn set_main(&mut self, value: Tensor<1>) {
        if self.is_shared_out() {
            self.main = Some(value);
        } else {
            self.value = Some(value);
        }
    }

    /// This device's share of the value, padding included.
    pub(crate) fn main(&self) -> Option<Tensor<1>> {
        self.main.clone().or_else(|| self.value.clone())
    }

    /// The value out of all shares `[shares, piece]`.
    pub(crate) fn set_from_pieces(&mut self, pieces: Tensor<2>) {
        let (all, len) = (self.shares.0 * self.piece(), self.len());
        let flat = pieces.reshape([all]);
        self.value = Some(if all == len { flat } else { flat.slice([0..len]) });
    }

    /// Whether each replica steps a share of it.
    pub(crate) fn is_shared_out(&self) -> bool {
        self.shares.0 > 1
    }

    /// Drops the value; the share stays.
    pub(crate) fn release(&mut self) {
        if self.main.is_some() {
            self.value = None;
        }
    }

    /// Where each named tensor's numbers stand among this device's own: the tensor, which of its flat numbers they are, and
    /// where they begin among the owned ones.
    pub fn owned_parts(&self) -> impl Iterator<Item = (&Held, Range<usize>, usize)> {
        let owned = self.owned();
        let mut at = 0;
        self.held.iter().filter_map(move |held| {
            let start = at;
            at += held.shard.len();
            let (from, to) = (owned.start.max(start), owned.end.min(at));
            (from < to).then(|| (held, from - start..to - start, from - owned.start))
        })
    }

    /// Puts new numbers into the value and into this device's share of it, flat row major.
    pub(crate) fn set_values(&mut self, values: &[f32], device: &Device) {
        let value = Tensor::<1>::from_floats(values, device);
        if self.main.is_some() {
            let (piece, share) = (self.piece(), self.shares.1);
            self.main = Some(self.pieces(value.clone()).slice([share..share + 1]).reshape([piece]));
        }
        if self.main.is_none() || self.value.is_some() {
            self.value = Some(value);
        }
    }
}

/// Parameters that are gathered, reduced and released together: the embedding's, a layer's, the head's.
#[derive(Debug)]
pub struct Block {
    /// What it is.
    pub kind: pipewright_ir::segments::BlockKind,
    /// Its layer: the first of the stage for the embedding, the last for the head.
    pub layer: u32,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
}

impl Block {
    /// All gradients one behind the other, taken out; zeros for those that no microbatch has made.
    pub(crate) fn take_flat_gradients(&mut self, device: &Device) -> Tensor<1> {
        let zeros = |n: usize| Tensor::zeros([n], device);
        let parts = self.parameters.iter_mut().map(|p| p.take_final_gradient().unwrap_or_else(|| zeros(p.len())));
        Tensor::cat(parts.collect(), 0)
    }

    /// Puts them back in their places: whole ones, or those of this device's shares.
    pub(crate) fn set_flat_gradients(&mut self, flat: &Tensor<1>) {
        let whole = flat.dims()[0] == self.parameters.iter().map(Parameter::len).sum::<usize>();
        let mut at = 0;
        for parameter in &mut self.parameters {
            let len = if whole { parameter.len() } else { parameter.piece() };
            let part = flat.clone().slice([at..at + len]);
            at += len;
            if whole { parameter.set_gradient(part) } else { parameter.set_final_gradient(part) }
        }
    }

    /// All gradients as `[shares, sum of pieces]`, taken out.
    pub(crate) fn take_gradient_pieces(&mut self, device: &Device) -> Tensor<2> {
        Tensor::cat(self.parameters.iter_mut().map(|p| p.take_gradient_pieces(device)).collect(), 1)
    }

    /// Adds this device's piece of each gradient `[1, sum of pieces]`.
    pub(crate) fn add_reduced(&mut self, pieces: Tensor<2>) {
        let [_, all] = pieces.dims();
        let flat: Tensor<1> = pieces.reshape([all]);
        let mut at = 0;
        for parameter in &mut self.parameters {
            let piece = parameter.piece();
            parameter.add_reduced(flat.clone().slice([at..at + piece]));
            at += piece;
        }
    }

    /// This device's share of each value `[1, sum of pieces]`.
    pub(crate) fn main_pieces(&self) -> Option<Tensor<2>> {
        let parts: Option<Vec<Tensor<1>>> = self.parameters.iter().map(Parameter::main).collect();
        let flat = Tensor::cat(parts?, 0);
        let [all] = flat.dims();
        Some(flat.reshape([1, all]))
    }

    /// The values out of all devices' shares `[shares, sum of pieces]`.
    pub(crate) fn set_from_pieces(&mut self, pieces: &Tensor<2>) {
        let [shares, _] = pieces.dims();
        let mut at = 0;
        for parameter in &mut self.parameters {
            let piece = parameter.piece();
            parameter.set_from_pieces(pieces.clone().slice([0..shares, at..at + piece]));
            at += piece;
        }
    }

    /// Numbers of all gradients that this device steps, padding included.
    pub(crate) fn gradient_len(&self) -> usize {
        self.parameters.iter().map(Parameter::final_len).sum()
    }

    /// Drops the values; shares stay.
    pub(crate) fn release(&mut self) {
        self.parameters.iter_mut().for_each(Parameter::release);
    }
}
