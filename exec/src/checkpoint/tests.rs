//! Checkpoints under other splits, damaged files, and ends of the process between any two steps.
#![expect(clippy::single_range_in_vec_init, reason = "a shard has a list of ranges, of one at times")]

use super::*;
use crate::atomic_file::crash;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use tempfile::{TempDir, tempdir};

const QKV: &str = "transformer.h.0.attn.c_attn.weight";
const NORM: &str = "transformer.h.1.ln_1.weight";

/// A number that says where it is from.
fn whole(kind: Kind, shard: &Shard) -> Vec<f32> {
    let first = 1000.0 * (kind as u32 as f32 + 1.0) + shard.name.len() as f32 * 50.0;
    (0..shard.whole_len()).map(|i| first + i as f32).collect()
}

/// What a rank has of `shard`, all or a part of it.
fn entry(kind: Kind, shard: &Shard, part: Option<Range<usize>>) -> Entry {
    let own = shard.take(&whole(kind, shard));
    let part = part.unwrap_or(0..own.len());
    Entry { kind, shard: shard.clone(), values: own[part.clone()].to_vec(), part }
}

/// The columns of queries, keys and values of rank `rank` of `tp`: three ranges.
fn columns(rank: usize, tp: usize) -> Shard {
    let width = 4 / tp;
    let ranges: Vec<_> = (0..3).map(|part| part * 4 + rank * width..part * 4 + (rank + 1) * width).collect();
    Shard::cut(QKV, [4, 12], 1, ranges)
}

fn state() -> State {
    State { model: "a model".into(), plan: "tp 2".into(), loss: Some(2.5), other: serde_json::json!({ "seed": 7 }) }
}

/// Two layers on two pipeline stages, the first on two tensor-parallel ranks, moments cut in two under ZeRO.
fn save(directory: &Path, step: u64) -> Result<(), CheckpointError> {
    let mut records = Vec::new();
    for rank in 0..2 {
        let shard = columns(rank, 2);
        let entries = [
            entry(Kind::Parameter, &shard, None),
            // Of uneven size, as parts of a rest are.
            entry(Kind::FirstMoment, &shard, Some(0..11)),
            entry(Kind::FirstMoment, &shard, Some(11..24)),
        ];
        records.push(write_rank(directory, step, rank as u32, &entries)?);
    }
    let norm = Shard::whole(NORM, [6]);
    records.push(write_rank(directory, step, 2, &[entry(Kind::Parameter, &norm, None)])?);
    commit(directory, step, records, state())
}

fn saved() -> TempDir {
    let directory = tempdir().unwrap();
    save(directory.path(), 5).unwrap();
    directory
}

fn newest(directory: &Path) -> Option<u64> {
    latest(directory).unwrap().map(|checkpoint| checkpoint.step())
}

/// Reads everything under splits other than that of [`save`].
fn read_all(checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let mut shards = vec![Shard::whole(QKV, [4, 12]), Shard::cut(QKV, [4, 12], 0, [3..4, 1..2])];
    shards.extend([1, 2, 4].iter().flat_map(|tp| (0..*tp).map(|rank| columns(rank, *tp))));
    for kind in [Kind::Parameter, Kind::FirstMoment] {
        for shard in &shards {
            assert_eq!(checkpoint.read(kind, shard)?, shard.take(&whole(kind, shard)), "{kind} {shard:?}");
        }
    }
    let norm = Shard::cut(NORM, [6], 0, [1..5]);
    assert_eq!(checkpoint.read(Kind::Parameter, &norm)?, norm.take(&whole(Kind::Parameter, &norm)));
    Ok(())
}

#[test]
fn numbers_come_back_under_any_other_split() {
    let directory = saved();
    let checkpoint = latest(directory.path()).unwrap().unwrap();
    assert_eq!((checkpoint.step(), checkpoint.state()), (5, &state()));
    read_all(&checkpoint).unwrap();
    checkpoint.verify().unwrap();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    assert_eq!(tensors, [(Kind::Parameter, QKV), (Kind::Parameter, NORM), (Kind::FirstMoment, QKV)]);
}

