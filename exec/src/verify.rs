//! Lossless means checked: a run against the reference, number by number.
//!
//! One law: differences are reported as they are; the tolerance is stated here, with its reason.

use crate::optimizer::OptimizerConfig;
use crate::reference::Reference;
use crate::run::{Named, Run};
use std::collections::BTreeMap;

/// How far two losses or gradients may lie apart: `ABSOLUTE + RELATIVE x` the largest number of the same tensor.
///
/// fp32 keeps about 7 digits (`2^-24 = 6e-8` relative a rounding). A split changes no operation, only in places the
/// order in which gradients are added (a tied embedding adds its two uses once a step instead of once a microbatch),
/// which moves a sum of `m` terms by some `m` roundings. `1e-5` of the tensor's largest number leaves two digits for
/// that; `1e-7` lets gradients that are zero but for rounding (an attention's key bias) differ.
///
/// A parameter whose gradients agreed to the last bit in every step must agree to the last bit too. Where they did not,
/// it may differ by what the optimizer can make of the gradients' own tolerance: `lr` times it a step for SGD, and for
/// AdamW, which divides a gradient by its size, `2 lr` times the tolerance as a share of that gradient, at most `2 lr`.
///
/// A later step that starts from parameters which differ so may differ by more than roundings itself: such a run is
/// compared with a reference that starts each step where the run did ([`reference::follow`](crate::reference::follow)).
pub const RELATIVE: f64 = 1e-5;
/// See [`RELATIVE`].
pub const ABSOLUTE: f64 = 1e-7;

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
    /// Largest difference of a parameter after a step.
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

/// Compares losses, gradients and parameters of every step, all after steps of `optimizer`.
pub fn compare(run: &Run, reference: &Reference, optimizer: &OptimizerConfig) -> Comparison {
    let mut comparison = Comparison { steps: run.losses.len(), ..Comparison::default() };
    let mut check = Check { comparison: &mut comparison };
    let none = Named::new();
    let rounding = |values: &[f64]| {
        let largest = values.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
        vec![ABSOLUTE + RELATIVE * largest; values.len()]
    };
    for step in 0..run.losses.len().max(reference.gradients.len()) {
        let one = |losses: &[f64]| losses.get(step).map_or_else(Vec::new, |loss| vec![*loss]);
        let losses = [one(&run.losses), one(&reference.losses)];
        check.values(step, "loss", "", &losses[0], &losses[1], &rounding(&losses[1]));
        let [ours, theirs] = [&run.gradients, &reference.gradients].map(|g| g.get(step).unwrap_or(&none));
        for (name, copies, values) in pairs(ours, theirs) {
            for copy in copies {
                check.values(step, "gradient", name, &copy, &values, &rounding(&values));
            }
        }
    }
    for step in 0..run.parameters.len().max(reference.parameters.len()) {
        let [ours, theirs] = [&run.parameters, &reference.parameters].map(|p| p.get(step).unwrap_or(&none));
        for (name, copies, values) in pairs(ours, theirs) {
            let allowed = allowed_drift(name, values.len(), step + 1, run, reference, optimizer);
            for copy in copies {
                check.values(step, "parameter", name, &copy, &values, &allowed);
            }
        }
    }
    comparison
}

/// How far each number of a parameter may drift in so many steps, see [`RELATIVE`].
fn allowed_drift(
    name: &str,
    len: usize,
    steps: usize,
    run: &Run,
    reference: &Reference,
    optimizer: &OptimizerConfig,
) -> Vec<f64> {
    let mut allowed = vec![0.0; len];
    for (ours, theirs) in run.gradients.iter().zip(&reference.gradients).take(steps) {
        let Some((_, gradient)) = theirs.iter().find(|(n, _)| n == name) else { continue };
        if ours.iter().filter(|(n, _)| n == name).all(|(_, copy)| copy == gradient) {
            continue;
        }
        let largest = gradient.iter().fold(0.0, |max: f64, v| max.max(f64::from(v.abs())));
        let tolerance = ABSOLUTE + RELATIVE * largest;
        for (allowed, g) in allowed.iter_mut().zip(gradient) {
            *allowed += match optimizer {
                OptimizerConfig::AdamW { lr, .. } => 2.0 * lr * (tolerance / f64::from(g.abs())).min(1.0),
                // Momentum lets a gradient act ten times and more; ten steps of slack are far below any real fault.
                OptimizerConfig::Sgd { lr, .. } => 10.0 * lr * tolerance,
            };
        }
    }
    // A drift of the gradients in one step moves the parameters that later steps start from.
    if allowed.iter().any(|a| *a > 0.0) {
        allowed.iter_mut().for_each(|a| *a += ABSOLUTE);
    }
    allowed
}

/// A tensor: its name, its copies in the run, the reference's values.
type Pair<'a> = (&'a str, Vec<Vec<f64>>, Vec<f64>);

