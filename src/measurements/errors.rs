//! Predicted against measured, row by row and over a table.

use super::{MeasurementError, Measurements, Prediction, Prepared};
use crate::sim::cost::analytic::Parameters;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowError {
    /// The row.
    pub name: String,
    /// As measured.
    pub measured: f64,
    /// As predicted.
    pub predicted: f64,
    /// Predicted / measured - 1, or predicted - measured for a bubble rate.
    pub error: f64,
    /// Whether it counts.
    pub counts: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Errors {
    /// Its rows, in their order.
    pub rows: Vec<RowError>,
}

impl Errors {
    /// Errors of step times.
    ///
    /// # Errors
    /// A row cannot be predicted.
    pub fn of_step_times(rows: &[Prepared]) -> Result<Self, MeasurementError> {
        Self::of(rows, |row| row.step_seconds, |p, measured| (p.step_seconds, p.step_seconds / measured - 1.0))
    }

    /// Errors of bubble rates, as a difference.
    ///
    /// # Errors
    /// A row cannot be predicted.
    pub fn of_bubble_rates(rows: &[Prepared]) -> Result<Self, MeasurementError> {
        Self::of(rows, |row| row.bubble_rate, |p, measured| (p.bubble_rate, p.bubble_rate - measured))
    }

    fn of(
        rows: &[Prepared],
        measured: impl Fn(&Prepared) -> Option<f64>,
        compare: impl Fn(Prediction, f64) -> (f64, f64),
    ) -> Result<Self, MeasurementError> {
        let mut errors = Vec::new();
        for row in rows {
            let Some(measured) = measured(row) else { continue };
            let (predicted, error) = compare(row.predict()?, measured);
            errors.push(RowError { name: row.name.clone(), measured, predicted, error, counts: row.counts });
        }
        Ok(Self { rows: errors })
    }

    /// Rows that count.
    pub fn count(&self) -> usize {
        self.counted().count()
    }

    fn counted(&self) -> impl Iterator<Item = f64> {
        self.rows.iter().filter(|row| row.counts).map(|row| row.error)
    }

    /// Mean of the absolute errors.
    pub fn mean(&self) -> f64 {
        mean(self.counted().map(f64::abs))
    }

    /// Mean of the errors with their signs.
    pub fn bias(&self) -> f64 {
        mean(self.counted())
    }

    /// Largest absolute error.
    pub fn max(&self) -> f64 {
        self.counted().map(f64::abs).fold(0.0, f64::max)
    }
}

/// A table with its errors and the stacks that predicted it.
#[derive(Clone, Debug)]
pub struct Accuracy {
    /// The table.
    pub measurements: Measurements,
    /// Errors of step times; `None` where none is measured.
    pub step_times: Option<Errors>,
    /// Errors of bubble rates, as a difference; `None` where none is measured.
    pub bubble_rates: Option<Errors>,
    /// The software stacks of the rows.
    pub stacks: Vec<Parameters>,
}

impl Accuracy {
    /// Predicts all rows.
    ///
    /// # Errors
    /// A row cannot be predicted.
    pub fn of(measurements: Measurements, rows: &[Prepared]) -> Result<Self, MeasurementError> {
        let some = |errors: Errors| (!errors.rows.is_empty()).then_some(errors);
        let mut stacks: Vec<Parameters> = Vec::new();
        for row in rows {
            if !stacks.contains(&row.stack) {
                stacks.push(row.stack.clone());
            }
        }
        let (step_times, bubble_rates) = (Errors::of_step_times(rows)?, Errors::of_bubble_rates(rows)?);
        Ok(Self { measurements, step_times: some(step_times), bubble_rates: some(bubble_rates), stacks })
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0_u32, 0.0), |(n, sum), value| (n + 1, sum + value));
    if n == 0 { 0.0 } else { sum / f64::from(n) }
}
