//! Weights with the logit scale folded into the head, for classes that have no such scale.

use super::weights::Weights;
use crate::error::Result;
use crate::plan::Model;

/// Name of the head if it is separate from the embedding.
const HEAD: &str = "head";

/// The weights of a model, with the head multiplied by the logit scale.
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
