//! Python's `random.Random`, as far as tasks draw examples with it: seeded by an integer, `sample` and
//! `shuffle`. Draws must be Python's to the last one, or few-shot prompts are other prompts.
//!
//! Sources: Matsumoto and Nishimura, "Mersenne Twister", 1998 (MT19937, seeded by `init_by_array`), and
//! `Lib/random.py` of CPython 3.11, whose rules have not changed since 3.2.

/// Words of the state, and the distance of the word that is mixed in.
const WORDS: usize = 624;
const SHIFT: usize = 397;

/// The generator of CPython.
#[derive(Clone, Debug)]
pub struct PythonRandom {
    state: [u32; WORDS],
    /// The word that is drawn next.
    at: usize,
}

impl PythonRandom {
    /// Seeds the generator like `random.Random(seed)`.
    pub fn new(seed: u64) -> Self {
        let key = match u32::try_from(seed >> 32) {
            Ok(high @ 1..) => vec![seed as u32, high],
            _ => vec![seed as u32],
        };
        let mut state = [0u32; WORDS];
        state[0] = 19_650_218;
        for i in 1..WORDS {
            let last = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        let mut step = |i: &mut usize, factor: u32, added: u32, subtracted: u32| {
            let last = state[*i - 1];
            state[*i] = (state[*i] ^ (last ^ (last >> 30)).wrapping_mul(factor))
                .wrapping_add(added)
                .wrapping_sub(subtracted);
            *i += 1;
            if *i == WORDS {
                state[0] = state[WORDS - 1];
                *i = 1;
            }
        };
        for _ in 0..WORDS.max(key.len()) {
            step(&mut i, 1_664_525, key[j].wrapping_add(j as u32), 0);
            j = (j + 1) % key.len();
        }
        for _ in 1..WORDS {
            let at = i as u32;
            step(&mut i, 1_566_083_941, 0, at);
        }
        state[0] = 0x8000_0000;
        Self { state, at: WORDS }
    }

    /// Returns the next 32 bits.
    fn next(&mut self) -> u32 {
        if self.at == WORDS {
            for i in 0..WORDS {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + SHIFT) % WORDS] ^ (y >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Returns a number below `n`, which is at least 1 (`_randbelow_with_getrandbits`). At most 2^32 - 1
    /// numbers are told apart.
    fn below(&mut self, n: u32) -> usize {
        let shift = n.leading_zeros();
        loop {
            // `getrandbits` draws a word even where no bit of it is needed, which is never: n is at least 1.
            let drawn = self.next() >> shift;
            if drawn < n {
                return drawn as usize;
            }
        }
    }

    /// Returns the places that `sample(population, count)` draws from a population of `size`, in its order;
    /// `None` if the population is smaller than `count` or larger than 2^32 - 1.
    pub fn sample(&mut self, size: usize, count: usize) -> Option<Vec<usize>> {
        let all = u32::try_from(size).ok().filter(|_| count <= size)?;
        // Python takes the way that needs less memory, and each draws other places: a set of `count` numbers
        // has 21 entries, or the next power of 4 above three times as many.
        let mut set_size = 21;
        if count > 5 {
            let mut power = 1usize;
            while power < 3 * count {
                power *= 4;
            }
            set_size += power;
        }
        let mut drawn = Vec::with_capacity(count);
        if size <= set_size {
            let mut pool: Vec<usize> = (0..size).collect();
            for i in 0..count as u32 {
                let left = all - i;
                let j = self.below(left);
                drawn.push(pool[j]);
                pool[j] = pool[left as usize - 1];
            }
        } else {
            let mut taken = std::collections::HashSet::with_capacity(count);
            for _ in 0..count {
                let mut j = self.below(all);
                while !taken.insert(j) {
                    j = self.below(all);
                }
                drawn.push(j);
            }
        }
        Some(drawn)
    }

    /// Returns where `shuffle` puts the entries of a list of `size`: the entry at each place, by its old
    /// place. At most 2^32 - 1 entries are shuffled.
    pub fn shuffle(&mut self, size: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..size).collect();
        for i in (1..size).rev() {
            order.swap(i, self.below(i as u32 + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by CPython 3.11.7.
    #[test]
    fn draws_are_those_of_python() {
        let mut random = PythonRandom::new(1234);
        assert_eq!([(); 3].map(|()| random.next()), [4_150_886_329, 3_342_196_574, 1_892_932_127]);
        // Two samples in a row: by a list, and by a set of numbers.
        let cases: [(u64, usize, [&[usize]; 2]); 6] = [
            (1234, 10, [&[7, 1, 0], &[1, 0, 9]]),
            (1234, 1000, [&[989, 796, 451], &[119, 7, 92]]),
            (1234, 40_000, [&[28883, 7657, 490, 5940, 38156, 2288], &[5500, 6450, 23241, 15519, 1142, 2019]]),
            (
                1234,
                100,
                [&[99, 56, 14, 0, 11, 74, 4, 85, 88, 10, 12], &[98, 45, 30, 2, 3, 44, 82, 79, 61, 78, 59]],
            ),
            ((1 << 40) + 5, 50, [&[32, 33, 17, 42, 1, 48], &[48, 49, 2, 10, 5, 8]]),
            (0, 26, [&[12, 24, 13, 1, 8, 16], &[15, 12, 9, 25, 11, 18]]),
        ];
        for (seed, size, samples) in cases {
            let mut random = PythonRandom::new(seed);
            for sample in samples {
                assert_eq!(random.sample(size, sample.len()).as_deref(), Some(sample), "{seed} {size}");
            }
        }
        let mut random = PythonRandom::new(1234);
        for _ in 0..700 {
            random.next();
        }
        assert_eq!(random.sample(85, 6).unwrap(), [16, 32, 30, 9, 42, 50], "after the state was renewed");
        assert_eq!(random.sample(3, 4), None);
        assert_eq!(PythonRandom::new(1337).shuffle(12), [6, 0, 1, 4, 10, 7, 3, 11, 2, 5, 8, 9]);
    }
}
