//! The costs of a plan.

use super::{AnalyticCost, Facts, Parameters, STACKS, stack};
use pipewright_ir::plan::Plan;
use pipewright_ir::segments::Programs;

/// Why a plan has no costs of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnalyticError {
    /// The scenario does not say what is trained.
    #[error("analytic costs need a model, and training.seq_length")]
    NoModel,
    /// The scenario does not say on what.
    #[error("analytic costs need a cluster")]
    NoCluster,
    /// The stack's file is none.
    #[error("cannot read the software stack of {name}: {message}")]
    File {
        /// The file.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// Nobody has fitted this stack.
    #[error("no parameters are known for the software stack `{name}`; known are {known}")]
    Stack {
        /// The stack.
        name: String,
        /// The known ones.
        known: String,
    },
}

/// The parameters of the plan's software stack: one that pipewright knows, or a file of one's own where the name ends in
/// `.json`. `read` gives the text of a file named in the scenario, or why it cannot.
///
/// # Errors
/// There is no cluster, its file is none of a stack, or nobody has fitted it.
pub fn parameters_of(plan: &Plan, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Parameters, AnalyticError> {
    let name = &plan.cluster.as_ref().ok_or(AnalyticError::NoCluster)?.stack;
    if name.ends_with(".json") {
        let fail = |message: String| AnalyticError::File { name: name.clone(), message };
        let text = read(name).map_err(fail)?;
        return serde_json::from_str(&text).map_err(|error| fail(error.to_string()));
    }
    stack(name).ok_or_else(|| AnalyticError::Stack {
        name: name.clone(),
        known: STACKS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
    })
}

impl AnalyticCost {
    /// What the stages of a plan do, and what it costs under a software stack.
    ///
    /// # Errors
    /// The plan has no model or no cluster.
    pub fn of_plan(plan: &Plan, parameters: &Parameters) -> Result<(Programs, AnalyticCost), AnalyticError> {
        let programs = plan.programs().ok_or(AnalyticError::NoModel)?;
        let cost = Self::of_programs(plan, &programs, parameters)?;
        Ok((programs, cost))
    }

    /// The same for the programs of a plan that are there already.
    ///
    /// # Errors
    /// The plan has no cluster.
    pub fn of_programs(plan: &Plan, programs: &Programs, parameters: &Parameters) -> Result<Self, AnalyticError> {
        let cluster = plan.cluster.as_ref().ok_or(AnalyticError::NoCluster)?;
        let hidden = plan.model.as_ref().map_or(0, |model| model.hidden_size);
        let tokens = plan.batch.microbatch_tokens() as f64 / f64::from(plan.mesh.context.max(1));
        let activation_bytes = tokens * f64::from(hidden) * plan.setup.dtype.bytes() as f64;
        let facts = Facts {
            programs,
            mesh: &plan.mesh,
            setup: &plan.setup,
            cluster,
            parameters,
            activation_bytes,
            message_bytes: plan.message_bytes(),
            placement: plan.placement(),
        };
        Ok(AnalyticCost::new(&facts))
    }
}
