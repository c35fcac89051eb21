//! What `plan` answers, for people.

use super::answer::{Answer, BatchRow, ClusterRow, GroupRow, MeshRow, ScheduleRow, Setting, StageRow, TrainingRow};
use pipewright::report::table::table;

pub(super) fn text(answer: &Answer) -> String {
    let mut text = format!("{}: ", answer.scenario);
    setting(&mut text, &answer.setting, None);
    for row in &answer.schedules {
        match &row.setting {
            Some(own) => {
                text.push_str(&format!("\n{}: ", row.schedule));
                setting(&mut text, own, Some(&answer.setting));
            }
            None if answer.schedules.iter().any(|row| row.setting.is_some()) => text.push('\n'),
            None => {}
        }
        text.push_str(&schedule(row));
    }
    text
}

/// The devices, and whatever else differs from the scenario's first schedule.
fn setting(text: &mut String, row: &Setting, first: Option<&Setting>) {
    text.push_str(&format!("{}\n", mesh(&row.mesh)));
    if let Some(own) = row.cluster.as_ref().filter(|_| first.is_none_or(|first| first.cluster != row.cluster)) {
        text.push_str(&format!("cluster: {}\n", cluster(own)));
    }
    if first.is_none_or(|first| first.batch != row.batch) {
        text.push_str(&format!("batch: {}\n", batch(&row.batch)));
    }
    if first.is_none_or(|first| first.training != row.training) {
        text.push_str(&format!("training: {}\n", training(&row.training)));
    }
    if !row.groups.is_empty() && first.is_none_or(|first| first.groups != row.groups) {
        text.push_str(&groups(&row.groups, row.cluster.is_some()));
    }
}

fn mesh(row: &MeshRow) -> String {
    let sizes = row.order.iter().filter_map(|axis| Some(format!("{axis} {}", row.sizes.get(axis)?)));
    let sizes: Vec<String> = sizes.collect();
    let experts = row.sizes.get("ep").filter(|n| **n > 1).map_or_else(String::new, |n| format!(", ep {n}"));
    format!("{} devices = {}, innermost first{experts}", row.devices, sizes.join(" x "))
}

fn cluster(row: &ClusterRow) -> String {
    format!(
        "{}, {} nodes of {} {}; {} at {} GB/s a GPU, {} {} at {} GB/s each a node",
        row.name,
        row.nodes,
        row.gpus_per_node,
        row.gpu,
        row.intra_node,
        row.intra_node_bandwidth / 1e9,
        row.nics_per_node,
        row.inter_node,
        row.nic_bandwidth / 1e9,
    )
}

fn batch(row: &BatchRow) -> String {
    let per_replica =
        u64::from(row.micro_batch_size) * u64::from(row.num_microbatches) * u64::from(row.accumulation_rounds);
    let replicas = row.global_batch_size / per_replica.max(1);
    let rounds =
        if row.accumulation_rounds > 1 { format!(" x {} rounds", row.accumulation_rounds) } else { String::new() };
    let tokens = if row.seq_length > 0 {
        format!(", {} tokens each = {} tokens", row.seq_length, row.tokens)
    } else {
        String::new()
    };
    format!(
        "{} sequences = {replicas} replicas{rounds} x {} microbatches of {}{tokens}",
        row.global_batch_size, row.num_microbatches, row.micro_batch_size
    )
}

