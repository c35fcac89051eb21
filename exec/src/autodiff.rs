//! Backward from an output gradient, and operations with a hand-written backward.
//!
//! One law: a tape stays within one rank and one segment; what crosses is plain tensors.
//!
//! A custom operation is a node on burn's tape whose backward is a closure over plain tensors. The closure runs on the
//! thread that called `backward`. It must not touch the parameter leaves of the graph that is being walked (a nested
//! backward on them would wait for itself).
//!
//! An operation with parameters gives the gradient of its input at once and those of its parameters as a closure. A
//! plain backward (B) runs that closure on the spot; inside [`deferring`] (I) it goes to a [`WeightGradients`] store, and
//! W runs it later. The same closure on the same tensors: the same bits.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients as Tape;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::module::{Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// Why there is no backward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AutodiffError {
    /// The gradient does not fit the output.
    #[error("the output has shape {output:?}, but its gradient has shape {gradient:?}")]
    Shape {
        /// Shape of the output.
        output: Vec<usize>,
        /// Shape of the gradient.
        gradient: Vec<usize>,
    },
    /// The output is a plain tensor: nothing was recorded.
    #[error("the output has no tape: it was computed without autodiff")]
    NoTape,
    /// The tensor lives on a backend or with a checkpointing strategy this crate does not use.
    #[error("the tensor does not belong to this crate's autodiff backends: {reason}")]
    Backend {
        /// burn's words.
        reason: String,
    },
}

/// The gradients of everything `out` depends on, given the gradient `grad` of `out` (both of one shape). The tape of
/// `out` is used up.
///
/// # Errors
/// [`AutodiffError::Shape`], [`AutodiffError::NoTape`], [`AutodiffError::Backend`].
pub fn backward_from<const D: usize>(out: Tensor<D>, grad: Tensor<D>) -> Result<Gradients, AutodiffError> {
    if out.dims() != grad.dims() {
        return Err(AutodiffError::Shape { output: out.dims().to_vec(), gradient: grad.dims().to_vec() });
    }
    if !out.is_autodiff() {
        return Err(AutodiffError::NoTape);
    }
    let grad = grad.without_autodiff();
    // burn starts a backward with a gradient of 1 at the end: an end whose backward answers `grad`, whatever it gets.
    let end = custom_op(out, |out: Tensor<D>| {
        let end = Tensor::<1>::zeros([1], &out.device());
        (end, move |_: Tensor<1>| grad.clone())
    })?;
    Ok(end.backward())
}

/// One operation of one input with its own backward. `forward` maps the plain input to the plain output and the
/// closure that maps the output's gradient to the input's; what the closure captures is what the tape keeps. On a
/// plain tensor it is just `forward`.
///
/// # Errors
/// [`AutodiffError::Backend`].
pub fn custom_op<const I: usize, const O: usize, F>(
    input: Tensor<I>,
    forward: impl FnOnce(Tensor<I>) -> (Tensor<O>, F),
) -> Result<Tensor<O>, AutodiffError>
where
    F: Fn(Tensor<O>) -> Tensor<I> + Send + Sync + 'static,
{
    if !input.is_autodiff() {
        return Ok(forward(input).0);
    }
    #[cfg(feature = "cuda")]
    if matches!(input.device().without_autodiff().as_dispatch(), burn::backend::DispatchDevice::Cube(_)) {
        return unary_on::<burn::backend::Cube, I, O, F>(input, forward);
    }
    unary_on::<burn::backend::Flex, I, O, F>(input, forward)
}

/// A parameter as an operation takes it.
#[derive(Clone, Debug)]
pub struct Parameter<const D: usize> {
    /// Whose gradient it is; a constant has none.
    id: Option<ParamId>,
    value: Tensor<D>,
}

impl<const D: usize> Parameter<D> {
    /// A tensor that stands in the place of a parameter and gets no gradient.
    pub fn constant(value: Tensor<D>) -> Self {
        Self { id: None, value: value.without_autodiff() }
    }

    /// Its value, on the tape.
    pub fn value(&self) -> Tensor<D> {
        self.value.clone()
    }
}

impl<const D: usize> From<&Param<Tensor<D>>> for Parameter<D> {
    fn from(param: &Param<Tensor<D>>) -> Self {
        Self { id: Some(param.id), value: param.val() }
    }
}

