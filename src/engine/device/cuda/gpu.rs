//! One GPU: its context, its stream, its memory, and the kernels and matrix products that run on it.

use super::algorithms::Algorithm;
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
use super::monitor::{InitialState, MemoryCause, MemorySample, UntrackedMemory, UntrackedMeter};
use super::products::Products;
use super::selection::Bench;
use super::stream::Stream;
use crate::device::gpu::{
    Arg, Collective, DevicePtr, Gathered, Grid, Kernel, MAX_RANKS, Product, Properties, Queue, Requests,
    consecutive_addresses,
};
use crate::error::Result;
use crate::lock::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// One GPU. Work queued on it runs in order, asynchronously to the CPU, so an error of the work itself is
/// reported by a later call.
#[derive(Debug)]
pub struct Gpu {
    properties: Properties,
    /// Unset in a run with one rank.
    pub(super) collectives: OnceLock<Collectives>,
    /// The matrix products of this GPU.
    pub products: Arc<Products>,
    pub(super) kernels: Arc<Kernels>,
    allocator: Arc<Allocator>,
    /// The model's stream.
    pub(crate) stream: Arc<Stream>,
    pub(super) context: Arc<Context>,
    /// State of the GPU before this process created its context.
    pub initial: InitialState,
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
        let OpenedContext { properties, initial, took, context } = opened;
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
        self.allocator.allocate_mapped(self.context.device, bytes)
    }

    /// Limits the bytes that all allocations may hold together; `None` for no limit.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        lock(&self.allocator.ledger).limit = bytes;
    }

    /// Returns how much memory allocations hold, have held at most, and may hold.
    pub fn ledger(&self) -> Ledger {
        *lock(&self.allocator.ledger)
    }

    /// Attributes to `cause` the device memory taken since the last call in addition to allocations. The
    /// GPU's context must be current.
    pub fn attribute_memory(&self, cause: MemoryCause) {
        // An error is ignored because the figure is only reported: it then stays blank, and the run
        // continues.
        if let Ok((free, _)) = memory_info() {
            lock(&self.untracked).attribute(cause, MemorySample { free, held: self.ledger().held });
        }
    }

    /// Returns the device memory taken in addition to allocations, by cause.
    pub fn untracked_memory(&self) -> UntrackedMemory {
        lock(&self.untracked).total
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

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// If queued work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
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
        self.transport().map_or(0, |transport| transport.rank())
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.kernels.launch(&self.stream, (kernel, grid, args))
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

    fn collective(&self, collective: Collective<'_>) -> Result<()> {
        if let Some(transport) = self.transport() {
            return transport.collective(collective, self.model_lane());
        }
        let copy = |tensor: &Gathered| self.copy(tensor.to, tensor.from, tensor.bytes);
        match collective {
            Collective::AllReduceSum(_) | Collective::ReduceToOwners(_) => Ok(()),
            Collective::AllGather(tensors) => tensors.iter().try_for_each(copy),
            Collective::Share(tensor) => copy(&tensor),
            Collective::GatherFromOwners { parts, .. } => {
                let mut moved = parts.iter().filter(|part| part.from != part.to);
                moved.try_for_each(|part| self.copy(part.to, part.from, part.bytes))
            }
        }
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        match self.transport() {
            Some(transport) => transport.shared(to, bytes),
            None => Ok(consecutive_addresses(to, bytes)),
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
