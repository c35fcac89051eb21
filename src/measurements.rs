//! Published or own measurements of training steps, and how far predictions are from them.
//!
//! A measurements file is a base scenario and rows that change some of its knobs:
//!
//! ```json
//! { "schema_version": 1, "name": "My cluster", "source": "runs of May",
//!   "scenario": { "schema_version": 1, "name": "base", "schedules": ["1f1b"], "cluster": { "preset": "dgx-a100-80g" } },
//!   "rows": [ { "name": "7B", "set": { "model.preset": "llama-2-7b", "cluster.nodes": 4 }, "step_seconds": 3.2 } ] }
//! ```
//!
//! One law: a row goes through the same code as a user's scenario; nothing here knows a table.

mod errors;
mod fit;

pub use errors::{Accuracy, Errors, RowError};
pub use fit::{Fitted, fit};

use crate::ir::metrics::Metrics;
use crate::ir::plan::{self, Plan};
use crate::ir::scenario::{Scenario, variant};
use crate::ir::schedule::Schedule;
use crate::ir::segments::Programs;
use crate::sim::cost::AnalyticCost;
use crate::sim::cost::analytic::{Parameters, parameters_of};
use crate::sim::{Engine, Options};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A table of measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurements {
    /// Version of this format: 1.
    pub schema_version: u32,
    /// Name of the table.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// What had to be decided to turn a row into a scenario.
    #[serde(default)]
    pub conventions: String,
    /// Errors of rows that the fit did not see, where somebody has tried.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub held_out: String,
    /// Where predictions are far off, and what is known of why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub known_misses: String,
    /// What all rows share.
    pub scenario: Value,
    /// The measurements.
    pub rows: Vec<Row>,
}

/// One measured training run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Path of a knob, as `parallel.tensor_model_parallel_size` -> its value.
    pub set: BTreeMap<String, Value>,
    /// Time of a step \[s\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Bubble rate, as the zero-bubble papers count it: `(cost - m (F + I + W)) / cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bubble_rate: Option<f64>,
    /// Why it is shown but not counted; empty where it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left_out: String,
}

/// Why a row cannot be predicted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MeasurementError {
    /// The row is no scenario.
    #[error("row `{row}`: {message}")]
    Row {
        /// The row.
        row: String,
        /// What is wrong.
        message: String,
    },
    /// There is no such number to fit.
    #[error("`{name}` is no number above 0 of the software stack {stack}; those are {known}")]
    Parameter {
        /// The parameter.
        name: String,
        /// The stack.
        stack: String,
        /// What can be fitted.
        known: String,
    },
}

impl MeasurementError {
    /// What helps.
    pub fn help(&self) -> &'static str {
        match self {
            MeasurementError::Row { .. } => "a row is the file's scenario with the knobs of its `set`",
            MeasurementError::Parameter { .. } => "separate names by commas; a + between two fits one factor for both",
        }
    }
}

/// A row as a plan that can be predicted again and again.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Its name.
    pub name: String,
    /// The plan.
    pub plan: Plan,
    /// What its stages do.
    programs: Programs,
    /// When.
    schedule: Schedule,
    /// The stack that the plan names.
    pub stack: Parameters,
    /// Time of a step as measured \[s\].
    pub step_seconds: Option<f64>,
    /// Bubble rate as measured.
    pub bubble_rate: Option<f64>,
    /// Whether it counts.
    pub counts: bool,
}

/// What is predicted of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Time of a step \[s\].
    pub step_seconds: f64,
    /// `1 - busy / cost` over F, B, I and W: what the busiest rank computes, and the longest time from a rank's first task
    /// to its last (Qi et al. 2024, section 5.3).
    pub bubble_rate: f64,
}

impl Measurements {
    /// Every row as a plan.
    ///
    /// # Errors
    /// The first row that is no legal scenario with a model and a known cluster.
    pub fn prepare(&self, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Vec<Prepared>, MeasurementError> {
        self.rows.iter().map(|row| self.prepare_row(row, read)).collect()
    }

    fn prepare_row(
        &self,
        row: &Row,
        read: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Prepared, MeasurementError> {
        let fail = |message: String| MeasurementError::Row { row: row.name.clone(), message };
        let mut value = self.scenario.clone();
        for (path, knob) in &row.set {
            variant::set(&mut value, path, knob.clone());
        }
        let scenario: Scenario = serde_json::from_value(value).map_err(|e| fail(e.to_string()))?;
        let plans = plan::resolve(&scenario, read).map_err(|faults| {
            let all: Vec<String> = faults.iter().map(|f| format!("{}: {} ({})", f.path, f.message, f.help)).collect();
            fail(all.join("; "))
        })?;
        let plan = plans.into_iter().next().ok_or_else(|| fail("no schedule".to_owned()))?;
        let stack = parameters_of(&plan, read).map_err(|e| fail(e.to_string()))?;
        let programs = plan.programs().ok_or_else(|| fail("a model and training.seq_length are needed".to_owned()))?;
        let memory = stack.memory_stack().ok_or_else(|| fail("no such memory stack".to_owned()))?;
        let schedule = plan.schedule(&plan.workload(&programs, &memory)).map_err(|v| fail(format!("{v:?}")))?;
        Ok(Prepared {
            name: row.name.clone(),
            plan,
            programs,
            schedule,
            stack,
            step_seconds: row.step_seconds,
            bubble_rate: row.bubble_rate,
            counts: row.left_out.is_empty(),
        })
    }
}

impl Prepared {
    /// Predicts the row with the parameters of its own stack.
    ///
    /// # Errors
    /// The plan has no model, or its schedule breaks the law.
    pub fn predict(&self) -> Result<Prediction, MeasurementError> {
        self.predict_with(&self.stack)
    }

    /// Predicts the row with other parameters.
    ///
    /// # Errors
    /// The plan has no model, or its schedule breaks the law.
    pub fn predict_with(&self, parameters: &Parameters) -> Result<Prediction, MeasurementError> {
        let fail = |message: String| MeasurementError::Row { row: self.name.clone(), message };
        let cost = AnalyticCost::of_programs(&self.plan, &self.programs, parameters);
        let cost = cost.map_err(|e| fail(e.to_string()))?;
        let schedule = &self.schedule;
        let mut engine = Engine::new(schedule);
        engine.set_costs(schedule, &cost);
        let timeline = engine.run(&Options::default());
        let metrics = Metrics::of(schedule, &timeline);
        let (mut busiest, mut longest) = (0.0_f64, 0.0_f64);
        for rank in (0..schedule.ranks()).map(crate::ir::ids::Rank::at) {
            let compute = schedule.program(rank).filter(|(_, task)| task.action.op.is_compute());
            let spans: Vec<_> = compute.map(|(id, _)| timeline.span(0, id)).collect();
            let first = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
            let last = spans.iter().map(|span| span.end).fold(0.0, f64::max);
            busiest = busiest.max(spans.iter().map(|span| span.duration()).sum());
            longest = longest.max(last - first);
        }
        let bubble_rate = if longest > 0.0 { 1.0 - busiest / longest } else { 0.0 };
        Ok(Prediction { step_seconds: metrics.makespan, bubble_rate })
    }
}
