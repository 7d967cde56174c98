//! Near duplicates among the training documents.

use super::minhash::{BANDS, NEAR, Signature};
use crate::device::host_allocator::fallible;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use rayon::prelude::*;

/// Most documents that are compared with each other. At 116 bytes for each and 16 more while they are
/// compared, they take 4.4 GB.
pub(super) const MAX_DOCUMENTS: usize = 1 << 25;

/// Documents of a bucket that a later one is compared with, if it is no near duplicate of those before. The
/// documents of a bucket mostly are near duplicates of its first.
const MAX_COMPARED: usize = 4;

/// A document and the earlier one that it is a near duplicate of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Duplicate {
    pub document: u32,
    pub earlier: u32,
    pub similarity: f64,
}

/// The signatures of training documents, in order.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    documents: Vec<u32>,
    signatures: Vec<Signature>,
    /// Documents beyond [`MAX_DOCUMENTS`], which are not compared.
    pub left_out: u64,
}

impl Duplicates {
    /// Adds a document with a higher number than all before.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn add(&mut self, document: u32, signature: Signature) -> Result<()> {
        if self.documents.len() == MAX_DOCUMENTS {
            self.left_out += 1;
            return Ok(());
        }
        let count = self.documents.len();
        let no_memory = |_| {
            Error::does_not_fit(format!(
                "not enough memory for the signatures of {count} documents, at {} bytes each; leave near duplicates within \
                 the training text out with --no-duplicates",
                size_of::<Signature>() + size_of::<u32>()
            ))
        };
        fallible(|| self.documents.try_reserve(1)).map_err(no_memory)?;
        fallible(|| self.signatures.try_reserve(1)).map_err(no_memory)?;
        self.documents.push(document);
        self.signatures.push(signature);
        Ok(())
    }

    /// Returns the documents that are near duplicates of earlier ones, in order.
    pub fn find(&self) -> Vec<Duplicate> {
        // By document, the earliest one that it duplicates.
        let mut earliest: Vec<Option<(u32, f64)>> = vec![None; self.signatures.len()];
        let mut keys: Vec<(u64, u32)> = Vec::new();
        for band in 0..BANDS {
            keys.clear();
            keys.extend(self.signatures.iter().enumerate().map(|(at, one)| (one.band(band), at as u32)));
            keys.par_sort_unstable();
            for bucket in keys.chunk_by(|one, other| one.0 == other.0).filter(|bucket| bucket.len() > 1) {
                let mut firsts: Vec<u32> = Vec::with_capacity(MAX_COMPARED);
                for &(_, at) in bucket {
                    let own = &self.signatures[at as usize];
                    let similar = firsts.iter().find_map(|&first| {
                        let similarity = own.similarity(&self.signatures[first as usize]);
                        (similarity >= NEAR).then_some((first, similarity))
                    });
                    match similar {
                        Some((first, similarity)) => {
                            let known = &mut earliest[at as usize];
                            if known.is_none_or(|(known, _)| first < known) {
                                *known = Some((first, similarity));
                            }
                        }
                        None if firsts.len() < MAX_COMPARED => firsts.push(at),
                        None => {}
                    }
                }
            }
            report_progress();
        }
        let found = earliest.iter().zip(&self.documents).filter_map(|(earlier, document)| {
            let (first, similarity) = (*earlier)?;
            Some(Duplicate { document: *document, earlier: self.documents[first as usize], similarity })
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::leaks::minhash::Signer;
    use crate::data::leaks::words::mixed;

    #[test]
    fn near_duplicates_point_to_the_earliest() {
        let signature = |from: u64, changed: u64| {
            let mut signer = Signer::default();
            (0..200).for_each(|at| signer.push(mixed(if at == changed { 7 << 40 } else { from + at })));
            signer.finish().unwrap()
        };
        let mut all = Duplicates::default();
        let texts = [(0, 999), (5000, 999), (0, 50), (9000, 999), (0, 999), (9000, 100), (5000, 20)];
        for (document, (from, changed)) in texts.into_iter().enumerate() {
            all.add(10 + document as u32, signature(from, changed)).unwrap();
        }
        let found: Vec<(u32, u32)> = all.find().iter().map(|one| (one.document, one.earlier)).collect();
        assert_eq!(found, [(12, 10), (14, 10), (15, 13), (16, 11)]);
        assert_eq!(Duplicates::default().find(), []);
    }
}
