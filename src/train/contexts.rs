//! Contexts of GPUs that are created while the corpus is read.

use crate::device::cuda::OpenedContext;
use crate::device::lock::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A thread that creates the contexts of this process's GPUs, one after the other, as the driver does also
/// where several threads ask for them.
#[derive(Debug)]
pub(super) struct ContextsAhead {
    opened: Mutex<HashMap<usize, Receiver<OpenedContext>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ContextsAhead {
    /// Begins to create contexts on GPUs, in this order.
    pub(super) fn begin(gpus: &[usize]) -> Self {
        Self::begin_with(gpus, |gpu| OpenedContext::open(gpu).ok())
    }

    fn begin_with(gpus: &[usize], open: impl Fn(usize) -> Option<OpenedContext> + Send + 'static) -> Self {
        let (senders, receivers): (Vec<(usize, Sender<_>)>, HashMap<_, _>) = gpus
            .iter()
            .map(|&gpu| {
                let (sender, receiver) = channel();
                ((gpu, sender), (gpu, receiver))
            })
            .unzip();
        let ended = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&ended);
        let body = move || {
            for (gpu, sender) in senders {
                if stops.load(Ordering::Acquire) {
                    return;
                }
                // What goes wrong here goes wrong again where the GPU is opened, and is said there.
                if let Some(context) = open(gpu) {
                    let _ = sender.send(context);
                }
            }
        };
        let thread = match receivers.is_empty() {
            true => None,
            false => std::thread::Builder::new().name("xrun-contexts".to_owned()).spawn(body).ok(),
        };
        Self { opened: Mutex::new(receivers), ended, thread }
    }

    /// Returns the context on a GPU, once; waits until it was created. `None` where it was not, and where
    /// none was asked for.
    pub(super) fn take(&self, gpu: usize) -> Option<OpenedContext> {
        let opened = lock(&self.opened).remove(&gpu)?;
        opened.recv().ok()
    }
}

impl Drop for ContextsAhead {
    /// Waits for the thread: the driver must not be at work when the process ends.
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_gpu_without_a_context_is_left_to_its_rank() {
        let ahead = ContextsAhead::begin_with(&[0, 1], |_| None);
        assert!([0, 1, 1, 7].into_iter().all(|gpu| ahead.take(gpu).is_none()));
    }

    #[test]
    fn no_context_is_begun_after_the_end() {
        let begun = Arc::new(Mutex::new(Vec::new()));
        let (log, barrier) = (Arc::clone(&begun), Arc::new(Barrier::new(2)));
        let first = Arc::clone(&barrier);
        let ahead = ContextsAhead::begin_with(&[0, 1], move |gpu| {
            lock(&log).push(gpu);
            first.wait();
            first.wait();
            None
        });
        barrier.wait();
        ahead.ended.store(true, Ordering::Release);
        barrier.wait();
        drop(ahead);
        assert_eq!(*lock(&begun), [0]);
    }
}