fn training(row: &TrainingRow) -> String {
    let recompute = if row.recompute.len() > 1 { "by stage" } else { row.recompute.first().copied().unwrap_or("none") };
    let mut words = vec![
        row.dtype.to_owned(),
        format!("gradients {}", row.gradient_dtype),
        format!("{} attention", row.attention),
        format!("recompute {recompute}"),
        format!("ZeRO {}", row.zero_stage),
    ];
    if !row.sequence_parallel.is_empty() {
        words.push(format!("sequence parallel {}", row.sequence_parallel.join(" + ")));
    }
    if let Some(norm) = row.clip_grad {
        words.push(format!("gradients clipped to {norm}"));
    }
    for (on, what) in [
        (row.dropout, "dropout"),
        (row.overlap_grad_reduce, "gradient reduction overlapped"),
        (row.overlap_param_gather, "parameter gathering overlapped"),
        (row.tp_comm_overlap, "tensor-parallel messages overlapped"),
        (!row.overlap_p2p_comm, "messages between stages not overlapped"),
        (row.cross_entropy_fusion, "fused loss"),
    ] {
        if on {
            words.push(what.to_owned());
        }
    }
    words.join(", ")
}

/// Devices of a first group that are shown before the last.
const SHOWN: usize = 4;

fn groups(rows: &[GroupRow], on_nodes: bool) -> String {
    let mut headers: Vec<String> = ["group", "devices", "groups", "the first"].map(String::from).to_vec();
    if on_nodes {
        headers.push("across nodes".to_owned());
    }
    let row = |row: &GroupRow| {
        let mut first: Vec<String> = row.first.iter().take(SHOWN).map(u64::to_string).collect();
        match row.first.last() {
            Some(last) if row.first.len() == SHOWN + 1 => first.push(last.to_string()),
            Some(_) if row.size > row.first.len() as u64 => first.push("...".to_owned()),
            Some(last) if row.first.len() > SHOWN => first.extend(["...".to_owned(), last.to_string()]),
            _ => {}
        }
        let mut cells = vec![row.group.to_owned(), row.size.to_string(), row.groups.to_string(), first.join(" ")];
        if let (Some(crossing), Some(nodes)) = (row.crossing_groups, row.nodes) {
            let some = if crossing < row.groups { format!(", {crossing} groups") } else { String::new() };
            cells.push(if crossing == 0 { "no".to_owned() } else { format!("{nodes} nodes{some}") });
        }
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    table(&headers, &rows)
}

fn schedule(row: &ScheduleRow) -> String {
    let mut text = format!("{}: p {}, m {}, v {}\n", row.schedule, row.p, row.m, row.v);
    if row.stages.iter().all(|stage| stage.layers.is_none()) {
        return text;
    }
    // Stages that hold alike are one line.
    let mut runs: Vec<(&StageRow, &StageRow)> = Vec::new();
    for stage in &row.stages {
        match runs.last_mut() {
            Some((first, last)) if alike(first, stage) => *last = stage,
            _ => runs.push((stage, stage)),
        }
    }
    let headers = ["stages", "layers each", "layers", "parameters each", "recompute", "with"].map(String::from);
    let line = |(first, last): &(&StageRow, &StageRow)| {
        let [start, each_end] = first.layers.unwrap_or_default();
        let end = last.layers.map_or(each_end, |[_, end]| end);
        let stages = if first.stage == last.stage {
            first.stage.to_string()
        } else {
            format!("{} to {}", first.stage, last.stage)
        };
        let layers = if start < end { format!("{start} to {}", end - 1) } else { "none".to_owned() };
        let with = match (first.embedding, first.head) {
            (true, true) => "embedding, head",
            (true, false) => "embedding",
            (false, true) => "head",
            (false, false) => "",
        };
        vec![
            stages,
            (each_end - start).to_string(),
            layers,
            first.parameters.map_or_else(String::new, |n| n.to_string()),
            first.recompute.to_owned(),
            with.to_owned(),
        ]
    };
    let lines: Vec<Vec<String>> = runs.iter().map(line).collect();
    text.push_str(&table(&headers, &lines));
    text
}

/// Whether two stages hold the same kind of thing.
fn alike(a: &StageRow, b: &StageRow) -> bool {
    let count = |row: &StageRow| row.layers.map(|[start, end]| end - start);
    (count(a), a.embedding, a.head, a.parameters, a.recompute)
        == (count(b), b.embedding, b.head, b.parameters, b.recompute)
}
