//! From a JSON path to its place in the text, and from text to JSON.

use jsonc_parser::ast::Value;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use std::collections::BTreeSet;

/// JSON, with comments and trailing commas for people.
fn options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// A place that does not parse, or a key that stands twice: what is wrong, and where.
pub(crate) type SyntaxFault = (String, (usize, usize));

/// The JSON value of a text.
pub(crate) fn parse(text: &str) -> Result<serde_json::Value, SyntaxFault> {
    let fault = |error: jsonc_parser::errors::ParseError| {
        let range = error.range();
        (error.kind().to_string(), (range.start, range.end.saturating_sub(range.start).max(1)))
    };
    let tree = parse_to_ast(text, &CollectOptions::default(), &options()).map_err(fault)?;
    match tree.value.as_ref().and_then(duplicate_key) {
        Some(fault) => Err(fault),
        None => jsonc_parser::parse_to_serde_value(text, &options()).map_err(fault),
    }
}

/// The first key that an object has twice: one of them would silently win.
fn duplicate_key(value: &Value<'_>) -> Option<SyntaxFault> {
    let mut seen = BTreeSet::new();
    match value {
        Value::Object(object) => object.properties.iter().find_map(|property| {
            let name = property.name.as_str();
            if !seen.insert(name) {
                let range = property.name.range();
                return Some((format!("the key \"{name}\" stands twice"), (range.start, range.end - range.start)));
            }
            duplicate_key(&property.value)
        }),
        Value::Array(array) => array.elements.iter().find_map(duplicate_key),
        _ => None,
    }
}

/// The place of `path` (`training.num_microbatches`, `schedules[2].csv`) in the text: of the value, or of the nearest
/// thing around it that is there. `None` where not even the first step is.
pub(crate) fn span(text: &str, path: &str) -> Option<(usize, usize)> {
    let tree = parse_to_ast(text, &CollectOptions::default(), &options()).ok()?;
    let mut value = tree.value.as_ref()?;
    let mut span = None;
    for step in steps(path) {
        let Some(next) = child(value, step) else { break };
        let range = next.range();
        value = next;
        span = Some((range.start, range.end - range.start));
    }
    // A whole object is too much to underline: its first character will do.
    let (start, length) = span?;
    let first_line = text.get(start..start + length).and_then(|s| s.lines().next()).map_or(1, str::len);
    Some((start, length.min(first_line.max(1))))
}

/// The place of the key `key` of the object at `path` (empty for the whole file).
pub(crate) fn key_span(text: &str, path: &str, key: &str) -> Option<(usize, usize)> {
    let tree = parse_to_ast(text, &CollectOptions::default(), &options()).ok()?;
    let mut value = tree.value.as_ref()?;
    for step in steps(path) {
        value = child(value, step)?;
    }
    let Value::Object(object) = value else { return None };
    let range = object.properties.iter().find(|p| p.name.as_str() == key)?.name.range();
    Some((range.start, range.end - range.start))
}

/// The steps of a path: keys and indices.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[']).map(|step| step.trim_end_matches(']')).filter(|step| !step.is_empty())
}

fn child<'a, 'b>(value: &'b Value<'a>, step: &str) -> Option<&'b Value<'a>> {
    match value {
        Value::Object(object) => object.properties.iter().find(|p| p.name.as_str() == step).map(|p| &p.value),
        Value::Array(array) => step.parse::<usize>().ok().and_then(|i| array.elements.get(i)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{ // a comment\n  \"a\": { \"b\": [10, { \"c\": true }] },\n}";

    #[test]
    fn paths_are_found() {
        let at = |path| span(TEXT, path).map(|(start, length)| &TEXT[start..start + length]);
        assert_eq!(at("a.b[0]"), Some("10"));
        assert_eq!(at("a.b[1].c"), Some("true"));
        assert_eq!(at("a.b[7]"), Some("[10, { \"c\": true }]"), "the nearest thing around it");
        assert_eq!(at("x"), None);
        assert_eq!(parse(TEXT).unwrap()["a"]["b"][0], 10);
    }

    #[test]
    fn a_key_is_found_in_its_own_object() {
        let text = "{ \"execute\": { \"steps\": 1 }, \"steps\": 2 }";
        assert_eq!(key_span(text, "", "steps"), Some((text.rfind("\"steps\"").unwrap(), 7)));
        assert_eq!(key_span(text, "execute", "steps"), Some((text.find("\"steps\"").unwrap(), 7)));
    }

    #[test]
    fn syntax_faults_have_a_place() {
        for text in ["{", "{\"a\": NaN}", "{\"a\": 1 \"b\": 2}", "{\"a\": 1, \"a\": 2}"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("{\"a\": 1, \"a\": 2}").unwrap_err().1, (9, 3));
    }
}
