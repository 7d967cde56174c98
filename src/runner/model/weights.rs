//! Weights by the names of parameters, wherever they are.

use crate::checkpoint::Loaded;
use crate::error::{Error, Result};
use crate::optim::EMA_PREFIX;

/// Source of weights, by xrun's names.
pub trait Weights {
    /// Returns the names of all parameters.
    fn names(&self) -> Vec<String>;
    /// Returns the fp32 bytes (row-major, little-endian, no padding) of a parameter; an error if it has
    /// another shape.
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

/// Which weights of a checkpoint are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum WeightsOf {
    /// Those that training goes on with.
    #[default]
    Training,
    /// Their exponential moving average, which runs with `ema.decay` have.
    Ema,
}

/// Weights of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointWeights<'a> {
    loaded: &'a Loaded,
    /// What names of tensors begin with before that of the parameter.
    prefix: &'static str,
}

impl<'a> CheckpointWeights<'a> {
    /// Chooses weights of a checkpoint.
    ///
    /// # Errors
    /// A usage error for the average of a run that kept none.
    pub fn new(loaded: &'a Loaded, of: WeightsOf) -> Result<Self> {
        let prefix = match of {
            WeightsOf::Training => "",
            WeightsOf::Ema => EMA_PREFIX,
        };
        let lacks = |name: &&str| loaded.shape(&format!("{prefix}{name}")).is_none();
        if let Some(name) = loaded.parameter_names().find(lacks) {
            return Err(Error::usage(format!(
                "{} has no moving average of {name}: a run has one that is trained with ema.decay. Leave --weights out",
                loaded.path().display()
            )));
        }
        Ok(Self { loaded, prefix })
    }

    /// Checks that all of them are finite.
    ///
    /// # Errors
    /// As [`Loaded::check_finite`].
    pub fn check_finite(&self) -> Result<()> {
        self.loaded.check_finite_of(self.prefix)
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