/// Weight gradients that are still to be computed: one closure an operation, in the order of the backward, with the
/// tensors it needs.
#[derive(Default)]
pub struct WeightGradients {
    jobs: Vec<Job>,
}

/// Computes the gradients of one operation's parameters and adds them.
type Job = Box<dyn FnOnce(&mut GradientsParams) + Send>;

impl WeightGradients {
    /// Computes them all and adds each to the gradient that `grads` has of the same parameter.
    pub fn compute(self, grads: &mut GradientsParams) {
        for job in self.jobs {
            job(grads);
        }
    }

    /// Operations whose weight gradients are still to be computed.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

thread_local! {
    /// The store of the backward that runs on this thread, if it defers weight gradients.
    static DEFERRED: RefCell<Option<WeightGradients>> = const { RefCell::new(None) };
}

/// Runs a backward in which operations with parameters put their weight gradients off, and gives what was put off.
/// Parameters of burn's own operations get their gradients in the backward as always.
pub fn deferring<R>(backward: impl FnOnce() -> R) -> (R, WeightGradients) {
    /// Ends the deferral even if the backward panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            DEFERRED.take();
        }
    }
    let _end = End;
    DEFERRED.set(Some(WeightGradients::default()));
    let result = backward();
    (result, DEFERRED.take().unwrap_or_default())
}

/// The weight gradients now, or `None` when they were put off.
fn now_or_later<const V: usize, const W: usize>(
    ids: (Option<ParamId>, Option<ParamId>),
    gradients: impl FnOnce() -> (Tensor<V>, Tensor<W>) + Send + 'static,
) -> Option<(Tensor<V>, Tensor<W>)> {
    DEFERRED.with_borrow_mut(|deferred| {
        let Some(store) = deferred else { return Some(gradients()) };
        store.jobs.push(Box::new(move |grads| {
            let (v, w) = gradients();
            add(grads, ids.0, v);
            add(grads, ids.1, w);
        }));
        None
    })
}

fn add<const D: usize>(grads: &mut GradientsParams, id: Option<ParamId>, gradient: Tensor<D>) {
    let Some(id) = id else { return };
    // A parameter with two uses in one backward: the new gradient plus the old, as burn's tape adds them.
    let sum = match grads.remove::<D>(id) {
        Some(old) => gradient + old,
        None => gradient,
    };
    grads.register(id, sum);
}

/// One operation of a tensor and two parameters (a weight and a bias, say), as [`custom_op`]. The backward maps the
/// output's gradient to the input's and to a closure that gives the parameters'; see the module's text.
///
/// # Errors
/// [`AutodiffError::Backend`].
pub fn custom_op_with_parameters<const I: usize, const V: usize, const W: usize, const O: usize, F, G>(
    input: Tensor<I>,
    parameters: (Parameter<V>, Parameter<W>),
    forward: impl FnOnce(Tensor<I>, Tensor<V>, Tensor<W>) -> (Tensor<O>, F),
) -> Result<Tensor<O>, AutodiffError>
where
    F: Fn(Tensor<O>) -> (Tensor<I>, G) + Send + Sync + 'static,
    G: FnOnce() -> (Tensor<V>, Tensor<W>) + Send + 'static,
{
    let (v, w) = parameters;
    if !input.is_autodiff() && !v.value.is_autodiff() && !w.value.is_autodiff() {
        return Ok(forward(input, v.value, w.value).0);
    }
    #[cfg(feature = "cuda")]
    if matches!(input.device().without_autodiff().as_dispatch(), burn::backend::DispatchDevice::Cube(_)) {
        return ternary_on::<burn::backend::Cube, I, V, W, O, F, G>(input, v, w, forward);
    }
    ternary_on::<burn::backend::Flex, I, V, W, O, F, G>(input, v, w, forward)
}

type Closure<B, const N: usize> = dyn Fn(FloatTensor<B>) -> [Option<FloatTensor<B>>; N] + Send + Sync;

/// The backward of a custom operation of `N` inputs, as burn's tape wants to hold it.
struct Hook<B: Backend, const N: usize>(Arc<Closure<B, N>>);

impl<B: Backend, const N: usize> Clone for Hook<B, N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend, const N: usize> fmt::Debug for Hook<B, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

#[derive(Debug)]
struct Custom;