#[test]
fn same_numbers_same_bytes() {
    let (a, b) = (saved(), saved());
    for name in ["rank-00000.safetensors", "rank-00001.safetensors", "rank-00002.safetensors", MANIFEST] {
        let read = |directory: &TempDir| fs::read(step_directory(directory.path(), 5).join(name)).unwrap();
        assert_eq!(read(&a), read(&b), "{name}");
    }
}

#[test]
fn numbers_that_several_ranks_wrote_count_once() {
    let directory = tempdir().unwrap();
    let shard = Shard::whole("w", [6]);
    let mut other = entry(Kind::Parameter, &shard, Some(2..6));
    other.values.fill(-1.0);
    let records = vec![
        write_rank(directory.path(), 0, 0, &[entry(Kind::Parameter, &shard, Some(0..4))]).unwrap(),
        write_rank(directory.path(), 0, 1, &[other]).unwrap(),
    ];
    commit(directory.path(), 0, records, State::default()).unwrap();
    let numbers = latest(directory.path()).unwrap().unwrap().read(Kind::Parameter, &shard).unwrap();
    assert_eq!(numbers[..4], whole(Kind::Parameter, &shard)[..4]);
    assert_eq!(numbers[4..], [-1.0, -1.0]);
}

#[test]
fn what_is_missing_is_named_with_its_place() {
    let directory = tempdir().unwrap();
    let record = |rank: u32| {
        let entry = entry(Kind::Momentum, &columns(rank as usize, 2), None);
        write_rank(directory.path(), 1, rank, &[entry]).unwrap()
    };
    let error = commit(directory.path(), 1, vec![record(1)], State::default()).unwrap_err().to_string();
    assert!(error.contains("lacks 24 of the 48 numbers") && error.ends_with("the first is at [0, 0]"), "{error}");
    let other = entry(Kind::Momentum, &Shard::whole(QKV, [4, 6]), None);
    let other = write_rank(directory.path(), 1, 2, &[other]).unwrap();
    let error = commit(directory.path(), 1, vec![record(0), other], State::default()).unwrap_err().to_string();
    assert!(error.contains("was saved as [4, 6]"), "{error}");
    assert_eq!(newest(directory.path()), None);
    // A manifest by another hand.
    let bytes = manifest::Manifest::new(1, State::default(), vec![record(0)]).to_bytes().unwrap();
    fs::write(step_directory(directory.path(), 1).join(MANIFEST), bytes).unwrap();
    let checkpoint = latest(directory.path()).unwrap().unwrap();
    checkpoint.read(Kind::Momentum, &columns(1, 4)).unwrap();
    let error = checkpoint.read(Kind::Momentum, &Shard::whole(QKV, [4, 12])).unwrap_err().to_string();
    assert!(error.contains("lacks 24 of the 48 numbers asked for of the momentum of transformer.h.0"), "{error}");
    assert!(error.ends_with("the first is at [0, 2]"), "{error}");
    let error = checkpoint.read(Kind::Parameter, &Shard::whole("no.such", [2, 2])).unwrap_err().to_string();
    assert!(error.contains("lacks 4 of the 4") && error.contains("no.such"), "{error}");
    let error = checkpoint.read(Kind::Momentum, &Shard::whole(QKV, [4, 6])).unwrap_err().to_string();
    assert!(error.contains("was saved as [4, 12]") && error.contains("needs [4, 6]"), "{error}");
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name_and_length() {
    let directory = saved();
    for name in ["rank-00001.safetensors", "rank-00002.safetensors"] {
        let path = step_directory(directory.path(), 5).join(name);
        let bytes = fs::read(&path).unwrap();
        for length in (0..bytes.len()).chain([bytes.len() + 1]) {
            let mut cut = bytes.clone();
            cut.resize(length, 0);
            fs::write(&path, cut).unwrap();
            let error = read_all(&latest(directory.path()).unwrap().unwrap()).unwrap_err();
            assert!(matches!(&error, CheckpointError::Length { path: p, .. } if *p == path), "{length}: {error}");
        }
        fs::remove_file(&path).unwrap();
        let error = read_all(&latest(directory.path()).unwrap().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("cannot open") && error.contains(name), "{error}");
        fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn a_manifest_cut_anywhere_is_none() {
    let directory = saved();
    save(directory.path(), 4).unwrap();
    let path = step_directory(directory.path(), 5).join(MANIFEST);
    let bytes = fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        assert_eq!(newest(directory.path()), Some(4), "{length}");
    }
}

#[test]
fn one_flipped_bit_anywhere_is_found() {
    let directory = saved();
    for name in ["rank-00000.safetensors", "rank-00002.safetensors", MANIFEST] {
        let path = step_directory(directory.path(), 5).join(name);
        let bytes = fs::read(&path).unwrap();
        // In place: a file that is cut to nothing and filled again costs some file systems a trip to the disk.
        let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let mut put = |at: usize, byte: u8| {
            file.seek(SeekFrom::Start(at as u64)).unwrap();
            file.write_all(&[byte]).unwrap();
        };
        for bit in 0..bytes.len() * 8 {
            let at = bit / 8;
            put(at, bytes[at] ^ (1 << (bit % 8)));
            if name == MANIFEST {
                let error = open(directory.path(), 5).unwrap_err();
                assert!(
                    matches!(&error, CheckpointError::Manifest { path: p, .. } if *p == path),
                    "bit {bit}: {error}"
                );
            } else {
                let error = read_all(&open(directory.path(), 5).unwrap()).unwrap_err();
                assert!(
                    matches!(&error, CheckpointError::Checksum { path: p, .. } if *p == path),
                    "bit {bit}: {error}"
                );
            }
            put(at, bytes[at]);
        }
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn whatever_step_it_is_killed_before_the_newest_checkpoint_is_whole() {
    let mut steps = 0;
    loop {
        let directory = saved();
        let (result, ended) = crash::before_step(steps, || save(directory.path(), 6));
        let checkpoint = latest(directory.path()).unwrap().unwrap();
        read_all(&checkpoint).unwrap();
        if !ended {
            assert!(result.is_ok() && checkpoint.step() == 6);
            break;
        }
        assert!(result.is_err());
        // No file under a final name is torn: what is there is as another run writes it.
        for entry in fs::read_dir(step_directory(directory.path(), 6)).into_iter().flatten() {
            let name = entry.unwrap().file_name();
            if !name.to_str().unwrap().ends_with(".tmp") {
                let read = |step| fs::read(step_directory(directory.path(), step).join(&name)).unwrap();
                let same = name.to_str() == Some(MANIFEST) || read(6) == read(5);
                assert!(same, "step {steps}: {}", name.display());
            }
        }
        // The next attempt takes no notice of what is left, unless there is nothing left to do.
        if checkpoint.step() == 5 {
            save(directory.path(), 6).unwrap();
        }
        assert_eq!(newest(directory.path()), Some(6), "step {steps}");
        steps += 1;
    }
    assert_eq!(steps, 3 * 7 + 5, "three ranks' directories and files, a manifest");
}

#[test]
fn a_newer_incomplete_checkpoint_is_passed_over_and_completed_later() {
    let directory = saved();
    let shard = Shard::whole(NORM, [6]);
    write_rank(directory.path(), 9, 0, &[entry(Kind::Parameter, &shard, None)]).unwrap();
    fs::create_dir(directory.path().join("step-12")).unwrap();
    fs::write(directory.path().join("notes.txt"), "not ours").unwrap();
    assert_eq!((newest(directory.path()), steps(directory.path()).unwrap()), (Some(5), vec![5, 9]));
    // It may be being written: pruning leaves it.
    assert!(prune(directory.path(), 1).unwrap().is_empty());
    save(directory.path(), 9).unwrap();
    assert_eq!(newest(directory.path()), Some(9));
}

#[test]
fn pruning_keeps_the_newest_and_clears_what_was_never_completed() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    assert!(prune(path, 2).unwrap().is_empty());
    for step in [10, 20, 30, 40] {
        save(path, step).unwrap();
    }
    fs::remove_file(step_directory(path, 20).join(MANIFEST)).unwrap();
    assert_eq!(prune(path, 2).unwrap(), [10, 20]);
    // One that lost a file does not count as kept, and as the newest is not taken away either.
    fs::remove_file(step_directory(path, 40).join("rank-00000.safetensors")).unwrap();
    assert!(prune(path, 0).unwrap().is_empty());
    assert_eq!(steps(path).unwrap(), [30, 40]);
    save(path, 50).unwrap();
    assert_eq!((prune(path, 0).unwrap(), newest(path)), (vec![30, 40], Some(50)));
}

#[test]
fn pruning_killed_anywhere_leaves_whole_checkpoints() {
    for end in 0.. {
        let directory = saved();
        save(directory.path(), 6).unwrap();
        let (result, ended) = crash::before_step(end, || prune(directory.path(), 1));
        let left = steps(directory.path()).unwrap();
        for step in &left {
            match open(directory.path(), *step) {
                Ok(checkpoint) => read_all(&checkpoint).unwrap(),
                Err(error) => assert!(matches!(error, CheckpointError::File(_)) && *step == 5, "{error}"),
            }
        }
        assert_eq!(newest(directory.path()), Some(6));
        if !ended {
            assert_eq!((result.unwrap(), left, end), (vec![5], vec![6], 4));
            break;
        }
    }
}

#[test]
fn a_complete_checkpoint_is_not_written_over() {
    let directory = saved();
    let error = save(directory.path(), 5).unwrap_err().to_string();
    assert!(error.starts_with("step 5 is saved already in"), "{error}");
    let error = commit(directory.path(), 5, Vec::new(), state()).unwrap_err();
    assert!(matches!(error, CheckpointError::AlreadyComplete { step: 5, .. }));
    read_all(&latest(directory.path()).unwrap().unwrap()).unwrap();
}

#[test]
fn what_cannot_be_a_checkpoint_is_refused_before_it_is_one() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let mut bad = entry(Kind::Parameter, &Shard::whole("w", [4]), None);
    bad.part = 1..5;
    let error = write_rank(path, 0, 0, &[bad]).unwrap_err().to_string();
    assert!(error.contains("the parameter of w cannot be written: 4 numbers were given for 1..5 of the shard's 4"));
    assert!(commit(path, 0, Vec::new(), state()).unwrap_err().to_string().contains("no rank has written a file"));
    let record = write_rank(path, 0, 0, &[entry(Kind::Parameter, &Shard::whole("w", [4]), None)]).unwrap();
    let twice = commit(path, 0, vec![record.clone(), record.clone()], state()).unwrap_err().to_string();
    assert!(twice.contains("rank-00000.safetensors was written twice"), "{twice}");
    let longer = FileRecord { bytes: record.bytes + 4, ..record };
    assert!(matches!(commit(path, 0, vec![longer], state()), Err(CheckpointError::Length { .. })));
    assert_eq!(newest(path), None);
    assert_eq!(newest(Path::new("/no/such/directory")), None);
}

#[test]
fn another_format_is_refused_and_not_passed_over() {
    let directory = saved();
    save(directory.path(), 6).unwrap();
    let path = step_directory(directory.path(), 6).join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    let rest = text.split_once('\n').unwrap().1.replacen("\"format\":1", "\"format\":2", 1);
    let checksum = xxhash_rust::xxh3::xxh3_64(rest.as_bytes());
    fs::write(&path, format!("{{\"checksum\":\"{checksum:016x}\",\n{rest}")).unwrap();
    let error = latest(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with("manifest.json is of format 2; this version reads format 1"), "{error}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let error = save(&file, 0).unwrap_err().to_string();
    assert!(error.contains("/file/step-0000000000") && error.contains("Not a directory"), "{error}");
    let error = latest(&file).unwrap_err().to_string();
    assert!(error.starts_with("cannot list") && error.contains("Not a directory"), "{error}");
}
