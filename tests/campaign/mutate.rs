//! Seeded inputs: random bytes, and valid inputs with changes that parsers stumble on.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Numbers at which widths, signs and limits change.
const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "1",
    "127",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "1e-400",
    "99999999999999999999999",
];

/// The largest input: parsers bound what they read, and this bounds a repetition.
const MAX_BYTES: usize = 1 << 20;

/// A source of inputs.
pub struct Inputs {
    random: ChaCha8Rng,
}

impl Inputs {
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// A number below `limit`; 0 for a limit of 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.random.next_u64() % limit.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most)];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// Random bytes, or one of the valid inputs after a few changes.
    pub fn next(&mut self, valid: &[Vec<u8>]) -> Vec<u8> {
        if self.below(16) == 0 {
            return self.bytes(512);
        }
        let mut input = valid[self.below(valid.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut input, valid);
            input.truncate(MAX_BYTES);
        }
        input
    }

    /// Makes one change.
    pub fn change(&mut self, input: &mut Vec<u8>, valid: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = at + self.below((input.len() - at).min(64) + 1);
        match self.below(10) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => {
                input[at] = [0, 0x7f, 0x80, 0xff, b'"', b'[', b'{', b'\n'][self.below(8)]
            }
            2 => input.truncate(at),
            3 => _ = input.drain(at..end),
            4 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            5 => {
                let bytes = self.bytes(16);
                input.splice(at..at, bytes);
            }
            6 => {
                let other = &valid[self.below(valid.len())];
                let from = self.below(other.len() + 1);
                let to = from + self.below((other.len() - from).min(256) + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
            7 => {
                // Nesting, long names, long numbers.
                let part = input[at..end.min(at + 4)].to_vec();
                let times = 1 << self.below(14);
                input.splice(at..at, part.repeat(times));
            }
            8 => {
                // The next number in a text.
                let Some(from) = input[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) else {
                    return;
                };
                let digits = input[from..].iter().take_while(|b| b.is_ascii_digit()).count();
                let number = NUMBERS[self.below(NUMBERS.len())];
                input.splice(from..from + digits, number.bytes());
            }
            _ => {
                // A number in binary, of 4 or 8 bytes.
                let word =
                    [0, 1, 0xff, u64::from(u32::MAX), 1 << 31, 1 << 40, 1 << 63, u64::MAX][self.below(8)];
                let bytes = &word.to_le_bytes()[..if self.below(2) == 0 { 4 } else { 8 }];
                let to = (at + bytes.len()).min(input.len());
                input.splice(at..to, bytes.iter().copied());
            }
        }
    }
}
