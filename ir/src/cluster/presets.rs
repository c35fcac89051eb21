//! The clusters that are shipped, a file each in `clusters/`.
//!
//! One law: a preset is a file that a user could have written.

use super::Hardware;

/// Name and file of every shipped cluster.
pub const PRESETS: [(&str, &str); 11] = [
    ("dgx-1-v100", include_str!("../../clusters/dgx-1-v100.json")),
    ("dgx-a100-40g", include_str!("../../clusters/dgx-a100-40g.json")),
    ("dgx-a100-80g", include_str!("../../clusters/dgx-a100-80g.json")),
    ("dgx-h100", include_str!("../../clusters/dgx-h100.json")),
    ("dgx-h200", include_str!("../../clusters/dgx-h200.json")),
    ("dgx-b200", include_str!("../../clusters/dgx-b200.json")),
    ("jean-zay-a100", include_str!("../../clusters/jean-zay-a100.json")),
    ("vtrain-a100", include_str!("../../clusters/vtrain-a100.json")),
    ("mosaic-a100-40g", include_str!("../../clusters/mosaic-a100-40g.json")),
    ("mosaic-a100-80g", include_str!("../../clusters/mosaic-a100-80g.json")),
    ("zero-bubble-a100", include_str!("../../clusters/zero-bubble-a100.json")),
];

/// The shipped cluster of this name.
pub fn preset(name: &str) -> Option<Hardware> {
    let (_, text) = PRESETS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_read_and_every_number_has_a_source() {
        for (name, text) in PRESETS {
            let hardware: Hardware = serde_json::from_str(text).unwrap();
            assert_eq!(hardware.name, name);
            assert_eq!(preset(name), Some(hardware.clone()));
            let value = serde_json::to_value(&hardware).unwrap();
            let numbers = sources(&value);
            assert!(numbers.len() >= 12, "{name} has {} numbers", numbers.len());
            assert!(numbers.iter().all(|source| source.len() > 5), "{name}: {numbers:?}");
        }
    }

    /// The sources of all numbers.
    fn sources(value: &serde_json::Value) -> Vec<String> {
        let serde_json::Value::Object(object) = value else { return Vec::new() };
        match object.get("source") {
            Some(source) => vec![source.as_str().unwrap().to_owned()],
            None => object.values().flat_map(sources).collect(),
        }
    }

    #[test]
    fn a_cluster_of_ones_own_needs_no_sources() {
        let text = PRESETS[0].1;
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        value["gpu"]["memory"] = 16_000_000_000_u64.into();
        value["intra_node"]["latency"] = serde_json::json!(1e-5);
        let hardware: Hardware = serde_json::from_value(value.clone()).unwrap();
        assert_eq!((hardware.gpu.memory.value, hardware.gpu.memory.source.as_str()), (16_000_000_000, ""));
        value["gpu"]["memory"] = serde_json::json!(-1);
        assert!(serde_json::from_value::<Hardware>(value).unwrap_err().to_string().contains("-1"));
    }
}
