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
    /// Nobody has fitted this stack.
    #[error("no parameters are known for the software stack `{name}`; known are {known}")]
    Stack {
        /// The stack.
        name: String,
        /// The known ones.
        known: String,
    },
}

/// The parameters of the plan's software stack.
///
/// # Errors
/// There is no cluster, or nobody has fitted its stack.
pub fn parameters_of(plan: &Plan) -> Result<Parameters, AnalyticError> {
    let name = &plan.cluster.as_ref().ok_or(AnalyticError::NoCluster)?.stack;
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
        let cluster = plan.cluster.as_ref().ok_or(AnalyticError::NoCluster)?;
        let programs = plan.programs().ok_or(AnalyticError::NoModel)?;
        let hidden = plan.model.as_ref().map_or(0, |model| model.hidden_size);
        let tokens = plan.batch.microbatch_tokens() as f64 / f64::from(plan.mesh.context.max(1));
        let activation_bytes = tokens * f64::from(hidden) * plan.setup.dtype.bytes() as f64;
        let facts = Facts {
            programs: &programs,
            mesh: &plan.mesh,
            setup: &plan.setup,
            cluster,
            parameters,
            activation_bytes,
            chunks: plan.placement().chunks(),
        };
        let cost = AnalyticCost::new(&facts);
        Ok((programs, cost))
    }
}
