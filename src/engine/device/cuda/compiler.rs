//! Compiles kernels with NVRTC, once per machine; results are cached on disk.

use super::cache::cache_folder;
use super::libraries::Nvidia;
use super::sources::{headers, source};
use crate::atomic::write_cached;
use crate::device::gpu::Kernel;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use crate::regular;
use cudarc::nvrtc::sys;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::path::PathBuf;

/// A kernel file with preprocessor definitions, compiled separately into one CUDA module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TranslationUnit {
    /// Name of the file without extension.
    pub file: &'static str,
    /// Names and values of the preprocessor definitions.
    pub defines: Vec<(&'static str, String)>,
}

impl TranslationUnit {
    /// Returns the translation unit that contains a kernel.
    pub fn for_kernel(kernel: &Kernel) -> Self {
        Self { file: kernel.file, defines: kernel.defines.clone() }
    }

    /// Describes the unit, such as `flash_attention -DT=bf16 -DHEAD_DIM=32`; shortens long definitions.
    pub fn describe(&self) -> String {
        let mut text = self.file.to_string();
        for (name, value) in &self.defines {
            let end = value.char_indices().nth(24).map_or(value.len(), |(at, _)| at);
            text += &format!(" -D{name}={}{}", &value[..end], if end < value.len() { "…" } else { "" });
        }
        text
    }
}

/// Compiles kernels for one GPU architecture.
#[derive(Debug)]
pub struct Compiler {
    architecture: String,
    /// NVRTC's version, as (major, minor).
    pub version: (i32, i32),
    /// Folder of cached results; `None` means no cache.
    folder: Option<PathBuf>,
}

impl Compiler {
    /// Creates a compiler for an architecture such as `sm_90a`. Results are cached under `XRUN_CACHE`, or in
    /// the user's cache folder.
    ///
    /// # Errors
    /// If NVRTC is not installed.
    pub fn new(architecture: &str) -> Result<Self> {
        Nvidia::Nvrtc.require("the kernel compiler (NVRTC)")?;
        let folder = cache_folder().map(|folder| folder.join("kernels"));
        Ok(Self { architecture: architecture.to_string(), version: version()?, folder })
    }

    /// Returns the cubin (GPU machine code) of a translation unit, from the cache if it is there.
    ///
    /// # Errors
    /// If the unit does not compile. The message contains the compiler's log.
    pub fn compile(&self, unit: &TranslationUnit) -> Result<Vec<u8>> {
        let options = self.options(unit);
        let cached = self.cached(unit, &options, "cubin");
        if let Some(cubin) = cached.as_ref().and_then(|path| regular::read(path, regular::MAX_TEXT).ok()) {
            return Ok(cubin);
        }
        let (cubin, _) = compile(unit, &options)?;
        if let Some(path) = cached {
            // If this fails, the next run compiles the unit again.
            let _ = write_cached(&path, &cubin);
        }
        Ok(cubin)
    }

    /// Returns the resources used by each kernel of a translation unit. Compiles the unit unless the cache
    /// has the log of the same sources, options and compiler.
    ///
    /// # Errors
    /// If the unit does not compile. The message contains the compiler's log.
    pub fn resources(&self, unit: &TranslationUnit) -> Result<Vec<KernelResources>> {
        let mut options = self.options(unit);
        options.push("--ptxas-options=-v".to_string());
        let cached = self.cached(unit, &options, "log");
        let known = cached.as_ref().and_then(|path| regular::read_text(path).ok());
        // A log that names no kernel is damaged: every unit has one.
        let known = known.map(|log| KernelResources::parse(&log)).filter(|kernels| !kernels.is_empty());
        if let Some(kernels) = known {
            return Ok(kernels);
        }
        let (_, log) = compile(unit, &options)?;
        if let Some(path) = cached {
            // If this fails, the next call compiles the unit again.
            let _ = write_cached(&path, log.as_bytes());
        }
        Ok(KernelResources::parse(&log))
    }

    /// Compiles translation units in parallel on all CPU cores, and returns their cubins in the same order.
    ///
    /// # Errors
    /// If a unit does not compile. The message contains the compiler's log.
    pub fn compile_all(&self, units: &[TranslationUnit]) -> Result<Vec<Vec<u8>>> {
        units.par_iter().map(|unit| self.compile(unit).inspect(|_| report_progress())).collect()
    }

    /// Compiles translation units into the cache, like [`Compiler::compile_all`], for later use. Does nothing
    /// without a cache.
    ///
    /// # Errors
    /// If a unit does not compile. The message contains the compiler's log.
    pub fn fill_cache(&self, units: &[TranslationUnit]) -> Result<()> {
        match self.folder {
            Some(_) => self.compile_all(units).map(drop),
            None => Ok(()),
        }
    }

    /// Returns NVRTC's command-line options for a translation unit.
    fn options(&self, unit: &TranslationUnit) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={}", self.architecture),
            "--std=c++17".to_string(),
            "--generate-line-info".to_string(),
        ];
        options.extend(unit.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// Returns the file of a cached result; `None` without a cache. Its name has the kernel file's name, a
    /// hash of the sources, the options and NVRTC's version, and the extension.
    fn cached(&self, unit: &TranslationUnit, options: &[String], extension: &str) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
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
        Some(folder.join(format!("{}-{}.{extension}", unit.file, &hash.finalize().to_hex()[..32])))
    }
}

