//! Parameters and gradients by name.
//!
//! One law: names and flat row-major numbers are the same whatever stage, rank or device holds a parameter, so two runs
//! can be compared.
//!
//! Gradients are added up with burn's `GradientsAccumulator`: one tensor a parameter, added in place where the sum is
//! held by nothing else, strictly in the order of the calls. So the sum is bit-reproducible exactly when the order of
//! the backward tasks is, which a schedule fixes; two schedules with another order may differ in the last bits.

use crate::stage_module::StageModule;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;

/// Hugging Face name of the token embedding, and of a head tied to it.
pub const TOKEN_EMBEDDING: &str = "transformer.wte.weight";

/// Why a parameter or its gradient cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The module does not hold it as a matrix.
    #[error("this stage has no parameter matrix named {name}")]
    NoSuchMatrix {
        /// The name asked for.
        name: String,
    },
    /// There is no gradient for it.
    #[error("there is no gradient of {name}")]
    NoGradient {
        /// The name.
        name: String,
    },
    /// A gradient of another shape than the parameter.
    #[error("{name} has shape {expected:?}, the gradient given for it {got:?}")]
    Shape {
        /// The name.
        name: String,
        /// Shape of the parameter.
        expected: Vec<usize>,
        /// Shape of the gradient.
        got: Vec<usize>,
    },
    /// Gradients of two copies of a stage that do not go together.
    #[error("this copy of the stage has {own} gradient values, the other one {other}")]
    Copies {
        /// Values of this copy.
        own: usize,
        /// Values of the other.
        other: usize,
    },
}

/// Number of parameters of the part, each counted once.
pub fn count<M: Module>(module: &M) -> u64 {
    struct Count(u64);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
            self.0 += p.val().shape().num_elements() as u64;
        }
    }
    let mut counter = Count(0);
    module.visit(&mut counter);
    counter.0
}

/// Every parameter with its name, flat row major, in the order of [`StageModule::parameter_names`].
pub fn parameters_by_name<M: StageModule>(module: &M) -> Vec<(String, Vec<f32>)> {
    collect(module, None)
}

/// Every gradient with its parameter's name, flat row major, in the order of [`StageModule::parameter_names`].
/// Parameters without a gradient are left out.
pub fn gradients_by_name<M: StageModule>(module: &M, grads: &GradientsParams) -> Vec<(String, Vec<f32>)> {
    collect(module, Some(grads))
}

/// Takes the gradient of the matrix `name` out of `grads`.
///
/// # Errors
/// [`ParameterError::NoSuchMatrix`], [`ParameterError::NoGradient`].
pub fn take_gradient<M: StageModule>(
    module: &M,
    grads: &mut GradientsParams,
    name: &str,
) -> Result<Tensor<2>, ParameterError> {
    let (id, _) = find_matrix(module, name)?;
    grads.remove::<2>(id).ok_or_else(|| ParameterError::NoGradient { name: name.to_owned() })
}

/// Puts `grad` into `grads` as the gradient of the matrix `name`, in place of any before.
///
/// # Errors
/// [`ParameterError::NoSuchMatrix`], [`ParameterError::Shape`].
pub fn put_gradient<M: StageModule>(
    module: &M,
    grads: &mut GradientsParams,
    name: &str,
    grad: Tensor<2>,
) -> Result<(), ParameterError> {
    let (id, shape) = find_matrix(module, name)?;
    if shape != grad.dims() {
        let (expected, got) = (shape.to_vec(), grad.dims().to_vec());
        return Err(ParameterError::Shape { name: name.to_owned(), expected, got });
    }
    grads.register(id, grad.without_autodiff());
    Ok(())
}

/// Every gradient one behind the other, each flat row major, in the order of a module visit. Parameters without a
/// gradient are left out; two copies of a stage leave out the same.
pub fn flat_gradients<M: Module>(module: &M, grads: &GradientsParams) -> Vec<f32> {
    struct Flatten<'a> {
        grads: &'a GradientsParams,
        values: Vec<f32>,
    }
    impl ModuleVisitor for Flatten<'_> {
        fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
            if let Some(gradient) = self.grads.get::<D>(p.id) {
                self.values.extend(gradient.into_data().iter::<f32>());
            }
        }
    }
    let mut flatten = Flatten { grads, values: Vec::new() };
    module.visit(&mut flatten);
    flatten.values
}

