//! `verify`: training with a schedule equals training on one device.

use super::args::VerifyArgs;
use super::execute::{Executable, Job, microbatches};
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::exec::reference::Reference;
use pipewright::exec::verify::{ABSOLUTE, Comparison, RELATIVE, compare};
use pipewright::ir::plan::Plan;
use pipewright::report::table::table;
use serde::Serialize;

/// The answer for one schedule, and inside the whole answer the worst over all.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) schedule: String,
    pub(crate) ok: bool,
    /// Whether every number agrees to the last bit.
    pub(crate) exact: bool,
    pub(crate) steps: usize,
    pub(crate) numbers_compared: usize,
    pub(crate) max_loss_diff: f64,
    pub(crate) max_gradient_diff: f64,
    pub(crate) max_parameter_diff: f64,
    pub(crate) first_difference: Option<First>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct First {
    step: usize,
    /// `loss`, `gradient` or `parameter`.
    what: &'static str,
    /// Hugging Face name.
    name: String,
    index: usize,
    value: f64,
    reference: f64,
}

#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    ok: bool,
    steps: usize,
    max_loss_diff: f64,
    max_gradient_diff: f64,
    max_parameter_diff: f64,
    first_difference: Option<First>,
    /// Each schedule.
    runs: Vec<Row>,
}

impl First {
    /// The difference in one line.
    pub(crate) fn describe(&self) -> String {
        let Self { step, what, name, index, value, reference } = self;
        format!("first difference: {what} {name} [{index}] in step {step}: {value} here, {reference} on one device")
    }
}

impl Row {
    pub(crate) fn new(plan: &Plan, comparison: &Comparison) -> Self {
        let first = comparison.first_difference.as_ref().map(|d| First {
            step: d.step,
            what: d.what,
            name: d.name.clone(),
            index: d.index,
            value: d.value,
            reference: d.reference,
        });
        Self {
            schedule: plan.name.clone(),
            ok: comparison.ok(),
            exact: comparison.exact(),
            steps: comparison.steps,
            numbers_compared: comparison.compared,
            max_loss_diff: comparison.max_loss_diff,
            max_gradient_diff: comparison.max_gradient_diff,
            max_parameter_diff: comparison.max_parameter_diff,
            first_difference: first,
        }
    }

    /// How it turned out, in a few words.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.ok, self.exact) {
            (true, true) => "bit for bit",
            (true, false) => "to rounding",
            (false, _) => "NO",
        }
    }
}

/// Runs on one device, one for each batch that plans train on.
#[derive(Default)]
pub(crate) struct References {
    known: Vec<([u32; 3], Reference)>,
}

impl References {
    /// The one for a plan.
    pub(crate) fn of(&mut self, job: &Job, plan: &Plan, steps: u64, keep: u64) -> Result<&Reference, Failure> {
        let batch = [microbatches(plan), plan.batch.micro_batch_size, plan.batch.seq_length];
        let at = match self.known.iter().position(|(known, _)| *known == batch) {
            Some(at) => at,
            None => {
                self.known.push((batch, job.reference(plan, steps, keep)?));
                self.known.len() - 1
            }
        };
        Ok(&self.known[at].1)
    }
}

/// Runs `plan` for the steps that the reference kept, and compares.
pub(crate) fn verify(job: &Job, plan: &Plan, reference: &Reference) -> Result<Row, Failure> {
    let steps = reference.gradients.len() as u64;
    let run = job.run(plan, &Executable::of(plan)?, steps, true)?;
    let mut comparison = compare(&run, reference, &job.optimizer);
    if comparison.first_difference.as_ref().is_some_and(|first| first.step > 0) {
        // The first step is fine. AdamW makes steps of roundings: compare each of the others from where the run began it.
        let followed = job.follow(plan, steps, steps, &run.parameters)?;
        comparison = compare(&run, &followed, &job.optimizer);
    }
    Ok(Row::new(plan, &comparison))
}

pub(crate) fn run(args: &VerifyArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    let job = Job::of(&loaded, &args.execute)?;
    let (mut references, mut rows) = (References::default(), Vec::new());
    for plan in &loaded.plans {
        let reference = references.of(&job, plan, job.steps, job.steps)?;
        rows.push(verify(&job, plan, reference)?);
    }
    let worst = |of: fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
    let ok = rows.iter().all(|r| r.ok);
    if args.json {
        output::json(&Answer {
            schema_version: 1,
            ok,
            steps: usize::try_from(job.steps).unwrap_or(usize::MAX),
            max_loss_diff: worst(|r| r.max_loss_diff),
            max_gradient_diff: worst(|r| r.max_gradient_diff),
            max_parameter_diff: worst(|r| r.max_parameter_diff),
            first_difference: rows.iter().find_map(|r| r.first_difference.clone()),
            runs: rows,
        })?;
    } else {
        output::result(&text(&rows))?;
    }
    Ok(if ok { exit::FINE } else { exit::NO })
}

fn text(rows: &[Row]) -> String {
    let headers =
        ["schedule", "equals\none device", "steps", "numbers", "loss\ndiff", "gradient\ndiff", "parameter\ndiff"];
    let row = |r: &Row| {
        vec![
            r.schedule.clone(),
            r.verdict().to_owned(),
            r.steps.to_string(),
            r.numbers_compared.to_string(),
            format!("{:.1e}", r.max_loss_diff),
            format!("{:.1e}", r.max_gradient_diff),
            format!("{:.1e}", r.max_parameter_diff),
        ]
    };
    let mut text = table(&headers.map(str::to_owned), &rows.iter().map(row).collect::<Vec<_>>());
    for (row, difference) in rows.iter().filter_map(|r| Some((r, r.first_difference.as_ref()?))) {
        text.push_str(&format!("{}: {}\n", row.schedule, difference.describe()));
    }
    text.push_str(&format!(
        "Differences are the largest of any number. Losses and gradients may differ by\n{ABSOLUTE:e} + {RELATIVE:e} of the tensor's \
         largest number (fp32 sums in another order);\nparameters by what the optimizer makes of that, and not at all where \
         their\ngradients agree to the bit.\n"
    ));
    text
}
