//! Matrix products: prepared with algorithms from a table, computed by cuBLASLt or by our own kernel.

use super::algorithms::{Algorithm, Algorithms, KnownAlgorithms, key};
use super::cache::cache_folder;
use super::cublaslt::{Cublaslt, Layout, check, library_version};
use super::kernels::Kernels;
use super::memory::DeviceBuffer;
use super::selection::{Bench, Matrices, Timing, fastest};
use super::stream::Stream;
use crate::atomic::write_cached;
use crate::device::gpu::{Product, ProductShape, Properties, fallback_kernel};
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use crate::lock::lock;
use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The library, the prepared products and the table of algorithms.
#[derive(Debug)]
pub struct Products {
    library: Cublaslt,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The products for which everything except their addresses is decided: how the library computes them;
    /// `None` for our own kernel.
    ready: HashMap<ProductShape, Option<(Layout, cublasLtMatmulAlgo_t)>>,
    known: KnownAlgorithms,
    /// Algorithms in use.
    used: Algorithms,
}

impl Inner {
    fn insert(&mut self, shape: ProductShape, layout: Layout, algorithm: Algorithm, timed_here: bool) {
        let ready = algorithm.words().map(|data| (layout, cublasLtMatmulAlgo_t { data }));
        self.known.insert(key(&shape), algorithm.clone(), timed_here);
        self.used.products.insert(key(&shape), algorithm);
        self.ready.insert(shape, ready);
    }
}

/// How long the products of a program are timed before it runs; the product in progress at that point is
/// finished. The remaining products use the library's first proposals.
pub const TIMING: Duration = Duration::from_secs(10);

impl Products {
    /// Opens the library, and reads this machine's table and the one that comes with the program.
    ///
    /// # Errors
    /// If the library reports an error.
    pub(super) fn new(properties: &Properties, workspace: DeviceBuffer) -> Result<Self> {
        let library = Cublaslt::new(workspace)?;
        let cublaslt = library_version();
        let empty = Algorithms { gpu: properties.name.clone(), cublaslt, ..Algorithms::default() };
        let kept = file(&empty).and_then(|path| Algorithms::read(&path).ok());
        let committed = Algorithms::committed(&properties.name, cublaslt);
        let known = KnownAlgorithms::new(empty.clone(), kept, committed);
        let inner = Inner { known, used: empty, ..Inner::default() };
        Ok(Self { library, inner: Mutex::new(inner) })
    }

    /// Merges a table into the known algorithms, replacing existing entries. Returns false and changes
    /// nothing if the table is for another GPU model or library version.
    pub fn merge(&self, table: &Algorithms) -> bool {
        let mut inner = lock(&self.inner);
        let fits = table.is_for(&inner.known.all.gpu, inner.known.all.cublaslt);
        if fits {
            inner.known.all.products.extend(table.products.clone());
            inner.ready.clear();
        }
        fits
    }

    /// Returns the algorithms in use.
    pub fn algorithms(&self) -> Algorithms {
        lock(&self.inner).used.clone()
    }

    /// Returns the products whose algorithm neither comes with the program nor was chosen by `xrun ops tune`.
    pub fn untuned(&self, shapes: &BTreeSet<ProductShape>) -> BTreeSet<ProductShape> {
        let inner = lock(&self.inner);
        shapes.iter().filter(|shape| !inner.known.is_tuned(&key(shape))).copied().collect()
    }

