//! One GPU: its context, its stream, its memory, and the kernels and matrix products that run on it.

use super::algorithms::{Algorithm, Algorithms};
use super::collectives::Collectives;
use super::compiler::Compiler;
use super::context::{Context, OpenedContext, check_present, device_properties};
use super::cublaslt::WORKSPACE;
use super::download::Downloader;
use super::driver::{self, Event, Pinned};
use super::held::HeldMultiprocessors;
use super::kernels::Kernels;
use super::libraries::Nvidia;
use super::memory::{Allocator, DeviceBuffer, Ledger, memory_info};
use super::monitor::{InitialState, MemoryCause, MemorySample, PowerMeter, UntrackedMemory, UntrackedMeter};
use super::products::Products;
use super::selection::Bench;
use super::stream::Stream;
use crate::device::gpu::{
    Arg, DevicePtr, Gathered, Grid, Kernel, MAX_RANKS, OwnedCopy, OwnedSum, Product, ProductShape,
    Properties, Queue, Requests, consecutive_addresses,
};
use crate::device::lock::lock;
use crate::error::Result;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

/// One GPU. Work queued on it runs in order, asynchronously to the CPU, so an error of the work itself is
/// reported by a later call.
#[derive(Debug)]
pub struct Gpu {
    properties: Properties,
    ordinal: usize,
    /// Unset in a run with one rank.
    collectives: OnceLock<Collectives>,
    products: Arc<Products>,
    kernels: Arc<Kernels>,
    allocator: Arc<Allocator>,
    stream: Arc<Stream>,
    context: Arc<Context>,
    /// State of the GPU before this process created its context.
    initial: InitialState,
    /// Measures the device memory that the driver takes in addition to allocations.
    untracked: Mutex<UntrackedMeter>,
}

impl Gpu {
    /// Returns the number of GPUs; 0 without a driver.
    pub fn count() -> usize {
        if Nvidia::Driver.open().is_none() { 0 } else { driver::count().unwrap_or(0) }
    }

    /// Returns the version of CUDA that the driver supports; `None` without a driver.
    pub fn driver_version() -> Option<(i32, i32)> {
        Nvidia::Driver.open()?;
        driver::version().ok()
    }

    /// Returns a GPU's properties without creating a context on it.
    ///
    /// # Errors
    /// If the driver is missing or does not know the GPU.
    pub fn properties_of(ordinal: usize) -> Result<Properties> {
        check_present(ordinal)?;
        device_properties(ordinal).map(|(_, properties)| properties)
    }

    /// Returns a GPU's UUID, if the driver reports it.
    pub fn uuid_of(ordinal: usize) -> Option<String> {
        check_present(ordinal).ok()?;
        driver::uuid(driver::device(ordinal).ok()?.0).ok()
    }