/// Each tensor of either side by name: its copies in the run, and the reference's values.
fn pairs<'a>(ours: &'a Named, reference: &'a Named) -> Vec<Pair<'a>> {
    let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    let mut by_name: BTreeMap<&str, (Vec<Vec<f64>>, Vec<f64>)> = BTreeMap::new();
    for (name, values) in reference {
        by_name.entry(name).or_default().1 = wide(values);
    }
    for (name, values) in ours {
        by_name.entry(name).or_default().0.push(wide(values));
    }
    let whole = |(name, (copies, values)): (&'a str, (Vec<Vec<f64>>, Vec<f64>))| {
        // A tensor that the run lacks is an empty copy: every number of it differs.
        (name, if copies.is_empty() { vec![Vec::new()] } else { copies }, values)
    };
    by_name.into_iter().map(whole).collect()
}

struct Check<'a> {
    comparison: &'a mut Comparison,
}

impl Check<'_> {
    fn values(
        &mut self,
        step: usize,
        what: &'static str,
        name: &str,
        ours: &[f64],
        reference: &[f64],
        allowed: &[f64],
    ) {
        for index in 0..ours.len().max(reference.len()) {
            // A number that one side lacks differs from anything, and so does one that is none.
            let [a, b] = [ours, reference].map(|side| side.get(index).copied().unwrap_or(f64::NAN));
            let difference = if (a - b).is_nan() { f64::INFINITY } else { (a - b).abs() };
            self.comparison.compared += 1;
            let max = match what {
                "loss" => &mut self.comparison.max_loss_diff,
                "gradient" => &mut self.comparison.max_gradient_diff,
                _ => &mut self.comparison.max_parameter_diff,
            };
            *max = max.max(difference);
            let fine = difference <= allowed.get(index).copied().unwrap_or(0.0);
            if !fine && self.comparison.first_difference.is_none() {
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
            norms: vec![],
            timeline: Timeline { source: Source::Measured, tasks: 0, spans: vec![], memory: vec![] },
            gradients: vec![vec![("w".to_owned(), gradient.to_vec())]],
            parameters: vec![vec![("w".to_owned(), vec![1.0])]],
        }
    }

    fn reference() -> Reference {
        Reference {
            losses: vec![2.0],
            norms: vec![],
            gradients: vec![vec![("w".to_owned(), vec![1.0, -0.5])]],
            parameters: vec![vec![("w".to_owned(), vec![1.0])]],
            step_seconds: vec![],
        }
    }

    const SGD: OptimizerConfig = OptimizerConfig::Sgd { lr: 0.1, momentum: 0.0 };

    #[test]
    fn equal_runs_are_exact_and_a_wrong_gradient_is_named() {
        assert!(compare(&run(&[2.0], &[1.0, -0.5]), &reference(), &SGD).exact());
        let rounded = compare(&run(&[2.0], &[1.000_001, -0.5]), &reference(), &SGD);
        assert!(rounded.ok() && !rounded.exact());
        let wrong = compare(&run(&[2.0], &[1.0, -0.25]), &reference(), &SGD);
        let first = wrong.first_difference.unwrap();
        assert_eq!((first.what, first.name.as_str(), first.index), ("gradient", "w", 1));
    }

    #[test]
    fn missing_and_nan_numbers_are_differences() {
        assert!(!compare(&run(&[2.0], &[1.0]), &reference(), &SGD).ok());
        assert!(!compare(&run(&[f64::NAN], &[1.0, -0.5]), &reference(), &SGD).ok());
        assert!(!compare(&run(&[], &[1.0, -0.5]), &reference(), &SGD).ok());
        assert!(!compare(&run(&[2.0], &[1.0, -0.5]), &Reference::default(), &SGD).ok());
    }

    #[test]
    fn parameters_drift_only_as_far_as_their_gradients_let_them() {
        let adamw = OptimizerConfig::adamw(0.1);
        let drifted = |gradient: &[f32], parameter: f32, optimizer: &OptimizerConfig| {
            let mut run = run(&[2.0], gradient);
            run.parameters[0][0].1 = vec![parameter, 1.0];
            let mut reference = reference();
            reference.parameters[0][0].1 = vec![1.0, 1.0];
            compare(&run, &reference, optimizer).ok()
        };
        // Gradients agree to the bit, so the parameter must.
        assert!(drifted(&[1.0, -0.5], 1.0, &adamw) && !drifted(&[1.0, -0.5], 1.000_001, &adamw));
        // A rounding in a gradient of size 1 cannot move an AdamW step of 0.1 by a thousandth.
        assert!(drifted(&[1.000_001, -0.5], 1.000_001, &adamw) && !drifted(&[1.000_001, -0.5], 1.0001, &adamw));
        assert!(drifted(&[1.000_001, -0.5], 1.000_001, &SGD) && !drifted(&[1.000_001, -0.5], 1.001, &SGD));
    }
}