/// Puts `values`, in the order of [`flat_gradients`], in the place of the gradients that are there.
///
/// # Errors
/// [`ParameterError::Copies`] when there are more values than gradients, or fewer.
pub fn set_flat_gradients<M: Module>(
    module: &M,
    grads: &mut GradientsParams,
    values: &[f32],
    device: &Device,
) -> Result<(), ParameterError> {
    struct Fill<'a> {
        grads: &'a mut GradientsParams,
        values: &'a [f32],
        device: &'a Device,
        at: usize,
    }
    impl ModuleVisitor for Fill<'_> {
        fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
            let Some(old) = self.grads.get::<D>(p.id) else { return };
            let shape = old.dims();
            let end = self.at + shape.iter().product::<usize>();
            if let Some(values) = self.values.get(self.at..end) {
                let data = TensorData::new(values.to_vec(), shape);
                self.grads.register(p.id, Tensor::<D>::from_data(data, self.device));
            }
            self.at = end;
        }
    }
    let mut fill = Fill { grads, values, device, at: 0 };
    module.visit(&mut fill);
    if fill.at == values.len() { Ok(()) } else { Err(ParameterError::Copies { own: fill.at, other: values.len() }) }
}

/// The module with the numbers of `named` in its parameters, of each name the first that is given. A parameter that is
/// not named, or named with another number of numbers, stays as it is.
pub fn with_parameters<M: StageModule>(module: M, named: &[(String, Vec<f32>)]) -> M {
    struct Replace<'a> {
        values: BTreeMap<ParamId, &'a [f32]>,
    }
    impl ModuleMapper for Replace<'_> {
        fn map_float<const D: usize>(&mut self, p: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (shape, device) = (p.val().dims(), p.val().device());
            match self.values.remove(&p.id).filter(|values| values.len() == shape.iter().product::<usize>()) {
                Some(values) => {
                    let tensor = Tensor::from_data(TensorData::new(values.to_vec(), shape), &device);
                    Param::initialized(p.id, tensor.require_grad())
                }
                None => p,
            }
        }
    }
    let of = |name: &String| named.iter().find(|(n, _)| n == name).map(|(_, values)| values.as_slice());
    let values = module.parameter_names().iter().filter_map(|(id, name)| Some((*id, of(name)?))).collect();
    module.map(&mut Replace { values })
}

/// Id and shape of the matrix `name`. burn panics when a gradient is asked for with the wrong number of dimensions,
/// so these are looked up first.
fn find_matrix<M: StageModule>(module: &M, name: &str) -> Result<(ParamId, [usize; 2]), ParameterError> {
    struct Find {
        id: ParamId,
        shape: Option<[usize; 2]>,
    }
    impl ModuleVisitor for Find {
        fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
            if p.id == self.id {
                self.shape = <[usize; 2]>::try_from(&p.val().dims()[..]).ok();
            }
        }
    }
    let missing = || ParameterError::NoSuchMatrix { name: name.to_owned() };
    let (id, _) = module.parameter_names().into_iter().find(|(_, n)| n == name).ok_or_else(missing)?;
    let mut find = Find { id, shape: None };
    module.visit(&mut find);
    Ok((id, find.shape.ok_or_else(missing)?))
}

fn collect<M: StageModule>(module: &M, grads: Option<&GradientsParams>) -> Vec<(String, Vec<f32>)> {
    struct Collect<'a> {
        grads: Option<&'a GradientsParams>,
        values: BTreeMap<ParamId, Vec<f32>>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
            let tensor = match self.grads {
                Some(grads) => grads.get::<D>(p.id),
                None => Some(p.val()),
            };
            if let Some(tensor) = tensor {
                self.values.insert(p.id, tensor.into_data().iter::<f32>().collect());
            }
        }
    }
    let mut collected = Collect { grads, values: BTreeMap::new() };
    module.visit(&mut collected);
    let named = |(id, name)| Some((name, collected.values.remove(&id)?));
    module.parameter_names().into_iter().filter_map(named).collect()
}
