//! Access to weights by parameter name, wherever they are stored.

use crate::checkpoint::Loaded;
use crate::error::{Error, Result};
use crate::optim::EMA_PREFIX;

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
