//! Reading single fields of a config.json.
//!
//! One law: null is the same as left out, but where the model type has a default for what is left out; a field of the wrong
//! type is a fault at its name.

use crate::fault::Fault;
use crate::scenario::Model;
use serde_json::Value;

/// The fields of a config.json, and what was found wrong with them.
pub(super) struct Fields<'a> {
    config: &'a Value,
    /// `text_config.` where the language model is a part of the config.
    prefix: String,
    model_type: &'a str,
    faults: Vec<Fault>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(config: &'a Value, model_type: &'a str) -> Self {
        match config.get("text_config") {
            Some(text) => Self { config: text, prefix: "text_config.".to_owned(), model_type, faults: Vec::new() },
            None => Self { config, prefix: String::new(), model_type, faults: Vec::new() },
        }
    }

    pub(super) fn finish(self, model: Model) -> Result<Model, Vec<Fault>> {
        if self.faults.is_empty() { Ok(model) } else { Err(self.faults) }
    }

    fn find(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        let config = self.config;
        names.iter().find_map(|name| config.get(*name).filter(|v| !v.is_null()).map(|value| (*name, value)))
    }

    fn fault(&mut self, name: &str, code: &'static str, message: String, help: String) {
        self.faults.push(Fault::new(format!("{}{name}", self.prefix), code, message, help));
    }

    /// A whole number under the first of its names that is there.
    pub(super) fn number(&mut self, names: &[&'static str]) -> Option<u32> {
        let (name, value) = self.find(names)?;
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
        if number.is_none() {
            let message = format!("`{name}` is {value}, not a whole number from 0 to {}", u32::MAX);
            self.fault(name, "hf-config::number", message, String::new());
        }
        number
    }

    /// A whole number, or `default` where it is left out; null is neither.
    pub(super) fn number_or(&mut self, name: &'static str, default: Option<u32>) -> Option<u32> {
        if self.config.get(name).is_none() { default } else { self.number(&[name]) }
    }

    /// A number that the model type has no default for.
    pub(super) fn needed(&mut self, names: &[&'static str]) -> Option<u32> {
        if self.find(names).is_none() {
            let name = names.first().copied().unwrap_or_default();
            let message = format!("`{name}` is missing");
            let help = format!("a config.json of model type {} has {}", self.model_type, names.join(" or "));
            self.fault(name, "hf-config::missing", message, help);
            return None;
        }
        self.number(names)
    }

    /// Any number under the first of its names that is there, in the file or in its `rope_parameters`, where newer files
    /// keep those of rotary positions.
    pub(super) fn decimal(&mut self, names: &[&'static str]) -> Option<f64> {
        let nested = self.config.get("rope_parameters").unwrap_or(&Value::Null);
        let there = |config: &'a Value| {
            names.iter().find_map(|name| config.get(*name).filter(|v| !v.is_null()).map(|value| (*name, value)))
        };
        let (name, value) = there(self.config).or_else(|| there(nested))?;
        let number = value.as_f64();
        if number.is_none() {
            self.fault(name, "hf-config::number", format!("`{name}` is {value}, not a number"), String::new());
        }
        number
    }

    /// A number that the part it stands in cannot do without.
    pub(super) fn needed_decimal(&mut self, name: &'static str) -> Option<f64> {
        if self.find(&[name]).is_none() {
            let help = format!("a config.json of model type {} has it", self.model_type);
            self.fault(name, "hf-config::missing", format!("`{name}` is missing"), help);
            return None;
        }
        self.decimal(&[name])
    }

    /// A word under the first of its names that is there.
    pub(super) fn text(&mut self, names: &[&'static str]) -> Option<&'a str> {
        let (name, value) = self.find(names)?;
        let text = value.as_str();
        if text.is_none() {
            self.fault(name, "hf-config::text", format!("`{name}` is {value}, not a word"), String::new());
        }
        text
    }

    /// The fields of an object among them; its faults come back by [`Fields::absorb`].
    pub(super) fn part(&self, name: &'static str) -> Option<Self> {
        let (_, config) = self.find(&[name])?;
        let prefix = format!("{}{name}.", self.prefix);
        Some(Self { config, prefix, model_type: self.model_type, faults: Vec::new() })
    }

    /// Takes over the faults of a part.
    pub(super) fn absorb(&mut self, part: Self) {
        self.faults.extend(part.faults);
    }

    /// A yes or no.
    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        let Some((_, value)) = self.find(&[name]) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.fault(name, "hf-config::flag", format!("`{name}` is {value}, not true or false"), String::new());
            default
        })
    }

    /// Whether a list that may be left out has something in it.
    pub(super) fn has_entries(&self, name: &'static str) -> bool {
        self.find(&[name]).is_some_and(|(_, value)| value.as_array().is_none_or(|list| !list.is_empty()))
    }

    /// Refuses a field that changes the weights in a way that is not known here.
    pub(super) fn refuse(&mut self, name: &'static str, why: &str, help: &str) {
        self.fault(name, "hf-config::unknown", format!("`{name}`: {why}"), help.to_owned());
    }
}
