//! The numbers that fixtures do not hold: the same formulas as in `scripts/parity.py`.

/// The first `count` outputs of SplitMix64 (Steele, Lea and Flood, 2014) seeded with the FNV-1a hash of
/// `name`.
pub fn bits(name: &str, count: usize) -> impl Iterator<Item = u64> {
    let hash = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    (1..=count as u64).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Multiples of 2^-21 in [-1, 1).
pub fn uniform(name: &str, count: usize) -> impl Iterator<Item = f64> {
    bits(name, count).map(|z| (z >> 42) as f64 / f64::from(1 << 21) - 1.0)
}

/// A parameter of that name and shape: matrices in [-1/8, 1/8), norm weights in [3/4, 5/4).
pub fn weights(name: &str, shape: &[usize]) -> Vec<f64> {
    let matrix = shape.len() > 1;
    uniform(name, shape.iter().product()).map(|u| if matrix { u / 8.0 } else { 1.0 + u / 4.0 }).collect()
}

/// `count` tokens below `vocab` of a step from 1.
pub fn tokens(step: usize, count: usize, vocab: u64) -> Vec<u32> {
    bits(&format!("tokens.{step}"), count).map(|z| (((z >> 32) * vocab) >> 32) as u32).collect()
}

/// The gradients of `steps` steps of AdamW on `count` numbers, from nothing to 2^40, with zeros.
pub fn adamw_gradients(steps: usize, count: usize) -> Vec<f32> {
    const SCALES: [i32; 8] = [0, -10, -20, -30, -50, -70, 10, 40];
    let choices = bits("adamw.choices", steps * count).map(|z| (z >> 58) as usize);
    let numbers = uniform("adamw.gradients", steps * count);
    let at = |(i, (u, choice)): (usize, (f64, usize))| {
        let k = i % count;
        let scale = SCALES[if k % 3 == 2 { choice % 8 } else { k % 8 }];
        if choice / 8 == 0 { 0.0 } else { (u * 2f64.powi(scale)) as f32 }
    };
    numbers.zip(choices).enumerate().map(at).collect()
}
