//! From a scenario's sizes to a [`Mesh`] and the cluster under it.
//!
//! One law: the product of the sizes is the number of devices, and whichever size is left out is what the others leave.

use crate::cluster::{self, Cluster, Hardware};
use crate::fault::Fault;
use crate::mesh::{Axis, Mesh};
use crate::scenario::{ClusterChoice, Parallel, Scenario};

const DATA: &str = "parallel.data_parallel_size";
const WORLD: &str = "parallel.world_size";
const ORDER: &str = "parallel.order";

/// The mesh, and the cluster where the scenario has one that can be read.
pub(super) fn resolve(
    scenario: &Scenario,
    read: &dyn Fn(&str) -> Result<String, String>,
    faults: &mut Vec<Fault>,
) -> (Mesh, Option<Cluster>) {
    let parallel = &scenario.parallel;
    let hardware = scenario.cluster.as_ref().and_then(|choice| hardware(choice, read, faults));
    let size = |value: Option<u32>| value.unwrap_or(1).max(1);
    let mut mesh = Mesh {
        tensor: size(parallel.tensor_model_parallel_size),
        context: size(parallel.context_parallel_size),
        data: 1,
        pipeline: size(parallel.pipeline_model_parallel_size),
        expert: size(parallel.expert_model_parallel_size),
        order: Axis::MESH,
    };
    let world = world(scenario, hardware.as_ref(), faults);
    mesh.data = match (parallel.data_parallel_size, &world) {
        (Some(data), _) => data.max(1),
        (None, Some((devices, _, _))) => u32::try_from(devices / mesh.devices().max(1)).unwrap_or(u32::MAX).max(1),
        (None, None) => 1,
    };
    order(parallel, &mut mesh, faults);
    let devices = mesh.devices();
    if devices > Mesh::MAX_DEVICES {
        let message =
            format!("{} = {devices} devices; more than {} is taken for a slip", product(&mesh), Mesh::MAX_DEVICES);
        faults.push(Fault::new("parallel", "mesh::size", message, "use smaller parallel sizes"));
    } else if let Some((world, path, what)) = &world
        && *world != devices
    {
        faults.push(mismatch(&mesh, *world, path, what, parallel.data_parallel_size.is_some()));
    }
    let cluster = scenario.cluster.as_ref().zip(hardware).map(|(choice, hardware)| {
        let per_node = u64::from(hardware.gpus_per_node.value.max(1));
        let gpus = match (choice.gpus, choice.nodes) {
            (Some(gpus), _) => u64::from(gpus),
            (None, Some(nodes)) => u64::from(nodes).saturating_mul(per_node),
            (None, None) => devices,
        };
        let nodes = choice.nodes.unwrap_or(u32::try_from(gpus.div_ceil(per_node)).unwrap_or(u32::MAX));
        let stack = choice.stack.clone().unwrap_or_else(|| hardware.stack.clone());
        Cluster { hardware, nodes, gpus, stack }
    });
    (mesh, cluster)
}

/// `tp 4 x cp 1 x pp 12 x dp 7`, without the axes of size 1 beyond the usual three.
fn product(mesh: &Mesh) -> String {
    let axes = [Axis::Tensor, Axis::Context, Axis::Pipeline, Axis::Data];
    let shown = axes.into_iter().filter(|axis| *axis != Axis::Context || mesh.context > 1);
    let sizes: Vec<String> = shown.map(|axis| mesh.size(axis).to_string()).collect();
    sizes.join("*")
}

/// The sizes do not make the world.
fn mismatch(mesh: &Mesh, world: u64, path: &str, what: &str, data_is_given: bool) -> Fault {
    let model = u64::from(mesh.tensor).saturating_mul(mesh.context.into()).saturating_mul(mesh.pipeline.into());
    let names = if mesh.context > 1 { "tensor * context * pipeline" } else { "tensor * pipeline" };
    if !world.is_multiple_of(model) {
        let parts = product(&Mesh { data: 1, ..*mesh });
        let parts = parts.trim_end_matches("*1");
        let message =
            format!("{what} are no multiple of {names} sizes {parts} = {model}: {world} % {model} = {}", world % model);
        let (below, above) = (world / model * model, (world / model + 1).saturating_mul(model));
        let help = if below == 0 { format!("use {above} devices") } else { format!("use {below} or {above} devices") };
        return Fault::new(path, "mesh::world", message, format!("{help}, or other parallel sizes"));
    }
    let devices = mesh.devices();
    let message = format!("{names} * data sizes {} = {devices}, but {what}", product(mesh));
    let data = world / model;
    let help = format!("use data_parallel_size = {data} (DP={data}), or {devices} devices");
    Fault::new(if data_is_given { DATA } else { path }, "mesh::world", message, help)
}

