//! One GPU: its context, its stream, its memory, and the queue that ops put their work into.

use super::algorithms::Algorithms;
use super::compiler::{Compiler, Unit, units};
use super::driver::{self, Event, Pinned, check};
use super::libraries::Nvidia;
use super::products::{Products, WORKSPACE};
use super::queue::{Arg, Asked, DevicePtr, Grid, Kernel, Product, Properties, Queue};
use super::usage::{Account, Mark, Part, Usage};
use super::watch::Before;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One GPU. Work put into it runs in order, beside the CPU.
#[derive(Debug)]
pub struct Gpu {
    properties: Properties,
    ordinal: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    compiler: Compiler,
    modules: Mutex<HashMap<Unit, Module>>,
    functions: Mutex<HashMap<Kernel, Function>>,
    products: Products,
    workspace: DevicePtr,
    ledger: Mutex<Ledger>,
    before: Before,
    account: Mutex<Account>,
}

// SAFETY: the driver's handles may be used from every thread that has made the context current, which every method
// that calls the driver does or requires of the engine's thread; everything else is behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

#[derive(Clone, Copy, Debug)]
struct Module(sys::CUmodule);

#[derive(Clone, Debug)]
struct Function {
    handle: sys::CUfunction,
    /// The sizes of its parameters.
    parameters: Arc<[usize]>,
    /// The dynamic shared memory that it may ask for as it stands.
    shared: u32,
}

/// What a block may ask for without saying so beforehand.
const SHARED_BY_DEFAULT: u32 = 48 * 1024;

/// The largest count that kernels, which count in 31 bits, are given: a last block may count a little beyond it.
const MAX_SIZE: usize = (1 << 31) - (1 << 20);

/// What memory was asked from the driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// Bytes held now.
    pub held: usize,
    /// The most bytes held at once.
    pub most: usize,
    /// How often memory was asked for.
    pub allocations: usize,
    /// Bytes that may be held; `None`: all there is.
    pub limit: Option<usize>,
}

impl Gpu {
    /// How many GPUs there are: none without a driver.
    pub fn count() -> usize {
        if Nvidia::Driver.open().is_none() { 0 } else { driver::count().unwrap_or(0) }
    }

    /// The version of CUDA that the driver supports; none without a driver.
    pub fn driver_version() -> Option<(i32, i32)> {
        Nvidia::Driver.open()?;
        driver::version().ok()
    }

    /// What a GPU is, without taking a context on it.
    ///
    /// # Errors
    /// When the driver is missing or does not know it.
    pub fn properties_of(ordinal: usize) -> Result<Properties> {
        available(ordinal)?;
        properties(ordinal).map(|(_, properties)| properties)
    }

    /// A GPU's UUID, where the driver tells.
    pub fn uuid_of(ordinal: usize) -> Option<String> {
        available(ordinal).ok()?;
        driver::uuid(driver::device(ordinal).ok()?.0).ok()
    }

