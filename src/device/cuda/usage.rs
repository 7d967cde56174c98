//! Device memory besides what was asked for: what the context, kernels and graphs take without saying so.
//!
//! Measured, not planned: whenever a part of the preparation is over, what is free on the card has fallen by what was
//! allocated in the meantime, which the ledger knows, and by something else, which is laid to that part. Another process
//! that allocates meanwhile falsifies it, and a run that saw one says so.

/// What device memory besides allocations went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Machine code, and what the driver takes when kernels first run.
    Kernels,
    /// What allocations were rounded up by.
    Rounding,
    /// Captured graphs.
    Graphs,
    /// Whatever came later.
    Rest,
}

/// Bytes by part; a part that was not measured is blank. Negative where memory came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The context, before anything was allocated.
    pub context: Option<i64>,
    /// As [`Part::Kernels`].
    pub kernels: Option<i64>,
    /// As [`Part::Rounding`].
    pub rounding: Option<i64>,
    /// As [`Part::Graphs`].
    pub graphs: Option<i64>,
    /// As [`Part::Rest`].
    pub rest: Option<i64>,
}

/// Measures [`Usage`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    usage: Usage,
    last: Option<Mark>,
}

/// Memory at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Free on the card.
    pub free: usize,
    /// Held by allocations.
    pub held: usize,
}

impl Account {
    /// Begins with a fresh context; `context` is what it took, where that is known.
    pub(super) fn open(context: Option<i64>, now: Option<Mark>) -> Self {
        Self { usage: Usage { context, ..Usage::default() }, last: now }
    }

    /// Lays what was taken since the last call to a part.
    pub(super) fn lay_to(&mut self, part: Part, now: Mark) {
        if let Some(last) = self.last {
            let fallen = last.free as i64 - now.free as i64;
            let allocated = now.held as i64 - last.held as i64;
            let place = match part {
                Part::Kernels => &mut self.usage.kernels,
                Part::Rounding => &mut self.usage.rounding,
                Part::Graphs => &mut self.usage.graphs,
                Part::Rest => &mut self.usage.rest,
            };
            *place = Some(place.unwrap_or(0) + fallen - allocated);
        }
        self.last = Some(now);
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_allocated_is_laid_to_the_part_that_took_it() {
        let mut account = Account::default();
        account.lay_to(Part::Rest, Mark { free: 900, held: 0 });
        assert_eq!(account.usage(), Usage::default(), "without a beginning there is no difference");
        let mut account = Account::open(Some(300), Some(Mark { free: 1000, held: 0 }));
        account.lay_to(Part::Kernels, Mark { free: 980, held: 0 });
        account.lay_to(Part::Rounding, Mark { free: 470, held: 500 });
        account.lay_to(Part::Kernels, Mark { free: 465, held: 500 });
        account.lay_to(Part::Graphs, Mark { free: 440, held: 510 });
        account.lay_to(Part::Rest, Mark { free: 450, held: 510 });
        let want = Usage {
            context: Some(300),
            kernels: Some(25),
            rounding: Some(10),
            graphs: Some(15),
            rest: Some(-10),
        };
        assert_eq!(account.usage(), want);
    }
}
