//! The allocator of the program: an allocation that the system refuses ends the process with a message and
//! exit code 4, and not with an abort. Where a refusal becomes an error instead, the allocation is wrapped in
//! [`fallible`].

use crate::error::ErrorKind;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Memory kept back for the hooks: whoever is refused a small block has nothing left to write a status with.
const RESERVE_BYTES: usize = 1 << 20;

/// How long other threads wait for the hooks of the one that was refused first.
const HOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// The system's allocator, with an end where it refuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAllocator;

/// Called with the message before the process exits.
type Hook = Box<dyn Fn(&str) + Send>;

/// What is called before the process exits, and the memory for it.
struct Hooks {
    calls: Vec<Hook>,
    reserve: Vec<u8>,
}

static HOOKS: Mutex<Hooks> = Mutex::new(Hooks { calls: Vec::new(), reserve: Vec::new() });

/// True once an allocation was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True while a refusal on this thread is an error of its caller.
    static FALLIBLE: Cell<bool> = const { Cell::new(false) };
    /// True while this thread ends the process.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Runs allocations that are checked for a refusal, such as `try_reserve`: here a refusal does not end the
/// process.
pub fn fallible<T>(allocate: impl FnOnce() -> T) -> T {
    let before = FALLIBLE.replace(true);
    let result = allocate();
    FALLIBLE.set(before);
    result
}

/// Adds something to do before a refused allocation ends the process, such as writing down how a run ended.
/// It gets the message, and little memory.
pub fn on_refusal(hook: impl Fn(&str) + Send + 'static) {
    let hook: Hook = Box::new(hook);
    if let Ok(mut hooks) = HOOKS.lock() {
        hooks.calls.push(hook);
    }
    let mut reserve: Vec<u8> = Vec::new();
    // Without a reserve the hooks are called too, and may be refused memory.
    if fallible(|| reserve.try_reserve_exact(RESERVE_BYTES)).is_ok()
        && let Ok(mut hooks) = HOOKS.lock()
    {
        hooks.reserve = reserve;
    }
}

// SAFETY: every call is passed to the system's allocator as it came, and its result is returned as it came.
unsafe impl GlobalAlloc for HostAllocator {
    /// # Safety
    /// That of the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    /// # Safety
    /// That of the trait.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    /// # Safety
    /// That of the trait.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        granted(unsafe { System.realloc(block, layout, size) }, size)
    }

    /// # Safety
    /// That of the trait.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the block, or ends the process where there is none and the caller does not check for that.
#[inline]
fn granted(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        refused(bytes);
    }
    block
}

#[cold]
fn refused(bytes: usize) {
    // A thread whose locals are gone is at its end, and not within `fallible`.
    if FALLIBLE.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    let exit = || signal_hook::low_level::exit(ErrorKind::DoesNotFit.exit_code().into());
    if ENDING.try_with(|ending| ending.replace(true)).unwrap_or(true) {
        exit();
    }
    if REFUSED.swap(true, Ordering::SeqCst) {
        std::thread::sleep(HOOK_TIMEOUT);
        exit();
    }
    // Without an allocation of its own.
    let mut text = [0; 256];
    let mut message = Cursor::new(&mut text[..]);
    let _ = write!(
        message,
        "out of memory: the system refused {bytes} bytes of host memory. Give the process more, or ask for less: a smaller \
         batch, model or input"
    );
    let written = message.position() as usize;
    let message = std::str::from_utf8(&text[..written]).unwrap_or("out of memory");
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(b"error: ").and_then(|()| stderr.write_all(message.as_bytes()));
    let _ = stderr.write_all(b"\n");
    // Locked only while a hook is added.
    if let Ok(mut hooks) = HOOKS.try_lock() {
        hooks.reserve = Vec::new();
        for hook in &hooks.calls {
            let _ = catch_unwind(AssertUnwindSafe(|| hook(message)));
        }
    }
    exit();
}
