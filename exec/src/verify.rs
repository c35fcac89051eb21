//! Lossless means checked: a run against the reference, number by number.
//!
//! One law: differences are reported as they are; the tolerance is stated here, with its reason.

use crate::reference::Reference;
use crate::run::{Named, Run};
use std::collections::BTreeMap;

/// How far two numbers may lie apart: `absolute + relative x` the largest number of the same tensor.
///
/// fp32 keeps about 7 digits (`2^-24 = 6e-8` relative a rounding). A split changes no operation, only in places the
/// order in which gradients are added (a tied embedding adds its two uses once a step instead of once a microbatch),
/// which moves a sum of `m` terms by some `m` roundings. `1e-5` of the tensor's largest number leaves two digits for
/// that; `1e-7` lets gradients that are zero but for rounding (an attention's key bias) differ. Parameters after AdamW
/// may differ by a share of the learning rate where such a gradient is divided by its own size, see
/// [`Tolerance::parameters`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Allowed in any case.
    pub absolute: f64,
    /// Allowed as a share of the tensor's largest number.
    pub relative: f64,
}

impl Tolerance {
    /// For losses and gradients.
    pub const ROUNDING: Tolerance = Tolerance { absolute: 1e-7, relative: 1e-5 };

    /// For parameters after `steps` optimizer steps with learning rate `lr`. Where every gradient agrees bit for bit
    /// the parameters do too; else a rounding in a near-zero gradient can turn an AdamW update of at most `lr` a step.
    pub fn parameters(lr: f64, steps: u64) -> Tolerance {
        Tolerance { absolute: 2.0 * lr * steps as f64, relative: 1e-5 }
    }

    fn allows(&self, difference: f64, largest: f64) -> bool {
        difference <= self.absolute + self.relative * largest
    }
}

/// The first number that differs by more than the tolerance.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The step, from 0.
    pub step: usize,
    /// `loss`, `gradient` or `parameter`.
    pub what: &'static str,
    /// Hugging Face name of the parameter; empty for a loss.
    pub name: String,
    /// Position in the flat tensor.
    pub index: usize,
    /// What the run gave.
    pub value: f64,
    /// What the reference gave.
    pub reference: f64,
}

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Steps compared.
    pub steps: usize,
    /// Largest difference of a step's loss.
    pub max_loss_diff: f64,
    /// Largest difference of a gradient.
    pub max_gradient_diff: f64,
    /// Largest difference of a parameter after the last step.
    pub max_parameter_diff: f64,
    /// Numbers compared.
    pub compared: usize,
    /// The first difference beyond the tolerance, `None` when all is well.
    pub first_difference: Option<Difference>,
}

impl Comparison {
    /// Whether every number agrees within its tolerance.
    pub fn ok(&self) -> bool {
        self.first_difference.is_none() && self.compared > 0
    }

    /// Whether every number agrees to the last bit.
    pub fn exact(&self) -> bool {
        self.ok() && [self.max_loss_diff, self.max_gradient_diff, self.max_parameter_diff] == [0.0; 3]
    }
}

/// Compares losses, gradients of every step and final parameters.
pub fn compare(run: &Run, reference: &Reference, parameters: Tolerance) -> Comparison {
    let mut comparison = Comparison { steps: run.losses.len(), ..Comparison::default() };
    let mut check = Check { comparison: &mut comparison, tolerance: Tolerance::ROUNDING };
    for step in 0..run.losses.len().max(reference.losses.len()) {
        let one = |losses: &[f64]| losses.get(step).map_or_else(Vec::new, |loss| vec![*loss]);
        check.values(step, "loss", "", &one(&run.losses), &one(&reference.losses));
        let none = Named::new();
        let [ours, theirs] = [&run.gradients, &reference.gradients].map(|g| g.get(step).unwrap_or(&none));
        check.named(step, "gradient", ours, theirs);
    }
    check.tolerance = parameters;
    check.named(run.losses.len().saturating_sub(1), "parameter", &run.parameters, &reference.parameters);
    comparison
}

