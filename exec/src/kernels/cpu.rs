//! The values of tensors on burn's CPU backend as slices.
//!
//! One law: only plain fp32 tensors on the CPU are read so; for all others the answer is `None`, and the caller uses burn's
//! operations.

use burn::backend::{DispatchDevice, Flex};
use burn::tensor::{DType, Device, Tensor, TensorData};
use pulp::Arch;

type Inner = <Flex as burn::backend::BackendTypes>::FloatTensorPrimitive;

/// The values of a tensor, row major and side by side.
pub(super) struct Values {
    tensor: Inner,
    start: usize,
    len: usize,
}

impl Values {
    /// Those of `x`; copied only where it is a view whose values do not stand side by side.
    pub(super) fn of<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        let tensor = inner(x)?.to_contiguous();
        Some(Self { start: tensor.layout().start_offset(), len: x.dims().iter().product(), tensor })
    }

    pub(super) fn slice(&self) -> &[f32] {
        self.tensor.storage::<f32>().get(self.start..self.start + self.len).unwrap_or(&[])
    }
}

/// A matrix whose rows stand apart and whose columns stand side by side or, transposed, the other way round.
pub(super) struct Rows {
    tensor: Inner,
    start: usize,
    /// Rows and columns.
    pub(super) dims: [usize; 2],
    /// From one row, and from one column, to the next.
    pub(super) strides: [usize; 2],
}

impl Rows {
    /// `x` as it stands in memory.
    pub(super) fn of(x: &Tensor<2>) -> Option<Self> {
        let mut tensor = inner(x)?;
        let positive = |t: &Inner| t.layout().strides().iter().all(|stride| *stride >= 0);
        if !positive(&tensor) {
            tensor = tensor.to_contiguous();
        }
        let strides = tensor.layout().strides().iter().map(|stride| stride.unsigned_abs()).collect::<Vec<_>>();
        let strides = <[usize; 2]>::try_from(strides.as_slice()).ok()?;
        Some(Self { start: tensor.layout().start_offset(), dims: x.dims(), strides, tensor })
    }

    /// The same with the columns of a row side by side.
    pub(super) fn by_row(x: &Tensor<2>) -> Option<Self> {
        let rows = Self::of(x)?;
        if rows.strides[1] == 1 {
            return Some(rows);
        }
        let tensor = rows.tensor.to_contiguous();
        Some(Self { start: tensor.layout().start_offset(), dims: rows.dims, strides: [rows.dims[1], 1], tensor })
    }

    /// The storage from its first value on.
    pub(super) fn storage(&self) -> &[f32] {
        self.tensor.storage::<f32>().get(self.start..).unwrap_or(&[])
    }
}

fn inner<const D: usize>(x: &Tensor<D>) -> Option<Inner> {
    fits(x).then(|| x.clone().try_into_primitive::<Flex>().ok()).flatten()
}

fn fits<const D: usize>(x: &Tensor<D>) -> bool {
    !x.is_autodiff() && x.dtype() == DType::F32 && matches!(x.device().as_dispatch(), DispatchDevice::Flex(_))
}

/// Changes the values of a tensor in place, or in a copy where others hold them too. Gives the tensor back where it is of
/// another kind.
#[expect(clippy::result_large_err, reason = "the tensor itself, handed back")]
pub(super) fn edit<const D: usize>(x: Tensor<D>, change: impl FnOnce(&mut [f32])) -> Result<Tensor<D>, Tensor<D>> {
    if !fits(&x) {
        return Err(x);
    }
    let len: usize = x.dims().iter().product();
    let Ok(tensor) = x.clone().try_into_primitive::<Flex>() else { return Err(x) };
    drop(x);
    let mut tensor = if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() };
    let whole = tensor.layout().start_offset() == 0 && tensor.storage::<f32>().len() == len;
    if !whole {
        // A part of a larger buffer: its own values alone, in a buffer of their own.
        let dims: Vec<usize> = tensor.layout().shape().iter().copied().collect();
        let start = tensor.layout().start_offset();
        let values = tensor.storage::<f32>().get(start..start + len).unwrap_or(&[]).to_vec();
        tensor = Inner::from_data(TensorData::new(values, dims));
    }
    let values = tensor.storage_mut::<f32>();
    Arch::new().dispatch(|| change(values));
    Ok(Tensor::from_primitive::<Flex>(tensor))
}

/// A tensor of new values, of shape `dims`, that `fill` writes into zeros.
pub(super) fn make<const D: usize>(dims: [usize; D], device: &Device, fill: impl FnOnce(&mut [f32])) -> Tensor<D> {
    let mut values = vec![0.0f32; dims.iter().product()];
    Arch::new().dispatch(|| fill(&mut values));
    Tensor::from_data(TensorData::new(values, dims), device)
}

/// Whether a kernel may run: the device of `x` is the CPU and its format fp32.
pub(super) fn is_cpu<const D: usize>(x: &Tensor<D>) -> bool {
    fits(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    fn values<const D: usize>(x: &Tensor<D>) -> Vec<f32> {
        x.clone().into_data().iter().collect()
    }

    #[test]
    fn views_are_read_in_their_own_order() {
        let x = Tensor::<2>::random([6, 9], Distribution::Default, &Device::flex());
        let view = x.slice([1..4, 2..9]);
        assert_eq!(Values::of(&view).unwrap().slice(), values(&view));
        let turned = view.transpose();
        assert_eq!(Values::of(&turned).unwrap().slice(), values(&turned));
        let rows = Rows::of(&turned).unwrap();
        let at = |r: usize, c: usize| rows.storage()[r * rows.strides[0] + c * rows.strides[1]];
        let read: Vec<f32> = (0..7).flat_map(|r| (0..3).map(move |c| (r, c))).map(|(r, c)| at(r, c)).collect();
        assert_eq!(read, values(&turned));
        assert_eq!(Rows::by_row(&turned).unwrap().strides, [3, 1]);
    }

    #[test]
    fn a_change_in_place_never_shows_elsewhere() {
        let device = Device::flex();
        let x = Tensor::<2>::random([4, 5], Distribution::Default, &device);
        let before = values(&x);
        let twice = |x: Tensor<2>| edit(x, |values| values.iter_mut().for_each(|v| *v *= 2.0)).unwrap();
        let wanted: Vec<f32> = before.iter().map(|v| v * 2.0).collect();
        assert_eq!(values(&twice(x.clone())), wanted);
        assert_eq!(values(&x), before, "another holder keeps its values");
        let part = twice(x.clone().slice([1..3, 0..5]));
        assert_eq!(values(&part), wanted[5..15]);
        assert_eq!(values(&x), before);
        assert_eq!(values(&twice(x.transpose().transpose())), wanted);
    }

    #[test]
    fn tensors_of_other_kinds_are_left_alone() {
        let x = Tensor::<1>::ones([4], &Device::flex());
        assert!(Values::of(&x.clone().autodiff()).is_none());
        assert!(Values::of(&x.clone().cast(DType::F64)).is_none());
        assert!(edit(x.cast(DType::F64), |_| {}).is_err());
    }
}
