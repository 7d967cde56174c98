//! The rotations of rotary position embedding (Su et al. 2021): the angle by which one position rotates each
//! pair of elements of a head, the scalings that stretch a context, and the tables of cosines and sines.
//!
//! Frequencies are computed in f64; only the cosine and the sine are rounded. transformers computes them in
//! fp32 (`modeling_rope_utils.py`), with a relative error of up to 1e-7. The position multiplies this error,
//! so vectors rotated by transformers are off by 6e-7 of their norm around position 128, by 8e-6 around 1,024
//! and by 7e-5 around 8,192 (root mean square; θ from 1e4 to 1e6, heads of 64 and 128). Up to a thousand
//! tokens, xrun is within 1e-5 of transformers; over longer sequences, the distance is the error of fp32
//! angles.

use crate::device::Real;
use crate::lock::lock;
use std::any::Any;
use std::f64::consts::TAU;
use std::fmt;
use std::sync::{Arc, Mutex};

/// How heads are rotated. Element `i` of a head rotates together with element `i + rotated_dim/2`, by
/// `position` times [the frequency of the pair](Rotary::frequencies). Elements from `rotated_dim` on stay as
/// they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// The base θ of the frequencies `θ^(−2i/rotated_dim)`.
    pub theta: f64,
    /// The number of rotated elements, the first ones of a head. It is even.
    pub rotated_dim: usize,
    /// True to rotate by negative angles, as nanochat does; false to rotate as Llama does.
    pub reversed: bool,
    /// The change of frequencies for a longer context.
    pub scaling: Scaling,
}

/// A change of frequencies for a longer context, as in transformers' `modeling_rope_utils.py`.
///
/// [`Yarn`](Scaling::Yarn) and [`Llama3`](Scaling::Llama3) mix `f` and `f/factor` according to how many turns
/// a pair makes over the original context. Fast pairs keep their frequency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Frequencies stay as they are.
    None,
    /// Divides every frequency by the factor (Chen et al. 2023, "position interpolation").
    Linear {
        /// The ratio of the new context length to the original.
        factor: f64,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071), with the bounds of its ramp rounded outwards to whole
    /// pairs.
    Yarn {
        /// The ratio of the new context length to the original.
        factor: f64,
        /// Length of the original context in positions.
        original_context: usize,
        /// A frequency with at least this many turns over the original context is kept.
        beta_fast: f64,
        /// A frequency with at most this many turns over the original context is divided by the factor.
        beta_slow: f64,
        /// Multiplies cosines and sines.
        attention_factor: f64,
    },
    /// The scaling of Llama 3.1.
    Llama3 {
        /// The ratio of the new context length to the original.
        factor: f64,
        /// Length of the original context in positions.
        original_context: usize,
        /// A frequency with at most this many turns over the original context is divided by the factor.
        low_freq_factor: f64,
        /// A frequency with at least this many turns over the original context is kept.
        high_freq_factor: f64,
    },
}

impl Scaling {
    /// Returns YaRN's recommended attention factor, `0.1·ln(factor) + 1` (section 3.4 of the paper), or 1 if
    /// the context is not longer.
    pub fn yarn_attention_factor(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }
}

impl Rotary {
    /// Returns Llama's rotation of whole heads of `dim` elements.
    pub const fn with_whole_heads(dim: usize, theta: f64) -> Self {
        Self { theta, rotated_dim: dim, reversed: false, scaling: Scaling::None }
    }

    /// Checks that heads of `dim` elements can be rotated.
    ///
    /// # Errors
    /// If the head or its rotated part is odd, or the rotated part is empty or exceeds the head.
    pub fn check(&self, dim: usize) -> Result<(), String> {
        let turned = self.rotated_dim;
        if turned == 0 || turned > dim || !turned.is_multiple_of(2) || !dim.is_multiple_of(2) {
            return Err(format!(
                "cannot rotate {turned} of {dim} elements: rotate an even number, from 2 to an even width"
            ));
        }
        Ok(())
    }

    /// Returns the angle in radians by which one position rotates each of the `rotated_dim/2` pairs, without
    /// its sign.
    pub fn frequencies(&self) -> Vec<f64> {
        let plain = |i: usize| self.theta.powf(-2.0 * i as f64 / self.rotated_dim as f64);
        (0..self.rotated_dim / 2).map(|i| self.scaled(i, plain(i))).collect()
    }

