//! Device memory in addition to allocations: the context, kernels and graphs.
//!
//! These figures are measured, not planned. After each part of the preparation, the GPU's free memory has
//! decreased by the allocations, which the ledger counts, and by a remainder, which is attributed to that
//! part. Another process that allocates at the same time distorts the figures; a run that saw one reports it.

/// Causes of device memory use in addition to allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCause {
    /// Machine code, and the driver's allocations when kernels first run.
    Kernels,
    /// Allocations rounded up by the driver.
    Rounding,
    /// Captured graphs.
    Graphs,
    /// Everything taken later.
    Other,
}

/// Bytes of device memory in addition to allocations, by cause; `None` if not measured. Negative if memory
/// was released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntrackedMemory {
    /// The context, before anything was allocated.
    pub context: Option<i64>,
    /// Memory attributed to [`MemoryCause::Kernels`].
    pub kernels: Option<i64>,
    /// Memory attributed to [`MemoryCause::Rounding`].
    pub rounding: Option<i64>,
    /// Memory attributed to [`MemoryCause::Graphs`].
    pub graphs: Option<i64>,
    /// Memory attributed to [`MemoryCause::Other`].
    pub other: Option<i64>,
}

/// Measures [`UntrackedMemory`] from differences between samples.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct UntrackedMeter {
    /// The memory attributed so far.
    pub total: UntrackedMemory,
    last: Option<MemorySample>,
}

/// Memory at one point in time, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct MemorySample {
    /// Free memory of the GPU.
    pub free: usize,
    /// Memory held by allocations.
    pub held: usize,
}

impl UntrackedMeter {
    /// Starts with a new context, the bytes it took (if known), and a sample.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_not_allocated_is_attributed_to_its_cause() {
        let mut meter = UntrackedMeter::default();
        meter.attribute(MemoryCause::Other, MemorySample { free: 900, held: 0 });
        assert_eq!(meter.total, UntrackedMemory::default(), "one sample gives no difference");
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
        assert_eq!(meter.total, expected);
    }
}
