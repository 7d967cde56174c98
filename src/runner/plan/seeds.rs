//! The seeds of a training run.

use crate::policy::SeedScheme;
use crate::recipe::Values;

/// Prefix of the hash behind the key of a parameter, so that no other use of a seed gives the same keys.
const KEY_CONTEXT: &[u8] = b"xrun initial values";

/// The seed of the run and the seeds of its parts, which follow it unless they are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// `training.seed`, which checkpoints record.
    pub training: u64,
    /// Seed for the initial values of parameters.
    pub init: u64,
    /// Seed for the order in which windows of the corpus are read.
    pub order: u64,
    /// Seed for the dropout masks.
    pub dropout: u64,
    /// What determines the initial values of a parameter, besides the seed.
    pub scheme: SeedScheme,
}

impl Seeds {
    pub(super) fn from_values(values: &Values) -> Self {
        let training = values.training.seed;
        let parts = &values.seeds;
        let part_seed = |part: Option<u64>| part.unwrap_or(training);
        Self {
            training,
            init: part_seed(parts.init),
            order: part_seed(parts.order),
            dropout: part_seed(parts.dropout),
            scheme: parts.scheme,
        }
    }

    /// Returns the key of the generator (Philox, 64 bits) that draws the initial values of a parameter.
    ///
    /// With the scheme `name` it is the first eight bytes of the BLAKE3 hash of seed and name, so two names,
    /// or two seeds, have the same key only with a chance of 2⁻⁶⁴.
    pub fn initial_values_key(&self, index: usize, name: &str) -> [u32; 2] {
        let seed = self.init;
        match self.scheme {
            SeedScheme::Index => [seed as u32 ^ 0x1417_c0de, (seed >> 32) as u32 ^ index as u32],
            SeedScheme::Name => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(KEY_CONTEXT).update(&seed.to_le_bytes()).update(name.as_bytes());
                let mut bytes = [0; 8];
                hasher.finalize_xof().fill(&mut bytes);
                let key = u64::from_le_bytes(bytes);
                [key as u32, (key >> 32) as u32]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_seed_of_the_run_unless_they_are_set() {
        let mut values = Values::default();
        values.training.seed = 7;
        let alike = Seeds { training: 7, init: 7, order: 7, dropout: 7, scheme: SeedScheme::Name };
        assert_eq!(Seeds::from_values(&values), alike);
        values.seeds.init = Some(1);
        assert_eq!(Seeds::from_values(&values), Seeds { init: 1, ..alike });
        values.seeds.order = Some(2);
        values.seeds.dropout = Some(0);
        assert_eq!(Seeds::from_values(&values), Seeds { init: 1, order: 2, dropout: 0, ..alike });
    }

    /// Resumed runs and comparisons of runs rely on the keys, so they must never change under a scheme.
    #[test]
    fn keys_of_initial_values_never_change() {
        let key = |scheme, seed, index, name| {
            let seeds = Seeds { training: 0, init: seed, order: 0, dropout: 0, scheme };
            seeds.initial_values_key(index, name)
        };
        let by_index = |seed, index| key(SeedScheme::Index, seed, index, "any");
        assert_eq!(by_index(0, 0), [0x1417_c0de, 0]);
        assert_eq!(by_index(42, 3), [0x1417_c0f4, 3]);
        assert_eq!(by_index(7 << 32, 5), [0x1417_c0de, 2]);
        let by_name = |seed, name| key(SeedScheme::Name, seed, 9, name);
        let found = [by_name(0, "embedding"), by_name(42, "blocks.3.qkv")];
        assert_eq!(found, [[4_266_912_638, 1_565_641_015], [1_705_657_193, 1_817_203_487]]);
        assert_eq!(
            by_name(42, "blocks.3.qkv"),
            key(SeedScheme::Name, 42, 0, "blocks.3.qkv"),
            "not the index"
        );
        assert_ne!(by_name(0, "embedding"), by_name(1, "embedding"));
        assert_ne!(by_name(0, "embedding"), by_name(0, "head"));
    }
}
