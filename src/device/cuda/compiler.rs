//! Compiles kernels with NVRTC, once per machine: results are cached on disk.

use super::cache::cache_folder;
use super::libraries::Nvidia;
use super::sources::{headers, source};
use crate::device::gpu::Kernel;
use crate::error::{Error, IoContext, Result};
use cudarc::nvrtc::sys;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// A kernel file with definitions: the unit of compilation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// Name of the file, without its extension.
    pub file: &'static str,
    /// Preprocessor definitions.
    pub defines: Vec<(&'static str, String)>,
}

impl Unit {
    /// Returns the unit that contains a kernel.
    pub fn of_kernel(kernel: &Kernel) -> Self {
        Self { file: kernel.file, defines: kernel.defines.clone() }
    }

    /// Describes the unit, such as `flash_attention -DT=bf16 -DHEAD_DIM=32`; long definitions are shortened.
    pub fn describe(&self) -> String {
        let mut text = self.file.to_string();
        for (name, value) in &self.defines {
            let end = value.char_indices().nth(24).map_or(value.len(), |(at, _)| at);
            text += &format!(" -D{name}={}{}", &value[..end], if end < value.len() { "…" } else { "" });
        }
        text
    }
}

/// The compiler for one architecture.
#[derive(Debug)]
pub struct Compiler {
    architecture: String,
    version: (i32, i32),
    /// Folder of cached results; `None` for no cache.
    folder: Option<PathBuf>,
}

impl Compiler {
    /// Returns a compiler for an architecture such as `sm_90a`. Results are cached under `XRUN_CACHE`, or the
    /// user's cache folder.
    ///
    /// # Errors
    /// When NVRTC is not installed.
    pub fn new(architecture: &str) -> Result<Self> {
        Nvidia::Nvrtc.require("the compiler of kernels (NVRTC)")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: NVRTC is open, and both addresses are of integers.
        let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        check(status, "ask NVRTC for its version")?;
        Ok(Self { architecture: architecture.to_string(), version: (major, minor), folder: folder() })
    }

    /// Returns the compiler's version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Returns the machine code of a unit, from the cache if it is there.
    ///
    /// # Errors
    /// When it does not compile: the log of the compiler.
    pub fn compile(&self, unit: &Unit) -> Result<Vec<u8>> {
        let options = self.options(unit);
        let kept = self.folder.as_ref().map(|folder| folder.join(self.key(unit, &options)));
        if let Some(code) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(code);
        }
        let (code, _) = compile(unit, &options)?;
        if let Some(path) = kept {
            // Without a cache the next run takes longer to start.
            let _ = keep(&path, &code);
        }
        Ok(code)
    }

    /// Compiles a unit without the cache, and returns the resources of its kernels.
    ///
    /// # Errors
    /// When it does not compile: the log of the compiler.
    pub fn resources(&self, unit: &Unit) -> Result<Vec<Resources>> {
        let mut options = self.options(unit);
        options.push("--ptxas-options=-v".to_string());
        compile(unit, &options).map(|(_, log)| Resources::read(&log))
    }

    /// Compiles units on all cores; results are in their order.
    ///
    /// # Errors
    /// Of the first unit that fails.
    pub fn compile_all(&self, units: &[Unit]) -> Result<Vec<Vec<u8>>> {
        units.par_iter().map(|unit| self.compile(unit)).collect()
    }

    fn options(&self, unit: &Unit) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={}", self.architecture),
            "--std=c++17".to_string(),
            "--generate-line-info".to_string(),
        ];
        options.extend(unit.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// Returns the file name of a cached result: a hash of everything that it depends on.
    fn key(&self, unit: &Unit, options: &[String]) -> String {
        let mut hash = blake3::Hasher::new();
        let (major, minor) = self.version;
        let version = format!("{major}.{minor}");
        let (headers, code) = (headers(), source(unit.file));
        let headers = headers.iter().flat_map(|(name, text)| [name, text.as_ref()]);
        let parts = headers.chain([code.as_ref(), &version]).chain(options.iter().map(String::as_str));
        for part in parts {
            hash.update(&part.len().to_le_bytes());
            hash.update(part.as_bytes());
        }
        format!("{}-{}.cubin", unit.file, &hash.finalize().to_hex()[..32])
    }
}

/// The resources of an SM that a kernel uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The kernel.
    pub entry: String,
    /// Registers per thread.
    pub registers: usize,
    /// Stack per thread, in bytes.
    pub stack: usize,
    /// Spill stores per thread, in bytes.
    pub spills: usize,
    /// Static shared memory per block, in bytes.
    pub shared: usize,
}

impl Resources {
    /// Parses the report of ptxas.
    fn read(log: &str) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for line in log.lines() {
            if let Some(entry) = line.split("Compiling entry function '").nth(1) {
                let entry = entry.split('\'').next().unwrap_or_default().to_string();
                found.push(Self { entry, registers: 0, stack: 0, spills: 0, shared: 0 });
            }
            let Some(last) = found.last_mut() else { continue };
            let before = |what: &str| -> Option<usize> {
                line.split(what)
                    .next()
                    .filter(|before| before.len() < line.len())?
                    .split_whitespace()
                    .last()?
                    .parse()
                    .ok()
            };
            last.stack = before(" bytes stack frame").unwrap_or(last.stack);
            last.spills = before(" bytes spill stores").unwrap_or(last.spills);
            last.registers = before(" registers").unwrap_or(last.registers);
            last.shared = before(" bytes smem").unwrap_or(last.shared);
        }
        found
    }
}

