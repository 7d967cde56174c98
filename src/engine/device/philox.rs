//! Philox 4×32-10, the counter-based random number generator for dropout and sampling.
//!
//! Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Returns 128 random bits: ten rounds over `counter` with `key`.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [first, second] = philox_run(counter, key);
    [first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32]
}

/// Runs [`philox`] for `NUMBERS / 2` counters, whose first word counts up from `counter[0]`.
///
/// Each result becomes two 64-bit numbers: words 0 and 1, then words 2 and 3, with the earlier word in the
/// low half. In this form a round takes a multiplication, a rotation and two exclusive ors per number, all of
/// which vectorize.
#[inline(always)]
pub fn philox_run<const NUMBERS: usize>(counter: [u32; 4], key: [u32; 2]) -> [u64; NUMBERS] {
    const LOW: u64 = 0xffff_ffff;
    let [first, second, third, fourth] = counter.map(u64::from);
    let mut state = [0; NUMBERS];
    for (i, pair) in state.chunks_exact_mut(2).enumerate() {
        pair[0] = ((first + i as u64) & LOW) | (second << 32);
        pair[1] = third | (fourth << 32);
    }
    for round in 0..10 {
        let key = [0, 1].map(|i: usize| u64::from(key[i].wrapping_add(WEYL[i].wrapping_mul(round))));
        for pair in state.chunks_exact_mut(2) {
            let low = (pair[0] & LOW) * u64::from(MULTIPLIER[0]);
            let high = (pair[1] & LOW) * u64::from(MULTIPLIER[1]);
            pair[0] = high.rotate_left(32) ^ (pair[0] >> 32) ^ key[0];
            pair[1] = low.rotate_left(32) ^ (pair[1] >> 32) ^ key[1];
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_the_single_calls() {
        let (counter, key) = ([u32::MAX - 3, 7, u32::MAX, 9], [0xa409_3822, 0x299f_31d0]);
        for (i, pair) in philox_run::<32>(counter, key).chunks_exact(2).enumerate() {
            let words = philox([counter[0].wrapping_add(i as u32), 7, u32::MAX, 9], key).map(u64::from);
            assert_eq!(pair, [words[0] | (words[1] << 32), words[2] | (words[3] << 32)]);
        }
    }

    /// The known answers from Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
