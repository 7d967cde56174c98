//! What is looked for in the training text: documents of a corpus, or texts from elsewhere.

use super::texts::Texts;
use crate::data::documents::DocumentPlace;
use crate::data::parallel::collect_in_order;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// Listed texts that are divided into words at once.
const GROUP_TEXTS: usize = 1 << 14;

/// Texts that are no corpus, such as the items of a task.
#[derive(Clone, Debug)]
pub struct TextList {
    /// What the user calls them.
    pub name: String,
    /// The texts.
    pub texts: Vec<ListedText>,
}

/// A text of a [`TextList`].
#[derive(Clone, Debug)]
pub struct ListedText {
    /// The text.
    pub text: String,
    /// The file it was made from.
    pub file: Arc<Path>,
    /// Its line in the file, from 1.
    pub line: usize,
}

/// A held-out set.
#[derive(Debug)]
pub(super) enum HeldOut {
    Corpus(Texts),
    List(TextList),
}

/// Reads a document block by block.
pub(super) type ReadText<'a> = dyn Fn(&mut dyn FnMut(&str)) -> Result<()> + 'a;

impl HeldOut {
    /// Returns what the user calls it.
    pub fn name(&self) -> &str {
        match self {
            Self::Corpus(texts) => &texts.name,
            Self::List(list) => &list.name,
        }
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        match self {
            Self::Corpus(texts) => texts.which.len(),
            Self::List(list) => list.texts.len(),
        }
    }

    /// Returns where a document is.
    pub fn place(&self, document: usize) -> DocumentPlace<'_> {
        match self {
            Self::Corpus(texts) => texts.documents.place(texts.which[document]),
            Self::List(list) => {
                let ListedText { file, line, .. } = &list.texts[document];
                DocumentPlace { file, line: Some(*line), number: document + 1 }
            }
        }
    }

    /// Returns the first byte of a document that counts.
    pub fn begin(&self) -> u64 {
        match self {
            Self::Corpus(texts) => texts.begin(),
            Self::List(_) => 0,
        }
    }

    /// Computes something of every document in parallel, and hands it on in order.
    ///
    /// # Errors
    /// If one of both fails; the first failure in order is reported.
    pub fn each<T: Send>(
        &self,
        compute: impl Fn(&ReadText<'_>) -> Result<T> + Sync,
        mut merge: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let list = match self {
            Self::Corpus(texts) => {
                let compute = |document| compute(&|each| texts.read(document, each));
                return texts.each(compute, |_, one| merge(one));
            }
            Self::List(list) => list,
        };
        for group in list.texts.chunks(GROUP_TEXTS) {
            let compute = |one: &ListedText| {
                compute(&|each| {
                    each(&one.text);
                    Ok(())
                })
            };
            collect_in_order(group.par_iter().map(compute))?.into_iter().try_for_each(&mut merge)?;
            report_progress();
        }
        Ok(())
    }
}