    /// Opens a GPU.
    ///
    /// # Errors
    /// When a library or the GPU is missing: what, and how to get it.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        available(ordinal)?;
        if Nvidia::CublasLt.open().is_none() {
            return Err(Error::failed(format!(
                "the library of matrix products (cuBLASLt) is not found; try: {}. Its folder can be given in {}",
                Nvidia::CublasLt.remedy(),
                super::libraries::PATH_VARIABLE
            )));
        }
        let (device, properties) = properties(ordinal)?;
        let compiler = Compiler::new(&properties.architecture())?;
        let before = Before::look(device);
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: addresses of handles to be filled in; the device was opened by the driver.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device), "take a context on the GPU")?;
            check(sys::cuCtxSetCurrent(context), "make the context current")?;
            // Without the flag, the stream would wait for work that other code puts into the default one.
            let flag = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            check(sys::cuStreamCreate(&raw mut stream, flag), "create a stream")?;
        }
        // Before anything is allocated, the workspace included.
        let mark = memory_info().ok().map(|(free, _)| Mark { free, held: 0 });
        let account = Account::open(before.taken_since(), mark);
        let workspace = allocate(WORKSPACE)?;
        let products = Products::new(&properties, workspace)?;
        let ledger = Ledger { held: WORKSPACE, most: WORKSPACE, allocations: 1, limit: None };
        Ok(Arc::new(Self {
            properties,
            ordinal,
            device,
            context,
            stream,
            compiler,
            modules: Mutex::default(),
            functions: Mutex::default(),
            products,
            workspace,
            ledger: Mutex::new(ledger),
            before,
            account: Mutex::new(account),
        }))
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The compiler of its kernels.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Its matrix products.
    pub fn products(&self) -> &Products {
        &self.products
    }

    /// Makes its context that of the calling thread. The thread that runs an engine calls this first.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "make the context current")
    }

    /// Caps the memory that may be held.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        lock(&self.ledger).limit = bytes;
    }

    /// What memory was asked from the driver so far.
    pub fn ledger(&self) -> Ledger {
        *lock(&self.ledger)
    }

    /// Free bytes and all bytes of the card, those of other processes included.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        memory_info()
    }

    fn mark(&self) -> Option<Mark> {
        let (free, _) = self.memory_info().ok()?;
        Some(Mark { free, held: self.ledger().held })
    }

    /// Lays to a part what memory was taken since the last call besides what was allocated.
    pub fn lay_to(&self, part: Part) {
        // A number that cannot be had stays blank; it is no reason to end a run.
        if let Some(now) = self.mark() {
            lock(&self.account).lay_to(part, now);
        }
    }

    /// Memory taken besides what was allocated.
    pub fn usage(&self) -> Usage {
        lock(&self.account).usage()
    }

    /// The GPU as it was before this process took its context.
    pub fn before(&self) -> &Before {
        &self.before
    }

    /// Allocates memory; its contents are whatever was there.
    ///
    /// # Errors
    /// [`Kind::DoesNotFit`](crate::error::Kind::DoesNotFit) when the driver or the limit refuses.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        let mut ledger = lock(&self.ledger);
        if let Some(limit) = ledger.limit.filter(|&limit| ledger.held.saturating_add(bytes) > limit) {
            return Err(Error::does_not_fit(format!(
                "{bytes} bytes more than the {} held would exceed engine.memory_limit_gib ({limit} bytes)",
                ledger.held
            )));
        }
        self.make_current()?;
        let address = allocate(bytes)
            .map_err(|e| e.context(format!("beside the {} bytes held on the GPU", ledger.held)))?;
        ledger.held += bytes;
        ledger.most = ledger.most.max(ledger.held);
        ledger.allocations += 1;
        Ok(DeviceBuffer { gpu: Arc::clone(self), address, bytes })
    }

    /// Pins host memory for copies.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn pin(&self, bytes: usize) -> Result<Pinned> {
        self.make_current()?;
        Pinned::new(bytes)
    }

    /// A new event, not yet recorded.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn event(&self) -> Result<Event> {
        self.make_current()?;
        Event::new()
    }

    /// Puts an event into the stream. Inside a graph it is recorded at every launch of it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn record(&self, event: &Event, inside_graph: bool) -> Result<()> {
        let flag = if inside_graph {
            sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32
        } else {
            sys::CUevent_record_flags_enum::CU_EVENT_RECORD_DEFAULT as u32
        };
        // SAFETY: event and stream exist.
        check(unsafe { sys::cuEventRecordWithFlags(event.0, self.stream, flag) }, "record an event")
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// When work failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, "finish work on the GPU")
    }

    /// Copies from pinned memory when the stream comes to it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn upload(&self, to: DevicePtr, from: &Pinned, bytes: usize) -> Result<()> {
        assert!(bytes <= from.bytes().len());
        // SAFETY: the pinned memory holds that many bytes and, by the engine's ring, outlives the copy.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.address(), bytes, self.stream) };
        check(status, "copy to the GPU")
    }

    /// Copies into pinned memory when the stream comes to it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn download(&self, to: &mut Pinned, from: DevicePtr, bytes: usize) -> Result<()> {
        assert!(bytes <= to.bytes().len());
        // SAFETY: as `upload`.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to.address(), from, bytes, self.stream) };
        check(status, "copy from the GPU")
    }

    /// Bytes of memory that is alive, after all work put in so far.
    ///
    /// # Errors
    /// When the work failed.
    pub fn read(&self, from: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
        let mut copy = vec![0u8; bytes];
        if bytes > 0 {
            self.synchronize()?;
            // SAFETY: the executor asks for outputs of a node, which are alive, and the buffer takes as many bytes.
            let status = unsafe { sys::cuMemcpyDtoH_v2(copy.as_mut_ptr().cast(), from, bytes) };
            check(status, "read memory of the GPU")?;
        }
        Ok(copy)
    }

    /// Compiles and loads the kernels and chooses the algorithms of what programs ask for, all at once.
    ///
    /// # Errors
    /// When a kernel does not compile, or no algorithm serves a product.
    pub fn prepare(self: &Arc<Self>, asked: &Asked) -> Result<()> {
        let missing: Vec<Unit> = {
            let modules = lock(&self.modules);
            units(&asked.kernels).into_iter().filter(|unit| !modules.contains_key(unit)).collect()
        };
        let codes = self.compiler.compile_all(&missing)?;
        for (unit, code) in missing.into_iter().zip(codes) {
            self.load(unit, &code)?;
        }
        self.products.prepare(self, &asked.products)
    }

    /// The algorithms in use, to be kept with a run.
    pub fn algorithms(&self) -> Algorithms {
        self.products.algorithms()
    }

    fn load(&self, unit: Unit, code: &[u8]) -> Result<Module> {
        self.make_current()?;
        let module = Module(driver::load(code, &unit.describe())?);
        lock(&self.modules).insert(unit, module);
        Ok(module)
    }

    fn function(&self, kernel: Kernel, shared: u32) -> Result<Function> {
        let known = lock(&self.functions).get(&kernel).cloned();
        if let Some(function) = known.filter(|f| f.shared >= shared) {
            return Ok(function);
        }
        let unit = Unit::of(&kernel);
        let loaded = lock(&self.modules).get(&unit).copied();
        let module = match loaded {
            Some(module) => module,
            None => {
                let code = self.compiler.compile(&unit)?;
                self.load(unit, &code)?
            }
        };
        let handle = driver::function(module.0, kernel.entry)?;
        if shared > SHARED_BY_DEFAULT {
            let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a loaded module.
            let status = unsafe { sys::cuFuncSetAttribute(handle, which, shared as i32) };
            check(status, &format!("give {} {shared} bytes of shared memory", kernel.entry))?;
        }
        let parameters = driver::parameters(handle).into();
        let function = Function { handle, parameters, shared: shared.max(SHARED_BY_DEFAULT) };
        lock(&self.functions).insert(kernel, function.clone());
        Ok(function)
    }

    /// Captures what `work` puts into the stream as a graph; nothing runs yet.
    ///
    /// # Errors
    /// That of `work`, or when the driver refuses.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists and is not being captured.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) }, "begin a graph")?;
        let worked = work();
        let mut graph = null_mut();
        // SAFETY: the capture was begun above; it is ended also when the work failed.
        let ended = check(unsafe { sys::cuStreamEndCapture(self.stream, &raw mut graph) }, "end a graph");
        worked?;
        ended?;
        let (mut nodes, mut executable) = (0usize, null_mut());
        // SAFETY: the graph was made above; its executable form is independent of it.
        unsafe {
            sys::cuGraphGetNodes(graph, null_mut(), &raw mut nodes);
            let made = check(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0), "make a graph");
            sys::cuGraphDestroy(graph);
            made?;
        }
        Ok(Graph { gpu: Arc::clone(self), executable, nodes })
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: nothing else holds the handles: graphs and buffers keep the GPU alive.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            sys::cuStreamSynchronize(self.stream);
            for module in lock(&self.modules).values() {
                sys::cuModuleUnload(module.0);
            }
            self.products.close();
            sys::cuMemFree_v2(self.workspace);
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

