//! Device memory besides allocations: the context, kernels and graphs.
//!
//! Measured, not planned: after each part of the preparation, the free memory of the GPU has decreased by the
//! allocations, which the ledger counts, and by something else, which is attributed to that part. Another
//! process that allocates at the same time distorts the figures; a run that saw one reports it.

/// The causes that device memory besides allocations is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCause {
    /// Machine code, and the driver's allocations when kernels first run.
    Kernels,
    /// Allocations rounded up by the driver.
    Rounding,
    /// Captured graphs.
    Graphs,
    /// Everything later.
    Other,
}

/// Bytes of device memory besides allocations, by cause; `None` if not measured. Negative if memory was
/// released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntrackedMemory {
    /// The context, before anything was allocated.
    pub context: Option<i64>,
    /// As [`MemoryCause::Kernels`].
    pub kernels: Option<i64>,
    /// As [`MemoryCause::Rounding`].
    pub rounding: Option<i64>,
    /// As [`MemoryCause::Graphs`].
    pub graphs: Option<i64>,
    /// As [`MemoryCause::Other`].
    pub other: Option<i64>,
}

/// Measures [`UntrackedMemory`] by differences of samples.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct UntrackedMeter {
    total: UntrackedMemory,
    last: Option<MemorySample>,
}

/// Memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct MemorySample {
    /// Free on the card.
    pub free: usize,
    /// Held by allocations.
    pub held: usize,
}

impl UntrackedMeter {
    /// Starts with a new context, the bytes that it took if they are known, and a sample.
    pub(in super::super) fn new(context: Option<i64>, sample: Option<MemorySample>) -> Self {
        Self { total: UntrackedMemory { context, ..UntrackedMemory::default() }, last: sample }
    }

    /// Attributes the memory taken since the last sample to a cause.
    pub(in super::super) fn attribute(&mut self, cause: MemoryCause, sample: MemorySample) {
        if let Some(last) = self.last {
            let taken = last.free as i64 - sample.free as i64;
            let allocated = sample.held as i64 - last.held as i64;
            let total = match cause {
                MemoryCause::Kernels => &mut self.total.kernels,
                MemoryCause::Rounding => &mut self.total.rounding,
                MemoryCause::Graphs => &mut self.total.graphs,
                MemoryCause::Other => &mut self.total.other,
            };
            *total = Some(total.unwrap_or(0) + taken - allocated);
        }
        self.last = Some(sample);
    }

    /// Returns the memory attributed so far.
    pub(in super::super) fn total(&self) -> UntrackedMemory {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_not_allocated_is_attributed_to_its_cause() {
        let mut meter = UntrackedMeter::default();
        meter.attribute(MemoryCause::Other, MemorySample { free: 900, held: 0 });
        assert_eq!(meter.total(), UntrackedMemory::default(), "one sample gives no difference");
        let mut meter = UntrackedMeter::new(Some(300), Some(MemorySample { free: 1000, held: 0 }));
        meter.attribute(MemoryCause::Kernels, MemorySample { free: 980, held: 0 });
        meter.attribute(MemoryCause::Rounding, MemorySample { free: 470, held: 500 });
        meter.attribute(MemoryCause::Kernels, MemorySample { free: 465, held: 500 });
        meter.attribute(MemoryCause::Graphs, MemorySample { free: 440, held: 510 });
        meter.attribute(MemoryCause::Other, MemorySample { free: 450, held: 510 });
        let expected = UntrackedMemory {
            context: Some(300),
            kernels: Some(25),
            rounding: Some(10),
            graphs: Some(15),
            other: Some(-10),
        };
        assert_eq!(meter.total(), expected);
    }
}
