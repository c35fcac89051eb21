//! Optimizers by name, with PyTorch's defaults.
//!
//! One law: a step depends on the parameter, its gradient and its own state alone, so any split of the model over
//! ranks takes the same step.

use burn::module::Module;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};

/// Which optimizer, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerConfig {
    /// Adam with decoupled weight decay.
    AdamW {
        /// Learning rate.
        lr: f64,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
        /// Weight decay, times the learning rate, of every parameter.
        weight_decay: f32,
    },
    /// Stochastic gradient descent, with momentum when it is not 0 (no dampening, as in PyTorch).
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        momentum: f64,
    },
}

impl OptimizerConfig {
    /// AdamW with `torch.optim.AdamW`'s defaults: betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
    pub fn adamw(lr: f64) -> Self {
        Self::AdamW { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }

    /// Plain SGD.
    pub fn sgd(lr: f64) -> Self {
        Self::Sgd { lr, momentum: 0.0 }
    }

    /// State kept for each fp32 parameter between steps \[B\].
    pub fn state_bytes_per_parameter(&self) -> u64 {
        match self {
            Self::AdamW { .. } => 8,
            Self::Sgd { momentum, .. } if *momentum == 0.0 => 0,
            Self::Sgd { .. } => 4,
        }
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        match self {
            Self::AdamW { lr, .. } | Self::Sgd { lr, .. } => *lr,
        }
    }

    fn build(&self) -> ModuleOptimizer {
        match *self {
            Self::AdamW { beta1, beta2, eps, weight_decay, .. } => AdamWConfig::new()
                .with_beta_1(beta1)
                .with_beta_2(beta2)
                .with_epsilon(eps)
                .with_weight_decay(weight_decay)
                .init(),
            Self::Sgd { momentum, .. } => {
                let momentum =
                    (momentum != 0.0).then_some(MomentumConfig { momentum, dampening: 0.0, nesterov: false });
                SgdConfig::new().with_momentum(momentum).init()
            }
        }
    }
}

/// An optimizer with its state.
pub struct Optimizer {
    config: OptimizerConfig,
    inner: ModuleOptimizer,
}

impl Optimizer {
    /// An optimizer without state yet.
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, inner: config.build() }
    }

    /// What it was made from.
    pub fn config(&self) -> &OptimizerConfig {
        &self.config
    }

    /// The module after one step; parameters without a gradient stay as they are. The parameters' storage is reused
    /// when nothing else holds the module, so pass the module itself, not a clone.
    pub fn step<M: Module>(&mut self, module: M, grads: GradientsParams) -> M {
        self.inner.step(self.config.lr(), module, grads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::{Fill, parameter};
    use burn::module::Param;
    use burn::tensor::{Device, Tensor};

    #[derive(Module, Debug)]
    struct One {
        w: Param<Tensor<1>>,
    }

    /// `w` after each step with the given gradients, from `w = 1`.
    fn steps(config: OptimizerConfig, gradients: &[f32]) -> Vec<f64> {
        let device = Device::flex().autodiff();
        let mut module = One { w: parameter(0, "w", [1], Fill::Constant(1.0), &device).unwrap() };
        let mut optimizer = Optimizer::new(config);
        let mut out = Vec::new();
        for g in gradients {
            let mut grads = GradientsParams::new();
            grads.register(module.w.id, Tensor::<1>::from_floats([*g], &Device::flex()));
            module = optimizer.step(module, grads);
            assert!(module.w.val().is_require_grad());
            out.push(f64::from(module.w.val().into_scalar::<f32>()));
        }
        out
    }

    fn assert_close(got: &[f64], want: &[f64]) {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6) && got.len() == want.len(), "{got:?} {want:?}");
    }

    #[test]
    fn sgd_follows_its_formula() {
        assert_close(&steps(OptimizerConfig::sgd(0.1), &[1.0, 2.0]), &[0.9, 0.7]);
        // PyTorch: v = 0.9 v + g (no dampening).
        let momentum = OptimizerConfig::Sgd { lr: 0.1, momentum: 0.9 };
        assert_close(&steps(momentum, &[1.0, 2.0, 0.0]), &[0.9, 0.61, 0.349]);
        assert_eq!(
            (OptimizerConfig::sgd(0.1).state_bytes_per_parameter(), momentum.state_bytes_per_parameter()),
            (0, 4)
        );
    }

    #[test]
    fn adamw_follows_its_formula() {
        let config = OptimizerConfig::adamw(0.01);
        let gradients = [0.5f32, -1.0, 2.0];
        let (mut w, mut m, mut v) = (1.0f64, 0.0, 0.0);
        let mut want = Vec::new();
        for (t, g) in (1..).zip(gradients.map(f64::from)) {
            w -= 0.01 * 0.01 * w;
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            w -= 0.01 * (m / (1.0 - 0.9f64.powi(t))) / ((v / (1.0 - 0.999f64.powi(t))).sqrt() + 1e-8);
            want.push(w);
        }
        assert_close(&steps(config, &gradients), &want);
        assert_eq!(config.state_bytes_per_parameter(), 8);
    }
}
