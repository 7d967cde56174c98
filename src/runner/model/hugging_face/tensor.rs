//! A model as HuggingFace's transformers loads it: its tensors, and how they map to xrun's parameters.

use crate::error::{Error, Result};

/// Facts of an exported model besides its dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfFacts {
    /// Element type of the weights, as `torch_dtype` spells it.
    pub torch_dtype: &'static str,
    /// Length in tokens of the longest sequence that the model was trained on.
    pub seq_len: usize,
    /// Token that ends a document.
    pub end_token_id: u32,
    /// Token that begins a text, if one does.
    pub begin_token_id: Option<u32>,
}

/// A model as HuggingFace's transformers loads it.
#[derive(Clone, Debug)]
pub struct HfModel {
    /// Name of the class, for messages.
    pub class: &'static str,
    /// Content of `config.json`.
    pub config: serde_json::Value,
    /// Every tensor, in the order of the file.
    pub tensors: Vec<HfTensor>,
}

/// One HuggingFace tensor: all of an xrun parameter or a range of its rows. It is transposed if the class
/// stores products as `[inputs, outputs]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfTensor {
    /// Name in the file.
    pub name: String,
    /// Shape in the file.
    pub shape: Vec<usize>,
    /// Name of the parameter.
    pub source: String,
    /// Shape of the parameter.
    pub source_shape: Vec<usize>,
    /// Number of the parameter's rows before this tensor.
    pub first_row: usize,
    /// True if the file stores the transpose, only for whole matrices.
    pub transposed: bool,
}

impl HfTensor {
    /// Creates a whole parameter under another name.
    pub fn whole(name: impl Into<String>, source: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            source: source.into(),
            source_shape: shape.to_vec(),
            first_row: 0,
            transposed: false,
        }
    }

    /// Creates the rows `first_row..first_row + shape[0]` of a parameter of shape `source_shape`. Rows are as
    /// wide as in `shape`.
    pub fn rows_of(
        name: impl Into<String>,
        source: impl Into<String>,
        source_shape: &[usize],
        shape: &[usize],
        first_row: usize,
    ) -> Self {
        let source_shape = source_shape.to_vec();
        Self { source_shape, first_row, ..Self::whole(name, source, shape) }
    }

    /// Creates a whole matrix `[outputs, inputs]` that the file stores as `[inputs, outputs]`.
    pub fn transposed(
        name: impl Into<String>,
        source: impl Into<String>,
        [outputs, inputs]: [usize; 2],
    ) -> Self {
        Self {
            shape: vec![inputs, outputs],
            transposed: true,
            ..Self::whole(name, source, &[outputs, inputs])
        }
    }

    /// Returns the range of the parameter's elements that this tensor holds; `None` if the parameter has too
    /// few.
    pub fn range(&self) -> Option<std::ops::Range<usize>> {
        let count = |shape: &[usize]| shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let (elements, all) = (count(&self.shape)?, count(&self.source_shape)?);
        let width = if self.transposed { self.shape[0] } else { count(&self.shape[1..])? };
        let start = self.first_row.checked_mul(width)?;
        let end = start.checked_add(elements)?;
        (end <= all).then_some(start..end)
    }

    /// Extracts the tensor's elements, in the order of the file, from all elements of its parameter.
    ///
    /// # Errors
    /// If the parameter has fewer elements.
    pub fn extract_from(&self, parameter: &[f32]) -> Result<Vec<f32>> {
        let part = self.range().and_then(|range| parameter.get(range));
        let part = part.ok_or_else(|| {
            Error::failed(format!("{} holds only {} elements", self.source, parameter.len()))
        })?;
        Ok(match self.shape[..] {
            [inputs, outputs] if self.transposed => transposed(part, outputs, inputs),
            _ => part.to_vec(),
        })
    }

    /// Returns the elements of a file in the order of the parameter.
    pub fn into_parameter(&self, file: Vec<f32>) -> Vec<f32> {
        match self.shape[..] {
            [inputs, outputs] if self.transposed => transposed(&file, inputs, outputs),
            _ => file,
        }
    }
}

/// Transposes a row-major matrix with `rows` rows and `columns` columns.
fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_transposes_come_back() {
        let numbers: Vec<f32> = (0..12u8).map(f32::from).collect();
        let rows = HfTensor::rows_of("a", "p", &[4, 3], &[2, 3], 1);
        assert_eq!(rows.extract_from(&numbers).unwrap(), numbers[3..9]);
        let bias = HfTensor::rows_of("a", "p", &[12], &[4], 8);
        assert_eq!(bias.extract_from(&numbers).unwrap(), numbers[8..]);
        let turned = HfTensor::transposed("a", "p", [4, 3]);
        let file = turned.extract_from(&numbers).unwrap();
        assert_eq!((&turned.shape[..], &file[..5]), (&[3, 4][..], &[0.0, 3.0, 6.0, 9.0, 1.0][..]));
        assert_eq!(turned.into_parameter(file), numbers);
        assert!(rows.extract_from(&numbers[..8]).is_err());
        assert_eq!(HfTensor::rows_of("a", "p", &[4, 3], &[2, 3], 3).range(), None);
    }
}
