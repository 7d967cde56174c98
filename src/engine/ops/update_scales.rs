//! The scales of the next step, from the maxima of this one.

use super::quantize::scales;
use crate::device::DType;
use crate::device::gpu::{Grid, Kernel};
use crate::error::Result;
use crate::ir::{
    Array, Case, Cases, CpuNode, FP8_HEALTH, FP8_ROLES, Fill, GpuNode, INVERSE, Mode, Op, Precision,
    SCALES_ROW, SITE_KINDS, Scales, Spec,
};

/// Returns how many times larger than in the step before a maximum may be: the scales of a format leave that
/// much room. A float loses no precision by it, except near its smallest numbers.
///
/// Inputs of layers rarely grow by half in a step, but the largest gradient of a layer may be ten times that
/// of the step before (`results/measured/fp8-2026-11-30`), and e5m2 has numbers down to 2⁻³² of its largest.
fn margin(format: DType) -> f32 {
    if format == DType::E5m2 { 16.0 } else { 2.0 }
}

/// Sets the [`Scales`] of all sites, `[sites, 8]`, from their maxima on all ranks, `[ranks · sites]`, and
/// resets the maxima of this rank, `[sites]`, and its counts, `[sites, 2]`.
///
/// Sites are numbered in turns over `formats`. A site without a format keeps its scales, which a
/// [`Quantize`](super::quantize::Quantize) with current scaling writes. A site whose maximum is 0 keeps its
/// scales too. If a maximum is infinite or missing, `bad [1]` becomes 1, and after a bad step scales stay.
///
/// Input: the maxima of all ranks. Outputs, all with `Mode::Add`, which here means that the old value is an
/// input: bad, scales, maxima, counts. Then the health of the step, which it writes: for every format, the
/// number of saturated and of flushed elements on this rank; the largest ratio of a maximum to that of the
/// step before; then for every role of weights, for every format, the smallest scale after the step, or 0 if
/// there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateScales {
    /// Number of sites.
    pub sites: usize,
    /// The formats of consecutive sites.
    pub formats: [Option<DType>; SITE_KINDS],
    /// The role of each weight, which has one site of each format. Less than [`FP8_ROLES`].
    pub roles: Vec<usize>,
}

/// Place of the ratio in the health of a step, and of the first scale.
const RATIO: usize = 2 * SITE_KINDS;
const FIRST_SCALE: usize = RATIO + 1;

impl UpdateScales {
    /// Returns the place in the health of a step of the smallest scale of a site's role and format.
    fn place_of_scale(&self, site: usize) -> usize {
        FIRST_SCALE + self.roles[site / SITE_KINDS] * SITE_KINDS + site % SITE_KINDS
    }

    /// Returns the scales of a site for the next step, and the ratio of its maximum to that of the step
    /// before; `None` if it keeps its scales.
    fn next(&self, site: usize, maximum: f32, before: f32) -> Option<(Scales, f32)> {
        let format = self.formats[site % SITE_KINDS]?;
        // A product of f32 numbers, as on a GPU: the scale before is that of its maximum times the margin.
        let expected = scales(format, 1.0)[0] / margin(format);
        let ratio = if before > 0.0 { maximum * before / expected } else { 0.0 };
        (maximum > 0.0).then(|| (scales(format, maximum * margin(format)), ratio))
    }
}

