//! Which layers each stage holds.
//!
//! One law: every layer is held once, in order; the embedding is on the first stage, the head on the last.

mod balanced;
mod notation;

use crate::fault::Fault;
use crate::ids::LayerRange;
use crate::model::ModelShape;
use crate::scenario::{Layout, Parallel, ScheduleEntry};

const LAYERS: &str = "model.num_layers";

/// Layers of each stage, as even as can be, the extra ones first: 30 over 4 is 8, 8, 7, 7. (The last stage has the
/// head and the loss on top, so the first ones take the extra layers.)
pub fn even_layout(layers: u32, stages: u32) -> Vec<u32> {
    let stages = stages.max(1);
    (0..stages).map(|s| layers / stages + u32::from(s < layers % stages)).collect()
}

/// What a layout is made for.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) model: &'a ModelShape,
    pub(super) parallel: &'a Parallel,
    pub(super) stages: u32,
    pub(super) chunks: u32,
    /// Tokens of a sequence, for the FLOPs of attention.
    pub(super) seq_length: u32,
}

pub(super) fn resolve(request: &Request<'_>, at: &str, entry: &ScheduleEntry) -> Result<Vec<LayerRange>, Vec<Fault>> {
    let &Request { model, parallel, stages, .. } = request;
    let written = match (&entry.layout, &parallel.layout) {
        (Some(layout), _) => Some((layout, format!("{at}.layout"))),
        (None, Some(layout)) => Some((layout, "parallel.layout".to_owned())),
        (None, None) => None,
    };
    let sizes = match written {
        Some((Layout::Notation(text), path)) if text.eq_ignore_ascii_case("balanced") => {
            if let Some(fault) = too_few(model.num_layers, stages) {
                return Err(vec![Fault { path, ..fault }]);
            }
            balanced::layout(model, stages, request.seq_length)
        }
        Some((layout, path)) => {
            let sizes = match layout {
                Layout::Layers(sizes) => sizes.clone(),
                Layout::Notation(text) => notation::read(text, &path)?,
            };
            let faults = layout_faults(model.num_layers, stages, &sizes, &path);
            if !faults.is_empty() {
                return Err(faults);
            }
            sizes
        }
        None => default_layout(request)?,
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

/// Fewer layers than stages.
fn too_few(layers: u32, stages: u32) -> Option<Fault> {
    if layers >= stages {
        return None;
    }
    let message = format!("{layers} layers are fewer than {stages} stages");
    let help = format!("use at least {stages} layers, fewer ranks or chunks, or a layout with empty stages");
    Some(Fault::new(LAYERS, "layout::few", message, help))
}

/// Even where it can be; uneven only without chunks, as Megatron wants it. The embedding and the head count as layers
/// where the user says so (Megatron's `account_for_embedding_in_pipeline_split`): BLOOM's 70 + 2 over 12 stages are 6 each.
fn default_layout(request: &Request<'_>) -> Result<Vec<u32>, Vec<Fault>> {
    let &Request { model, parallel, stages, chunks, .. } = request;
    let layers = model.num_layers;
    let embedding = u32::from(parallel.account_for_embedding_in_pipeline_split.unwrap_or(false));
    let head = u32::from(parallel.account_for_loss_in_pipeline_split.unwrap_or(false));
    let units = layers.saturating_add(embedding + head);
    if let Some(fault) = too_few(units, stages) {
        return Err(vec![fault]);
    }
    if chunks > 1 && !units.is_multiple_of(stages) {
        return Err(vec![not_divisible(layers, embedding + head, stages, chunks)]);
    }
    let mut sizes = even_layout(units, stages);
    if let Some(first) = sizes.first_mut() {
        *first = first.saturating_sub(embedding);
    }
    if let Some(last) = sizes.last_mut() {
        *last = last.saturating_sub(head);
    }
    Ok(sizes)
}

fn not_divisible(layers: u32, counted: u32, stages: u32, chunks: u32) -> Fault {
    let units = layers.saturating_add(counted);
    let ranks = stages / chunks;
    let legal: Vec<String> = (1..=units / ranks.max(1))
        .take(1000)
        .filter(|v| units.is_multiple_of(ranks * v))
        .map(|v| v.to_string())
        .collect();
    let chunk_help = if legal.is_empty() { String::new() } else { format!("{} chunks a rank, ", legal.join(", ")) };
    let what = match counted {
        0 => format!("{layers} layers"),
        _ => format!("{layers} layers + {counted} (embedding, head) = {units}"),
    };
    let message = format!(
        "{what} do not divide into {ranks} ranks x {chunks} chunks = {stages} stages: {units} % {stages} = {}",
        units % stages
    );
    let (below, above) = (units / stages * stages, (units / stages + 1) * stages);
    let [below, above] = [below, above].map(|units| units.saturating_sub(counted));
    let help = format!("use {chunk_help}{below} or {above} layers, or write a layout");
    Fault::new(LAYERS, "layout::divide", message, help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default(layers: u32, stages: u32, chunks: u32, counted: bool) -> Result<Vec<u32>, Vec<Fault>> {
        let model = ModelShape::gpt(layers, 8, 2, 16, 8);
        let parallel = Parallel {
            account_for_embedding_in_pipeline_split: Some(counted),
            account_for_loss_in_pipeline_split: Some(counted),
            ..Parallel::default()
        };
        default_layout(&Request { model: &model, parallel: &parallel, stages, chunks, seq_length: 8 })
    }

    #[test]
    fn a4c_thirty_layers_over_four_stages_lose_none() {
        assert_eq!(even_layout(30, 4), [8, 8, 7, 7]);
        assert_eq!(default(30, 4, 1, false).unwrap(), [8, 8, 7, 7]);
    }

    #[test]
    fn a6_embedding_and_head_count_as_layers() {
        let bloom = default(70, 12, 1, true).unwrap();
        assert_eq!(bloom, [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]);
        assert_eq!(default(6, 1, 1, true).unwrap(), [6], "one stage holds all");
        assert_eq!(default(2, 4, 1, true).unwrap(), [0, 1, 1, 0], "the embedding and the head may stand alone");
        let fault = default(30, 8, 2, true).unwrap();
        assert_eq!(fault.iter().sum::<u32>(), 30);
    }

    #[test]
    fn chunks_must_divide_the_layers() {
        let fault = default(30, 8, 2, false).unwrap_err().remove(0);
        assert!(fault.message.contains("30 % 8 = 6") && fault.help.contains("24 or 32 layers"), "{fault:?}");
        let fault = default(29, 8, 2, true).unwrap_err().remove(0);
        assert!(fault.message.contains("= 31") && fault.message.contains("31 % 8 = 7"), "{fault:?}");
        assert!(fault.help.contains("22 or 30 layers"), "{fault:?}");
        assert_eq!(default(3, 4, 1, false).unwrap_err()[0].code, "layout::few");
    }

    #[test]
    fn a_layout_says_all_its_faults() {
        let codes: Vec<_> = layout_faults(8, 4, &[1, 2, 2], "parallel.layout").iter().map(|f| f.code).collect();
        assert_eq!(codes, ["layout::stages", "layout::sum"]);
    }
}
