//! Calls to the CUDA driver, with statuses turned into errors.

use crate::device::DType;
use crate::device::gpu::{Arg, Grid, TensorMap};
use crate::error::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

/// Turns a status into an error that says what was being done.
pub(super) fn check(status: CUresult, doing: &str) -> Result<()> {
    checked(status.result(), doing)
}

/// Turns a failure of the driver into an error that says what was being done.
pub(super) fn checked<T>(result: Result<T, DriverError>, doing: &str) -> Result<T> {
    result.map_err(|error| {
        let DriverError(status) = error;
        let text = match error.error_string() {
            Ok(text) => format!("{} ({status:?})", text.to_string_lossy()),
            Err(_) => format!("{status:?}"),
        };
        let message = format!("cannot {doing}: {text}");
        match status {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::does_not_fit(message),
            _ => Error::failed(message),
        }
    })
}

/// Pinned host memory, which the GPU reads and writes without the CPU. Freed when dropped.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory like a Vec; users order the GPU's accesses by events.
unsafe impl Send for Pinned {}
// SAFETY: see `Send`; shared references only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // SAFETY: users write the memory before they read it.
        let pinned = unsafe { result::malloc_host(bytes.max(1), 0) };
        let start = checked(pinned, &format!("pin {bytes} bytes of host memory"))?;
        Ok(Self { start: start.cast(), bytes })
    }

    /// Returns the bytes. After a copy from the GPU, wait for its event before reading them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated in `new` with this length.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Returns the bytes for writing. No copy from them may be in progress.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: see `bytes`; `&mut self` excludes other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    pub(super) fn address(&self) -> *mut c_void {
        self.start.cast()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. A failure at the end of a process cannot be reported.
        unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

/// An event: a point in a stream that can be waited for and timed.
#[derive(Debug)]
pub struct Event(pub(super) sys::CUevent);

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: see `Send`.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new() -> Result<Self> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        checked(event, "create an event").map(Self)
    }

    /// Blocks the calling thread until the stream has reached the event.
    ///
    /// # Errors
    /// If the work before the event failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event exists.
        check(unsafe { sys::cuEventSynchronize(self.0) }, "wait for the GPU")
    }

    /// Returns the milliseconds from an earlier event to this one. Both must have been waited for.
    ///
    /// # Errors
    /// If one of them was not recorded.
    pub fn since(&self, earlier: &Event) -> Result<f32> {
        // SAFETY: both events exist.
        checked(unsafe { result::event::elapsed(earlier.0, self.0) }, "read the time between events")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Returns the number of GPUs.
pub(super) fn count() -> Result<usize> {
    checked(result::init(), "initialize the driver")?;
    checked(result::device::get_count(), "count the GPUs").map(|count| count as usize)
}

/// Returns the version of CUDA that the driver supports, such as (13, 0).
pub(super) fn version() -> Result<(i32, i32)> {
    let mut version = 0;
    // SAFETY: the address points to an integer.
    check(unsafe { sys::cuDriverGetVersion(&raw mut version) }, "query the version of the driver")?;
    Ok((version / 1000, version % 1000 / 10))
}

/// Returns a GPU's handle, name and memory in bytes.
pub(super) fn device(ordinal: usize) -> Result<(sys::CUdevice, String, usize)> {
    let device = checked(result::device::get(ordinal as i32), &format!("open GPU {ordinal}"))?;
    let name = checked(result::device::get_name(device), "query the name of a GPU")?;
    // SAFETY: the device was opened.
    let bytes = checked(unsafe { result::device::total_mem(device) }, "query the memory of a GPU")?;
    Ok((device, name, bytes))
}

/// Returns an attribute of a GPU.
pub(super) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<usize> {
    // SAFETY: the device was opened.
    let value = unsafe { result::device::get_attribute(device, which) };
    checked(value, "query the properties of a GPU").map(|value| value as usize)
}

/// Returns a GPU's UUID, in hexadecimal with dashes; the UUID of a MIG instance if this process sees one.
pub(super) fn uuid(device: sys::CUdevice) -> Result<String> {
    let uuid = checked(result::device::get_uuid(device), "query the UUID of a GPU")?;
    let mut text = String::new();
    for (at, byte) in uuid.bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text += &format!("{:02x}", *byte as u8);
    }
    Ok(text)
}

