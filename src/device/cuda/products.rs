//! Matrix products through cuBLASLt, with algorithms from a table.

use super::algorithms::{Algorithm, Algorithms, key};
use super::buffer::DeviceBuffer;
use super::driver::Event;
use super::gpu::Gpu;
use super::libraries::Nvidia;
use crate::device::DType;
use crate::device::gpu::{
    Arg, DevicePtr, Grid, Kernel, Operand, Product, ProductShape, Properties, Queue, fallback_kernel,
};
use crate::error::{Error, Result};
use cudarc::cublaslt::sys::{self, cublasStatus_t};
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Workspace of the stream: what NVIDIA advises for Hopper, and more than older cards need.
pub const WORKSPACE: usize = 32 << 20;

/// Algorithms that are timed for a shape.
const CANDIDATES: usize = 24;

/// Timed runs of a candidate, after one to warm up.
const RUNS: usize = 6;

/// The handle, the prepared products and the table of algorithms.
#[derive(Debug)]
pub struct Products {
    handle: sys::cublasLtHandle_t,
    /// [`WORKSPACE`] bytes that algorithms may use.
    workspace: DevicePtr,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Whether fp32 factors are rounded to TF32.
    tf32: bool,
    ready: HashMap<ProductShape, Ready>,
    /// Choices known so far, also those that no program asked for yet.
    known: Algorithms,
    /// Choices in use.
    used: Algorithms,
}

/// A product with everything but its addresses decided.
#[derive(Clone, Copy, Debug)]
enum Ready {
    /// By the library.
    Library(Layout, sys::cublasLtMatmulAlgo_t),
    /// By our own kernel.
    Plain,
}

/// The library's descriptions of a product. Kept until the end of the process: there are few.
#[derive(Clone, Copy, Debug)]
struct Layout {
    operation: sys::cublasLtMatmulDesc_t,
    /// The library's A, B, C, which are our B, A, C: it counts columns first.
    matrices: [sys::cublasLtMatrixLayout_t; 3],
}

impl Products {
    pub(super) fn new(properties: &Properties, workspace: DevicePtr) -> Result<Self> {
        let mut handle = null_mut();
        // SAFETY: the library is open; the address of a handle to be filled in.
        worked(unsafe { sys::cublasLtCreate(&raw mut handle) }, "open cuBLASLt")?;
        let cublaslt = library_version();
        let empty = Algorithms { gpu: properties.name.clone(), cublaslt, ..Algorithms::default() };
        let inner = Inner { known: empty.clone(), used: empty, ..Inner::default() };
        let products = Self { handle, workspace, inner: Mutex::new(inner) };
        if let Some(kept) = products.file().and_then(|path| Algorithms::read(&path).ok()) {
            products.adopt(&kept);
        }
        if let Some(committed) = Algorithms::committed(&properties.name, cublaslt) {
            products.adopt(&committed);
        }
        Ok(products)
    }

    /// Whether fp32 factors are rounded to TF32 from now on.
    pub fn set_tf32(&self, tf32: bool) {
        let mut inner = self.lock();
        if inner.tf32 != tf32 {
            inner.ready.clear();
        }
        inner.tf32 = tf32;
    }

    /// Takes over choices made elsewhere, before those of this machine; false where they are of another GPU model or
    /// library.
    pub fn adopt(&self, table: &Algorithms) -> bool {
        let mut inner = self.lock();
        let fits = table.is_of(&inner.known.gpu, inner.known.cublaslt);
        if fits {
            inner.known.products.extend(table.products.clone());
            inner.ready.clear();
        }
        fits
    }

    /// The choices in use.
    pub fn algorithms(&self) -> Algorithms {
        self.lock().used.clone()
    }

    /// The library's version.
    pub fn version(&self) -> u64 {
        self.lock().known.cublaslt
    }

    /// Chooses the algorithms of products, timing those that are not in the table, and keeps what was found.
    ///
    /// # Errors
    /// When the driver refuses.
    pub(super) fn prepare(&self, gpu: &Arc<Gpu>, shapes: &BTreeSet<ProductShape>) -> Result<()> {
        let missing: Vec<ProductShape> = {
            let inner = self.lock();
            shapes.iter().filter(|shape| !inner.ready.contains_key(shape)).copied().collect()
        };
        let mut trial = None;
        let mut timed = false;
        for shape in missing {
            timed |= self.choose(gpu, &shape, &mut trial)?;
        }
        if let Some(path) = self.file().filter(|_| timed) {
            // A table that cannot be kept costs time at the next start, not this run.
            let _ = self.keep(&path);
        }
        Ok(())
    }

