//! The end of a step: the norm of the gradients, and the optimizer on what a device has to step.
//!
//! One law: a number of the model counts once in the norm, however many devices hold it.

use crate::error::TaskError;
use crate::kernels::optimizer::{AdamW, adamw, scaled, sgd, sum_of_squares};
use crate::optimizer::OptimizerConfig;
use crate::parameter::{Block, Copies, Parameter};

/// Which copies of a parameter a device's own are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Which of the tensor-parallel ranks.
    pub(crate) tensor_rank: u32,
    /// Which of the replicas.
    pub(crate) replica: u32,
    /// Whether another stage's copy of everything counts instead: that of the first pipe.
    pub(crate) is_copy: bool,
}

/// The sum of squares of the gradients that this device answers for; `tied` is a weight whose other copy counts.
pub(crate) fn squares(blocks: &[Block], standing: Standing, tied: Option<(usize, usize)>) -> f64 {
    let mut sum = 0.0;
    for (i, block) in blocks.iter().enumerate().filter(|_| !standing.is_copy) {
        let counted = block.parameters.iter().enumerate().filter(|(j, _)| tied != Some((i, *j)));
        sum += counted.map(|(_, parameter)| squares_of(parameter, standing)).sum::<f64>();
    }
    sum
}

fn squares_of(parameter: &Parameter, standing: Standing) -> f64 {
    let Some(gradient) = parameter.final_gradient() else { return 0.0 };
    if !parameter.is_shared_out() && standing.replica > 0 {
        return 0.0;
    }
    let counts = |copies: Copies| match copies {
        Copies::None => true,
        Copies::All => standing.tensor_rank == 0,
        Copies::Neighbours(n) => standing.tensor_rank.is_multiple_of(n.max(1)),
    };
    let mut sum = 0.0;
    for (held, range, at) in parameter.owned_parts() {
        if counts(held.copies) {
            sum += sum_of_squares(&gradient.clone().slice([at..at + range.len()]));
        }
    }
    sum
}

/// The factor that brings gradients of this norm down to at most `limit` (torch.nn.utils.clip_grad_norm_).
pub(crate) fn clip_factor(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

/// Multiplies all gradients.
pub(crate) fn scale(blocks: &mut [Block], factor: f64) {
    for parameter in blocks.iter_mut().flat_map(|block| &mut block.parameters) {
        if let Some(gradient) = parameter.take_final_gradient() {
            parameter.set_final_gradient(scaled(gradient, factor as f32));
        }
    }
}

/// Steps every parameter that has a gradient, and drops the gradients. `step` counts from 1.
///
/// # Errors
/// The first parameter whose gradient is not finite.
pub(crate) fn update(blocks: &mut [Block], config: &OptimizerConfig, step: u64) -> Result<(), TaskError> {
    for parameter in blocks.iter_mut().flat_map(|block| &mut block.parameters) {
        let Some(gradient) = parameter.take_final_gradient() else { continue };
        if !sum_of_squares(&gradient).is_finite() {
            let name = parameter.held().first().map_or_else(String::new, |held| held.shard.name.clone());
            return Err(TaskError::GradientNotFinite { name });
        }
        let value = parameter.take_main().ok_or(TaskError::Missing("the value of a parameter"))?;
        let zeros = |value: &burn::tensor::Tensor<1>| burn::tensor::Tensor::zeros(value.dims(), &value.device());
        let mut moments = std::mem::take(&mut parameter.moments).into_iter();
        let value = match *config {
            OptimizerConfig::AdamW { lr, beta1, beta2, eps, weight_decay } => {
                let first = moments.next().unwrap_or_else(|| zeros(&value));
                let second = moments.next().unwrap_or_else(|| zeros(&value));
                let numbers = AdamW { lr, beta1, beta2, eps, weight_decay };
                let (value, first, second) = adamw(value, &gradient, first, second, &numbers, step);
                parameter.moments = vec![first, second];
                value
            }
            OptimizerConfig::Sgd { lr, momentum } => {
                let before = moments.next();
                let (value, velocity) = sgd(value, &gradient, before, lr, momentum);
                parameter.moments = velocity.into_iter().collect();
                value
            }
        };
        parameter.set_main(value);
    }
    Ok(())
}