/// Returns the units of kernels, without duplicates.
pub fn units<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> Vec<Unit> {
    kernels.into_iter().map(Unit::of_kernel).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the folder of cached kernels.
fn folder() -> Option<PathBuf> {
    cache_folder().map(|folder| folder.join("kernels"))
}

fn keep(path: &std::path::Path, code: &[u8]) -> Result<()> {
    let folder = path.parent().ok_or_else(|| Error::failed("a cache without a folder"))?;
    fs::create_dir_all(folder).at("create", folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).at("create a file in", folder)?;
    file.write_all(code).at("write", path)?;
    // Atomically: another process may read the file at any time.
    file.persist(path).map_err(|e| Error::failed(format!("cannot keep {}: {e}", path.display())))?;
    Ok(())
}

/// Returns machine code, and the log of the compiler.
fn compile(unit: &Unit, options: &[String]) -> Result<(Vec<u8>, String)> {
    let text = |s: &str| CString::new(s).map_err(|_| Error::failed("a source with a zero byte"));
    let (code, name) = (text(&source(unit.file))?, text(&format!("{}.cu", unit.file))?);
    let included = headers();
    let headers: Vec<CString> = included.iter().map(|(_, h)| text(h)).collect::<Result<_>>()?;
    let names: Vec<CString> = included.iter().map(|(n, _)| text(n)).collect::<Result<_>>()?;
    let options: Vec<CString> = options.iter().map(|o| text(o)).collect::<Result<_>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
    let (header_texts, header_names) = (pointers(&headers), pointers(&names));
    let mut program = std::ptr::null_mut();
    // SAFETY: every pointer is to a string that lives until the program is destroyed below.
    let status = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            code.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            header_texts.as_ptr(),
            header_names.as_ptr(),
        )
    };
    check(status, "hand a kernel to NVRTC")?;
    let options = pointers(&options);
    // SAFETY: the program was created above; the options live during the call.
    let status = unsafe { sys::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr()) };
    let log = log(program);
    let result = if status == sys::nvrtcResult::NVRTC_SUCCESS {
        machine_code(program).map(|code| (code, log))
    } else {
        Err(Error::failed(format!("kernel {} does not compile:\n{log}", unit.describe())))
    };
    // SAFETY: the program was created above and is not used again.
    unsafe { sys::nvrtcDestroyProgram(&raw mut program) };
    result
}

/// Returns the architectures that NVRTC knows, such as 90, ascending; `None` without it.
pub(super) fn architectures() -> Option<Vec<u32>> {
    Nvidia::Nvrtc.open()?;
    let mut count = 0;
    // SAFETY: NVRTC is open, and the address is of an integer.
    check(unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }, "count architectures").ok()?;
    let mut known = vec![0i32; usize::try_from(count).ok()?];
    // SAFETY: the buffer has as many places as NVRTC said.
    check(unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }, "list architectures").ok()?;
    Some(known.into_iter().filter_map(|sm| u32::try_from(sm).ok()).collect())
}

/// Compiles a trivial kernel, to check that the compiler is complete.
///
/// # Errors
/// When it does not compile: the log of the compiler.
pub(super) fn trial(architecture: &str) -> Result<()> {
    let (code, name) = (c"extern \"C\" __global__ void trial(float* x) { x[0] = 1.0f; }", c"trial.cu");
    let option = CString::new(format!("--gpu-architecture={architecture}"));
    let option = option.map_err(|_| Error::failed("an architecture with a zero byte"))?;
    let (mut program, none) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both texts are constants that end in zero, and there are no headers.
    let status =
        unsafe { sys::nvrtcCreateProgram(&raw mut program, code.as_ptr(), name.as_ptr(), 0, none, none) };
    check(status, "hand a kernel to NVRTC")?;
    // SAFETY: the program was created above; the option lives during the call.
    let status = unsafe { sys::nvrtcCompileProgram(program, 1, &option.as_ptr()) };
    let log = log(program);
    // SAFETY: the program was created above and is not used again.
    unsafe { sys::nvrtcDestroyProgram(&raw mut program) };
    check(status, "compile a kernel").map_err(|e| Error::failed(format!("{}\n{log}", e.message())))
}

fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: the program is compiled.
    check(unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) }, "ask for a kernel's size")?;
    let mut code = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    let status = unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast::<c_char>()) };
    check(status, "read a kernel")?;
    Ok(code)
}

fn log(program: sys::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the program exists.
    if unsafe { sys::nvrtcGetProgramLogSize(program, &raw mut size) } != sys::nvrtcResult::NVRTC_SUCCESS {
        return "(no log)".to_string();
    }
    let mut log = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    unsafe { sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast::<c_char>()) };
    String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_string()
}

fn check(status: sys::nvrtcResult, doing: &str) -> Result<()> {
    if status == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(Error::failed(format!("cannot {doing}: {status:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_ptxas_is_parsed() {
        let log = "ptxas info    : 8 bytes gmem\n\
                   ptxas info    : Compiling entry function 'first' for 'sm_90a'\n\
                   ptxas info    : Function properties for first\n\
                   ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
                   ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n\
                   ptxas info    : Compiling entry function 'second' for 'sm_90a'\n\
                   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                   ptxas info    : Used 18 registers, used 0 barriers\n";
        let of = |entry: &str, registers, stack, spills, shared| Resources {
            entry: entry.to_string(),
            registers,
            stack,
            spills,
            shared,
        };
        assert_eq!(Resources::read(log), [of("first", 168, 16, 8, 1024), of("second", 18, 0, 0, 0)]);
    }
}
