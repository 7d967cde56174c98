//! `origin.json`: what a run began from. It is written before the first step and never changed. A run that
//! ends before its first checkpoint begins again from there, and a run is only taken for another one that
//! began alike.

use super::atomic::{self, json, parse_json};
use super::names::{ORIGIN, SUMMARY};
use super::summary::Summary;
use crate::error::{Error, Result};
use crate::regular::{self, MAX_TEXT};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a run is and began from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The name of the run's folder when it began.
    pub run: String,
    /// The recipe's name.
    pub recipe: String,
    /// The resolved recipe, as TOML.
    pub resolved_recipe_toml: String,
    /// Hash of the tokenized corpus.
    pub corpus_hash: String,
    /// Hash of the tokenizer.
    pub tokenizer_hash: String,
    /// The state before the first step.
    pub began_from: BeganFrom,
}

/// The state before the first step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BeganFrom {
    /// The initial values that follow from the recipe.
    InitialValues,
    /// The weights of a folder in HuggingFace's form, or of a checkpoint of another run, at step 0.
    Weights {
        /// Path of the folder or of the checkpoint.
        folder: String,
        /// BLAKE3 of its content, in hexadecimal.
        blake3: String,
        /// BLAKE3 of the folder with the weights of adapters; `None` if adapters began with none, and in runs
        /// of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adapter: Option<String>,
    },
    /// A checkpoint of another run.
    Checkpoint {
        /// Absolute path of the other run's folder.
        folder: String,
        /// The other run's name.
        run: String,
        /// Step of the checkpoint.
        step: u64,
        /// Tokens that the other run had trained on.
        tokens_seen: u64,
        /// BLAKE3 of the state in the checkpoint, in hexadecimal.
        state: String,
    },
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    origin: Origin,
    /// BLAKE3 of the origin as JSON on one line, in hexadecimal.
    blake3: String,
}