impl Op for UpdateScales {
    fn name(&self) -> &'static str {
        "update_scales"
    }

    fn attributes(&self) -> String {
        let formats = self.formats.map(|format| format.map_or("-".to_owned(), |format| format.to_string()));
        let roles: String = self.roles.iter().map(usize::to_string).collect();
        format!("sites={} formats={} roles={roles}", self.sites, formats.join(","))
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [maxima] = inputs else { return Err("takes the maxima of all ranks".into()) };
        if maxima.dtype != DType::F32 || maxima.elements() < self.sites || self.sites == 0 {
            return Err(format!("needs the maxima of {} sites, f32", self.sites));
        }
        if !maxima.elements().is_multiple_of(self.sites) {
            return Err(format!("every rank must have {} maxima", self.sites));
        }
        if self.roles.len() * SITE_KINDS != self.sites || self.roles.iter().any(|&role| role >= FP8_ROLES) {
            return Err(format!("{} sites need the role of every weight", self.sites));
        }
        Ok(vec![
            Spec::new([1], DType::U32),
            Spec::new([self.sites, SCALES_ROW], DType::F32),
            Spec::new([self.sites], DType::F32),
            Spec::new([self.sites, 2], DType::F64),
            Spec::new([FP8_HEALTH], DType::F32),
        ])
    }

    fn accumulates(&self, output: usize) -> bool {
        output < 4
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let all = cx.input::<f32>(0);
        let ranks = all.len() / self.sites;
        let maximum = |site: usize| {
            let bits = (0..ranks).map(|rank| all.get(rank * self.sites + site).to_bits());
            f32::from_bits(bits.max().unwrap_or(0))
        };
        let maxima: Vec<f32> = (0..self.sites).map(maximum).collect();
        let bad = &mut cx.output_u32(0).slice(0, 1)[0];
        *bad = u32::from(*bad != 0 || maxima.iter().any(|maximum| !maximum.is_finite()));
        let (scales, counts) = (cx.output::<f32>(1), cx.output::<f64>(3));
        let mut health = [0.0f64; FP8_HEALTH];
        for (site, &maximum) in maxima.iter().enumerate() {
            for which in 0..2 {
                health[site % SITE_KINDS * 2 + which] += counts.as_view().get(2 * site + which);
            }
            if let (0, Some((next, ratio))) =
                (*bad, self.next(site, maximum, scales.as_view().get(SCALES_ROW * site)))
            {
                scales.store(SCALES_ROW * site, &next);
                health[RATIO] = health[RATIO].max(f64::from(ratio));
            }
            let scale = f64::from(scales.as_view().get(SCALES_ROW * site));
            let smallest = &mut health[self.place_of_scale(site)];
            if scale > 0.0 && (*smallest == 0.0 || scale < *smallest) {
                *smallest = scale;
            }
        }
        cx.output::<f32>(2).slice(0, self.sites).fill(0.0);
        counts.slice(0, 2 * self.sites).fill(0.0);
        cx.output::<f32>(4).store(0, &health.map(|number| number as f32));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        /// One block, which goes through all sites twice.
        const THREADS: u32 = 1024;
        let largest = self.formats.map(|format| format.map_or(0.0, |format| scales(format, 1.0)[0]));
        let list =
            |numbers: [f32; SITE_KINDS]| format!("{{{}}}", numbers.map(|n| format!("{n:.1}f")).join(","));
        let roles: Vec<String> = self.roles.iter().map(usize::to_string).collect();
        let margins = self.formats.map(|format| format.map_or(1.0, margin));
        let kernel = Kernel::new("update_scales", "update_scales")
            .with("SITES", self.sites)
            .with("RANKS", cx.input_spec(0).elements() / self.sites)
            .with("MARGINS", list(margins))
            .with("LARGEST_NUMBERS", list(largest))
            .with("ROLES", format!("{{{}}}", roles.join(",")))
            .with("MOST_ROLES", FP8_ROLES);
        let args = [cx.input(0), cx.output(0), cx.output(1), cx.output(2), cx.output(3), cx.output(4)];
        cx.queue.launch(kernel, Grid::new(1, THREADS), &args.map(Into::into))
    }

    fn cases(_precision: Precision) -> Cases {
        let numbers =
            |count: usize, from: f64| (0..count).map(|i| from * 1.5f64.powi(i as i32 % 24)).collect();
        let case = |name: &str,
                    (ranks, sites): (usize, usize),
                    first_role: usize,
                    bad: f64,
                    change: fn(&mut Vec<f64>)| {
            let formats = [Some(DType::E4m3), Some(DType::E5m2), None];
            let roles = (0..sites / SITE_KINDS).map(|weight| (first_role + weight) % FP8_ROLES).collect();
            let op = Self { sites, formats, roles };
            let mut maxima: Vec<f64> = numbers(ranks * sites, 0.001);
            change(&mut maxima);
            let maxima = maxima.into_iter().map(|maximum| f64::from(maximum as f32)).collect();
            let inputs = vec![(Spec::new([ranks * sites], DType::F32), Fill::Values(maxima))];
            let outputs = vec![
                (Mode::Add, Fill::Values(vec![bad])),
                (Mode::Add, Fill::Values(numbers(SCALES_ROW * sites, 8.0))),
                (Mode::Add, Fill::Values(numbers(sites, 0.001))),
                (Mode::Add, Fill::Values(numbers(2 * sites, 64.0))),
            ];
            let reference = {
                let op = op.clone();
                move |inputs: &[Array]| reference(&op, inputs)
            };
            Case::new(name, op, inputs, reference).without_gradient().outputs(outputs)
        };
        Cases::Own(vec![
            case("one rank", (1, 9), 0, 0.0, |_| {}),
            case("one weight", (1, 3), 0, 0.0, |_| {}),
            case("one weight of another role", (1, 3), 2, 0.0, |_| {}),
            case("more sites than a warp has threads", (1, 39), 0, 0.0, |_| {}),
            case("three ranks", (3, 9), 0, 0.0, |_| {}),
            case("a role without weights", (1, 6), 0, 0.0, |_| {}),
            case("a maximum of zero", (1, 9), 0, 0.0, |maxima| maxima[3] = 0.0),
            case("after a bad step", (1, 9), 0, 1.0, |_| {}),
            case("an infinite maximum", (2, 9), 0, 0.0, |maxima| maxima[10] = f64::INFINITY),
            case("a maximum that is missing", (2, 9), 0, 0.0, |maxima| maxima[17] = f64::NAN),
        ])
    }
}

