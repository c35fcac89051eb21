//! The scenario's `layout`: layers of each stage.
//!
//! One law: as written; [`plan`](crate::plan) reads the notation.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Layers of each stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Layout {
    /// One number a stage.
    Layers(Vec<u32>),
    /// `balanced`, or Megatron's notation: `E` the embedding, `t` a transformer layer, `L` the head with its loss, `|`
    /// between stages, `(...)*n` and `x*n` for repetition.
    Notation(String),
}

struct LayoutVisitor;

impl<'de> Visitor<'de> for LayoutVisitor {
    type Value = Layout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of layers a stage, \"balanced\", or Megatron's notation such as \"Ettt|tttL\"")
    }

    fn visit_str<E>(self, text: &str) -> Result<Layout, E> {
        Ok(Layout::Notation(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Layout, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Layout::Layers)
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LayoutVisitor)
    }
}

impl JsonSchema for Layout {
    fn schema_name() -> Cow<'static, str> {
        "Layout".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let layers = generator.subschema_for::<Vec<u32>>();
        json_schema!({ "anyOf": [layers, { "type": "string", "description": "`balanced`, or Megatron's notation, `Ettt|tttL`" }] })
    }
}
