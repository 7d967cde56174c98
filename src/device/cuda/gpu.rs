//! One GPU: its context, its kernels, its libraries, and what they take.

use super::algorithms::Algorithms;
use super::buffer::{Ledger, allocate, memory_info};
use super::compiler::{Compiler, Unit, units};
use super::driver::{self, check};
use super::libraries::Nvidia;
use super::products::{Products, WORKSPACE};
use super::ranks::Link;
use super::usage::{Account, Mark, Part, Usage};
use super::watch::Before;
use crate::device::gpu::{DevicePtr, Kernel, Properties, Requests};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// One GPU. Work put into it runs in order, beside the CPU.
#[derive(Debug)]
pub struct Gpu {
    pub(super) properties: Properties,
    ordinal: usize,
    device: sys::CUdevice,
    pub(super) context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    /// The way to the other ranks; unset for one that is alone.
    pub(super) link: OnceLock<Link>,
    compiler: Compiler,
    modules: Mutex<HashMap<Unit, Module>>,
    functions: Mutex<HashMap<Kernel, Function>>,
    pub(super) products: Products,
    workspace: DevicePtr,
    pub(super) ledger: Mutex<Ledger>,
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
pub(super) struct Function {
    pub(super) handle: sys::CUfunction,
    /// The sizes of its parameters.
    pub(super) parameters: Arc<[usize]>,
    /// The dynamic shared memory that it may ask for as it stands.
    shared: u32,
}

/// What a block may ask for without saying so beforehand.
const SHARED_BY_DEFAULT: u32 = 48 * 1024;

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
            link: OnceLock::new(),
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

    /// Compiles and loads the kernels and chooses the algorithms of what programs ask for, all at once.
    ///
    /// # Errors
    /// When a kernel does not compile, or no algorithm serves a product.
    pub fn prepare(self: &Arc<Self>, requests: &Requests) -> Result<()> {
        let missing: Vec<Unit> = {
            let modules = lock(&self.modules);
            units(&requests.kernels).into_iter().filter(|unit| !modules.contains_key(unit)).collect()
        };
        let codes = self.compiler.compile_all(&missing)?;
        for (unit, code) in missing.into_iter().zip(codes) {
            self.load(unit, &code)?;
        }
        self.products.prepare(self, &requests.products)
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

    pub(super) fn function(&self, kernel: Kernel, shared: u32) -> Result<Function> {
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
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the context is alive.
        unsafe { sys::cuCtxSetCurrent(self.context) };
        // NCCL comes first, for kernels may wait in it for a rank that is gone. Where it does not end, it still uses the
        // context. The events of the link go with it, while there is a context.
        if let Some(link) = self.link.take()
            && !link.close()
        {
            return;
        }
        // SAFETY: nothing else holds the handles: graphs and buffers keep the GPU alive.
        unsafe {
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
        sm_count: of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_sm: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
