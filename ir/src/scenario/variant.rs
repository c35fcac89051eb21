//! Variants of a scenario: the same file with some knobs set otherwise, to compare ways to split the work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A variant of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name, in front of the names of its schedules.
    pub name: String,
    /// What it sets: the path of a knob, `parallel.tensor_model_parallel_size`, to its value; `null` leaves it out.
    pub set: BTreeMap<String, Value>,
}

impl Variant {
    /// A scenario file's JSON with the variant's knobs, and without variants.
    #[must_use]
    pub fn of(&self, scenario: &Value) -> Value {
        let mut value = scenario.clone();
        if let Some(object) = value.as_object_mut() {
            object.remove("variants");
        }
        for (path, knob) in &self.set {
            set(&mut value, path, knob.clone());
        }
        value
    }
}

/// Sets the knob at a path; objects on the way are made.
pub fn set(value: &mut Value, path: &str, knob: Value) {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match path.split_once('.') {
        Some((key, rest)) => set(&mut value[key], rest, knob),
        None => value[path] = knob,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_variant_sets_its_knobs_and_nothing_else() {
        let base = json!({ "name": "a", "parallel": { "zero_stage": 1 }, "variants": [] });
        let set = BTreeMap::from([
            ("parallel.tensor_model_parallel_size".to_owned(), json!(4)),
            ("training.seq_length".to_owned(), json!(128)),
        ]);
        let expected = json!({
            "name": "a", "parallel": { "zero_stage": 1, "tensor_model_parallel_size": 4 }, "training": { "seq_length": 128 }
        });
        assert_eq!(Variant { name: "tp4".to_owned(), set }.of(&base), expected);
    }
}