/// All devices, which knob says so, and in words.
fn world(
    scenario: &Scenario,
    hardware: Option<&Hardware>,
    faults: &mut Vec<Fault>,
) -> Option<(u64, &'static str, String)> {
    let available = scenario.cluster.as_ref().and_then(|choice| match (choice.gpus, choice.nodes) {
        (Some(gpus), _) => Some((u64::from(gpus), "cluster.gpus", format!("the cluster has {gpus} GPUs"))),
        (None, Some(nodes)) => {
            let per_node = hardware?.gpus_per_node.value;
            let gpus = u64::from(nodes).saturating_mul(u64::from(per_node));
            Some((gpus, "cluster.nodes", format!("the cluster has {nodes} nodes x {per_node} = {gpus} GPUs")))
        }
        (None, None) => None,
    });
    let Some(world) = scenario.parallel.world_size else { return available };
    if world == 0 {
        faults.push(Fault::new(WORLD, "scenario::zero", format!("{WORLD} is 0"), "use 1 or more"));
        return available;
    }
    if let Some((gpus, _, what)) = available
        && u64::from(world) > gpus
    {
        let message = format!("world_size is {world}, but {what}");
        let help = format!("use {gpus} devices or fewer, or a larger cluster");
        faults.push(Fault::new(WORLD, "mesh::cluster", message, help));
    }
    Some((u64::from(world), WORLD, format!("world_size is {world}")))
}

fn hardware(
    choice: &ClusterChoice,
    read: &dyn Fn(&str) -> Result<String, String>,
    faults: &mut Vec<Fault>,
) -> Option<Hardware> {
    for (value, key) in [(choice.nodes, "nodes"), (choice.gpus, "gpus")] {
        if value == Some(0) {
            let path = format!("cluster.{key}");
            faults.push(Fault::new(&path, "scenario::zero", format!("{path} is 0"), "use 1 or more"));
        }
    }
    let found = match (&choice.preset, &choice.file) {
        (Some(name), None) => shipped(name),
        (None, Some(file)) => from_file(file, read),
        (Some(_), Some(_)) | (None, None) => {
            let message = "a cluster is either a preset or a file";
            let help = "for example { \"preset\": \"dgx-a100-80g\", \"nodes\": 4 }";
            Err(Box::new(Fault::new("cluster", "cluster::which", message, help)))
        }
    };
    let hardware = found.map_err(|fault| faults.push(*fault)).ok()?;
    let node = u64::from(hardware.gpus_per_node.value);
    if node == 0 {
        let message = "gpus_per_node is 0";
        faults.push(Fault::new("cluster.file", "cluster::number", message, "use 1 or more"));
        return None;
    }
    if let (Some(gpus), Some(nodes)) = (choice.gpus, choice.nodes)
        && u64::from(gpus) > u64::from(nodes) * node
    {
        let most = u64::from(nodes) * node;
        let message = format!("{gpus} GPUs do not fit in {nodes} nodes x {node} = {most}");
        faults.push(Fault::new(
            "cluster.gpus",
            "cluster::gpus",
            message,
            format!("use {most} or fewer, or leave one of them out"),
        ));
    }
    Some(hardware)
}

fn shipped(name: &str) -> Result<Hardware, Box<Fault>> {
    cluster::preset(name).ok_or_else(|| {
        let known: Vec<&str> = cluster::PRESETS.iter().map(|(known, _)| *known).collect();
        let message = format!("`{name}` is no cluster of this version");
        let help = format!("known are {}; or write a file", known.join(", "));
        Box::new(Fault::new("cluster.preset", "cluster::unknown", message, help))
    })
}

fn from_file(file: &str, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Hardware, Box<Fault>> {
    let text = read(file).map_err(|error| {
        let message = format!("cannot read {file}: {error}");
        Box::new(Fault::new("cluster.file", "cluster::file", message, "paths are relative to the scenario"))
    })?;
    serde_json::from_str(&text).map_err(|error| {
        let help = "`pipewright schema cluster` describes the format";
        Box::new(Fault::new("cluster.file", "cluster::json", format!("{file}: {error}"), help))
    })
}

/// Reads `tp-cp-dp-pp`. Expert parallelism has no place of its own there: it lies along context and data.
fn order(parallel: &Parallel, mesh: &mut Mesh, faults: &mut Vec<Fault>) {
    let Some(text) = &parallel.order else { return };
    let mut axes: Vec<Axis> = Vec::new();
    let mut wrong = |message: String| {
        let help = "write the axes tp, cp, dp and pp once each, innermost first, as in tp-cp-dp-pp";
        faults.push(Fault::new(ORDER, "mesh::order", message, help));
    };
    for word in text.split('-') {
        let axis = Axis::MESH.into_iter().chain([Axis::Expert]).find(|axis| axis.name() == word);
        match axis {
            None => wrong(format!("`{word}` is no axis of the mesh")),
            Some(axis) if axes.contains(&axis) => wrong(format!("{word} stands twice in the order")),
            Some(axis) => axes.push(axis),
        }
    }
    axes.retain(|axis| *axis != Axis::Expert);
    for axis in Axis::MESH {
        if !axes.contains(&axis) {
            if mesh.size(axis) > 1 {
                wrong(format!("{} has {} ranks, but no place in the order {text}", axis.name(), mesh.size(axis)));
            }
            axes.push(axis);
        }
    }
    if let Ok(order) = <[Axis; 4]>::try_from(axes) {
        mesh.order = order;
    }
}