    /// Returns the frequency of pair `i` under the scaling.
    fn scaled(&self, i: usize, frequency: f64) -> f64 {
        let (kept, factor) = match self.scaling {
            Scaling::None => return frequency,
            Scaling::Linear { factor } => return frequency / factor,
            Scaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
                // The fractional index of the pair that makes `turns` turns over the original context.
                let index = |turns: f64| {
                    let per_turn = original_context as f64 / (turns * TAU);
                    self.rotated_dim as f64 * per_turn.ln() / (2.0 * self.theta.ln())
                };
                let low = index(beta_fast).floor().max(0.0);
                let high = index(beta_slow).ceil().min(self.rotated_dim as f64 - 1.0);
                // A ramp of zero length is a step.
                let length = if low == high { 1e-3 } else { high - low };
                (1.0 - ((i as f64 - low) / length).clamp(0.0, 1.0), factor)
            }
            Scaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => {
                let turns = original_context as f64 * frequency / TAU;
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (kept.clamp(0.0, 1.0), factor)
            }
        };
        kept * frequency + (1.0 - kept) * (frequency / factor)
    }

    /// Returns the factor of all cosines and sines.
    pub fn cos_sin_factor(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { attention_factor, .. } => attention_factor,
            Scaling::None | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.0,
        }
    }

    /// Returns the frequencies as fractions of a full turn, times 2⁶⁴; a reversed rotation gives their two's
    /// complement. Multiplied by a position in wrapping 64-bit arithmetic, they drop whole turns exactly.
    pub(super) fn turns(&self) -> impl Iterator<Item = u64> {
        let reversed = self.reversed;
        self.frequencies().into_iter().map(move |f| {
            let turn = ((f / TAU).fract() * 2f64.powi(64)) as u64;
            if reversed { turn.wrapping_neg() } else { turn }
        })
    }

    /// Returns the parameters for printing, in a program whose heads have `dim` elements.
    pub(super) fn attributes(&self, dim: usize) -> String {
        let mut text = format!("theta={}", self.theta);
        if self.rotated_dim != dim {
            text += &format!(" rotated_dim={}", self.rotated_dim);
        }
        if self.reversed {
            text += " reversed";
        }
        text + &self.scaling.to_string()
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scaling::None => Ok(()),
            Scaling::Linear { factor } => write!(f, " scaling=linear factor={factor}"),
            Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => write!(
                f,
                " scaling=yarn factor={factor} original_context={original_context} beta_fast={beta_fast} \
                 beta_slow={beta_slow} attention_factor={attention_factor}"
            ),
            Scaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => write!(
                f,
                " scaling=llama3 factor={factor} original_context={original_context} \
                 low_freq_factor={low_freq_factor} high_freq_factor={high_freq_factor}"
            ),
        }
    }
}

/// The cosines and the sines of a position, one of each for every rotated pair.
pub type Angles<'a, A> = (&'a [A], &'a [A]);

/// A table of the cosines and sines of all angles up to a position.
#[derive(Debug)]
pub struct Rotation<A> {
    /// For each position, a cosine for each pair, then a sine for each pair, multiplied by the factor of the
    /// scaling. If the rotation is reversed, the sines have the opposite sign.
    table: Vec<A>,
    /// Entries per position.
    width: usize,
}

/// The tables of this process, one per rotation and number type. A table depends only on these and its
/// length, and every layer of a model needs the same one.
static TABLES: Mutex<Vec<(Rotary, Arc<dyn Any + Send + Sync>)>> = Mutex::new(Vec::new());

impl<A: Real> Rotation<A> {
    /// Returns a table that covers all of `positions`.
    pub fn covering(positions: &[u32], rotary: Rotary) -> Arc<Self> {
        let count = positions.iter().max().map_or(0, |max| *max as usize + 1);
        let mut tables = lock(&TABLES);
        let place = tables.iter().position(|(key, table)| *key == rotary && table.is::<Self>());
        let known = place.and_then(|at| Arc::clone(&tables[at].1).downcast::<Self>().ok());
        if let Some(known) = known.filter(|known| known.positions() >= count) {
            return known;
        }
        // Generation needs one more position at a time. Doubling keeps the total work proportional to the
        // length.
        let made = Arc::new(Self::new(count.next_power_of_two(), rotary));
        let entry: (Rotary, Arc<dyn Any + Send + Sync>) = (rotary, Arc::<Self>::clone(&made));
        match place {
            Some(at) => tables[at] = entry,
            None => tables.push(entry),
        }
        made
    }

    /// Computes angles in f64 and rounds once, after the cosine and the sine.
    fn new(positions: usize, rotary: Rotary) -> Self {
        let (frequencies, width) = (rotary.frequencies(), rotary.rotated_dim);
        let cosine = rotary.cos_sin_factor();
        let sine = if rotary.reversed { -cosine } else { cosine };
        let mut table = Vec::with_capacity(positions * width);
        for position in 0..positions {
            let angles = frequencies.iter().map(|f| position as f64 * f);
            table.extend(angles.clone().map(|a| A::from_f64(a.cos() * cosine)));
            table.extend(angles.map(|a| A::from_f64(a.sin() * sine)));
        }
        Self { table, width }
    }

    fn positions(&self) -> usize {
        self.table.len() / self.width
    }

    /// Returns the cosines and sines of a position.
    #[inline(always)]
    pub fn at(&self, position: u32) -> Angles<'_, A> {
        let start = position as usize * self.width;
        self.table[start..start + self.width].split_at(self.width / 2)
    }
}

/// Rotates the first `2·cos.len()` elements of a head in place, by the angles of a position.
#[inline(always)]
pub fn rotate<A: Real>(head: &mut [A], (cos, sin): Angles<'_, A>) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((x, y), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*x, *y) = (*x * *c - *y * *s, *y * *c + *x * *s);
    }
}

