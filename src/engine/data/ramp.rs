//! A batch-size ramp: smaller or larger global batches in the first steps of a run.

/// Sequences per step in the first steps of a run, stage by stage. After the last stage, or without stages, a
/// step has the full global batch. Steps count from 0.
///
/// The sequences of a run are numbered consecutively, so the stages do not change the order in which data is
/// read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ramp(Vec<Stage>);

/// Consecutive steps with the same number of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stage {
    /// The first step after this stage.
    end: u64,
    /// Sequences per step, over all ranks.
    sequences: u64,
}

impl Ramp {
    /// No stages: every step has the full batch.
    pub const NONE: Self = Self(Vec::new());

    /// Makes a ramp from stages in ascending order. Each is a pair: the number of steps done when it ends,
    /// and the sequences in each of its steps.
    pub fn new(stages: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self(stages.into_iter().map(|(end, sequences)| Stage { end, sequences }).collect())
    }

    /// Returns true if every step has the full batch.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of sequences in `step`; the full batch has `full`.
    pub fn sequences(&self, step: u64, full: u64) -> u64 {
        self.0.iter().find(|stage| step < stage.end).map_or(full, |stage| stage.sequences)
    }

    /// Returns the number of sequences in all steps before `step`, modulo 2^64.
    pub fn before(&self, step: u64, full: u64) -> u64 {
        let of = |(steps, sequences): (u64, u64)| steps.wrapping_mul(sequences);
        self.stages(step, full).map(of).fold(0, u64::wrapping_add)
    }

    /// Divides the first `steps` steps of a run into stages. Each item is the number of steps in a row (never
    /// 0) and the sequences in each of them.
    pub fn stages(&self, steps: u64, full: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let last = Stage { end: u64::MAX, sequences: full };
        let mut begin = 0;
        let stages = self.0.iter().copied().chain([last]).map(move |stage| {
            let end = stage.end.min(steps).max(begin);
            let count = end - begin;
            begin = end;
            (count, stage.sequences)
        });
        stages.filter(|(count, _)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_to_the_sequences_before() {
        let ramp = Ramp::new([(3, 2), (5, 8), (6, 4)]);
        let sizes: Vec<u64> = (0..8).map(|step| ramp.sequences(step, 16)).collect();
        assert_eq!(sizes, [2, 2, 2, 8, 8, 4, 16, 16]);
        for step in 0..=8 {
            assert_eq!(ramp.before(step, 16), sizes[..step as usize].iter().sum::<u64>(), "{step}");
        }
        assert_eq!(ramp.stages(8, 16).collect::<Vec<_>>(), [(3, 2), (2, 8), (1, 4), (2, 16)]);
        assert_eq!(ramp.stages(4, 16).collect::<Vec<_>>(), [(3, 2), (1, 8)]);
        assert_eq!(ramp.stages(0, 16).count(), 0);
    }

    #[test]
    fn without_stages_every_step_is_full() {
        let none = Ramp::NONE;
        assert!(none.is_empty());
        assert_eq!((none.sequences(0, 7), none.before(5, 7)), (7, 35));
        assert_eq!(none.stages(5, 7).collect::<Vec<_>>(), [(5, 7)]);
        assert_eq!(none.before(u64::MAX, 3), u64::MAX.wrapping_mul(3));
    }
}
