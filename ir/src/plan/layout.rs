//! Which layers each stage holds.

use crate::fault::Fault;
use crate::ids::LayerRange;
use crate::model::ModelShape;
use crate::scenario::{Parallel, ScheduleEntry};

const LAYERS: &str = "model.num_layers";

/// Layers of each stage, as even as can be, the extra ones first: 30 over 4 is 8, 8, 7, 7. (The last stage has the
/// head and the loss on top, so the first ones take the extra layers.)
pub fn even_layout(layers: u32, stages: u32) -> Vec<u32> {
    let stages = stages.max(1);
    (0..stages).map(|s| layers / stages + u32::from(s < layers % stages)).collect()
}

pub(super) fn resolve(
    model: &ModelShape,
    parallel: &Parallel,
    at: &str,
    entry: &ScheduleEntry,
    stages: u32,
    chunks: u32,
) -> Result<Vec<LayerRange>, Vec<Fault>> {
    let written = match (&entry.layout, &parallel.layout) {
        (Some(layout), _) => Some((layout, format!("{at}.layout"))),
        (None, Some(layout)) => Some((layout, "parallel.layout".to_owned())),
        (None, None) => None,
    };
    let sizes = match written {
        Some((layout, path)) => {
            let faults = layout_faults(model.num_layers, stages, layout, &path);
            if !faults.is_empty() {
                return Err(faults);
            }
            layout.clone()
        }
        None => default_layout(model.num_layers, stages, chunks)?,
    };
    let mut start = 0;
    Ok(sizes
        .into_iter()
        .map(|n| {
            let range = LayerRange { start, end: start + n };
            start += n;
            range
        })
        .collect())
}

fn layout_faults(layers: u32, stages: u32, layout: &[u32], path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    if layout.len() != stages as usize {
        let message = format!("{} entries for {stages} stages", layout.len());
        let help =
            format!("write {stages} numbers that sum to {layers}, for example {:?}", even_layout(layers, stages));
        faults.push(Fault::new(path, "layout::stages", message, help));
    }
    let sum: u64 = layout.iter().map(|n| u64::from(*n)).sum();
    if sum != u64::from(layers) {
        let message = format!("the layers of the stages sum to {sum}, but the model has {layers}");
        let help = format!("for example {:?}", even_layout(layers, stages));
        faults.push(Fault::new(path, "layout::sum", message, help));
    }
    faults
}

/// Even where it can be; uneven only without chunks, as Megatron wants it.
fn default_layout(layers: u32, stages: u32, chunks: u32) -> Result<Vec<u32>, Vec<Fault>> {
    if layers < stages {
        let message = format!("{layers} layers are fewer than {stages} stages");
        let help = format!("use at least {stages} layers, fewer ranks or chunks, or a layout with empty stages");
        return Err(vec![Fault::new(LAYERS, "layout::few", message, help)]);
    }
    if chunks > 1 && !layers.is_multiple_of(stages) {
        let ranks = stages / chunks;
        let legal: Vec<String> = (1..=layers / ranks.max(1))
            .take(1000)
            .filter(|v| layers.is_multiple_of(ranks * v))
            .map(|v| v.to_string())
            .collect();
        let chunk_help = if legal.is_empty() { String::new() } else { format!("{} chunks a rank, ", legal.join(", ")) };
        let message = format!(
            "{layers} layers do not divide into {ranks} ranks x {chunks} chunks = {stages} stages: {layers} % {stages} = {}",
            layers % stages
        );
        let (below, above) = (layers / stages * stages, (layers / stages + 1) * stages);
        let help = format!("use {chunk_help}{below} or {above} layers, or write a layout");
        return Err(vec![Fault::new(LAYERS, "layout::divide", message, help)]);
    }
    Ok(even_layout(layers, stages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a4c_thirty_layers_over_four_stages_lose_none() {
        assert_eq!(even_layout(30, 4), [8, 8, 7, 7]);
        assert_eq!(default_layout(30, 4, 1).unwrap(), [8, 8, 7, 7]);
    }

    #[test]
    fn chunks_must_divide_the_layers() {
        let fault = default_layout(30, 8, 2).unwrap_err().remove(0);
        assert!(fault.message.contains("30 % 8 = 6") && fault.help.contains("24 or 32 layers"), "{fault:?}");
        assert_eq!(default_layout(3, 4, 1).unwrap_err()[0].code, "layout::few");
    }

    #[test]
    fn a_layout_says_all_its_faults() {
        let codes: Vec<_> = layout_faults(8, 4, &[1, 2, 2], "parallel.layout").iter().map(|f| f.code).collect();
        assert_eq!(codes, ["layout::stages", "layout::sum"]);
    }
}
