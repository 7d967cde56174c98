//! Opens the devices of ranks in the order that makes them wait least. GPU contexts are created while the
//! corpus is read, and kernels compile while devices open.

use crate::device::Device;
use crate::device::communicator::Communicator;
use crate::device::cpu::Pool;
use crate::device::cuda::OpenedContext;
use crate::error::Result;
use crate::exec::compile_ahead;
use crate::lock::lock;
use crate::model::Programs;
use crate::plan::Plan;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The order in which the ranks of one process open their devices: rank 0 first. The driver creates contexts
/// one after the other, and all ranks wait for the matrix-product algorithms that rank 0 chooses on its own
/// device.
#[derive(Debug)]
pub(super) struct DeviceOrder {
    first: Mutex<()>,
    /// The contexts of GPUs, by GPU.
    opened: Mutex<HashMap<usize, Receiver<OpenedContext>>>,
    ended: Arc<AtomicBool>,
    /// Creates the contexts in sequence. The driver also does it in sequence when several threads ask.
    thread: Option<JoinHandle<()>>,
}

impl DeviceOrder {
    /// Starts to create the contexts on GPUs, in the order of their ranks.
    pub(super) fn start(gpus: &[usize]) -> Self {
        Self::start_with(gpus, |gpu| OpenedContext::open(gpu).ok())
    }

    fn start_with(gpus: &[usize], open: impl Fn(usize) -> Option<OpenedContext> + Send + 'static) -> Self {
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
                // An error here comes back, and is reported, when the GPU is opened.
                if let Some(context) = open(gpu) {
                    let _ = sender.send(context);
                }
            }
        };
        let thread = match receivers.is_empty() {
            true => None,
            false => std::thread::Builder::new().name("xrun-contexts".to_owned()).spawn(body).ok(),
        };
        Self { first: Mutex::default(), opened: Mutex::new(receivers), ended, thread }
    }

    /// Waits for the context on a GPU and returns it, once. `None` if it could not be created or was never
    /// requested.
    fn take_context(&self, gpu: usize) -> Option<OpenedContext> {
        let opened = lock(&self.opened).remove(&gpu)?;
        opened.recv().ok()
    }

    /// Gives rank 0 the claim to open its device before the others. Dropping it lets them open theirs. Rank 0
    /// must call this before the other ranks call [`DeviceOrder::open`].
    pub(super) fn first_place(&self, rank: usize) -> Option<MutexGuard<'_, ()>> {
        (rank == 0).then(|| lock(&self.first))
    }

    /// Opens the device of a rank. Rank 0 passes its place; the others wait until rank 0 has its device.
    /// Meanwhile rank 0 compiles the kernels of all ranks on its machine into the cache. Returns the device,
    /// and how long opening waited for kernels after the device was ready.
    ///
    /// # Errors
    /// If a library or the GPU is missing.
    pub(super) fn open(
        &self,
        place: Option<MutexGuard<'_, ()>>,
        (plan, programs): (&Plan, &Programs),
        comm: &dyn Communicator,
        (gpu, pool): (Option<usize>, &Arc<Pool>),
    ) -> Result<(Device, Duration)> {
        let open = || match gpu.and_then(|gpu| self.take_context(gpu)) {
            Some(context) => Device::open_in(context, Arc::clone(pool)),
            None => Device::open(gpu, Arc::clone(pool)),
        };
        let (place, ordinal) = match (place, gpu) {
            (Some(place), Some(ordinal)) => (place, ordinal),
            (place, _) => {
                drop(place);
                drop(lock(&self.first));
                return Ok((open()?, Duration::ZERO));
            }
        };
        let on_machine = comm.world_size().min(plan.execution.gpus().count());
        std::thread::scope(|scope| {
            // An error here comes back, and is reported, when the kernels are loaded.
            scope.spawn(move || drop(compile_ahead(ordinal, 0..on_machine, &programs.sections())));
            let device = open();
            drop(place);
            device.map(|device| (device, Instant::now()))
        })
        .map(|(device, opened)| (device, opened.elapsed()))
    }
}

impl Drop for DeviceOrder {
    /// Waits for the thread, because the driver must be idle when the process ends.
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
    fn other_ranks_open_after_rank_0() {
        let order = DeviceOrder::start(&[]);
        assert!(order.first_place(1).is_none());
        let place = order.first_place(0);
        assert!(place.is_some() && order.first.try_lock().is_err(), "others wait");
        drop(place);
        assert!(order.first.try_lock().is_ok(), "also where rank 0 has failed");
    }

    #[test]
    fn a_gpu_without_a_context_is_left_to_its_rank() {
        let ahead = DeviceOrder::start_with(&[0, 1], |_| None);
        assert!([0, 1, 1, 7].into_iter().all(|gpu| ahead.take_context(gpu).is_none()));
    }

    #[test]
    fn no_context_is_created_after_the_end() {
        let begun = Arc::new(Mutex::new(Vec::new()));
        let (log, barrier) = (Arc::clone(&begun), Arc::new(Barrier::new(2)));
        let first = Arc::clone(&barrier);
        let ahead = DeviceOrder::start_with(&[0, 1], move |gpu| {
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