/// Rotates a head by the negative angles. This is the gradient of [`rotate`], and its inverse if no factor
/// multiplies cosines and sines.
#[inline(always)]
pub fn rotate_back<A: Real>(head: &mut [A], (cos, sin): Angles<'_, A>) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((x, y), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*x, *y) = (*x * *c + *y * *s, *y * *c - *x * *s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Rotary = Rotary::with_whole_heads(64, 10_000.0);
    const YARN: Scaling = Scaling::Yarn {
        factor: 4.0,
        original_context: 512,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.5,
    };

    fn head() -> Vec<f64> {
        (0..64).map(|i| f64::from(i) - 31.5).collect()
    }

    #[test]
    fn turning_back_undoes_turning() {
        let rotation = Rotation::<f64>::covering(&[977], PLAIN);
        let mut turned = head();
        rotate(&mut turned, rotation.at(977));
        assert!((0..64).any(|i| (turned[i] - head()[i]).abs() > 1.0));
        rotate_back(&mut turned, rotation.at(977));
        assert!((0..64).all(|i| (turned[i] - head()[i]).abs() < 1e-12));
    }

    #[test]
    fn a_reversed_rotation_turns_the_other_way_and_a_part_of_a_head_leaves_the_rest() {
        let rotary = Rotary { rotated_dim: 16, ..PLAIN };
        let (forth, back) = (
            Rotation::<f64>::covering(&[977], rotary),
            Rotation::<f64>::covering(&[977], Rotary { reversed: true, ..rotary }),
        );
        let (mut one, mut other) = (head(), head());
        rotate(&mut one, back.at(977));
        rotate_back(&mut other, forth.at(977));
        assert_eq!(one, other);
        assert_eq!(one[16..], head()[16..]);
        assert!((0..16).all(|i| one[i] != head()[i]));
    }

    #[test]
    fn turns_in_integers_are_the_angles_of_the_table() {
        for rotary in
            [PLAIN, Rotary { reversed: true, ..PLAIN }, Rotary { scaling: YARN, rotated_dim: 32, ..PLAIN }]
        {
            let sign = if rotary.reversed { -1.0 } else { 1.0 };
            for position in [0u64, 1, 1000, 99_999, 1 << 20] {
                for (frequency, turn) in rotary.frequencies().into_iter().zip(rotary.turns()) {
                    let exact = sign * position as f64 * frequency;
                    let turned = position.wrapping_mul(turn) as f64 / 2f64.powi(64) * TAU;
                    assert!((exact.sin() - turned.sin()).abs() < 1e-9, "{position} {frequency}");
                    assert!((exact.cos() - turned.cos()).abs() < 1e-9, "{position} {frequency}");
                }
            }
        }
    }

    #[test]
    fn scalings_keep_fast_pairs_and_slow_down_slow_ones() {
        let plain = PLAIN.frequencies();
        let llama3 = Scaling::Llama3 {
            factor: 4.0,
            original_context: 512,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
        };
        for scaling in [YARN, llama3] {
            let scaled = Rotary { scaling, ..PLAIN }.frequencies();
            assert_eq!(scaled[0], plain[0], "{scaling}");
            assert_eq!(scaled[31], plain[31] / 4.0, "{scaling}");
            let between = scaled.iter().zip(&plain).filter(|(s, p)| *s < p && *s * 4.0 > **p).count();
            assert!(between > 2, "{scaling}: {between}");
        }
        let halved = Rotary { scaling: Scaling::Linear { factor: 2.0 }, ..PLAIN }.frequencies();
        assert!(halved.iter().zip(&plain).all(|(s, p)| s * 2.0 == *p));
    }

    #[test]
    fn every_parameter_has_a_table_of_its_own() {
        let other = [
            Rotary { theta: 500.0, ..PLAIN },
            Rotary { rotated_dim: 32, ..PLAIN },
            Rotary { reversed: true, ..PLAIN },
            Rotary { scaling: Scaling::Linear { factor: 2.0 }, ..PLAIN },
            Rotary { scaling: YARN, ..PLAIN },
        ];
        let plain = Rotation::<f64>::covering(&[7], PLAIN);
        for rotary in other {
            let table = Rotation::<f64>::covering(&[7], rotary);
            assert_ne!(plain.at(7), table.at(7), "{rotary:?}");
        }
    }

    #[test]
    fn a_grown_table_keeps_its_entries() {
        let rotary = Rotary::with_whole_heads(8, 500.0);
        let small = Rotation::<f32>::covering(&[3], rotary);
        let large = Rotation::<f32>::covering(&[0, 100], rotary);
        assert_eq!(small.at(3), large.at(3));
        assert!(large.positions() > 100);
        let kept = Rotation::<f32>::covering(&[3], rotary);
        assert!(Arc::ptr_eq(&kept, &large));
    }

    #[test]
    fn heads_and_the_part_that_turns_are_even() {
        assert!(Rotary { rotated_dim: 2, ..PLAIN }.check(64).is_ok());
        for (turned, dim) in [(0, 64), (3, 64), (66, 64), (2, 63)] {
            assert!(Rotary { rotated_dim: turned, ..PLAIN }.check(dim).is_err(), "{turned} of {dim}");
        }
    }
}