impl<B: Backend, const N: usize> Backward<B, N> for Custom {
    type State = Hook<B, N>;

    fn backward(self, ops: Ops<Self::State, N>, tape: &mut Tape, _: &mut Checkpointer) {
        let gradients = (ops.state.0)(tape.consume::<B>(&ops.node));
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            // A closure that left its backend gives no gradient; the missing one is noticed where it is looked for.
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                tape.register::<B>(parent.id, gradient);
            }
        }
    }
}

fn unary_on<B, const I: usize, const O: usize, F>(
    input: Tensor<I>,
    forward: impl FnOnce(Tensor<I>) -> (Tensor<O>, F),
) -> Result<Tensor<O>, AutodiffError>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, NoCheckpointing>>,
    F: Fn(Tensor<O>) -> Tensor<I> + Send + Sync + 'static,
{
    let (input, node) = into_autodiff::<B, I>(input)?.into_parts();
    let (out, backward) = forward(Tensor::from_primitive::<B>(input));
    let hook: Arc<Closure<B, 1>> =
        Arc::new(move |g| [backward(Tensor::from_primitive::<B>(g)).try_into_primitive::<B>().ok()]);
    let out = into_plain::<B, O>(out)?;
    let out = match <Custom as Backward<B, 1>>::prepare::<NoCheckpointing>(Custom, [node]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(Hook(hook), out),
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    };
    Ok(Tensor::from_primitive::<Autodiff<B, NoCheckpointing>>(out))
}

fn ternary_on<B, const I: usize, const V: usize, const W: usize, const O: usize, F, G>(
    input: Tensor<I>,
    v: Parameter<V>,
    w: Parameter<W>,
    forward: impl FnOnce(Tensor<I>, Tensor<V>, Tensor<W>) -> (Tensor<O>, F),
) -> Result<Tensor<O>, AutodiffError>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, NoCheckpointing>>,
    F: Fn(Tensor<O>) -> (Tensor<I>, G) + Send + Sync + 'static,
    G: FnOnce() -> (Tensor<V>, Tensor<W>) + Send + 'static,
{
    let ids = (v.id, w.id);
    let (input, node) = into_autodiff::<B, I>(input)?.into_parts();
    let (v, v_node) = into_autodiff::<B, V>(v.value)?.into_parts();
    let (w, w_node) = into_autodiff::<B, W>(w.value)?.into_parts();
    let (v, w) = (Tensor::from_primitive::<B>(v), Tensor::from_primitive::<B>(w));
    let (out, backward) = forward(Tensor::from_primitive::<B>(input), v, w);
    let hook: Arc<Closure<B, 3>> = Arc::new(move |g| {
        let (input, gradients) = backward(Tensor::from_primitive::<B>(g));
        let (v, w) = now_or_later(ids, gradients).unzip();
        let plain = |v: Tensor<V>| v.try_into_primitive::<B>().ok();
        [input.try_into_primitive::<B>().ok(), v.and_then(plain), w.and_then(|w| w.try_into_primitive::<B>().ok())]
    });
    let out = into_plain::<B, O>(out)?;
    let nodes = [node, v_node, w_node];
    let out = match <Custom as Backward<B, 3>>::prepare::<NoCheckpointing>(Custom, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(Hook(hook), out),
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    };
    Ok(Tensor::from_primitive::<Autodiff<B, NoCheckpointing>>(out))
}

fn into_autodiff<B, const D: usize>(
    tensor: Tensor<D>,
) -> Result<FloatTensor<Autodiff<B, NoCheckpointing>>, AutodiffError>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<Autodiff<B, NoCheckpointing>>,
{
    // A plain tensor among tracked ones becomes a constant of the tape.
    let tensor = if tensor.is_autodiff() { tensor } else { tensor.autodiff() };
    tensor
        .try_into_primitive::<Autodiff<B, NoCheckpointing>>()
        .map_err(|e| AutodiffError::Backend { reason: format!("{e:?}") })
}