    /// Opens a GPU.
    ///
    /// # Errors
    /// If a library or the GPU is missing. The message says which, and how to get it.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        Nvidia::CublasLt.require("the library of matrix products (cuBLASLt)")?;
        Self::open_in(OpenedContext::open(ordinal)?)
    }

    /// Opens a GPU on which this process already has a context.
    ///
    /// # Errors
    /// If a library is missing. The message says which, and how to get it.
    pub fn open_in(opened: OpenedContext) -> Result<Arc<Self>> {
        Nvidia::CublasLt.require("the library of matrix products (cuBLASLt)")?;
        let OpenedContext { ordinal, properties, initial, took, context } = opened;
        context.make_current()?;
        let compiler = Compiler::new(&properties.architecture())?;
        let stream = Arc::new(Stream::new(&context)?);
        // Sample before anything is allocated, including the workspace.
        let sample = memory_info().ok().map(|(free, _)| MemorySample { free, held: 0 });
        let untracked = Mutex::new(UntrackedMeter::new(took, sample));
        let allocator = Allocator::new(Arc::clone(&stream));
        let products = Arc::new(Products::new(&properties, allocator.allocate(WORKSPACE)?)?);
        let kernels = Arc::new(Kernels::new(Arc::clone(&context), compiler, properties.capability));
        Ok(Arc::new(Self {
            properties,
            ordinal,
            collectives: OnceLock::new(),
            products,
            kernels,
            allocator,
            stream,
            context,
            initial,
            untracked,
        }))
    }

    /// Returns the GPU's ordinal in CUDA's order.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Returns the compiler for this GPU's kernels.
    pub fn compiler(&self) -> &Compiler {
        self.kernels.compiler()
    }

    /// Returns the matrix products of this GPU.
    pub fn products(&self) -> &Products {
        &self.products
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn kernels(&self) -> &Arc<Kernels> {
        &self.kernels
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn collectives(&self) -> Option<&Collectives> {
        self.collectives.get()
    }

    pub(super) fn set_collectives(&self, collectives: Collectives) -> Result<(), Collectives> {
        self.collectives.set(collectives)
    }

    /// Makes the GPU's context current on the calling thread. A thread must call this before it runs an
    /// engine, because the driver's calls act on the thread's current context.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn make_current(&self) -> Result<()> {
        self.context.make_current()
    }

    /// Allocates memory; its contents are undefined.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if the GPU lacks the memory, or if the
    /// limit set by [`Gpu::limit_memory`] would be exceeded.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer> {
        self.allocator.allocate(bytes)
    }

    /// Allocates memory like [`Gpu::allocate`]; other GPUs of the process can be given access to it.
    ///
    /// # Errors
    /// As for [`Gpu::allocate`].
    pub fn allocate_mapped(&self, bytes: usize) -> Result<DeviceBuffer> {
        self.allocator.allocate_mapped(self.context.device(), bytes)
    }

    /// Limits the bytes that all allocations may hold together; `None` for no limit.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        self.allocator.set_limit(bytes);
    }

    /// Returns how much memory allocations hold, have held at most, and may hold.
    pub fn ledger(&self) -> Ledger {
        self.allocator.ledger()
    }

    /// Returns the GPU's free and total memory in bytes. Memory of other processes counts as used. The GPU's
    /// context must be current.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        memory_info()
    }

    /// Attributes to `cause` the device memory taken since the last call in addition to allocations. The
    /// GPU's context must be current.
    pub fn attribute_memory(&self, cause: MemoryCause) {
        // An error is ignored because the figure is only reported: it then stays blank, and the run
        // continues.
        if let Ok((free, _)) = self.memory_info() {
            lock(&self.untracked).attribute(cause, MemorySample { free, held: self.ledger().held });
        }
    }

    /// Returns the device memory taken in addition to allocations, by cause.
    pub fn untracked_memory(&self) -> UntrackedMemory {
        lock(&self.untracked).total()
    }

    /// Returns the state of the GPU before this process created its context.
    pub fn initial_state(&self) -> &InitialState {
        &self.initial
    }

    /// Compiles and loads the kernels that programs need, and chooses algorithms for their products. Products
    /// without a known algorithm are timed. If there are any, calls `timing` with their number first.
    ///
    /// # Errors
    /// If a kernel does not compile, or no algorithm serves a product.
    pub fn prepare(&self, requests: &Requests, timing: &dyn Fn(usize)) -> Result<()> {
        self.kernels.prepare(&requests.kernels)?;
        self.products.prepare(self.bench(), &requests.products, timing)
    }

    /// Occupies `count` multiprocessors until the result is dropped, to measure how much slower other work is
    /// without them; `None` if `count` is 0. No memory may be freed during that time, because freeing would
    /// wait for the kernel that occupies them.
    ///
    /// # Errors
    /// If the GPU does not have more than `count` multiprocessors, or they are not occupied within two
    /// seconds.
    pub fn hold_multiprocessors(&self, count: usize) -> Result<Option<HeldMultiprocessors>> {
        if count == 0 {
            return Ok(None);
        }
        self.make_current()?;
        HeldMultiprocessors::new(&self.context, &self.kernels, &self.properties, count).map(Some)
    }

    /// Returns a power meter for this GPU; `None` if it has no energy counter.
    pub fn power_meter(&self) -> Option<PowerMeter> {
        self.initial.power_meter()
    }

    /// Returns the products in `shapes` whose algorithm neither comes with the program nor was chosen by
    /// [`Gpu::tune`].
    pub fn untuned_products(&self, shapes: &BTreeSet<ProductShape>) -> BTreeSet<ProductShape> {
        self.products.untuned(shapes)
    }

    /// Chooses the algorithms of products again, timed at the clock that the GPU sustains under load. This
    /// takes seconds per product. Calls `chosen` with a product's key in the algorithm table, its new
    /// algorithm, and its previous one.
    ///
    /// # Errors
    /// If a kernel does not compile, the driver reports an error, or the table cannot be written.
    pub fn tune(
        &self,
        requests: &Requests,
        chosen: impl FnMut(&str, &Algorithm, Option<&Algorithm>) -> Result<()>,
    ) -> Result<()> {
        self.make_current()?;
        self.kernels.prepare(&requests.kernels)?;
        self.products.tune(self.bench(), &requests.products, chosen)
    }

    fn bench(&self) -> Bench<'_> {
        Bench { stream: &self.stream, kernels: &self.kernels, allocator: &self.allocator }
    }

    /// Returns the algorithms in use, to store with a run.
    pub fn algorithms(&self) -> Algorithms {
        self.products.algorithms()
    }

    /// Allocates `bytes` bytes of pinned host memory for copies.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn pin(&self, bytes: usize) -> Result<Pinned> {
        self.make_current()?;
        Pinned::new(bytes)
    }

    /// Creates an event that is not recorded yet.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn event(&self) -> Result<Event> {
        self.make_current()?;
        Event::new()
    }

    /// Creates a downloader, which copies to the host concurrently with the GPU's other work.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn downloader(&self) -> Result<Downloader> {
        self.make_current()?;
        Downloader::new(&self.context)
    }

    /// Records an event after the work queued so far. If a graph is being captured and `inside_graph` is
    /// true, every launch of the graph records it.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn record(&self, event: &Event, inside_graph: bool) -> Result<()> {
        self.stream.record(event, inside_graph)
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// If queued work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// Queues a copy from pinned memory. The caller must not change that memory before the copy is done.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn upload(&self, to: DevicePtr, from: &Pinned, bytes: usize) -> Result<()> {
        self.stream.upload(to, from, bytes)
    }

    /// Queues a copy into pinned memory. The caller must keep that memory and not read it before the copy is
    /// done.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn download(&self, to: &mut Pinned, from: DevicePtr, bytes: usize) -> Result<()> {
        self.stream.download(to, from, bytes)
    }

    /// Waits for all work queued so far, then reads `bytes` bytes of allocated memory.
    ///
    /// # Errors
    /// If the work failed.
    pub fn read(&self, from: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
        let mut copy = vec![0u8; bytes];
        self.stream.read(from, &mut copy)?;
        Ok(copy)
    }
}

