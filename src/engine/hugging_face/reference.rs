//! `xrun-reference.json`: tokens, and the logits that a model gives after the last of them, so that anyone
//! who reads the weights can check that they compute the same.

use super::json;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file in a model's folder.
pub const REFERENCE: &str = "xrun-reference.json";

/// Version of the file format.
const FORMAT: u32 = 1;

/// Most tokens in a prompt.
const MAX_TOKENS: usize = 4096;

/// Largest difference of a logit that counts as fp32 rounding, relative to the largest logit, or to 1 if all
/// are smaller.
const TOLERANCE: f64 = 1e-4;

/// A prompt and the logits after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Version of the file format.
    format: u32,
    /// Ids of the prompt's tokens.
    pub tokens: Vec<u32>,
    /// Logits after the last token, one per vocabulary entry, computed in fp32 from the weights as stored.
    pub logits: Vec<f32>,
}

impl Reference {
    /// Most bytes of a file: enough for the logits of a vocabulary of a million entries.
    pub const MAX_BYTES: u64 = 32 << 20;

    /// Creates the reference of a model.
    pub fn new(tokens: Vec<u32>, logits: Vec<f32>) -> Self {
        Self { format: FORMAT, tokens, logits }
    }

    /// Parses the content of the file at `path`, for a model with `vocab_size` tokens and a context of
    /// `context` tokens.
    ///
    /// # Errors
    /// A usage error if the format is different, tokens exceed the vocabulary or the context, or the number
    /// of logits is wrong.
    pub fn parse(path: &Path, text: &str, vocab_size: usize, context: usize) -> Result<Self> {
        let reference: Self = json::parse(path, text.as_bytes())?;
        let Self { format, tokens, logits } = &reference;
        let most = context.min(MAX_TOKENS);
        let wrong = if *format != FORMAT {
            format!("format is {format}, but this xrun reads {FORMAT}")
        } else if tokens.is_empty() || tokens.len() > most {
            format!("tokens has {} entries, but 1 to {most} are expected", tokens.len())
        } else if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
            format!("token {token} is outside the vocabulary of {vocab_size}")
        } else if logits.len() != vocab_size {
            format!("logits has {} entries, but the vocabulary has {vocab_size}", logits.len())
        } else {
            return Ok(reference);
        };
        Err(Error::usage(format!(
            "{}: {wrong}; remove the file to import without comparing logits",
            path.display()
        )))
    }

    /// Compares the stored logits with logits computed from a folder's weights, and returns the largest
    /// difference.
    ///
    /// # Errors
    /// A usage error if a logit differs by more than rounding in fp32.
    pub fn compare(&self, computed: &[f64], folder: &Path) -> Result<f64> {
        let scale = self.logits.iter().fold(1.0, |scale: f64, logit| scale.max(f64::from(logit.abs())));
        let apart = |(stored, computed): (&f32, &f64)| (f64::from(*stored) - computed).abs();
        let differences = self.logits.iter().zip(computed).map(apart).enumerate();
        let (at, largest) = differences.fold((0, 0.0), |max, new| {
            // NaN differs from any logit.
            if new.1 > max.1 || new.1.is_nan() { new } else { max }
        });
        if computed.len() == self.logits.len() && largest <= TOLERANCE * scale {
            return Ok(largest);
        }
        Err(Error::usage(format!(
            "{}: {REFERENCE} has the logit {} for token {at} after its prompt, but the weights give {}: they are not \
             the weights it was written for, or xrun computes a different model. Without the file, logits are \
             not compared",
            folder.display(),
            self.logits.get(at).copied().unwrap_or_default(),
            computed.get(at).copied().unwrap_or_default()
        )))
    }

    /// Returns the content of the file.
    ///
    /// # Errors
    /// If a logit is not finite, which JSON cannot represent.
    pub fn to_json(&self) -> Result<String> {
        if let Some(at) = self.logits.iter().position(|logit| !logit.is_finite()) {
            return Err(Error::failed(format!("the logit of token {at} is {}", self.logits[at])));
        }
        let text = serde_json::to_string(self);
        text.map(|text| text + "\n").map_err(|e| Error::failed(format!("cannot encode {REFERENCE}: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Reference> {
        Reference::parse(Path::new("f"), text, 3, 4)
    }

    #[test]
    fn a_reference_comes_back_to_the_bit() {
        let reference = Reference::new(vec![2, 0], vec![0.1, -1e-7, 3.402_823_4e38]);
        assert_eq!(parsed(&reference.to_json().unwrap()).unwrap(), reference);
        assert!(Reference::new(vec![1], vec![f32::NAN]).to_json().is_err());
    }

    #[test]
    fn mismatched_references_are_refused() {
        for (text, says) in [
            (r#"{"format": 2, "tokens": [1], "logits": [1, 2, 3]}"#, "format is 2"),
            (r#"{"format": 1, "tokens": [], "logits": [1, 2, 3]}"#, "tokens has 0 entries"),
            (r#"{"format": 1, "tokens": [1, 1, 1, 1, 1], "logits": [1, 2, 3]}"#, "1 to 4 are expected"),
            (r#"{"format": 1, "tokens": [3], "logits": [1, 2, 3]}"#, "token 3 is outside"),
            (r#"{"format": 1, "tokens": [1], "logits": [1, 2]}"#, "logits has 2 entries"),
            (r#"{"format": 1, "tokens": [1], "logits": [1, 2, 1e39]}"#, "number out of range"),
            (r#"{"format": 1, "tokens": [1], "logits": [1, 2, 3], "x": 1}"#, "unknown field"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.message().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn differences_beyond_rounding_are_refused() {
        let reference = Reference::new(vec![1], vec![1.0, 20.0, -3.0]);
        let compare = |logits: &[f64]| reference.compare(logits, Path::new("folder"));
        assert!(compare(&[1.0, 20.0, -3.001]).unwrap() > 9e-4);
        for other in [&[1.0, 20.01, -3.0][..], &[1.0, 20.0], &[1.0, f64::NAN, -3.0]] {
            assert!(compare(other).is_err(), "{other:?}");
        }
        let small = Reference::new(vec![1], vec![0.1, 0.2]);
        assert!(small.compare(&[0.1, 0.2002], Path::new("folder")).is_err());
    }
}