/// Registers and memory that a kernel uses, as reported by ptxas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// Name of the kernel function.
    pub entry: String,
    /// Registers per thread.
    pub registers: usize,
    /// Stack frame per thread, in bytes.
    pub stack: usize,
    /// Registers stored to local memory per thread, in bytes.
    pub spill_stores: usize,
    /// Static shared memory per block, in bytes.
    pub shared: usize,
}

impl KernelResources {
    /// Parses the output of `ptxas -v`.
    fn parse(log: &str) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for line in log.lines() {
            if let Some(entry) = line.split("Compiling entry function '").nth(1) {
                let entry = entry.split('\'').next().unwrap_or_default().to_string();
                found.push(Self { entry, registers: 0, stack: 0, spill_stores: 0, shared: 0 });
            }
            let Some(last) = found.last_mut() else { continue };
            // Parses the number in front of these words.
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
            last.spill_stores = before(" bytes spill stores").unwrap_or(last.spill_stores);
            last.registers = before(" registers").unwrap_or(last.registers);
            last.shared = before(" bytes smem").unwrap_or(last.shared);
        }
        found
    }
}

/// Returns the translation units of kernels, without duplicates.
pub fn translation_units<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> Vec<TranslationUnit> {
    kernels.into_iter().map(TranslationUnit::for_kernel).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns NVRTC's version, as (major, minor). The library must be open.
pub(super) fn version() -> Result<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC is open, and both addresses point to integers.
    let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    check(status, "ask NVRTC for its version")?;
    Ok((major, minor))
}

/// Compiles a translation unit. Returns the cubin and the compiler's log.
fn compile(unit: &TranslationUnit, options: &[String]) -> Result<(Vec<u8>, String)> {
    let (status, cubin, log) = run_nvrtc((unit.file, &source(unit.file)), &headers(), options)?;
    if status != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(Error::failed(format!("kernel {} does not compile:\n{log}", unit.describe())));
    }
    Ok((cubin?, log))
}

/// Compiles a source with a name. Returns NVRTC's status, the cubin or why there is none, and the log.
fn run_nvrtc(
    (file, source): (&str, &str),
    included: &[(&str, Cow<'_, str>)],
    options: &[String],
) -> Result<(sys::nvrtcResult, Result<Vec<u8>>, String)> {
    let c_string =
        |s: &str| CString::new(s).map_err(|_| Error::failed("a kernel source contains a zero byte"));
    let (code, name) = (c_string(source)?, c_string(&format!("{file}.cu"))?);
    let headers: Vec<CString> = included.iter().map(|(_, h)| c_string(h)).collect::<Result<_>>()?;
    let names: Vec<CString> = included.iter().map(|(n, _)| c_string(n)).collect::<Result<_>>()?;
    let options: Vec<CString> = options.iter().map(|o| c_string(o)).collect::<Result<_>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
    let (header_texts, header_names) = (pointers(&headers), pointers(&names));
    let mut program = std::ptr::null_mut();
    // SAFETY: every pointer refers to a string that lives until the program is destroyed below.
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
    check(status, "create an NVRTC program")?;
    let options = pointers(&options);
    // SAFETY: the program was created above; the options live during the call.
    let status = unsafe { sys::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr()) };
    let cubin = check(status, "compile a kernel").and_then(|()| cubin(program));
    let result = (status, cubin, log(program));
    // SAFETY: the program was created above and is not used again.
    unsafe { sys::nvrtcDestroyProgram(&raw mut program) };
    Ok(result)
}

/// Returns the architectures that NVRTC can compile for, such as 90 for `sm_90`, ascending; `None` without
/// NVRTC.
pub(super) fn architectures() -> Option<Vec<u32>> {
    Nvidia::Nvrtc.open()?;
    let mut count = 0;
    // SAFETY: NVRTC is open, and the address points to an integer.
    check(unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }, "count architectures").ok()?;
    let mut known = vec![0i32; usize::try_from(count).ok()?];
    // SAFETY: the buffer has as many elements as NVRTC reported.
    check(unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }, "list architectures").ok()?;
    Some(known.into_iter().filter_map(|sm| u32::try_from(sm).ok()).collect())
}

/// Compiles a trivial kernel to check that NVRTC is installed completely.
///
/// # Errors
/// If the kernel does not compile. The message contains the compiler's log.
pub(super) fn compile_trivial_kernel(architecture: &str) -> Result<()> {
    let code = "extern \"C\" __global__ void trivial(float* x) { x[0] = 1.0f; }";
    let (_, cubin, log) = run_nvrtc(("trivial", code), &[], &[format!("--gpu-architecture={architecture}")])?;
    cubin.map(drop).map_err(|e| Error::failed(format!("{}\n{log}", e.message())))
}

/// Returns the machine code of a compiled program.
fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: the program is compiled.
    check(unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) }, "ask for a kernel's size")?;
    let mut code = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC reported.
    let status = unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast::<c_char>()) };
    check(status, "read a kernel")?;
    Ok(code)
}

/// Returns the compiler's output.
fn log(program: sys::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the program exists.
    if unsafe { sys::nvrtcGetProgramLogSize(program, &raw mut size) } != sys::nvrtcResult::NVRTC_SUCCESS {
        return "(no log)".to_string();
    }
    let mut log = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC reported.
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
        let resources = |entry: &str, registers, stack, spill_stores, shared| KernelResources {
            entry: entry.to_string(),
            registers,
            stack,
            spill_stores,
            shared,
        };
        assert_eq!(
            KernelResources::parse(log),
            [resources("first", 168, 16, 8, 1024), resources("second", 18, 0, 0, 0)]
        );
    }
}