impl Queue for Gpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn rank(&self) -> usize {
        self.collectives().map_or(0, |collectives| collectives.transport().rank())
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.kernels.launch(&self.stream, kernel, grid, args)
    }

    fn product(&self, product: &Product) -> Result<()> {
        self.products.run(&self.stream, &self.kernels, product)
    }

    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        self.stream.fill(address, byte, bytes)
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        self.stream.copy(to, from, bytes)
    }

    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()> {
        let all_reduce =
            |collectives: &Collectives| collectives.transport().all_reduce_sum(tensors, self.model_lane());
        self.collectives().map_or(Ok(()), all_reduce)
    }

    fn all_gather(&self, tensors: &[Gathered]) -> Result<()> {
        match self.collectives() {
            Some(collectives) => collectives.transport().all_gather(tensors, self.model_lane()),
            None => tensors.iter().try_for_each(|tensor| self.copy(tensor.to, tensor.from, tensor.bytes)),
        }
    }

    fn share(&self, tensor: Gathered) -> Result<()> {
        match self.collectives() {
            Some(collectives) => collectives.transport().share(tensor, self.model_lane()),
            None => self.copy(tensor.to, tensor.from, tensor.bytes),
        }
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        match self.collectives() {
            Some(collectives) => collectives.transport().shared(to, bytes),
            None => Ok(consecutive_addresses(to, bytes)),
        }
    }

    fn reduce_to_owners(&self, parts: &[OwnedSum]) -> Result<()> {
        let reduce =
            |collectives: &Collectives| collectives.transport().reduce_to_owners(parts, self.model_lane());
        self.collectives().map_or(Ok(()), reduce)
    }

    fn gather_from_owners(&self, parts: &[OwnedCopy], wait: bool) -> Result<()> {
        match self.collectives() {
            Some(collectives) => collectives.transport().gather_from_owners(parts, wait, self.model_lane()),
            None => {
                let mut moved = parts.iter().filter(|part| part.from != part.to);
                moved.try_for_each(|part| self.copy(part.to, part.from, part.bytes))
            }
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.make_current().is_err() {
            return;
        }
        // End the exchange between ranks first: its kernels may wait for a rank that is gone. Closing it can
        // time out with NCCL. It then still uses the context, so everything in the context is leaked.
        if let Some(collectives) = self.collectives.take()
            && !collectives.close()
        {
            std::mem::forget((
                Arc::clone(&self.products),
                Arc::clone(&self.kernels),
                Arc::clone(&self.stream),
            ));
            return;
        }
        // A destructor cannot return an error. Callers that need the work wait for it and get its errors.
        let _ = self.synchronize();
    }
}
