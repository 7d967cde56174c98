//! The table of matrix-product algorithms.
//!
//! The fastest algorithm for a product is found by timing. Timings vary, and the bits of the product depend
//! on the choice. So choices are data: they are stored on disk for the next run, written into the run's
//! folder, and read from there when the run resumes and by both arms of a comparison.

use crate::device::gpu::ProductShape;
use crate::device::{DType, ProductPrecision};
use crate::error::{Error, Result};
use crate::regular;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Code of products for our own kernel, used if the library has no algorithm.
const PLAIN: &str = "plain";

/// Tables that we measured for known GPUs: with them, two machines with the same GPU model use the same
/// algorithms.
const COMMITTED: [&str; 1] = [include_str!("../../../../data/algorithms/nvidia-h200-130100.json")];

/// The algorithm of one product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Algorithm {
    /// cuBLASLt's opaque description, in hexadecimal; or `plain`.
    pub code: String,
    /// Workspace, in bytes.
    pub workspace: usize,
    /// Time of the product when the algorithm was chosen, in microseconds.
    pub microseconds: f32,
    /// True if `xrun ops tune` chose it, at the clock that the GPU sustains.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub under_load: bool,
}

impl Algorithm {
    /// Creates an algorithm from the library's description.
    pub fn new(words: &[u64; 8], workspace: usize, microseconds: f32) -> Self {
        let code = words.iter().map(|w| format!("{w:016x}")).collect();
        Self { code, workspace, microseconds, under_load: false }
    }

    /// Returns the entry for our own kernel.
    pub fn plain() -> Self {
        Self { code: PLAIN.to_string(), workspace: 0, microseconds: 0.0, under_load: false }
    }

    /// Returns true for our own kernel.
    pub fn is_plain(&self) -> bool {
        self.code == PLAIN
    }

    /// Returns the library's description; `None` for our own kernel.
    pub fn words(&self) -> Option<[u64; 8]> {
        let mut words = [0; 8];
        if self.code.len() != 128 || !self.code.is_ascii() {
            return None;
        }
        for (i, word) in words.iter_mut().enumerate() {
            *word = u64::from_str_radix(&self.code[16 * i..16 * (i + 1)], 16).ok()?;
        }
        Some(words)
    }
}

/// Algorithms of one GPU model and library version, by product.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Algorithms {
    /// The GPU's name.
    pub gpu: String,
    /// The library's version.
    pub cublaslt: u64,
    /// Algorithms by [`key`] of the product.
    pub products: BTreeMap<String, Algorithm>,
}

/// Returns the key of a product in the table, such as `bf16 8192x2304x768 nt f32 add`. All batches of
/// products with one shape share a key and so an algorithm, whatever their number: a product has the same
/// bits in all of them.
pub fn key(shape: &ProductShape) -> String {
    let order = |transposed| if transposed { 't' } else { 'n' };
    let input = match (shape.precision, shape.inputs) {
        (ProductPrecision::Tf32, [DType::F32, _]) => "tf32".to_string(),
        (_, [a, b]) if a == b => a.to_string(),
        (_, [a, b]) => format!("{a}*{b}"),
    };
    let batched = if shape.batch.is_some() { "batched " } else { "" };
    format!(
        "{input} {batched}{}x{}x{} {}{} {}{}",
        shape.m,
        shape.n,
        shape.k,
        order(shape.a_transposed),
        order(shape.b_transposed),
        shape.output,
        if shape.accumulate { " add" } else { "" }
    )
}

impl Algorithms {
    /// Reads a table.
    ///
    /// # Errors
    /// If the file cannot be read or is not a table.
    pub fn read(path: &Path) -> Result<Self> {
        let text = regular::read_text_through_link(path)?;
        Self::from_json(&text).map_err(|e| Error::usage(format!("{} {e}", path.display())))
    }

    /// Parses a table from JSON.
    ///
    /// # Errors
    /// If the text is not a table, or an algorithm is damaged.
    pub fn from_json(text: &str) -> std::result::Result<Self, String> {
        let table: Self =
            serde_json::from_str(text).map_err(|e| format!("is not a table of algorithms: {e}"))?;
        match table.products.iter().find(|(_, a)| !a.is_plain() && a.words().is_none()) {
            None => Ok(table),
            Some((key, _)) => Err(format!("is damaged: the algorithm of `{key}`")),
        }
    }

    /// Returns the table embedded in the program for a GPU model and a library version.
    pub fn committed(gpu: &str, cublaslt: u64) -> Option<Self> {
        COMMITTED
            .iter()
            .filter_map(|text| Self::from_json(text).ok())
            .find(|table| table.is_for(gpu, cublaslt))
    }

    /// Returns the table as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns a hash of the choices; times do not count.
    pub fn hash(&self) -> String {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{} {}", self.gpu, self.cublaslt).as_bytes());
        for (key, algorithm) in &self.products {
            hash.update(format!("\n{key} {}", algorithm.code).as_bytes());
        }
        hash.finalize().to_hex()[..16].to_string()
    }

    /// Returns true if the table is for this GPU model and library version; its descriptions are invalid for
    /// others.
    pub fn is_for(&self, gpu: &str, cublaslt: u64) -> bool {
        self.gpu == gpu && self.cublaslt == cublaslt
    }
}

