//! The columns of `metrics.csv` for training with 8-bit floats.

/// Number of roles of weights whose scales have columns.
const ROLES: usize = 3;

/// How 8-bit floats served a step, over all ranks and micro-steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Health {
    /// Share of the inputs of products that were beyond the largest number of their format.
    pub saturated_inputs: f32,
    /// Share of gradients that were.
    pub saturated_gradients: f32,
    /// Share of the inputs, other than zeros, that became zero.
    pub flushed_inputs: f32,
    /// Share of gradients, other than zeros, that became zero.
    pub flushed_gradients: f32,
    /// The largest ratio of a matrix's maximum to that of the step before; `None` if scales do not follow
    /// from the step before.
    pub growth: Option<f32>,
    /// For attention, feed-forward layers and the head, the smallest scales of their inputs and of their
    /// gradients after the step; `None` for a role without 8-bit floats.
    pub scales: [[Option<f32>; 2]; ROLES],
}

/// The columns.
pub const FP8_COLUMNS: [&str; 11] = [
    "fp8_saturated_inputs",
    "fp8_saturated_gradients",
    "fp8_flushed_inputs",
    "fp8_flushed_gradients",
    "fp8_growth",
    "fp8_scale_inputs/attention",
    "fp8_scale_gradients/attention",
    "fp8_scale_inputs/feed_forward",
    "fp8_scale_gradients/feed_forward",
    "fp8_scale_inputs/head",
    "fp8_scale_gradients/head",
];

/// Share of saturated elements above which a step is worth a warning. Scales leave room for larger maxima
/// than before, so a healthy run has none in most steps.
const MAX_SATURATED: f32 = 1e-4;

impl Fp8Health {
    /// Returns the values of the [`FP8_COLUMNS`], in their order; none for what was not measured.
    pub fn columns(&self) -> impl Iterator<Item = (&'static str, f32)> + use<> {
        let values = [
            Some(self.saturated_inputs),
            Some(self.saturated_gradients),
            Some(self.flushed_inputs),
            Some(self.flushed_gradients),
            self.growth,
        ];
        let values = values.into_iter().chain(self.scales.into_iter().flatten());
        FP8_COLUMNS.into_iter().zip(values).filter_map(|(column, value)| Some((column, value?)))
    }

    /// Returns what is wrong with the step; `None` if nothing is.
    pub fn fault(&self) -> Option<String> {
        let shares = [("inputs", self.saturated_inputs), ("gradients", self.saturated_gradients)];
        let (which, share) =
            shares.into_iter().find(|(_, share)| *share > MAX_SATURATED || share.is_nan())?;
        let growth = self.growth.map_or(String::new(), |growth| {
            format!("; a maximum was {growth:.1} times that of the step before")
        });
        Some(format!("{:.2} % of {which} were too large for 8-bit floats{growth}", 100.0 * share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: Fp8Health = Fp8Health {
        saturated_inputs: 0.0,
        saturated_gradients: 5e-5,
        flushed_inputs: 0.01,
        flushed_gradients: 0.2,
        growth: Some(1.5),
        scales: [[Some(60.0), Some(7e6)], [Some(12.5), Some(8e6)], [None, None]],
    };

    #[test]
    fn saturated_elements_are_a_fault() {
        assert_eq!(HEALTHY.fault(), None);
        let faulty = Fp8Health { saturated_gradients: 0.02, growth: Some(7.13), ..HEALTHY };
        let said = "2.00 % of gradients were too large for 8-bit floats; a maximum was 7.1 times that of the step \
                    before";
        assert_eq!(faulty.fault().as_deref(), Some(said));
        let missing = Fp8Health { saturated_inputs: f32::NAN, growth: None, ..HEALTHY };
        assert_eq!(missing.fault().as_deref(), Some("NaN % of inputs were too large for 8-bit floats"));
    }

    #[test]
    fn what_was_not_measured_has_no_column() {
        assert_eq!(HEALTHY.columns().map(|(column, _)| column).collect::<Vec<_>>(), FP8_COLUMNS[..9]);
        let by_head = Fp8Health { growth: None, scales: [[None; 2], [None; 2], [Some(3.0); 2]], ..HEALTHY };
        let columns: Vec<&str> = by_head.columns().map(|(column, _)| column).skip(4).collect();
        assert_eq!(columns, ["fp8_scale_inputs/head", "fp8_scale_gradients/head"]);
    }
}
