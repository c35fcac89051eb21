//! An entry of `schedules`: a name, or a name with its own knobs.

use super::Layout;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;

/// A schedule to look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScheduleEntry {
    /// A family, or `custom`.
    pub name: String,
    /// Chunks a rank `v`; overrides the one in `parallel`.
    pub virtual_pipeline_model_parallel_size: Option<u32>,
    /// Megatron's microbatch group size.
    pub microbatch_group_size_per_vp_stage: Option<u32>,
    /// Sequence slices of each microbatch.
    pub num_seq_splits: Option<u16>,
    /// Most activations that each rank may hold.
    pub max_activations: Option<PerRank>,
    /// Layers of each stage, where this schedule wants its own.
    pub layout: Option<Layout>,
    /// `custom`: path of the CSV, relative to the scenario.
    pub csv: Option<String>,
    /// `custom`: path of the schedule as JSON, relative to the scenario.
    pub json: Option<String>,
}

/// One number for all ranks, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PerRank {
    /// The same for all.
    All(f64),
    /// One a rank.
    Each(Vec<f64>),
}

impl PerRank {
    /// One a rank, as written.
    pub fn each(&self, ranks: u32) -> Vec<f64> {
        match self {
            PerRank::All(value) => vec![*value; ranks as usize],
            PerRank::Each(values) => values.clone(),
        }
    }
}

impl ScheduleEntry {
    /// The family `name` without knobs.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// The long form, as written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Knobs {
    /// A family, or `custom`.
    name: String,
    /// Chunks a rank `v`; overrides the one in `parallel`.
    virtual_pipeline_model_parallel_size: Option<u32>,
    /// Megatron's microbatch group size: how many microbatches a chunk takes before the next chunk's turn.
    #[serde(alias = "microbatch_group_size_per_virtual_pipeline_stage")]
    microbatch_group_size_per_vp_stage: Option<u32>,
    /// `seq1f1b`: sequence slices of each microbatch. Default 2.
    #[serde(alias = "seq_splits")]
    num_seq_splits: Option<u16>,
    /// The schedules that adapt to memory: most activations that each rank may hold, in microbatches of its whole share;
    /// one number, or one a rank.
    max_activations: Option<PerRank>,
    /// Layers of each stage, where this schedule wants its own.
    layout: Option<Layout>,
    /// `custom`: path of the order as CSV in PyTorch's notation, relative to the scenario.
    csv: Option<String>,
    /// `custom`: path of a schedule as JSON, which `show --format json` writes, relative to the scenario.
    json: Option<String>,
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = ScheduleEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a schedule, or an object with a \"name\"")
    }

    fn visit_str<E>(self, name: &str) -> Result<ScheduleEntry, E> {
        Ok(ScheduleEntry::named(name))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ScheduleEntry, A::Error> {
        let knobs = Knobs::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ScheduleEntry {
            name: knobs.name,
            virtual_pipeline_model_parallel_size: knobs.virtual_pipeline_model_parallel_size,
            microbatch_group_size_per_vp_stage: knobs.microbatch_group_size_per_vp_stage,
            num_seq_splits: knobs.num_seq_splits,
            max_activations: knobs.max_activations,
            layout: knobs.layout,
            csv: knobs.csv,
            json: knobs.json,
        })
    }
}

impl<'de> Deserialize<'de> for ScheduleEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

impl JsonSchema for ScheduleEntry {
    fn schema_name() -> Cow<'static, str> {
        "ScheduleEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let knobs = generator.subschema_for::<Knobs>();
        json_schema!({ "anyOf": [{ "type": "string" }, knobs] })
    }
}
