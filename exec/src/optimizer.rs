//! Optimizers by name, with PyTorch's defaults.
//!
//! One law: a step depends on the parameter, its gradient and its own state alone, so any split of the model over
//! ranks takes the same step.

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
}
