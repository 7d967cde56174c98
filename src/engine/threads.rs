//! Threads that nobody waits for.

use std::sync::mpsc::channel;
use std::thread::Builder;

/// Starts a thread whose end nobody waits for.
///
/// `body` begins only once the thread is detached. `pthread_detach` of glibc reads the thread's memory after
/// the moment from which the thread may end and return that memory (glibc bug 19951), so a thread that is
/// over as soon as it is started can crash the process.
///
/// # Errors
/// If the system cannot start a thread; `body` is dropped then.
pub fn spawn_detached(name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let (detached, begin) = channel::<()>();
    let handle = Builder::new().name(name.into()).spawn(move || {
        // Ends when the sender is dropped.
        let _ = begin.recv();
        body();
    })?;
    drop(handle);
    drop(detached);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_runs_under_its_name() {
        let (sender, names) = channel();
        spawn_detached("xrun-test", move || {
            let _ = sender.send(std::thread::current().name().map(str::to_owned));
        })
        .unwrap();
        assert_eq!(names.recv().unwrap().as_deref(), Some("xrun-test"));
    }
}
