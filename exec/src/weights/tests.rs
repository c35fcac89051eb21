//! Weights saved and read back, published ways of writing them, and files that are not what they say.
#![expect(clippy::single_range_in_vec_init, reason = "a shard has a list of ranges, of one at times")]

use super::*;
use crate::shard::Shard;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tempfile::{TempDir, tempdir};

fn values(count: usize, from: f32) -> Vec<f32> {
    (0..count).map(|i| from + i as f32 * 0.37).collect()
}

fn tensors() -> Vec<(Shard, Vec<f32>)> {
    let mut odd = values(24, 0.0);
    // Every bit has to come back: a negative zero, a subnormal, a NaN with a payload.
    (odd[0], odd[1], odd[2]) = (-0.0, f32::from_bits(1), f32::from_bits(0x7fc0_1234));
    vec![
        (Shard::whole("transformer.wte.weight", [6, 4]), odd),
        (Shard::whole("transformer.h.0.attn.c_attn.weight", [4, 12]), values(48, 100.0)),
        (Shard::whole("transformer.ln_f.bias", [4]), values(4, 7.0)),
    ]
}

fn saved(bytes: u64) -> TempDir {
    let directory = tempdir().unwrap();
    save_in_files_of(bytes, directory.path(), &tensors(), &BTreeMap::new()).unwrap();
    directory
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A safetensors file of raw bytes.
fn raw(path: &Path, header: &Value, data: &[u8]) {
    let mut file = header.to_string().into_bytes();
    file.resize(file.len().next_multiple_of(8), b' ');
    let length = file.len() as u64;
    file.splice(0..0, length.to_le_bytes());
    file.extend(data);
    fs::write(path, file).unwrap();
}

#[test]
fn what_is_saved_comes_back_bit_by_bit_in_one_file_or_several() {
    for (bytes, files) in [(MAX_FILE_BYTES, 1), (150, 3), (220, 2)] {
        let directory = saved(bytes);
        let weights = Weights::open(directory.path()).unwrap();
        assert_eq!(weights.files.len(), files);
        for (shard, values) in tensors() {
            assert_eq!(bits(&weights.read(&shard).unwrap()), bits(&values), "{}", shard.name);
        }
    }
}

#[test]
fn another_save_takes_the_place_of_the_first_whichever_way_it_is_cut() {
    let directory = saved(150);
    for bytes in [MAX_FILE_BYTES, 150] {
        let other = [
            (Shard::whole("transformer.wte.weight", [40, 1]), values(40, -9.0)),
            (Shard::whole("lm_head.weight", [1]), vec![bytes as f32]),
        ];
        save_in_files_of(bytes, directory.path(), &other, &BTreeMap::new()).unwrap();
        let weights = Weights::open(directory.path()).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["lm_head.weight", "transformer.wte.weight"]);
        assert_eq!(weights.read(&other[1].0).unwrap(), [bytes as f32]);
    }
}

#[test]
fn same_tensors_same_bytes_and_other_readers_read_them() {
    let metadata = BTreeMap::from([("step".to_owned(), "3".to_owned()), ("by".to_owned(), "a test".to_owned())]);
    let write = || {
        let directory = tempdir().unwrap();
        save(directory.path(), &tensors(), &metadata).unwrap();
        fs::read(directory.path().join(SINGLE_FILE)).unwrap()
    };
    let bytes = write();
    assert_eq!(bytes, write());
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.tensor("transformer.ln_f.bias").unwrap().shape(), [4]);
    let (length, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((length % 8, header.metadata().as_ref().unwrap().get("format").unwrap().as_str()), (0, "pt"));
}

#[test]
fn a_rank_gets_its_columns_and_rows() {
    let directory = saved(MAX_FILE_BYTES);
    let weights = Weights::open(directory.path()).unwrap();
    let whole = values(48, 100.0);
    for rank in 0..2 {
        let ranges: Vec<_> = (0..3).map(|part| part * 4 + rank * 2..part * 4 + rank * 2 + 2).collect();
        let shard = Shard::cut("transformer.h.0.attn.c_attn.weight", [4, 12], 1, ranges);
        assert_eq!(weights.read(&shard).unwrap(), shard.take(&whole));
    }
    let rows = Shard::cut("transformer.h.0.attn.c_attn.weight", [4, 12], 0, [3..4, 0..1]);
    assert_eq!(weights.read(&rows).unwrap(), rows.take(&whole));
}

