//! `schema`: the JSON schema of scenario files, made from the types that read them.

use super::failure::Failure;
use super::{exit, output};
use pipewright::ir::scenario::Scenario;

pub(crate) fn run() -> Result<u8, Failure> {
    output::json(&schemars::schema_for!(Scenario))?;
    Ok(exit::FINE)
}
