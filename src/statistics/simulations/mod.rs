//! Error rates of verdicts in simulated comparisons, from fixed seeds.

mod random;

pub use random::Normals;
