//! Import of a Hugging Face config.json: its fields, by the defaults of its model type, as Megatron's.
//!
//! One law: what a config.json leaves out or sets to null means what the model type's own code takes it to mean; a field
//! that changes the weights in a way that is not known here is refused, any other is ignored.

mod families;
mod fields;
mod numerics;

use crate::fault::Fault;
use crate::scenario::Model;
use families::FAMILIES;
use fields::Fields;
use serde_json::Value;

/// The model of a config.json.
///
/// # Errors
/// Every fault, with the field of the config.json as its path.
pub fn import(config: &Value) -> Result<Model, Vec<Fault>> {
    let known = || FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let Some(model_type) = config.get("model_type").and_then(Value::as_str) else {
        let help = format!("a Hugging Face config.json has one; known are {}", known());
        return Err(vec![Fault::new("model_type", "hf-config::type", "there is no `model_type`", help)]);
    };
    let Some((_, read)) = FAMILIES.iter().find(|(name, _)| *name == model_type) else {
        let message = format!("the model type `{model_type}` is not known to this version");
        let help = format!("known are {}; any other model can be given by Megatron's fields", known());
        return Err(vec![Fault::new("model_type", "hf-config::type", message, help)]);
    };
    let mut fields = Fields::new(config, model_type);
    let model = read(&mut fields);
    let model = model.or(numerics::numerics(&mut fields, model_type));
    fields.finish(model)
}
