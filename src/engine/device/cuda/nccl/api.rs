//! NCCL's functions, looked up by name in the library that was found.
//!
//! cudarc looks for `libnccl.so`, but machines have `libnccl.so.2`, so only its types are used. Statuses are
//! numbers, because a newer library may have more of them than the header.

use crate::device::cuda::libraries::{Nvidia, PATH_VARIABLE};
use crate::error::{Error, Result};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

pub(super) type Status = c_int;

/// The statuses that are not failures: done, and, for an asynchronous call, not done yet.
pub(super) const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;

/// The configuration of a communicator: the fields of NCCL's own structure as of 2.18. A newer library treats
/// later fields as not set, because the structure contains its version.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster_size: c_int,
    min_channels: c_int,
    max_channels: c_int,
    network: *const c_char,
    split_share: c_int,
    /// Padding in 2.18, a field in later versions.
    traffic_class: c_int,
}

impl Config {
    const NOT_SET: c_int = c_int::MIN;

    /// Creates a configuration whose calls return when their work is on the stream. With `channels`, that
    /// many blocks of the GPU take part in every call.
    pub(super) fn new(channels: Option<usize>) -> Self {
        let channels = channels.map_or(Self::NOT_SET, |n| n as c_int);
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 1,
            cluster_size: Self::NOT_SET,
            min_channels: channels,
            max_channels: channels,
            network: std::ptr::null(),
            split_share: Self::NOT_SET,
            traffic_class: Self::NOT_SET,
        }
    }
}

/// Declares [`Api`]: for each function a field, its name in the library, and its signature in NCCL's header.
macro_rules! functions {
    ($($field:ident = $name:literal($($argument:ty),*) -> $result:ty;)+) => {
        /// The functions that the engine calls.
        #[derive(Debug)]
        pub struct Api {
            $(
                // SAFETY: the signatures have not changed since 2.14. Callers pass what the header requires:
                // a live communicator, memory of its GPU with enough elements, a stream of that GPU.
                pub $field: unsafe extern "C" fn($($argument),*) -> $result,
            )+
        }

        impl Api {
            /// Returns the functions of the library at `path`, or what is wrong with it and the remedy.
            fn load(path: &Path) -> std::result::Result<Self, String> {
                let remedy = Nvidia::Nccl.remedy();
                // SAFETY: NCCL is already open, so opening it again runs nothing.
                let library = unsafe { Library::new(path) }
                    .map_err(|e| format!("NCCL at {} cannot be opened: {e}; try: {remedy}", path.display()))?;
                let lacks = |name: &str| {
                    format!("NCCL at {} has no {name}: it is older than 2.14; try: {remedy}", path.display())
                };
                let api = Self {
                    $(
                        // SAFETY: the field has the function's type.
                        $field: *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                            .map_err(|_| lacks($name))?,
                    )+
                };
                // The functions stay valid while the library is open: until the process ends.
                std::mem::forget(library);
                Ok(api)
            }
        }
    };
}

functions! {
    unique_id = "ncclGetUniqueId"(*mut ncclUniqueId) -> Status;
    init_rank = "ncclCommInitRankConfig"(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config) -> Status;
    destroy = "ncclCommDestroy"(ncclComm_t) -> Status;
    abort = "ncclCommAbort"(ncclComm_t) -> Status;
    all_reduce = "ncclAllReduce"(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
    ) -> Status;
    reduce = "ncclReduce"(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, cudaStream_t
    ) -> Status;
    all_gather = "ncclAllGather"(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t
    ) -> Status;
    broadcast = "ncclBroadcast"(
        *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
    ) -> Status;
    group_start = "ncclGroupStart"() -> Status;
    group_end = "ncclGroupEnd"() -> Status;
    error_string = "ncclGetErrorString"(Status) -> *const c_char;
    last_error = "ncclGetLastError"(ncclComm_t) -> *const c_char;
}

// SAFETY: see [`Api`].
pub(super) type CommFn = unsafe extern "C" fn(ncclComm_t) -> Status;

impl Api {
    /// Returns the library, opened once per process.
    ///
    /// # Errors
    /// If it is missing or too old. The message says how to get it.
    pub(super) fn get() -> Result<&'static Self> {
        static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
        let found = API.get_or_init(|| {
            let path = Nvidia::Nccl.open().ok_or_else(missing)?;
            Self::load(path)
        });
        found.as_ref().map_err(|why| Error::failed(why.clone()))
    }

    /// Turns a status into an error that says what failed and gives NCCL's reason.
    pub(super) fn check(&self, status: Status, doing: &str) -> Result<()> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both functions return null or the address of a string that NCCL keeps; for a null
        // communicator, NCCL returns this thread's last error.
        let [what, detail] =
            unsafe { [(self.error_string)(status), (self.last_error)(null_mut())] }.map(|text| {
                // SAFETY: see above; the string ends in zero.
                let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
                text.map(|text| text.to_string_lossy().trim().to_owned()).unwrap_or_default()
            });
        Err(Error::failed(error_message(status, doing, &what, &detail)))
    }
}

fn missing() -> String {
    format!(
        "ranks on several GPUs communicate through NCCL, which was not found; try: {}. Its folder can be given in {PATH_VARIABLE}",
        Nvidia::Nccl.remedy()
    )
}

/// Formats an error message: NCCL's own, then the next step.
fn error_message(status: Status, doing: &str, what: &str, detail: &str) -> String {
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    let next = match status {
        // An error in CUDA, in the system, or inside NCCL.
        1..=3 => {
            "NCCL_DEBUG=WARN makes NCCL report more; a container often needs more shared memory (--shm-size=1g)"
        }
        // A call that NCCL does not accept.
        4 | 5 => "ranks may have made different calls; NCCL_DEBUG=WARN makes NCCL report more",
        6 => "another rank or the connection to it is lost; its own error says why",
        _ => "NCCL_DEBUG=WARN makes NCCL report more",
    };
    format!("cannot {doing}: NCCL says {what}{detail}. {next}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_call_what_nccl_says_and_the_next_step() {
        let text = error_message(2, "join 4 GPUs", "unhandled system error", "Call to bind failed");
        assert!(
            text.starts_with("cannot join 4 GPUs: NCCL says unhandled system error: Call to bind failed. ")
        );
        assert!(text.contains("NCCL_DEBUG=WARN") && text.contains("--shm-size"));
        assert!(error_message(6, "x", "remote", "").contains("another rank"));
        assert!(error_message(99, "x", "unknown", "").ends_with("NCCL_DEBUG=WARN makes NCCL report more"));
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_the_package() {
        assert!(missing().contains("pip install nvidia-nccl-cu13") && missing().contains(PATH_VARIABLE));
        match (Nvidia::Nccl.open(), Api::get()) {
            (None, Err(e)) => assert_eq!(e.message(), missing()),
            (Some(_), Ok(_)) => {}
            (path, api) => panic!("{path:?}: {:?}", api.err()),
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_not_called_an_old_one() {
        let message = Api::load(Path::new("/dev/null")).unwrap_err();
        assert!(message.starts_with("NCCL at /dev/null cannot be opened: "), "{message}");
        assert!(message.contains("try: pip install") && !message.contains("older"), "{message}");
    }

    /// Checks the layout of NCCL 2.18's configuration.
    #[test]
    fn a_configuration_is_laid_out_as_nccl_has_it() {
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, network), 32);
        assert_eq!(Config::new(Some(8)).min_channels, 8);
        assert_eq!(Config::new(None).max_channels, Config::NOT_SET);
    }
}
