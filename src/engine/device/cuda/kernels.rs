//! The kernels of a GPU: compiled, loaded and launched into a stream.

use super::compiler::{Compiler, TranslationUnit, translation_units};
use super::context::Context;
use super::driver::{self, Value, check};
use super::stream::Stream;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::error::{Error, Result};
use crate::lock::lock;
use cudarc::driver::sys;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Largest size passed to kernels, which count in 31 bits. The last block may count slightly beyond it.
const MAX_SIZE: usize = (1 << 31) - (1 << 20);

/// Dynamic shared memory in bytes that a block may use without requesting it.
const DEFAULT_SHARED: u32 = 48 * 1024;

/// Lowest compute capability (major) with programmatic dependent launch, and oldest version of CUDA whose
/// driver captures such launches in graphs.
const OVERLAP_CAPABILITY: u32 = 9;
const OVERLAP_DRIVER: (i32, i32) = (12, 4);

/// Oldest version of CUDA whose driver has `cuFuncLoad`.
const FUNCTION_LOADING: (i32, i32) = (12, 4);

/// The compiler for one GPU and the kernels loaded on it, unloaded when dropped.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    compiler: Compiler,
    /// True if a kernel can begin before the previous one has ended.
    can_overlap: bool,
    /// True if the driver can load a function's code before the first launch.
    loads_functions: bool,
    modules: Mutex<HashMap<TranslationUnit, sys::CUmodule>>,
    functions: Mutex<HashMap<Kernel, Function>>,
}

#[derive(Clone, Debug)]
struct Function {
    handle: sys::CUfunction,
    /// Sizes of the parameters, in bytes.
    parameters: Arc<[usize]>,
    /// Dynamic shared memory that a launch may use, in bytes.
    shared: u32,
}

// SAFETY: the driver's handles may be used from every thread that has made the context current.
unsafe impl Send for Kernels {}
// SAFETY: see `Send`; locks guard the maps.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Creates the kernels of a context, with none loaded yet.
    pub(super) fn new(context: Arc<Context>, compiler: Compiler, capability: (u32, u32)) -> Self {
        let driver = driver::version().unwrap_or_default();
        let can_overlap = capability.0 >= OVERLAP_CAPABILITY && driver >= OVERLAP_DRIVER;
        Self {
            context,
            compiler,
            can_overlap,
            loads_functions: driver >= FUNCTION_LOADING,
            modules: Mutex::default(),
            functions: Mutex::default(),
        }
    }

    /// Compiles and loads kernels, in parallel. Functions are loaded here because a driver that loads a
    /// function's code at its first launch may then wait for the GPU, which may wait for another rank.
    ///
    /// # Errors
    /// If a kernel does not compile.
    pub(super) fn prepare<'a>(&self, kernels: impl IntoIterator<Item = &'a Kernel>) -> Result<()> {
        let kernels: Vec<&Kernel> = kernels.into_iter().collect();
        let missing: Vec<TranslationUnit> = {
            let modules = lock(&self.modules);
            translation_units(kernels.iter().copied())
                .into_iter()
                .filter(|unit| !modules.contains_key(unit))
                .collect()
        };
        let codes = self.compiler.compile_all(&missing)?;
        for (unit, code) in missing.into_iter().zip(codes) {
            self.load(unit, &code)?;
        }
        kernels.into_iter().try_for_each(|kernel| self.function(kernel.clone(), 0).map(|_| ()))
    }

    /// Adds a node to a graph that launches a kernel after other nodes.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(super) fn add_to_graph(
        &self,
        graph: sys::CUgraph,
        after: &[sys::CUgraphNode],
        (kernel, grid, args): (Kernel, Grid, &[Arg]),
    ) -> Result<sys::CUgraphNode> {
        let (entry, function) = (kernel.entry, self.function(kernel, grid.shared)?);
        let mut values = matching_values(entry, &function, args)?;
        driver::add_kernel_node(graph, after, (entry, function.handle), grid, &mut values)
    }

    /// Launches a kernel into a stream. Compiles it first if [`Kernels::prepare`] has not.
    ///
    /// # Errors
    /// If the arguments do not match the kernel's parameters, or the driver reports an error.
    pub(super) fn launch(
        &self,
        stream: &Stream,
        (kernel, grid, args): (Kernel, Grid, impl AsRef<[Arg]>),
    ) -> Result<()> {
        let args = args.as_ref();
        let (entry, overlaps) = (kernel.entry, kernel.overlaps && self.can_overlap);
        let too_large = |arg: &Arg| match *arg {
            Arg::Size(size) if size > MAX_SIZE => Some(size),
            _ => None,
        };
        if let Some(size) = args.iter().find_map(too_large) {
            return Err(Error::failed(format!(
                "kernel {entry} counts in 31 bits, but a tensor of this plan has a size of {size}; \
                 make training.local_batch_size smaller"
            )));
        }
        let function = self.function(kernel, grid.shared)?;
        let mut values = matching_values(entry, &function, args)?;
        stream.launch((entry, function.handle), grid, &mut values, overlaps)
    }

    fn load(&self, unit: TranslationUnit, code: &[u8]) -> Result<sys::CUmodule> {
        self.context.make_current()?;
        let module = driver::load(code, &unit.describe())?;
        lock(&self.modules).insert(unit, module);
        Ok(module)
    }

    /// Returns a kernel's function, allowed to use `shared` bytes of dynamic shared memory.
    fn function(&self, kernel: Kernel, shared: u32) -> Result<Function> {
        let known = lock(&self.functions).get(&kernel).cloned();
        if let Some(function) = known.filter(|f| f.shared >= shared) {
            return Ok(function);
        }
        let unit = TranslationUnit::for_kernel(&kernel);
        let loaded = lock(&self.modules).get(&unit).copied();
        let module = match loaded {
            Some(module) => module,
            None => {
                let code = self.compiler.compile(&unit)?;
                self.load(unit, &code)?
            }
        };
        let handle = driver::function(module, kernel.entry)?;
        if shared > DEFAULT_SHARED {
            let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a loaded module.
            let status = unsafe { sys::cuFuncSetAttribute(handle, which, shared as i32) };
            check(status, &format!("give {} {shared} bytes of shared memory", kernel.entry))?;
        }
        if self.loads_functions {
            // SAFETY: the function belongs to a loaded module.
            check(unsafe { sys::cuFuncLoad(handle) }, &format!("load kernel {}", kernel.entry))?;
        }
        let parameters = driver::parameters(handle).into();
        let function = Function { handle, parameters, shared: shared.max(DEFAULT_SHARED) };
        lock(&self.functions).insert(kernel, function.clone());
        Ok(function)
    }
}

/// Returns the values of arguments, after checking that their number and sizes match the kernel's parameters:
/// the driver reads as many arguments and bytes as the kernel declares.
fn matching_values(entry: &str, function: &Function, args: &[Arg]) -> Result<Vec<Value>> {
    if !args.iter().map(Arg::size).eq(function.parameters.iter().copied()) {
        return Err(Error::failed(format!(
            "kernel {entry} takes {} parameters of {:?} bytes, but is launched with {args:?}",
            function.parameters.len(),
            function.parameters
        )));
    }
    args.iter().map(driver::value).collect()
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.context.make_current().is_err() {
            return;
        }
        for &module in lock(&self.modules).values() {
            // SAFETY: loaded by `load`; the owner has waited for the GPU's work.
            unsafe { sys::cuModuleUnload(module) };
        }
    }
}