/// The algorithms known on a machine, and which of them the machine chose.
#[derive(Clone, Debug, Default)]
pub struct KnownAlgorithms {
    /// All entries, including products that no program needs.
    pub all: Algorithms,
    /// The entries that this machine chose by timing, now or earlier: the content of its file.
    pub machine: Algorithms,
}

impl KnownAlgorithms {
    /// Combines the machine's file with the table that comes with the program. The program's entries take
    /// precedence, except over products tuned on this machine. A table for another GPU or version is ignored.
    pub fn new(empty: Algorithms, kept: Option<Algorithms>, committed: Option<Algorithms>) -> Self {
        let fits = |table: &Algorithms| table.is_for(&empty.gpu, empty.cublaslt);
        let machine = kept.filter(fits).unwrap_or_else(|| empty.clone());
        let mut all = machine.clone();
        for (key, algorithm) in committed.filter(fits).into_iter().flat_map(|table| table.products) {
            if all.products.get(&key).is_none_or(|known| !known.under_load) {
                all.products.insert(key, algorithm);
            }
        }
        Self { all, machine }
    }

    /// Returns true if a product's algorithm comes with the program or was chosen by `xrun ops tune`, rather
    /// than timed on this machine before a run.
    pub fn is_tuned(&self, key: &str) -> bool {
        let known = self.all.products.get(key);
        known.is_some_and(|known| known.under_load || self.machine.products.get(key) != Some(known))
    }

    /// Adds the algorithm of a product, also to the machine's own entries if it was timed here.
    pub fn insert(&mut self, key: String, algorithm: Algorithm, timed_here: bool) {
        if timed_here {
            self.machine.products.insert(key.clone(), algorithm.clone());
        }
        self.all.products.insert(key, algorithm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_table_survives_its_file_and_damage_is_named() {
        let words = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
        let algorithm = Algorithm::new(&words, 512, 3.5);
        assert_eq!(algorithm.words(), Some(words));
        let mut table =
            Algorithms { gpu: "NVIDIA H200".into(), cublaslt: 130_000, products: BTreeMap::new() };
        table.products.insert("bf16 1x2x3 nt f32".into(), algorithm);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), table.to_json()).unwrap();
        assert_eq!(Algorithms::read(file.path()).unwrap(), table);
        fs::write(file.path(), table.to_json().replace("ffffffffffffffff", "zz")).unwrap();
        let error = Algorithms::read(file.path()).unwrap_err();
        assert!(error.message().contains("is damaged: the algorithm of `bf16 1x2x3 nt f32`"), "{error}");
    }

    #[test]
    fn each_committed_table_is_complete_and_for_one_gpu() {
        for text in COMMITTED {
            let table = Algorithms::from_json(text).unwrap();
            assert!(!table.products.is_empty());
            assert_eq!(Algorithms::committed(&table.gpu, table.cublaslt).as_ref(), Some(&table));
            assert_eq!(Algorithms::committed(&table.gpu, table.cublaslt + 1), None);
        }
    }

    #[test]
    fn tuned_algorithms_take_precedence_over_committed_ones() {
        let entry = |word, under_load| Algorithm { under_load, ..Algorithm::new(&[word; 8], 0, 1.0) };
        let table = |products: &[(&str, Algorithm)]| Algorithms {
            products: products
                .iter()
                .map(|(key, algorithm)| ((*key).to_string(), algorithm.clone()))
                .collect(),
            ..Algorithms::default()
        };
        let kept = table(&[("tuned", entry(1, true)), ("timed", entry(2, false))]);
        let committed = |word| table(&["tuned", "timed", "other"].map(|key| (key, entry(word, true))));
        let mut known = KnownAlgorithms::new(table(&[]), Some(kept), Some(committed(3)));
        assert_eq!(
            known.all,
            table(&[("tuned", entry(1, true)), ("timed", entry(3, true)), ("other", entry(3, true))])
        );
        // Entries from the program or from a run do not become the machine's own, so a later table replaces
        // them.
        known.insert("new".into(), entry(4, false), true);
        known.insert("from a run".into(), entry(5, true), false);
        let later = KnownAlgorithms::new(table(&[]), Some(known.machine), Some(committed(6)));
        assert_eq!(
            later.all,
            table(&[
                ("tuned", entry(1, true)),
                ("timed", entry(6, true)),
                ("other", entry(6, true)),
                ("new", entry(4, false)),
            ])
        );
        let tuned = ["tuned", "timed", "other", "new", "missing"].map(|key| later.is_tuned(key));
        assert_eq!(tuned, [true, true, true, false, false]);
        let foreign = Algorithms { gpu: "another".into(), ..committed(7) };
        let known = KnownAlgorithms::new(table(&[]), Some(foreign.clone()), Some(foreign));
        assert!(known.all.products.is_empty() && known.machine.products.is_empty());
    }

    #[test]
    fn the_hash_covers_choices_but_not_times() {
        let table = |microseconds, word| {
            let algorithm = Algorithm::new(&[word; 8], 0, microseconds);
            Algorithms { gpu: "g".into(), cublaslt: 1, products: [("k".to_string(), algorithm)].into() }
        };
        assert_eq!(table(1.0, 7).hash(), table(2.0, 7).hash());
        assert_ne!(table(1.0, 7).hash(), table(1.0, 8).hash());
    }
}
