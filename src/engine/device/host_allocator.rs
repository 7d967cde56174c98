//! The program's allocator. If the system refuses an allocation, the process ends with a message and exit
//! code 4 instead of an abort. Allocations that turn a refusal into an error are wrapped in [`fallible`].

use crate::error::ErrorKind;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Memory reserved for the hooks: after the refusal of a small block, none may be left to write a status
/// with.
const RESERVE_BYTES: usize = 1 << 20;

/// How long other threads wait for the hooks of the thread that was refused first.
const HOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// The system's allocator, which ends the process on a refusal.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAllocator;

/// Called with the message before the process exits.
type Hook = Box<dyn Fn(&str) + Send>;

/// Functions to call before the process exits, and the memory reserved for them.
struct Hooks {
    calls: Vec<Hook>,
    reserve: Vec<u8>,
}

static HOOKS: Mutex<Hooks> = Mutex::new(Hooks { calls: Vec::new(), reserve: Vec::new() });

/// True once an allocation has been refused.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True while the caller on this thread handles a refusal as an error.
    static FALLIBLE: Cell<bool> = const { Cell::new(false) };
    /// True while this thread is ending the process.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Runs allocations whose failure the caller checks, such as `try_reserve`: a refusal in here does not end
/// the process.
pub fn fallible<T>(allocate: impl FnOnce() -> T) -> T {
    let before = FALLIBLE.replace(true);
    let result = allocate();
    FALLIBLE.set(before);
    result
}

/// Adds a hook to call before a refused allocation ends the process, for example to record how a run ended.
/// The hook gets the message, and little memory is available to it.
pub fn on_refusal(hook: impl Fn(&str) + Send + 'static) {
    let hook: Hook = Box::new(hook);
    if let Ok(mut hooks) = HOOKS.lock() {
        hooks.calls.push(hook);
    }
    let mut reserve: Vec<u8> = Vec::new();
    // Without the reserve, hooks are still called, but may be refused memory.
    if fallible(|| reserve.try_reserve_exact(RESERVE_BYTES)).is_ok()
        && let Ok(mut hooks) = HOOKS.lock()
    {
        hooks.reserve = reserve;
    }
}

// SAFETY: every call and its result pass through the system's allocator unchanged.
unsafe impl GlobalAlloc for HostAllocator {
    /// # Safety
    /// The trait's contract.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        exit_if_null(unsafe { System.alloc(layout) }, layout.size())
    }

    /// # Safety
    /// The trait's contract.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        exit_if_null(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    /// # Safety
    /// The trait's contract.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        exit_if_null(unsafe { System.realloc(block, layout, size) }, size)
    }

    /// # Safety
    /// The trait's contract.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the block. If there is none and the caller does not check for that, ends the process.
#[inline]
fn exit_if_null(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        refused(bytes);
    }
    block
}

#[cold]
fn refused(bytes: usize) {
    // A thread whose locals are destroyed is exiting and not inside `fallible`.
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
    // Format the message without allocating.
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
    // The lock is held only while a hook is added.
    if let Ok(mut hooks) = HOOKS.try_lock() {
        hooks.reserve = Vec::new();
        for hook in &hooks.calls {
            let _ = catch_unwind(AssertUnwindSafe(|| hook(message)));
        }
    }
    exit();
}
