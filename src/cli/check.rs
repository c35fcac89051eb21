//! `check`: every violation of the law.

use super::args::CheckArgs;
use super::failure::Failure;
use super::{exit, load, output};
use pipewright::ir::spec::{Rule, Violation};
use pipewright::ir::workload::Workload;
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    ok: bool,
    /// The semantics of sends that were assumed.
    sends: Vec<&'static str>,
    violations: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    schedule: String,
    rule: &'static str,
    message: String,
    help: String,
    tasks: Vec<String>,
}

/// Violations of one schedule that are printed for people before the rest is only counted.
const SHOWN: usize = 20;

pub(crate) fn run(args: &CheckArgs) -> Result<u8, Failure> {
    let loaded = load::load(&args.source.file, &args.source.schedule)?;
    loaded.warn();
    let semantics = args.sends.semantics();
    let names: Vec<&str> = semantics.iter().map(|s| s.name()).collect();
    let mut rows = Vec::new();
    let mut text = String::new();
    for plan in &loaded.plans {
        let draft = plan.draft(&Workload::abstract_stages(plan.placement().stages()));
        // Only whether it deadlocks depends on how sends behave.
        let mut found: Vec<Violation> = Vec::new();
        for (i, semantics) in semantics.iter().enumerate() {
            found.extend(draft.check(*semantics).into_iter().filter(|v| i == 0 || v.rule == Rule::DeadlockFree));
        }
        if found.is_empty() {
            text.push_str(&format!("{}: keeps all rules ({} sends)\n", plan.name, names.join(", ")));
        } else {
            text.push_str(&format!("{}: {} violations ({} sends)\n", plan.name, found.len(), names.join(", ")));
        }
        for violation in found.iter().take(SHOWN) {
            text.push_str(&format!("  {violation}\n    help: {}\n", violation.help));
        }
        if let Some(more) = found.len().checked_sub(SHOWN + 1) {
            text.push_str(&format!("  and {} more; --json lists all\n", more + 1));
        }
        rows.extend(found.into_iter().map(|v| Row {
            schedule: plan.name.clone(),
            rule: v.rule.name(),
            message: v.message,
            help: v.help,
            tasks: v.tasks,
        }));
    }
    let ok = rows.is_empty();
    if args.json {
        output::json(&Answer { schema_version: 1, ok, sends: names, violations: rows })?;
    } else {
        output::result(&text)?;
    }
    Ok(if ok { exit::FINE } else { exit::NO })
}
