//! Access to weights by parameter name, wherever they are stored.

use crate::checkpoint::Loaded;
use crate::error::{Error, Result};
use crate::optim::EMA_PREFIX;
use crate::plan::Model;

/// A source of weights, under xrun's names.
pub trait Weights {
    /// Returns the names of all parameters.
    fn names(&self) -> Vec<String>;
    /// Returns the fp32 bytes (row-major, little-endian, no padding) of a parameter. Fails if it has a
    /// different shape.
    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>>;
}

impl Weights for Loaded {
    fn names(&self) -> Vec<String> {
        self.parameter_names().map(str::to_string).collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        Loaded::read(self, name, shape)
    }
}

/// Which weights of a checkpoint to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum WeightsKind {
    /// The weights with which training continues.
    #[default]
    Training,
    /// Their exponential moving average, kept by runs with `ema.decay`.
    Ema,
}

/// Returns true if a tensor of a checkpoint, by its name or its prefix, is of the moving average of the
/// weights.
pub fn is_of_average(name: &str) -> bool {
    name.starts_with(EMA_PREFIX)
}

/// Weights of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointWeights<'a> {
    loaded: &'a Loaded,
    /// Prefix of the tensors' names, before the name of the parameter.
    prefix: &'static str,
}

impl<'a> CheckpointWeights<'a> {
    /// Selects weights of a checkpoint.
    ///
    /// # Errors
    /// With a usage error if the average is requested but the run kept none.
    pub fn new(loaded: &'a Loaded, of: WeightsKind) -> Result<Self> {
        let prefix = match of {
            WeightsKind::Training => "",
            WeightsKind::Ema => EMA_PREFIX,
        };
        let lacks = |name: &&str| loaded.shape(&format!("{prefix}{name}")).is_none();
        if let Some(name) = loaded.parameter_names().find(lacks) {
            return Err(Error::usage(format!(
                "{} has no moving average of {name}: only runs with ema.decay have one. Leave --weights out",
                loaded.path().display()
            )));
        }
        Ok(Self { loaded, prefix })
    }

    /// Checks that all of the weights are finite.
    ///
    /// # Errors
    /// Fails like [`Loaded::check_finite`].
    pub fn check_finite(&self) -> Result<()> {
        self.loaded.check_finite(self.prefix)
    }
}

impl Weights for CheckpointWeights<'_> {
    fn names(&self) -> Vec<String> {
        Weights::names(self.loaded)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        self.loaded.read(&format!("{}{name}", self.prefix), shape)
    }
}

/// Name of the head if it is separate from the embedding.
const HEAD: &str = "head";

/// The weights of a model, with the head multiplied by the logit scale, for classes that have no such scale.
pub struct FoldedHead<'a> {
    weights: &'a dyn Weights,
    factor: f32,
}

impl<'a> FoldedHead<'a> {
    /// Moves the logit scale from a model into its weights. If the head is the embedding, both stay
    /// unchanged, because the scale applies only to logits.
    pub fn new(weights: &'a dyn Weights, model: &mut Model) -> Self {
        let own = if model.tie_embeddings { &mut 1.0 } else { &mut model.logit_scale };
        Self { weights, factor: std::mem::replace(own, 1.0) as f32 }
    }
}

impl Weights for FoldedHead<'_> {
    fn names(&self) -> Vec<String> {
        self.weights.names()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let mut bytes = self.weights.read(name, shape)?;
        if name == HEAD && self.factor != 1.0 {
            for element in bytes.as_chunks_mut().0 {
                *element = (f32::from_le_bytes(*element) * self.factor).to_le_bytes();
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;

    struct Twos;

    impl Weights for Twos {
        fn names(&self) -> Vec<String> {
            ["head", "embedding"].map(str::to_owned).to_vec()
        }

        fn read(&self, _name: &str, shape: &[usize]) -> Result<Vec<u8>> {
            Ok(2.0f32.to_le_bytes().repeat(shape.iter().product()))
        }
    }

    #[test]
    fn the_factor_moves_only_into_an_untied_head() {
        for tie_embeddings in [false, true] {
            let keys = recipe::Model { logit_scale: 0.75, tie_embeddings, ..recipe::Model::default() };
            let mut model = Model::from_keys(&keys, 3);
            let folded = FoldedHead::new(&Twos, &mut model);
            let read = |name| {
                let bytes = folded.read(name, &[3, 1]).unwrap();
                bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>()
            };
            let (head, left) = if tie_embeddings { (2.0, 0.75) } else { (1.5, 1.0) };
            assert_eq!(
                (read("head"), read("embedding"), model.logit_scale),
                (vec![head; 3], vec![2.0; 3], left)
            );
        }
    }
}
