//! Points that fill a cube evenly: Sobol's sequence with Owen's scrambling.
//!
//! I. M. Sobol, "On the distribution of points in a cube", 1967; A. B. Owen, "Scrambling Sobol and
//! Niederreiter–Xing points", J. Complexity 14, 1998. Each single point is uniform in the cube, and of the
//! first 2^k points, each of 2^k equal intervals of a coordinate contains exactly one.

/// Bits per coordinate.
const BITS: u32 = u32::BITS;

/// Primitive polynomials and initial direction numbers for the second coordinate onward: the coefficients `a`
/// and the numbers `m_1 … m_s` of a polynomial of degree s. They are the first lines of
/// `new-joe-kuo-6.21201`: S. Joe and F. Y. Kuo, "Constructing Sobol sequences with better two-dimensional
/// projections", SIAM J. Sci. Comput. 30, 2008.
const JOE_KUO: [(u32, &[u32]); 15] = [
    (0, &[1]),
    (1, &[1, 3]),
    (1, &[1, 3, 1]),
    (2, &[1, 1, 1]),
    (1, &[1, 1, 3, 3]),
    (4, &[1, 3, 5, 13]),
    (2, &[1, 1, 5, 5, 17]),
    (4, &[1, 1, 5, 5, 5]),
    (7, &[1, 1, 7, 11, 19]),
    (11, &[1, 1, 5, 1, 1]),
    (13, &[1, 1, 1, 3, 11]),
    (14, &[1, 3, 5, 5, 31]),
    (1, &[1, 3, 3, 9, 7, 49]),
    (13, &[1, 1, 1, 15, 21, 21]),
    (16, &[1, 3, 1, 13, 27, 49]),
];

/// Number of coordinates with direction numbers.
pub const COORDINATES: usize = JOE_KUO.len() + 1;

/// One coordinate of the sequence.
#[derive(Debug)]
pub struct Coordinate {
    /// The direction numbers, as binary fractions.
    directions: [u32; BITS as usize],
    /// The key of the scrambling.
    key: u64,
}

impl Coordinate {
    /// Creates the coordinate with this index, scrambled by a seed; `None` from [`COORDINATES`] on.
    pub fn new(index: usize, seed: u64) -> Option<Self> {
        let key = split_mix(split_mix(seed, 0), index as u64);
        Some(Self { directions: directions(index)?, key })
    }

    /// Returns this coordinate of a point, above 0 and below 1.
    pub fn value(&self, point: u32) -> f64 {
        fraction(scramble(self.unscrambled(point), self.key))
    }

    /// Returns the value before scrambling, as a binary fraction.
    fn unscrambled(&self, point: u32) -> u32 {
        let bits = (0..BITS).filter(|bit| point >> bit & 1 == 1);
        bits.fold(0, |value, bit| value ^ self.directions[bit as usize])
    }
}

/// Returns the center of the interval that 32 binary digits name, above 0 and below 1.
pub fn fraction(digits: u32) -> f64 {
    (f64::from(digits) + 0.5) / (f64::from(u32::MAX) + 1.0)
}

/// Computes the direction numbers of a coordinate, by the recurrence of its polynomial.
fn directions(index: usize) -> Option<[u32; BITS as usize]> {
    let mut v: [u32; BITS as usize] = std::array::from_fn(|k| 1 << (BITS as usize - 1 - k));
    if index == 0 {
        return Some(v);
    }
    let (a, m) = JOE_KUO.get(index - 1)?;
    let degree = m.len();
    for k in 0..v.len() {
        v[k] = match m.get(k) {
            Some(m) => m << (BITS as usize - 1 - k),
            None => {
                let terms = (1..degree).filter(|term| a >> (degree - 1 - term) & 1 == 1);
                terms.fold(v[k - degree] ^ v[k - degree] >> degree, |sum, term| sum ^ v[k - term])
            }
        };
    }
    Some(v)
}

/// Scrambles a binary fraction. A random bit, which depends on the digits before it, decides whether each
/// digit is flipped. This only permutes intervals within intervals, so evenly spread points stay evenly
/// spread.
fn scramble(digits: u32, key: u64) -> u32 {
    let mut scrambled = 0;
    for bit in (0..BITS).rev() {
        let before = u64::from(digits) >> (bit + 1);
        // Every node in the binary tree of intervals has its own number.
        let node = 1 << (BITS - 1 - bit) | before;
        let flip = (split_mix(key, node) >> 63) as u32;
        scrambled |= (digits >> bit & 1 ^ flip) << bit;
    }
    scrambled
}