/// Returns a GPU's PCI address, such as `0000:19:00.0`.
pub(super) fn pci_bus_id(device: sys::CUdevice) -> Result<String> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer has the given length; the device was opened.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, device) };
    check(status, "query the PCI address of a GPU")?;
    let text = CStr::from_bytes_until_nul(&text).map(|t| t.to_string_lossy().into_owned());
    Ok(text.unwrap_or_default())
}

/// Returns true if this process has a context on a GPU.
pub(super) fn has_context(device: sys::CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the addresses point to integers; the device was opened.
    let status = unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    status == CUresult::CUDA_SUCCESS && active != 0
}

/// Loads machine code and returns its module.
pub(super) fn load(code: &[u8], what: &str) -> Result<sys::CUmodule> {
    // SAFETY: the code is a complete cubin, which contains its own length.
    checked(unsafe { result::module::load_data(code.as_ptr().cast()) }, &format!("load {what}"))
}

/// Returns the sizes in bytes of a kernel's parameters, in order.
pub(super) fn parameters(function: sys::CUfunction) -> Vec<usize> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function belongs to a loaded module; the driver reports an error for an index beyond
        // its parameters.
        let status =
            unsafe { sys::cuFuncGetParamInfo(function, sizes.len(), &raw mut offset, &raw mut size) };
        if status != CUresult::CUDA_SUCCESS {
            return sizes;
        }
        sizes.push(size);
    }
}

/// The value of a kernel argument, stored from the first byte on. The type fits a tensor map, the largest and
/// most aligned argument.
pub(super) type Value = sys::CUtensorMap;

/// Returns the value of an argument.
pub(super) fn value(arg: &Arg) -> Result<Value> {
    if let Arg::Map(map) = arg {
        return encode(map);
    }
    let mut value = Value { opaque: [0; 16] };
    match arg {
        Arg::Ranks(addresses) => value.opaque[..addresses.len()].copy_from_slice(addresses),
        _ => value.opaque[0] = arg.bits(),
    }
    Ok(value)
}

/// Adds a node to a graph that launches a named function of a loaded module after other nodes. `values` are
/// its arguments, which the node copies.
pub(super) fn add_kernel_node(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    (entry, function): (&str, sys::CUfunction),
    grid: Grid,
    values: &mut [Value],
) -> Result<sys::CUgraphNode> {
    let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
    let [x, y, z] = grid.blocks;
    let launch = sys::CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: grid.shared,
        kernelParams: pointers.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    };
    let mut node = null_mut();
    // SAFETY: the nodes belong to the graph; the arguments have the order and types of the kernel's
    // parameters.
    let status = unsafe {
        sys::cuGraphAddKernelNode_v2(&raw mut node, graph, after.as_ptr(), after.len(), &raw const launch)
    };
    check(status, &format!("add {entry} with {grid:?} to a graph"))?;
    Ok(node)
}

/// Encodes a tensor map for the Tensor Memory Accelerator, as the kernels in `kernels/tma.cuh` expect it.
fn encode(map: &TensorMap) -> Result<Value> {
    const BYTES: u64 = DType::Bf16.size() as u64;
    let mut encoded = Value { opaque: [0; 16] };
    let sizes = map.sizes.map(|n| n as u64);
    let strides = map.strides.map(|n| n as u64 * BYTES);
    let boxes = map.boxes.map(|n| n as u32);
    let swizzle = match map.boxes[0] {
        32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    // SAFETY: the addresses point to arrays of four, three, four and four numbers, and to the value to be
    // filled in.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            sizes.len() as u32,
            map.address as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            [1; 4].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            // Reads outside the tensor return zeros.
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check(status, &format!("encode {map:?}"))?;
    Ok(encoded)
}

/// Returns a function of a module.
pub(super) fn function(module: sys::CUmodule, name: &str) -> Result<sys::CUfunction> {
    let text = CString::new(name).map_err(|_| Error::failed("a kernel name contains a zero byte"))?;
    // SAFETY: the module is loaded.
    checked(unsafe { result::module::get_function(module, text) }, &format!("find kernel {name}"))
}