impl Origin {
    /// Writes the origin to the folder of a run.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, run: &Path) -> Result<()> {
        let stored = Stored { origin: self.clone(), blake3: self.hash()? };
        atomic::write(&run.join(ORIGIN), &json(&stored)?)
    }

    /// Reads the origin of a run; `None` for a run of an earlier version.
    ///
    /// # Errors
    /// If the file cannot be read, or was changed.
    pub fn read(run: &Path) -> Result<Option<Self>> {
        let path = run.join(ORIGIN);
        if regular::is_missing(&path) {
            return Ok(None);
        }
        let Stored { origin, blake3 } =
            parse_json(&path, &regular::read(&path, MAX_TEXT)?, "the origin of a run")?;
        if origin.hash()? != blake3 {
            return Err(Error::failed(format!(
                "{} was changed since the run began: it does not match its own hash. Restore the file, or train the recipe \
                 again, in a new run",
                path.display()
            )));
        }
        Ok(Some(origin))
    }

    fn hash(&self) -> Result<String> {
        Ok(blake3::hash(atomic::json_line(self)?.as_bytes()).to_hex().to_string())
    }

    /// Compares a summary with the facts that no process changes after the beginning. A damaged summary would
    /// otherwise be continued and written again as if it were true.
    ///
    /// # Errors
    /// If they differ; the message names the first difference.
    pub fn check_summary(&self, run: &Path, summary: &Summary) -> Result<()> {
        let fork = summary.forked_from.as_ref();
        let fork = fork.map(|fork| (fork.run.clone(), fork.step, fork.tokens_seen));
        let (mut parent, mut weights) = (None, None);
        match &self.began_from {
            BeganFrom::InitialValues => {}
            BeganFrom::Weights { blake3, .. } => weights = Some(blake3.as_str()),
            BeganFrom::Checkpoint { run, step, tokens_seen, .. } => {
                parent = Some((run.clone(), *step, *tokens_seen));
            }
        }
        let begun_with = summary.begun_with.as_ref().map(|with| with.blake3.as_str());
        let wrong = [
            (summary.run != self.run, "run"),
            (summary.recipe != self.recipe, "recipe"),
            (summary.corpus_hash.as_ref().is_some_and(|hash| *hash != self.corpus_hash), "corpus_hash"),
            (fork != parent, "forked_from"),
            (begun_with != weights, "begun_with.blake3"),
        ];
        match wrong.iter().find(|(differs, _)| *differs) {
            None => Ok(()),
            Some((_, field)) => Err(Error::failed(format!(
                "{} and {ORIGIN} of {} contradict each other about {field}: one of them was changed. Restore it",
                run.join(SUMMARY).display(),
                self.run
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::summary::{BegunWith, ForkedFrom};

    fn origins() -> [Origin; 3] {
        let weights = BeganFrom::Weights {
            folder: "/m".to_owned(),
            blake3: "w".to_owned(),
            adapter: Some("a".to_owned()),
        };
        let checkpoint = BeganFrom::Checkpoint {
            folder: "/results/r/p".to_owned(),
            run: "p".to_owned(),
            step: 4,
            tokens_seen: 512,
            state: "s".to_owned(),
        };
        [BeganFrom::InitialValues, weights, checkpoint].map(|began_from| Origin {
            run: "20261102T030405Z-0123abcd".to_owned(),
            recipe: "r".to_owned(),
            resolved_recipe_toml: "[model]\ndim = 8\n".to_owned(),
            corpus_hash: "c".to_owned(),
            tokenizer_hash: "t".to_owned(),
            began_from,
        })
    }

    /// Returns the summary that belongs to an origin.
    fn summary(origin: &Origin) -> Summary {
        let mut summary = Summary::started("r", "20261102T030405Z-0123abcd", "h", 10);
        summary.corpus_hash = Some("c".to_owned());
        match &origin.began_from {
            BeganFrom::InitialValues => {}
            BeganFrom::Weights { folder, blake3, .. } => {
                summary.begun_with = Some(BegunWith { folder: folder.clone(), blake3: blake3.clone() });
            }
            BeganFrom::Checkpoint { .. } => {
                summary.forked_from = Some(ForkedFrom { run: "p".to_owned(), step: 4, tokens_seen: 512 });
            }
        }
        summary
    }

    #[test]
    fn no_flipped_bit_is_read_as_another_origin() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(Origin::read(run.path()).unwrap(), None);
        for origin in origins() {
            origin.write(run.path()).unwrap();
            assert_eq!(Origin::read(run.path()).unwrap().as_ref(), Some(&origin));
            let path = run.path().join(ORIGIN);
            let whole = std::fs::read(&path).unwrap();
            for bit in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                std::fs::write(&path, &flipped).unwrap();
                // A changed space or line break changes nothing.
                assert!(
                    Origin::read(run.path()).is_err() || flipped[bit / 8].is_ascii_whitespace(),
                    "bit {bit}"
                );
                if let Ok(read) = Origin::read(run.path()) {
                    assert_eq!(read.as_ref(), Some(&origin), "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_summary_of_another_beginning_is_refused_by_its_field() {
        let run = Path::new("results/r/run");
        for origin in origins() {
            let good = summary(&origin);
            origin.check_summary(run, &good).unwrap();
            let fork = ForkedFrom { run: "q".to_owned(), step: 4, tokens_seen: 512 };
            let with = BegunWith { folder: "/m".to_owned(), blake3: "v".to_owned() };
            let changes: [(&str, Summary); 7] = [
                ("run", Summary { run: "20261102T030405Z-0123abcc".to_owned(), ..good.clone() }),
                ("recipe", Summary { recipe: "s".to_owned(), ..good.clone() }),
                ("corpus_hash", Summary { corpus_hash: Some("d".to_owned()), ..good.clone() }),
                ("forked_from", Summary { forked_from: Some(fork.clone()), ..good.clone() }),
                (
                    "forked_from",
                    Summary {
                        forked_from: Some(ForkedFrom { run: "p".to_owned(), step: 5, ..fork }),
                        ..good.clone()
                    },
                ),
                ("begun_with.blake3", Summary { begun_with: Some(with), ..good.clone() }),
                (
                    match &origin.began_from {
                        BeganFrom::InitialValues => "run",
                        BeganFrom::Weights { .. } => "begun_with.blake3",
                        BeganFrom::Checkpoint { .. } => "forked_from",
                    },
                    Summary { forked_from: None, begun_with: None, run: "x".to_owned(), ..good.clone() },
                ),
            ];
            for (field, changed) in changes {
                let error = origin.check_summary(run, &changed).unwrap_err();
                let named = error.message().contains(&format!("about {field}:"));
                assert!(named || error.message().contains("about run:"), "{field}: {error}");
            }
        }
    }
}
