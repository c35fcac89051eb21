//! The numbering of every (stage, microbatch) of an order: one table index for all that keep something of each.
//!
//! One law: whatever is outside the plan has no number.

use crate::ids::{Microbatch, Pipe, Stage};

/// How many stages, pipes, microbatches and slices there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    pub(crate) stages: u32,
    pub(crate) pipes: &'static [Pipe],
    /// Microbatches of each pipe.
    pub(crate) microbatches: u32,
    /// Slices of each microbatch; 1 where microbatches are whole.
    pub(crate) slices: u16,
}

impl Cells {
    /// Slices of each microbatch; 1 where microbatches are whole.
    pub fn slices(&self) -> u16 {
        self.slices
    }

    /// Microbatches of each pipe.
    pub fn microbatches(&self) -> u32 {
        self.microbatches
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pipes.len() * self.stages as usize * self.microbatches as usize * usize::from(self.slices)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of a stage or of its copy in another pipe, below `pipes x stages`.
    pub fn stage(&self, stage: Stage) -> Option<usize> {
        let pipe = self.pipes.iter().position(|p| *p == stage.pipe())?;
        (stage.number() < self.stages).then(|| pipe * self.stages as usize + stage.index())
    }

    /// Number of a (stage, microbatch), below [`Cells::len`].
    pub fn index(&self, stage: Stage, microbatch: Microbatch) -> Option<usize> {
        let slice = match microbatch.slice() {
            None if self.slices == 1 => 0,
            Some(slice) if slice < self.slices => slice,
            _ => return None,
        };
        let row = self.stage(stage)?;
        (microbatch.number() < self.microbatches).then(|| {
            (row * self.microbatches as usize + microbatch.number() as usize) * usize::from(self.slices)
                + usize::from(slice)
        })
    }

    /// Every stage of every pipe.
    pub fn stages(&self) -> impl Iterator<Item = Stage> + use<> {
        let stages = self.stages;
        self.pipes.iter().flat_map(move |pipe| (0..stages).map(|s| Stage::new(s).on(*pipe)))
    }

    /// Every (stage, microbatch), in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, Microbatch)> + use<> {
        let Self { microbatches, slices, .. } = *self;
        self.stages().flat_map(move |stage| {
            (0..microbatches).flat_map(move |m| {
                (0..slices).map(move |k| {
                    let whole = Microbatch::new(m);
                    (stage, if slices == 1 { whole } else { whole.sliced(k) })
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_a_bijection() {
        for (pipes, slices) in [(&[Pipe::Only][..], 1), (&[Pipe::Down, Pipe::Up][..], 1), (&[Pipe::Only][..], 3)] {
            let cells = Cells { stages: 3, pipes, microbatches: 4, slices };
            let numbers: Vec<_> = cells.iter().map(|(s, m)| cells.index(s, m)).collect();
            assert_eq!(numbers, (0..cells.len()).map(Some).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_outside_has_no_number() {
        let cells = Cells { stages: 2, pipes: &[Pipe::Only], microbatches: 2, slices: 1 };
        let (stage, microbatch) = (Stage::new(1), Microbatch::new(1));
        assert_eq!(cells.index(Stage::new(2), microbatch), None);
        assert_eq!(cells.index(stage, Microbatch::new(2)), None);
        assert_eq!(cells.index(stage, microbatch.sliced(1)), None);
        assert_eq!(cells.index(stage, microbatch.sliced(0)), cells.index(stage, microbatch), "one slice is the whole");
        assert_eq!(cells.index(stage.on(Pipe::Up), microbatch), None);
    }
}
