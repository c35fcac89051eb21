//! A number and where it comes from.
//!
//! One law: a number without a source has an empty one; none is made up.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{F64Deserializer, I64Deserializer, MapAccessDeserializer, U64Deserializer};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// A number and where it comes from. In JSON the number alone, or `{ "value": ..., "source": "..." }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sourced<T> {
    /// The number.
    pub value: T,
    /// Where it comes from.
    pub source: String,
}

/// The long form, as written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Long<T> {
    /// The number.
    value: T,
    /// Where it comes from.
    #[serde(default)]
    source: String,
}

struct SourcedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SourcedVisitor<T> {
    type Value = Sourced<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or an object with a \"value\" and its \"source\"")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        T::deserialize(U64Deserializer::new(value)).map(alone)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        T::deserialize(I64Deserializer::new(value)).map(alone)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        T::deserialize(F64Deserializer::new(value)).map(alone)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let Long { value, source } = Long::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Sourced { value, source })
    }
}

fn alone<T>(value: T) -> Sourced<T> {
    Sourced { value, source: String::new() }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Sourced<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourcedVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Sourced<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Sourced_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (alone, long) = (generator.subschema_for::<T>(), generator.subschema_for::<Long<T>>());
        json_schema!({ "anyOf": [alone, long] })
    }
}
