//! Documents of corpora, as text.

use crate::data::documents::Documents;
use crate::data::parallel::collect_in_order;
use crate::data::text::BLOCK_BYTES;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of documents that are read in parallel before their results are merged, and the most documents.
const GROUP_BYTES: u64 = 16 << 20;
const GROUP_DOCUMENTS: usize = 1 << 14;

/// Some documents of a corpus.
#[derive(Debug)]
pub(super) struct Texts {
    /// What the user calls them.
    pub name: String,
    pub documents: Arc<Documents>,
    /// The numbers of the documents in the corpus, in order.
    pub which: Vec<usize>,
    /// The part of the text that counts, in bytes. All, unless one document is divided.
    pub part: Range<u64>,
}

/// The training text: that of one corpus, or of the sources of a mixture.
#[derive(Debug)]
pub(super) struct Training(Vec<Texts>);

impl Training {
    /// Joins the training texts of corpora.
    pub fn new(corpora: Vec<Texts>) -> Self {
        Self(corpora)
    }

    /// Returns the parts, each with the number of documents in the corpora before it. Documents are numbered
    /// over all corpora.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &Texts)> {
        let mut before = 0;
        self.0.iter().map(move |texts| {
            let first = before;
            before += texts.documents.len();
            (first, texts)
        })
    }

    /// Returns the number of documents that are trained on.
    pub fn count(&self) -> usize {
        self.0.iter().map(|texts| texts.which.len()).sum()
    }

    /// Returns the corpus of a document, and its number there.
    pub fn find(&self, document: u32) -> (&Documents, usize) {
        let document = document as usize;
        let part = self.parts().take_while(|(first, _)| *first <= document).last();
        let (first, texts) = part.expect("the first part begins at document 0");
        (&texts.documents, document - first)
    }
}

/// Returns the start of the character that byte `at` of a text belongs to.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl Texts {
    /// Returns all documents of a corpus.
    pub fn all(name: &str, documents: Arc<Documents>) -> Self {
        let which = (0..documents.len()).collect();
        Self { name: name.to_owned(), documents, which, part: 0..u64::MAX }
    }

    /// Returns the first byte of a document that counts.
    pub fn begin(&self) -> u64 {
        self.part.start
    }

    /// Reads the text of document `document` of the corpus, block by block.
    ///
    /// # Errors
    /// If the document cannot be read.
    pub fn read(&self, document: usize, each: &mut dyn FnMut(&str)) -> Result<()> {
        let (mut reader, mut block, mut at) = (self.documents.reader(document)?, String::new(), 0);
        while reader.append(&mut block, BLOCK_BYTES)? {
            let end = at + block.len() as u64;
            let inside = |byte: u64| boundary(&block, (byte.clamp(at, end) - at) as usize);
            let part = &block[inside(self.part.start)..inside(self.part.end)];
            if !part.is_empty() {
                each(part);
            }
            at = end;
            block.clear();
        }
        Ok(())
    }

    /// Computes something of every document in parallel, and hands it on in order, with the number of the
    /// document.
    ///
    /// # Errors
    /// If one of both fails; the first failure in order is reported.
    pub fn each<T: Send>(
        &self,
        compute: impl Fn(usize) -> Result<T> + Sync,
        mut merge: impl FnMut(usize, T) -> Result<()>,
    ) -> Result<()> {
        let mut rest = &self.which[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(GROUP_DOCUMENTS).take_while(|document| {
                let is_first = bytes == 0;
                bytes += self.documents.bytes(**document).max(1);
                is_first || bytes <= GROUP_BYTES
            });
            let (group, later) = rest.split_at(fits.count());
            let computed = collect_in_order(group.par_iter().map(|document| compute(*document)))?;
            group.iter().zip(computed).try_for_each(|(document, one)| merge(*document, one))?;
            rest = later;
            report_progress();
        }
        Ok(())
    }
}