    /// Makes a product ready; true where its algorithm was timed.
    fn choose(&self, gpu: &Arc<Gpu>, shape: &ProductShape, trial: &mut Option<Trial>) -> Result<bool> {
        let (tf32, known) = {
            let inner = self.lock();
            (inner.tf32, inner.known.products.get(&key(shape, inner.tf32)).cloned())
        };
        let layout = Layout::new(shape, tf32)?;
        let (algorithm, timed) = match known {
            Some(algorithm) => (algorithm, false),
            None => {
                let trial = match trial {
                    Some(trial) => trial,
                    None => trial.insert(Trial::new(gpu)?),
                };
                (self.fastest(gpu, shape, &layout, trial)?, true)
            }
        };
        let ready = match algorithm.words() {
            Some(words) => Ready::Library(layout, sys::cublasLtMatmulAlgo_t { data: words }),
            None => Ready::Plain,
        };
        let mut inner = self.lock();
        inner.known.products.insert(key(shape, tf32), algorithm.clone());
        inner.used.products.insert(key(shape, tf32), algorithm);
        inner.ready.insert(*shape, ready);
        Ok(timed)
    }

    pub(super) fn run(&self, gpu: &Gpu, product: &Product) -> Result<()> {
        let ready = self.lock().ready.get(&product.shape()).copied();
        match ready {
            Some(Ready::Library(layout, algorithm)) => {
                let status = self.multiply(gpu, product, &layout, &algorithm);
                worked(status, &format!("multiply {}", key(&product.shape(), false)))
            }
            Some(Ready::Plain) => {
                let (kernel, grid, args) = fallback_kernel(product);
                gpu.launch(kernel, grid, &args)
            }
            None => {
                let shape = key(&product.shape(), false);
                Err(Error::failed(format!("a product that was not prepared: {shape}")))
            }
        }
    }

