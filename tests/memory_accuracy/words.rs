//! Why a rank is the heaviest, whether a plan fits, and what would make it fit.

use crate::formulas::korthikanti;
use crate::replay::{Case, order};
use pipewright::ir::footprint::{Fit, nearest_knobs, why};
use pipewright::ir::memory::total;
use pipewright::ir::scenario::Recompute;
use pipewright::ir::segments::Cut;

#[test]
fn the_heaviest_rank_is_explained_by_what_is_alive() {
    let case = korthikanti(12288, 96, &[12; 8], 1, true, Recompute::Selective);
    let replay = case.replay(&order("1f1b", [8, 16, 1]));
    let why = why(&replay.schedule, &replay.timeline, &case.parts(), &replay.ranks).unwrap();
    assert_eq!(why.rank.0, 0);
    assert_eq!(why.holdings.iter().map(|holding| holding.bytes).sum::<u64>(), why.bytes);
    let text = why.to_string();
    for words in [
        "rank 0 is the heaviest with ",
        "9.6 GiB of activations (8 microbatches of 12 layers)",
        "of the embedding and layers 0 to 11",
        "512.0 MiB of overhead",
        "; rank 1 comes next with ",
        " less activations",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_does_not_fit_comes_with_the_knobs_that_would_make_it_fit() {
    let case = korthikanti(12288, 96, &[12; 8], 2, true, Recompute::None);
    let order = order("1f1b", [8, 16, 1]);
    let peak = |cut: &Cut<'_>| {
        let changed = Case {
            model: cut.model.clone(),
            mesh: *cut.mesh,
            setup: cut.setup.clone(),
            micro_batch_size: cut.micro_batch_size,
            ..korthikanti(12288, 96, &[12; 8], 2, true, Recompute::None)
        };
        changed.replay(&order).ranks.iter().map(|rank| total(&rank.peak.live)).max()
    };
    let replay = case.replay(&order);
    let needed = peak(&case.cut()).unwrap();
    let fit = Fit::new(needed, &replay.ranks);
    assert!(fit.fits(), "{fit}");
    assert_eq!(fit.margins().min(), Some(0));
    let fit = Fit::new(80 << 30, &replay.ranks);
    assert!(!fit.fits());
    let missing = i64::try_from(needed - (80 << 30)).unwrap();
    assert_eq!(fit.margins().next(), Some(-missing));
    assert!(fit.to_string().starts_with("does not fit: rank 0 needs "), "{fit}");
    let knobs = nearest_knobs(&case.cut(), 80 << 30, &peak);
    let alone: Vec<String> = knobs.iter().map(|knob| format!("{} = {}", knob.set[0].0, knob.set[0].1)).collect();
    // Half the microbatch still holds 32 GiB of activations beside 47 GiB of state and 1 GiB of workspace.
    assert_eq!(
        alone,
        ["training.attention = \"flash\"", "training.recompute = \"selective\"", "training.recompute = \"full\""]
    );
    assert!(knobs.iter().all(|knob| knob.peak <= 80 << 30 && knob.set.len() == 1));
    // Where no knob suffices alone, the fewest that do together.
    let together = nearest_knobs(&case.cut(), 57 << 30, &peak);
    assert!(together.len() == 1 && together[0].set.len() > 1, "{together:?}");
    assert_eq!(nearest_knobs(&case.cut(), 1 << 30, &peak), []);
}