struct Check<'a> {
    comparison: &'a mut Comparison,
    tolerance: Tolerance,
}

impl Check<'_> {
    /// Every tensor that the reference has, and each copy of it that the run has.
    fn named(&mut self, step: usize, what: &'static str, ours: &Named, reference: &Named) {
        let mut by_name: BTreeMap<&str, Vec<&Vec<f32>>> = BTreeMap::new();
        for (name, values) in ours {
            by_name.entry(name).or_default().push(values);
        }
        let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        for (name, values) in reference {
            let values = wide(values);
            match by_name.remove(name.as_str()) {
                Some(copies) => copies.iter().for_each(|copy| self.values(step, what, name, &wide(copy), &values)),
                None => self.values(step, what, name, &[], &values),
            }
        }
        for (name, copies) in by_name {
            copies.iter().for_each(|copy| self.values(step, what, name, &wide(copy), &[]));
        }
    }

    fn values(&mut self, step: usize, what: &'static str, name: &str, ours: &[f64], reference: &[f64]) {
        let largest = reference.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
        for index in 0..ours.len().max(reference.len()) {
            // A number that one side lacks differs from anything.
            let [a, b] = [ours, reference].map(|side| side.get(index).copied().unwrap_or(f64::NAN));
            let difference = (a - b).abs();
            self.comparison.compared += 1;
            let max = match what {
                "loss" => &mut self.comparison.max_loss_diff,
                "gradient" => &mut self.comparison.max_gradient_diff,
                _ => &mut self.comparison.max_parameter_diff,
            };
            *max = max.max(difference);
            // NaN is allowed by nothing.
            if !self.tolerance.allows(difference, largest) && self.comparison.first_difference.is_none() {
                let name = name.to_owned();
                self.comparison.first_difference = Some(Difference { step, what, name, index, value: a, reference: b });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipewright_ir::timeline::{Source, Timeline};

    fn run(losses: &[f64], gradient: &[f32]) -> Run {
        Run {
            losses: losses.to_vec(),
            timeline: Timeline { source: Source::Measured, tasks: 0, spans: vec![], memory: vec![] },
            gradients: vec![vec![("w".to_owned(), gradient.to_vec())]],
            parameters: vec![("w".to_owned(), vec![1.0])],
        }
    }

    fn reference() -> Reference {
        Reference {
            losses: vec![2.0],
            gradients: vec![vec![("w".to_owned(), vec![1.0, -0.5])]],
            parameters: vec![("w".to_owned(), vec![1.0])],
            step_seconds: vec![],
        }
    }

    #[test]
    fn equal_runs_are_exact_and_a_wrong_gradient_is_named() {
        let tolerance = Tolerance::parameters(0.0, 1);
        assert!(compare(&run(&[2.0], &[1.0, -0.5]), &reference(), tolerance).exact());
        let rounded = compare(&run(&[2.0], &[1.000_001, -0.5]), &reference(), tolerance);
        assert!(rounded.ok() && !rounded.exact());
        let wrong = compare(&run(&[2.0], &[1.0, -0.25]), &reference(), tolerance);
        let first = wrong.first_difference.unwrap();
        assert_eq!((first.what, first.name.as_str(), first.index), ("gradient", "w", 1));
    }

    #[test]
    fn missing_and_nan_numbers_are_differences() {
        let tolerance = Tolerance::parameters(0.0, 1);
        assert!(!compare(&run(&[2.0], &[1.0]), &reference(), tolerance).ok());
        assert!(!compare(&run(&[f64::NAN], &[1.0, -0.5]), &reference(), tolerance).ok());
        assert!(!compare(&run(&[], &[1.0, -0.5]), &reference(), tolerance).ok());
        assert!(!compare(&run(&[2.0], &[1.0, -0.5]), &Reference::default(), tolerance).ok());
    }
}