    fn multiply(
        &self,
        gpu: &Gpu,
        product: &Product,
        layout: &Layout,
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> cublasStatus_t {
        let (alpha, beta) = (1.0f32, if product.accumulate { 1.0f32 } else { 0.0 });
        let pointer = |address: DevicePtr| address as *const c_void;
        let [a, b, c] = layout.matrices;
        // SAFETY: the layouts describe the memory behind the addresses, which the executor keeps alive for the node;
        // the scalars are read before the call returns (host pointer mode).
        unsafe {
            sys::cublasLtMatmul(
                self.handle,
                layout.operation,
                (&raw const alpha).cast(),
                pointer(product.b.address),
                a,
                pointer(product.a.address),
                b,
                (&raw const beta).cast(),
                pointer(product.c),
                c,
                product.c as *mut c_void,
                c,
                algorithm,
                self.workspace as *mut c_void,
                WORKSPACE,
                gpu.stream.cast(),
            )
        }
    }

    /// Times the candidates of a shape and returns the fastest of those that give the same bits twice; our own kernel
    /// where there is none.
    fn fastest(
        &self,
        gpu: &Arc<Gpu>,
        shape: &ProductShape,
        layout: &Layout,
        trial: &mut Trial,
    ) -> Result<Algorithm> {
        let candidates = self.candidates(layout)?;
        let product = trial.product(gpu, shape)?;
        let mut timed = Vec::new();
        for candidate in &candidates {
            let run = || self.multiply(gpu, &product, layout, &candidate.algo);
            if run() != cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                continue;
            }
            gpu.record(&trial.events.0, false)?;
            for _ in 0..RUNS {
                worked(run(), "time a product")?;
            }
            gpu.record(&trial.events.1, false)?;
            trial.events.1.wait()?;
            timed.push((trial.events.1.since(&trial.events.0)? / RUNS as f32, candidate));
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (milliseconds, candidate) in timed {
            let mut sums = [0u64; 2];
            for sum in &mut sums {
                trial.clear_result(gpu, shape)?;
                worked(self.multiply(gpu, &product, layout, &candidate.algo), "check a product")?;
                *sum = trial.checksum(gpu, shape)?;
            }
            if sums[0] == sums[1] {
                let words = candidate.algo.data;
                return Ok(Algorithm::new(&words, candidate.workspaceSize, milliseconds * 1e3));
            }
        }
        Ok(Algorithm::plain())
    }

    /// What the library proposes, best guess first. Only splits that are summed in a fixed order are asked for.
    fn candidates(&self, layout: &Layout) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let [a, b, c] = layout.matrices;
        let mut preference = null_mut();
        // SAFETY: zeros are valid for this plain struct of the library.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let bytes = WORKSPACE;
        // Bits of cublasLtReductionScheme_t: partial sums in the compute type. In-place ones use atomics.
        let schemes = 2u32;
        // SAFETY: attributes are set from integers of the sizes given; the buffer takes CANDIDATES results.
        unsafe {
            worked(sys::cublasLtMatmulPreferenceCreate(&raw mut preference), "describe a search")?;
            let set = |which, value: *const c_void, size| {
                worked(
                    sys::cublasLtMatmulPreferenceSetAttribute(preference, which, value, size),
                    "describe a search",
                )
            };
            set(
                Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            )?;
            set(
                Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                (&raw const schemes).cast(),
                size_of::<u32>(),
            )?;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                layout.operation,
                a,
                b,
                c,
                c,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &raw mut count,
            );
            sys::cublasLtMatmulPreferenceDestroy(preference);
            if status == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
                return Ok(Vec::new());
            }
            worked(status, "search algorithms")?;
        }
        Ok(found[..count as usize].to_vec())
    }

    /// Where choices are kept on this machine.
    fn file(&self) -> Option<PathBuf> {
        let inner = self.lock();
        let name: String =
            inner.known.gpu.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        super::cache_folder()
            .map(|folder| folder.join("algorithms").join(format!("{name}-{}.json", inner.known.cublaslt)))
    }

    fn keep(&self, path: &std::path::Path) -> std::io::Result<()> {
        let folder = path.parent().unwrap_or_else(|| std::path::Path::new("."));
        std::fs::create_dir_all(folder)?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(file.path(), self.lock().known.to_json())?;
        file.persist(path)?;
        Ok(())
    }

    pub(super) fn close(&self) {
        // SAFETY: called once, when the GPU is dropped.
        unsafe { sys::cublasLtDestroy(self.handle) };
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version of cuBLASLt, which has been opened; 0 where it has not.
pub fn library_version() -> u64 {
    if Nvidia::CublasLt.open().is_none() {
        return 0;
    }
    // SAFETY: the library is open, and the call only reads a constant.
    unsafe { sys::cublasLtGetVersion() as u64 }
}

impl Layout {
    /// The library counts columns first: a row-major `[r, c]` is its `c × r`. So `C = A·B` is asked for as
    /// `Cᵀ = Bᵀ·Aᵀ`, and no data moves.
    fn new(shape: &ProductShape, tf32: bool) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let compute = if tf32 && shape.input == DType::F32 {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let mut operation = null_mut();
        // SAFETY: the address of a handle to be filled in.
        let status = unsafe {
            sys::cublasLtMatmulDescCreate(&raw mut operation, compute, sys::cudaDataType_t::CUDA_R_32F)
        };
        worked(status, "describe a product")?;
        for (which, transposed) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, shape.b_transposed),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, shape.a_transposed),
        ] {
            // cublasOperation_t: 0 as stored, 1 transposed.
            let value = i32::from(transposed);
            // SAFETY: the attribute is an integer of this size.
            let status = unsafe {
                sys::cublasLtMatmulDescSetAttribute(
                    operation,
                    which,
                    (&raw const value).cast(),
                    size_of::<i32>(),
                )
            };
            worked(status, "describe a product")?;
        }
        let matrix = |rows: usize, columns: usize, dtype: DType| -> Result<sys::cublasLtMatrixLayout_t> {
            let format = match dtype {
                DType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
                DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
                other => return Err(Error::failed(format!("no products of {other} on a GPU"))),
            };
            let mut layout = null_mut();
            // SAFETY: the address of a handle to be filled in.
            let status = unsafe {
                sys::cublasLtMatrixLayoutCreate(
                    &raw mut layout,
                    format,
                    columns as u64,
                    rows as u64,
                    columns as i64,
                )
            };
            worked(status, "describe a matrix")?;
            Ok(layout)
        };
        let stored = |rows, columns, transposed| if transposed { (columns, rows) } else { (rows, columns) };
        let (ar, ac) = stored(shape.m, shape.k, shape.a_transposed);
        let (br, bc) = stored(shape.k, shape.n, shape.b_transposed);
        Ok(Self {
            operation,
            matrices: [
                matrix(br, bc, shape.input)?,
                matrix(ar, ac, shape.input)?,
                matrix(shape.m, shape.n, shape.output)?,
            ],
        })
    }
}