impl Queue for Gpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn all_gather(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        Err(Error::failed("several ranks on GPUs are not in this version"))
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        let entry = kernel.entry;
        if let Some(size) = args.iter().find_map(|arg| match arg {
            Arg::Size(size) => Some(*size).filter(|&size| size > MAX_SIZE),
            _ => None,
        }) {
            return Err(Error::failed(format!(
                "kernel {entry} counts with 31 bits, and a tensor of this plan has a size of {size}; \
                 make training.local_batch_size smaller"
            )));
        }
        let function = self.function(kernel, grid.shared)?;
        // The driver reads as many arguments as the kernel has parameters, and as many bytes of each.
        if !args.iter().map(Arg::size).eq(function.parameters.iter().copied()) {
            return Err(Error::failed(format!(
                "kernel {entry} takes {} parameters of {:?} bytes, and is launched with {args:?}",
                function.parameters.len(),
                function.parameters
            )));
        }
        let mut values: Vec<u64> = args.iter().map(|arg| arg.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let [x, y, z] = grid.blocks;
        // SAFETY: the arguments are in the order and of the types of the kernel, which its one launch site holds; the
        // addresses are of tensors that the executor keeps alive for the node.
        let status = unsafe {
            sys::cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                grid.threads,
                1,
                1,
                grid.shared,
                self.stream,
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        check(status, &format!("launch {entry} with {grid:?}"))
    }

    fn product(&self, product: &Product) -> Result<()> {
        self.products.run(self, product)
    }

    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's range is inside memory that it holds.
        check(unsafe { sys::cuMemsetD8Async(address, byte, bytes, self.stream) }, "fill memory")
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's ranges are inside memory that it holds, and do not overlap.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }, "copy memory")
    }
}

