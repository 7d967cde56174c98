//! The weights of a model with their adapters merged into them.

use super::adapters::{adapts, first_matrix, second_matrix, stacked_rows};
use super::parameters::parameters_of_model;
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::ir::ParamRequest;
use crate::plan::{Adapter, Model};
use std::collections::BTreeMap;

/// Weights as a model without adapters reads them: `W + factor·B·A` for each that has an adapter. Sums are in
/// fp64 and rounded once to fp32.
pub struct MergedWeights<'a> {
    /// The frozen weights and the adapters.
    weights: &'a dyn Weights,
    adapter: Adapter,
    frozen: BTreeMap<String, ParamRequest>,
}

impl<'a> MergedWeights<'a> {
    /// Merges adapters into the weights of a model.
    ///
    /// # Errors
    /// Fails like [`parameters_of_model`].
    pub fn new(weights: &'a dyn Weights, adapter: Adapter, model: &Model) -> Result<Self> {
        let frozen = parameters_of_model(model)?.into_iter();
        Ok(Self { weights, adapter, frozen: frozen.map(|weight| (weight.name.clone(), weight)).collect() })
    }

    /// Adds the product of a weight's two matrices to its values.
    fn add(&self, weight: &ParamRequest, values: &mut [f32]) -> Result<()> {
        let rank = self.adapter.rank;
        let (rows, inputs) = match weight.shape.split_last() {
            Some((&inputs, rows)) => (rows.iter().product::<usize>(), inputs),
            None => return Ok(()),
        };
        let stacked = logical_rows(weight);
        let read = |name: String, shape: &[usize]| -> Result<Vec<f32>> {
            let bytes = self.weights.read(&name, shape)?;
            Ok(bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect())
        };
        let first = read(first_matrix(&weight.name), &[stacked.len() * rank, inputs])?;
        let second_shape = [&weight.shape[..weight.shape.len() - 1], &[rank]].concat();
        let second = read(second_matrix(&weight.name), &second_shape)?;
        if values.len() != rows * inputs || second.len() != rows * rank || inputs == 0 {
            return Err(Error::failed(format!("{} and its adapter have other shapes", weight.name)));
        }
        let mut row = 0;
        let mut sums = vec![0.0; inputs];
        for (matrix, rows) in stacked.into_iter().enumerate() {
            let first = &first[matrix * rank * inputs..][..rank * inputs];
            for values in values[row * inputs..].chunks_exact_mut(inputs).take(rows) {
                sums.fill(0.0);
                for (factor, first) in second[row * rank..][..rank].iter().zip(first.chunks_exact(inputs)) {
                    let factor = self.adapter.factor * f64::from(*factor);
                    sums.iter_mut().zip(first).for_each(|(sum, x)| *sum += factor * f64::from(*x));
                }
                values.iter_mut().zip(&sums).for_each(|(x, sum)| *x = (f64::from(*x) + sum) as f32);
                row += 1;
            }
        }
        Ok(())
    }
}

/// Returns the rows of each matrix that is stacked in a weight, without padding.
fn logical_rows(weight: &ParamRequest) -> Vec<usize> {
    let unpadded = ParamRequest { alloc: weight.shape.clone(), ..weight.clone() };
    stacked_rows(&unpadded)
}

impl Weights for MergedWeights<'_> {
    fn names(&self) -> Vec<String> {
        self.frozen.keys().cloned().collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let bytes = self.weights.read(name, shape)?;
        match self.frozen.get(name).filter(|weight| adapts(&self.adapter, weight.role)) {
            None => Ok(bytes),
            Some(weight) => {
                let mut values: Vec<f32> =
                    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
                self.add(weight, &mut values)?;
                Ok(values.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
        }
    }
}
