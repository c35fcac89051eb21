//! First values of parameters.
//!
//! One law: a parameter's values depend on the seed and its Hugging Face name alone, so every split of a model starts
//! from the same numbers, and no rank ever builds more than its part.

use crate::random::named_stream;
use rand_distr::{Distribution, Normal, NormalError};

/// How a parameter is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Every value is this number.
    Constant(f32),
    /// Normally distributed around 0 with this standard deviation.
    Normal(f32),
}

/// The first values of the parameter `name` with `len` values, row major.
///
/// # Errors
/// When a standard deviation is not finite.
pub fn values(seed: u64, name: &str, len: usize, fill: Fill) -> Result<Vec<f32>, NormalError> {
    match fill {
        Fill::Constant(x) => Ok(vec![x; len]),
        Fill::Normal(std) => Ok(Normal::new(0.0, std)?.sample_iter(named_stream(seed, name)).take(len).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_seed_and_name_alone() {
        let draw = |seed, name, len| values(seed, name, len, Fill::Normal(0.02)).unwrap();
        assert_eq!(draw(1, "a", 10)[..5], draw(1, "a", 5));
        assert_ne!(draw(1, "a", 5), draw(2, "a", 5));
        assert_ne!(draw(1, "a", 5), draw(1, "b", 5));
        assert!(values(1, "a", 5, Fill::Normal(f32::NAN)).is_err());
    }

    #[test]
    fn the_spread_is_as_asked() {
        let x = values(7, "transformer.wte.weight", 40_000, Fill::Normal(0.02)).unwrap();
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / x.len() as f64;
        assert!(mean.abs() < 4e-4 && (variance.sqrt() - 0.02).abs() < 3e-4, "mean {mean}, std {}", variance.sqrt());
    }
}