/// Returns the number at a position of a key's stream: SplitMix64, G. L. Steele, D. Lea and C. H. Flood,
/// "Fast splittable pseudorandom number generators", OOPSLA 2014.
fn split_mix(key: u64, position: u64) -> u64 {
    let mut z = key.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coordinates(seed: u64) -> Vec<Coordinate> {
        (0..COORDINATES).map(|index| Coordinate::new(index, seed).unwrap()).collect()
    }

    /// The first points in 4 coordinates, as multiples of 1/8. Joe and Kuo's program prints them in the order
    /// of a Gray code, so this test does too.
    #[test]
    fn the_first_points_are_those_of_joe_and_kuo() {
        let all = coordinates(0);
        let eighths = |point: u32, index: usize| all[index].unscrambled(point) >> 29;
        let gray = |n: u32| n ^ n >> 1;
        let points: Vec<[u32; 4]> =
            (0..8).map(|n| std::array::from_fn(|index| eighths(gray(n), index))).collect();
        let expected = [
            [0, 0, 0, 0],
            [4, 4, 4, 4],
            [6, 2, 2, 2],
            [2, 6, 6, 6],
            [3, 3, 5, 7],
            [7, 7, 1, 3],
            [5, 1, 7, 5],
            [1, 5, 3, 1],
        ];
        assert_eq!(points, expected);
        // In this point, each of the first six direction numbers of every coordinate takes part. It is the
        // 43rd of scipy.stats.qmc.Sobol(16, scramble=False).
        let sixty_fourths: Vec<u32> = all.iter().map(|one| one.unscrambled(0b11_1111) >> 26).collect();
        assert_eq!(sixty_fourths, [63, 21, 1, 47, 29, 31, 63, 39, 51, 39, 5, 9, 49, 19, 59, 43]);
    }

    #[test]
    fn scrambled_or_not_every_interval_has_one_point() {
        for seed in [0, 1, 7] {
            for coordinate in &coordinates(seed) {
                for k in [1, 3, 6, 10] {
                    let mut seen = vec![[false; 2]; 1 << k];
                    for point in 0..1 << k {
                        let plain = coordinate.unscrambled(point) >> (BITS - k);
                        let scrambled = (coordinate.value(point) * f64::from(1 << k)) as usize;
                        seen[plain as usize][0] = true;
                        seen[scrambled][1] = true;
                    }
                    assert!(seen.iter().all(|seen| *seen == [true; 2]), "{k} digits");
                }
            }
        }
    }

    /// Joe and Kuo chose their numbers for this property: pairs of coordinates fill squares. The first two
    /// form a (0, 2)-sequence: of 2^k points, every box of area 2^-k contains one.
    #[test]
    fn the_first_two_coordinates_fill_every_box() {
        let all = coordinates(3);
        let k = 6;
        for across in 0..=k {
            let mut seen = vec![false; 1 << k];
            for point in 0..1 << k {
                let [x, y] = [0, 1].map(|index| all[index].value(point));
                let column = (x * f64::from(1 << across)) as usize;
                let row = (y * f64::from(1 << (k - across))) as usize;
                seen[column << (k - across) | row] = true;
            }
            assert!(seen.iter().all(|seen| *seen), "boxes of 2^-{across} by 2^-{}", k - across);
        }
    }

    #[test]
    fn another_seed_gives_other_points_and_the_same_seed_the_same() {
        let points = |seed| -> Vec<f64> {
            coordinates(seed).iter().flat_map(|c| (0..16).map(|point| c.value(point))).collect()
        };
        assert_eq!(points(4), points(4));
        let (one, other) = (points(4), points(5));
        assert!(one.iter().zip(&other).all(|(a, b)| a != b));
        assert!(one.iter().all(|&value| value > 0.0 && value < 1.0));
    }

    /// Owen 1997: for a smooth function, the variance of the mean falls with n^-3; with independent points,
    /// it falls with n^-1.
    #[test]
    fn means_of_scrambled_points_vary_little() {
        let n = 64;
        let mean = |seed| -> f64 {
            let all = coordinates(seed);
            let product = |point| all[..4].iter().map(|c| 2.0 * c.value(point)).product::<f64>();
            (0..n).map(product).sum::<f64>() / f64::from(n)
        };
        let means: Vec<f64> = (0..50).map(mean).collect();
        let average = means.iter().sum::<f64>() / 50.0;
        let variance = means.iter().map(|mean| (mean - average).powi(2)).sum::<f64>() / 49.0;
        // The product of four coordinates has expectation 1 and variance (4/3)^4 - 1.
        let independent = ((4f64 / 3.0).powi(4) - 1.0) / f64::from(n);
        assert!((average - 1.0).abs() < 0.01, "{average}");
        assert!(variance < independent / 10.0, "{variance} against {independent}");
    }
}
