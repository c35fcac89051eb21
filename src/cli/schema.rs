//! `schema`: the JSON schemas of files, made from the types that read them.

use super::args::{SchemaArgs, SchemaOf};
use super::failure::Failure;
use super::{exit, output};
use pipewright::ir::cluster::Hardware;
use pipewright::ir::interchange::json::ScheduleFile;
use pipewright::ir::scenario::Scenario;

pub(crate) fn run(args: &SchemaArgs) -> Result<u8, Failure> {
    output::json(&match args.of {
        SchemaOf::Scenario => schemars::schema_for!(Scenario),
        SchemaOf::Schedule => schemars::schema_for!(ScheduleFile),
        SchemaOf::Cluster => schemars::schema_for!(Hardware),
    })?;
    Ok(exit::FINE)
}