    /// Chooses the algorithms of products. Products that are not in the table are timed, for at most
    /// [`TIMING`], and added to it, also on disk. Calls `timing` with their number first.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(super) fn prepare(
        &self,
        bench: Bench<'_>,
        shapes: &BTreeSet<ProductShape>,
        timing: &dyn Fn(usize),
    ) -> Result<()> {
        let mut unknown = Vec::new();
        {
            let mut inner = lock(&self.inner);
            for shape in shapes {
                if inner.ready.contains_key(shape) {
                    continue;
                }
                match inner.known.all.products.get(&key(shape)).cloned() {
                    Some(algorithm) => inner.insert(*shape, Layout::new(shape)?, algorithm, false),
                    None => unknown.push(*shape),
                }
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        timing(unknown.len());
        // Time the largest products first, so that if time runs out, those that matter least are left.
        let work = |shape: &ProductShape| shape.batch.unwrap_or(1) * shape.m * shape.n * shape.k;
        unknown.sort_by_key(|shape| std::cmp::Reverse(work(shape)));
        let deadline = Instant::now() + TIMING;
        let mut matrices = Matrices::new(bench)?;
        for shape in unknown {
            let layout = Layout::new(&shape)?;
            // Batches of products with one shape share an entry.
            let known = lock(&self.inner).known.all.products.get(&key(&shape)).cloned();
            if let Some(algorithm) = known {
                lock(&self.inner).insert(shape, layout, algorithm, false);
                continue;
            }
            let timing = if Instant::now() < deadline { Timing::Quick } else { Timing::None };
            let algorithm = fastest(&self.library, &layout, &shape, &mut matrices, timing, None)?;
            lock(&self.inner).insert(shape, layout, algorithm, timing == Timing::Quick);
            report_progress();
        }
        // If the table cannot be stored, the next start takes longer, but this run is fine.
        let _ = self.save();
        Ok(())
    }

    /// Chooses the algorithms of products at the clock that the GPU sustains, whether or not they are in the
    /// table, and stores them on disk. Calls `chosen` with the key of each product, its new algorithm, and
    /// its previous one.
    ///
    /// # Errors
    /// If the driver reports an error, or the table cannot be written.
    pub(super) fn tune(
        &self,
        bench: Bench<'_>,
        shapes: &BTreeSet<ProductShape>,
        mut chosen: impl FnMut(&str, &Algorithm, Option<&Algorithm>) -> Result<()>,
    ) -> Result<()> {
        let mut matrices = Matrices::new(bench)?;
        for shape in shapes {
            let layout = Layout::new(shape)?;
            let before = lock(&self.inner).known.all.products.get(&key(shape)).cloned();
            let how = Timing::UnderLoad;
            let algorithm = fastest(&self.library, &layout, shape, &mut matrices, how, before.as_ref())?;
            lock(&self.inner).insert(*shape, layout, algorithm.clone(), true);
            // Save after every product, because each takes seconds.
            self.save()?;
            chosen(&key(shape), &algorithm, before.as_ref())?;
        }
        Ok(())
    }

    /// Puts a prepared product into a stream.
    ///
    /// # Errors
    /// If the product was not prepared, or the library reports an error.
    pub(super) fn run(&self, stream: &Stream, kernels: &Kernels, product: &Product) -> Result<()> {
        debug_assert_eq!(product.shape.accumulate, product.addend.is_some(), "{product:?}");
        let shape = &product.shape;
        let ready = lock(&self.inner).ready.get(shape).copied();
        match ready {
            Some(Some((layout, algorithm))) => {
                let status = self.library.multiply(stream, product, &layout, &algorithm)?;
                check(status, &format!("multiply {}", key(shape)))
            }
            Some(None) => kernels.launch(stream, fallback_kernel(product)),
            None => Err(Error::failed(format!("product {} was not prepared", key(shape)))),
        }
    }

    /// Writes the machine's table to its file; does nothing without a cache folder.
    fn save(&self) -> Result<()> {
        let table = lock(&self.inner).known.machine.clone();
        let Some(path) = file(&table) else { return Ok(()) };
        write_cached(&path, table.to_json().as_bytes())
    }
}

/// Returns the file for a machine's table with its GPU and version; `None` without a cache folder.
fn file(table: &Algorithms) -> Option<PathBuf> {
    let name: String = table.gpu.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    cache_folder().map(|folder| folder.join("algorithms").join(format!("{name}-{}.json", table.cublaslt)))
}