fn into_plain<B, const D: usize>(tensor: Tensor<D>) -> Result<FloatTensor<B>, AutodiffError>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    tensor.try_into_primitive::<B>().map_err(|e| AutodiffError::Backend { reason: format!("{e:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn an_output_gradient_is_weighed_into_the_inputs() {
        let device = Device::flex();
        let x = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).autodiff().require_grad();
        let w = Tensor::<2>::from_floats([[0.5, -1.0], [2.0, 1.0]], &device).autodiff().require_grad();
        let g = Tensor::<2>::from_floats([[1.0, 0.0], [0.5, -2.0]], &device);
        let ours = backward_from(x.clone().matmul(w.clone()), g.clone()).unwrap();
        let theirs = (x.clone().matmul(w.clone()) * g.autodiff()).sum().backward();
        for leaf in [&x, &w] {
            assert_eq!(values(leaf.grad(&ours).unwrap()), values(leaf.grad(&theirs).unwrap()));
        }
    }

    #[test]
    fn wrong_shapes_and_plain_outputs_are_errors() {
        let device = Device::flex();
        let x = Tensor::<2>::ones([2, 3], &device).autodiff().require_grad();
        let error = backward_from(x.clone() * 2.0, Tensor::ones([3, 2], &device)).err();
        assert_eq!(error, Some(AutodiffError::Shape { output: vec![2, 3], gradient: vec![3, 2] }));
        assert_eq!(backward_from(x.inner(), Tensor::ones([2, 3], &device)).err(), Some(AutodiffError::NoTape));
    }

    #[test]
    fn custom_operations_use_their_own_backward() {
        let device = Device::flex();
        let square = |x: Tensor<1>| custom_op(x, |x: Tensor<1>| (x.clone() * x.clone(), move |g| g * x.clone() * 10.0));
        let plain = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &device);
        assert_eq!(values(square(plain.clone()).unwrap()), [1.0, 4.0, 9.0]);
        let x = plain.autodiff().require_grad();
        let y = square(x.clone()).unwrap();
        let grads = backward_from(y * 2.0, Tensor::ones([3], &device)).unwrap();
        assert_eq!(values(x.grad(&grads).unwrap()), [20.0, 40.0, 60.0]);
    }

    /// `y = a x + b` with a parameter `a` and a constant `b`.
    fn scaled(x: Tensor<1>, a: &Param<Tensor<1>>, b: Tensor<1>) -> Tensor<1> {
        let y = custom_op_with_parameters(x, (a.into(), Parameter::constant(b)), |x, a: Tensor<1>, b: Tensor<1>| {
            let out = x.clone() * a.clone() + b;
            (out, move |g: Tensor<1>| {
                let x = x.clone();
                (g.clone() * a.clone(), move || (g.clone() * x, g))
            })
        });
        y.unwrap()
    }

    #[test]
    fn parameters_get_their_gradients_and_constants_get_none() {
        let device = Device::flex();
        let v = |x: f32| Tensor::<1>::full([2], x, &device);
        let (x, a) = (v(3.0).autodiff().require_grad(), Param::from_tensor(v(2.0).autodiff().require_grad()));
        let y = scaled(x.clone(), &a, v(1.0));
        assert_eq!(values(y.clone().inner()), [7.0, 7.0]);
        let grads = backward_from(y, v(1.0)).unwrap();
        assert_eq!(values(x.grad(&grads).unwrap()), [2.0, 2.0]);
        assert_eq!(values(a.val().grad(&grads).unwrap()), [3.0, 3.0]);
    }

    #[test]
    fn deferred_gradients_come_later_and_add_up() {
        let device = Device::flex();
        let v = |x: f32| Tensor::<1>::full([2], x, &device);
        let (x, a) = (v(3.0).autodiff().require_grad(), Param::from_tensor(v(2.0).autodiff().require_grad()));
        let y = scaled(scaled(x.clone(), &a, v(1.0)), &a, v(0.0));
        let (grads, later) = deferring(|| backward_from(y, v(1.0)).unwrap());
        assert_eq!(values(x.grad(&grads).unwrap()), [4.0, 4.0]);
        assert!(a.val().grad(&grads).is_none(), "not in the backward itself");
        assert_eq!(later.len(), 2);
        let mut params = GradientsParams::new();
        later.compute(&mut params);
        // y = a (a x + 1): dy/da = 2 a x + 1.
        assert_eq!(values(params.get::<1>(a.id).unwrap()), [13.0, 13.0]);
        let again = backward_from(scaled(x, &a, v(0.0)), v(1.0)).unwrap();
        assert!(a.val().grad(&again).is_some(), "only inside");
    }
}