impl Arg {
    /// Bytes of the parameter that it is for.
    fn size(&self) -> usize {
        match self {
            Arg::Ptr(_) | Arg::U64(_) => 8,
            Arg::U32(_) | Arg::Size(_) | Arg::F32(_) => 4,
        }
    }

    /// The argument's bits, in the low bytes.
    fn bits(&self) -> u64 {
        match *self {
            Arg::Ptr(value) | Arg::U64(value) => value,
            Arg::U32(value) => u64::from(value),
            Arg::Size(value) => value as u64,
            Arg::F32(value) => u64::from(value.to_bits()),
        }
    }
}

/// Memory of a GPU. Freed when dropped, which waits for the GPU.
#[derive(Debug)]
pub struct DeviceBuffer {
    gpu: Arc<Gpu>,
    address: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Its first byte.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Sets bytes, in the order of the stream.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn fill(&self, offset: usize, byte: u8, bytes: usize) -> Result<()> {
        assert!(offset + bytes <= self.bytes);
        self.gpu.fill(self.address + offset as u64, byte, bytes)
    }

    /// Reads bytes after all work put in so far.
    ///
    /// # Errors
    /// When the work failed.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        assert!(offset + to.len() <= self.bytes);
        if to.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        self.gpu.synchronize()?;
        // SAFETY: the range is inside the buffer, and the slice takes as many bytes.
        let status =
            unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), self.address + offset as u64, to.len()) };
        check(status, "read memory of the GPU")
    }

    /// Writes bytes after all work put in so far.
    ///
    /// # Errors
    /// When the work failed.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        assert!(offset + from.len() <= self.bytes);
        if from.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        self.gpu.synchronize()?;
        // SAFETY: the range is inside the buffer, and the slice has as many bytes.
        let status =
            unsafe { sys::cuMemcpyHtoD_v2(self.address + offset as u64, from.as_ptr().cast(), from.len()) };
        check(status, "write memory of the GPU")
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `allocate`; the driver waits for work on it.
            unsafe {
                sys::cuCtxSetCurrent(self.gpu.context);
                sys::cuMemFree_v2(self.address);
            }
        }
        lock(&self.gpu.ledger).held -= self.bytes;
    }
}

/// Work that was captured once and is launched as a whole.
#[derive(Debug)]
pub struct Graph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
    nodes: usize,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Graph {}
// SAFETY: as for `Gpu`.
unsafe impl Sync for Graph {}

impl Graph {
    /// Puts the whole graph into the stream.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: the executable graph and the stream exist.
        check(unsafe { sys::cuGraphLaunch(self.executable, self.gpu.stream) }, "launch a graph")
    }

    /// How many kernels, copies and fills it holds.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `capture`; the driver waits for a launch under way.
        unsafe {
            sys::cuCtxSetCurrent(self.gpu.context);
            sys::cuGraphExecDestroy(self.executable);
        }
    }
}

/// Asks the driver for memory in the current context.
fn allocate(bytes: usize) -> Result<DevicePtr> {
    let mut address = 0;
    if bytes > 0 {
        // SAFETY: the address of a pointer to be filled in.
        let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        check(status, &format!("allocate {bytes} bytes"))?;
    }
    Ok(address)
}

/// Free bytes and all bytes of the card whose context is current.
fn memory_info() -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: addresses of integers; the context is current.
    check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, "ask for free memory")?;
    Ok((free, total))
}

/// Refuses a GPU that is not there.
fn available(ordinal: usize) -> Result<()> {
    if Nvidia::Driver.open().is_none() {
        return Err(Error::failed(format!("no NVIDIA driver is found; {}", Nvidia::Driver.remedy())));
    }
    let count = driver::count()?;
    if ordinal >= count {
        return Err(Error::failed(format!("there is no GPU {ordinal}: the driver knows {count}, from 0")));
    }
    Ok(())
}

fn properties(ordinal: usize) -> Result<(sys::CUdevice, Properties)> {
    let (device, name, memory_bytes) = driver::device(ordinal)?;
    let of = |which| driver::attribute(device, which);
    let properties = Properties {
        name,
        capability: (
            of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        processors: of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_processor: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        l2_bytes: of(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory_bytes,
    };
    if properties.capability < (8, 0) {
        return Err(Error::failed(format!(
            "{} has compute capability {}.{}; kernels need 8.0 or newer (bf16 tensor cores)",
            properties.name, properties.capability.0, properties.capability.1
        )));
    }
    Ok((device, properties))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