/// Random matrices to time products on: zeros would run faster than numbers do.
#[derive(Debug)]
struct Trial {
    numbers: DeviceBuffer,
    result: DeviceBuffer,
    sum: DeviceBuffer,
    events: (Event, Event),
}

impl Trial {
    /// Bytes of the pattern that fills the factors.
    const PATTERN: usize = 1 << 22;

    fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self {
            numbers: gpu.allocate(0)?,
            result: gpu.allocate(0)?,
            sum: gpu.allocate(8)?,
            events: (gpu.event()?, gpu.event()?),
        })
    }

    /// The product of a shape on random numbers, in memory that fits it.
    fn product(&mut self, gpu: &Arc<Gpu>, shape: &ProductShape) -> Result<Product> {
        let align = |bytes: usize| bytes.next_multiple_of(256);
        let a = align(shape.m * shape.k * shape.input.size());
        let b = align(shape.k * shape.n * shape.input.size());
        let c = align(shape.m * shape.n * shape.output.size());
        if self.numbers.len() < a + b {
            self.numbers = gpu.allocate(a + b)?;
        }
        if self.result.len() < c {
            self.result = gpu.allocate(c)?;
        }
        randomize(gpu, &self.numbers, shape.input)?;
        self.clear_result(gpu, shape)?;
        let operand = |address, transposed| Operand { address, transposed };
        Ok(Product {
            m: shape.m,
            n: shape.n,
            k: shape.k,
            a: operand(self.numbers.address(), shape.a_transposed),
            b: operand(self.numbers.address() + a as u64, shape.b_transposed),
            c: self.result.address(),
            input: shape.input,
            output: shape.output,
            accumulate: shape.accumulate,
        })
    }

    fn clear_result(&self, gpu: &Gpu, shape: &ProductShape) -> Result<()> {
        gpu.fill(self.result.address(), 0, shape.m * shape.n * shape.output.size())
    }

    fn checksum(&self, gpu: &Gpu, shape: &ProductShape) -> Result<u64> {
        gpu.fill(self.sum.address(), 0, 8)?;
        let words = shape.m * shape.n * shape.output.size() / 4;
        let args = [self.result.address().into(), self.sum.address().into(), Arg::U64(words as u64)];
        gpu.launch(Kernel::new("checksum", "checksum"), Grid::new(1024, 256), &args)?;
        let mut bytes = [0; 8];
        self.sum.read(0, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Fills memory with random numbers of a format: a pattern that repeats.
pub(super) fn randomize(gpu: &Gpu, memory: &DeviceBuffer, format: DType) -> Result<()> {
    let pattern = pattern(format);
    let mut filled = pattern.len().min(memory.len());
    memory.write(0, &pattern[..filled])?;
    while filled < memory.len() {
        let more = filled.min(memory.len() - filled);
        gpu.copy(memory.address() + filled as u64, memory.address(), more)?;
        filled += more;
    }
    Ok(())
}

/// Numbers between -1 and 1 in a format, from a generator that needs no seed.
fn pattern(dtype: DType) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let count = Trial::PATTERN / dtype.size();
    match dtype {
        DType::Bf16 => (0..count).flat_map(|_| half::bf16::from_f32(next()).to_le_bytes()).collect(),
        _ => (0..count).flat_map(|_| next().to_le_bytes()).collect(),
    }
}

fn worked(status: cublasStatus_t, doing: &str) -> Result<()> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::failed(format!("cannot {doing}: {status:?}")))
}