/// Follows the definition in f64.
fn reference(op: &UpdateScales, arrays: &[Array]) -> Vec<Array> {
    let [all, bad, scales_before, _, counts] = arrays else { return Vec::new() };
    let mut scales_after = scales_before.data.clone();
    let ranks = all.data.len() / op.sites;
    let of_site = |site: usize| (0..ranks).map(move |rank| all.data[rank * op.sites + site]);
    let is_bad = bad.data[0] != 0.0 || all.data.iter().any(|maximum| !maximum.is_finite());
    let mut health = vec![0.0; FP8_HEALTH];
    for site in 0..op.sites {
        for which in 0..2 {
            health[site % SITE_KINDS * 2 + which] += counts.data[2 * site + which];
        }
        let maximum = of_site(site).fold(0.0, f64::max);
        let Some(format) = op.formats[site % SITE_KINDS].filter(|_| !is_bad && maximum > 0.0) else {
            continue;
        };
        let (largest, margin) = if format == DType::E4m3 { (448.0, 2.0) } else { (57_344.0, 16.0) };
        // Rounded after each operation, as the op does.
        let ratio = maximum as f32 * scales_before.data[SCALES_ROW * site] as f32 / (largest / margin) as f32;
        health[RATIO] = health[RATIO].max(f64::from(ratio));
        let next = (largest / f64::from((maximum * margin) as f32)) as f32;
        scales_after[SCALES_ROW * site..][..SCALES_ROW].fill(0.0);
        scales_after[SCALES_ROW * site] = f64::from(next);
        scales_after[SCALES_ROW * site + INVERSE] = f64::from((1.0 / f64::from(next)) as f32);
    }
    for (role, kind) in (0..FP8_ROLES).flat_map(|role| (0..SITE_KINDS).map(move |kind| (role, kind))) {
        let weights = (0..op.roles.len()).filter(|&weight| op.roles[weight] == role);
        let of_role = weights.map(|weight| scales_after[SCALES_ROW * (weight * SITE_KINDS + kind)]);
        let smallest = of_role.fold(f64::INFINITY, f64::min);
        health[FIRST_SCALE + role * SITE_KINDS + kind] = if smallest.is_finite() { smallest } else { 0.0 };
    }
    let array = |data: Vec<f64>| Array { shape: vec![data.len()], data };
    let zeros = |count| array(vec![0.0; count]);
    let bad = array(vec![f64::from(u8::from(is_bad))]);
    let health = health.into_iter().map(|number| f64::from(number as f32)).collect();
    vec![bad, array(scales_after), zeros(op.sites), zeros(2 * op.sites), array(health)]
}