#[test]
fn names_are_found_with_and_without_the_base_model() {
    let directory = tempdir().unwrap();
    let written = [("wte.weight", "transformer.wte.weight"), ("model.norm.weight", "norm.weight")];
    let tensors: Vec<_> = written.iter().map(|(name, _)| (Shard::whole(*name, [2]), vec![1.0, 2.0])).collect();
    save(directory.path(), &tensors, &BTreeMap::new()).unwrap();
    let weights = Weights::open(directory.path()).unwrap();
    for (_, asked) in written {
        assert_eq!(weights.read(&Shard::whole(asked, [2])).unwrap(), [1.0, 2.0], "{asked}");
    }
    // A tied head is not in the file; it is the token embedding.
    assert!(!weights.has_output_head());
    assert_eq!(weights.read(&Shard::whole("lm_head.weight", [2])).unwrap(), [1.0, 2.0]);
    let error = weights.read(&Shard::whole("h.0.ln_1.weight", [2])).unwrap_err().to_string();
    assert!(
        error.contains("no tensor h.0.ln_1.weight or transformer.h.0.ln_1.weight") && error.contains("among the 2")
    );
}

#[test]
fn half_precision_is_read_as_the_numbers_it_stands_for() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("half.safetensors");
    let header = json!({
        "a": { "dtype": "F16", "shape": [3], "data_offsets": [0, 6] },
        "b": { "dtype": "BF16", "shape": [2], "data_offsets": [6, 10] },
        "c": { "dtype": "I32", "shape": [1], "data_offsets": [10, 14] },
    });
    // F16: 1, -2, the smallest subnormal; BF16: 1, -inf.
    let numbers = [0x3c00u16, 0xc000, 0x0001, 0x3f80, 0xff80, 0, 0];
    raw(&path, &header, &numbers.map(u16::to_le_bytes).concat());
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.read(&Shard::whole("a", [3])).unwrap(), [1.0, -2.0, 2.0f32.powi(-24)]);
    assert_eq!(weights.read(&Shard::cut("b", [2], 0, [1..2])).unwrap(), [f32::NEG_INFINITY]);
    let error = weights.read(&Shard::whole("c", [1])).unwrap_err().to_string();
    assert!(error.starts_with("c in ") && error.contains("half.safetensors is of dtype I32"), "{error}");
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes_dtype_and_file() {
    let directory = saved(150);
    let weights = Weights::open(directory.path()).unwrap();
    let error = weights.read(&Shard::whole("transformer.wte.weight", [8, 4])).unwrap_err().to_string();
    for part in ["transformer.wte.weight", "[8, 4]", "[6, 4]", "F32", "model-00001-of-00003.safetensors"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let beyond = Shard::cut("transformer.wte.weight", [6, 4], 0, [4..8]);
    assert!(matches!(weights.read(&beyond), Err(WeightsError::Shard(_))));
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name() {
    let directory = saved(MAX_FILE_BYTES);
    let path = directory.path().join(SINGLE_FILE);
    let bytes = fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = Weights::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("model.safetensors is not a whole safetensors file"), "{length}: {error}");
    }
}

#[test]
fn lists_that_lie_are_refused() {
    let directory = saved(150);
    let index = directory.path().join(INDEX_FILE);
    let error = |list: Value| {
        fs::write(&index, list.to_string()).unwrap();
        let shard = Shard::whole("w", [1]);
        Weights::open(directory.path()).and_then(|weights| weights.read(&shard)).unwrap_err().to_string()
    };
    let outside = error(json!({ "weight_map": { "w": "../other.safetensors" } }));
    assert!(outside.contains("not the name of a file beside it"), "{outside}");
    let absent = error(json!({ "weight_map": { "w": "absent.safetensors" } }));
    assert!(absent.starts_with("cannot open") && absent.contains("absent.safetensors"), "{absent}");
    let elsewhere = error(json!({ "weight_map": { "w": "model-00001-of-00003.safetensors" } }));
    assert!(elsewhere.contains("says that w is in") && elsewhere.contains("but it is not"), "{elsewhere}");
    assert!(error(json!({ "weights": {} })).contains("is not a list of weight files"));
    let empty = tempdir().unwrap();
    let nothing = Weights::open(empty.path()).unwrap_err().to_string();
    assert!(nothing.contains("there is no model.safetensors and no model.safetensors.index.json"), "{nothing}");
}

#[test]
fn only_whole_tensors_are_saved_each_once() {
    let directory = tempdir().unwrap();
    let error =
        |tensors: Vec<(Shard, Vec<f32>)>| save(directory.path(), &tensors, &BTreeMap::new()).unwrap_err().to_string();
    assert!(
        error(vec![(Shard::cut("w", [4], 0, [0..2]), vec![0.0; 2])]).starts_with("w cannot be saved: it is [0..2]")
    );
    assert!(error(vec![(Shard::whole("w", [4]), vec![0.0; 3])]).contains("but 3 numbers were given"));
    assert!(error(vec![(Shard::whole("w", [1]), vec![0.0]); 2]).contains("given twice"));
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
}
