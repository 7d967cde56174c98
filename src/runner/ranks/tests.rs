//! Collectives and aborts between ranks in one process and in several.

use super::connection::{PayloadKind, RankMessage};
use super::{Connection, Group, OnDisconnect, Peer, RemoteCommunicator, Server, Watchdog};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::Error;
use crate::liveness::report_progress;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A group, its ranks, and the server of the ranks behind connections.
type Ranks = (Arc<Group>, Vec<Arc<dyn Communicator>>, Option<Server>);

const TIMEOUT: Duration = Duration::from_secs(600);
const GROUP: Peer<'_> = Peer { name: "the group", timeout: TIMEOUT, watched: true };

/// Groups of four ranks: all local, all remote, and one local of four.
fn groups() -> Vec<Ranks> {
    let group = Group::new(4);
    let local = |rank| -> Arc<dyn Communicator> { Arc::new(group.local(rank)) };
    let threads = (Arc::clone(&group), (0..4).map(local).collect(), None);
    vec![threads, remote(0), remote(1)]
}

/// A group with `locals` local ranks; the others are behind connections.
fn remote(locals: usize) -> Ranks {
    let group = Group::new(4);
    let mut ranks: Vec<Arc<dyn Communicator>> = Vec::new();
    (0..locals).for_each(|rank| ranks.push(Arc::new(group.local(rank))));
    let mut connections = Vec::new();
    for rank in locals..4 {
        let (here, there) = pair();
        connections.push((rank, here));
        ranks.push(Arc::new(RemoteCommunicator::new(rank, 4, there, GROUP, || {}).unwrap()));
    }
    let weak = Arc::downgrade(&group);
    let on_disconnect: OnDisconnect = Arc::new(move |rank| {
        weak.upgrade().into_iter().for_each(|group| group.abort_for_rank(rank, &Error::failed("gone")));
    });
    let server = Server::start(&group, connections, TIMEOUT, on_disconnect).unwrap();
    (group, ranks, Some(server))
}

fn pair() -> (Connection, Connection) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let there = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    // Sends small frames at once, like a rendezvous.
    for end in [&here, &there] {
        end.set_nodelay(true).unwrap();
    }
    (Connection::Tcp(here), Connection::Tcp(there))
}

/// Runs `body` on every rank and returns what each returned.
fn on_all<T: Send>(ranks: &[Arc<dyn Communicator>], body: impl Fn(&dyn Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || body(&**rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sums_maxima_and_bytes_agree_on_every_rank() {
    for (_, ranks, _server) in groups() {
        on_all(&ranks, |comm| {
            for round in 0..30u32 {
                let mut values = vec![comm.rank() as f32 + round as f32; 1000];
                comm.all_reduce_sum_f32("gradients", &mut values).unwrap();
                assert!(values.iter().all(|x| *x == 6.0 + 4.0 * round as f32));
                let mut values = [0.5 * comm.rank() as f64];
                comm.all_reduce_sum_f64("loss", &mut values).unwrap();
                assert_eq!(values, [3.0]);
                assert_eq!(comm.all_reduce_max("largest", comm.rank() as u64).unwrap(), 3);
                let all = comm.gather("names", vec![comm.rank() as u8; comm.rank()]).unwrap();
                assert_eq!(all.parts().collect::<Vec<_>>(), [&[][..], &[1], &[2, 2], &[3, 3, 3]]);
                let first = comm.broadcast("table", vec![comm.rank() as u8 + 7]).unwrap();
                assert_eq!(first, [7]);
            }
        });
    }
}

/// In rank order, 1e8 + 1 rounds to 1e8 before -1e8 is added, so the 1 is lost; in some other orders it is
/// not.
#[test]
fn sums_are_added_in_rank_order_wherever_ranks_are() {
    for (_, ranks, _server) in groups() {
        for _ in 0..20 {
            let sums = on_all(&ranks, |comm| {
                let mut values = [[1e8f32, 1.0, -1e8, 0.25][comm.rank()]];
                comm.all_reduce_sum_f32("order", &mut values).unwrap();
                values[0]
            });
            assert_eq!(sums, [0.25; 4]);
        }
    }
}

#[test]
fn an_abort_by_one_rank_reaches_the_others() {
    for (group, ranks, _server) in groups() {
        let told = Arc::new(AtomicUsize::new(0));
        for rank in &ranks {
            let told = Arc::clone(&told);
            rank.on_abort(Box::new(move |error| {
                assert!(error.message().ends_with("out of memory"), "{error}");
                told.fetch_add(1, Ordering::SeqCst);
            }));
        }
        let errors = on_all(&ranks, |comm| match comm.rank() {
            3 => {
                comm.set_status(7, RankPhase::working("computes"));
                comm.abort(&Error::does_not_fit("out of memory"));
                String::new()
            }
            _ => {
                let error = comm.barrier("the end").unwrap_err();
                assert_eq!(error.kind(), crate::error::ErrorKind::DoesNotFit);
                error.message().to_owned()
            }
        });
        for error in &errors[..3] {
            assert_eq!(error, "another rank stopped the run: rank 3 at step 7: out of memory");
        }
        assert_eq!(group.abort_reason().unwrap().message(), "rank 3 at step 7: out of memory");
        assert!(ranks[0].barrier("later").is_err(), "it stays aborted");
        let late = Arc::clone(&told);
        ranks[1].on_abort(Box::new(move |_| {
            late.fetch_add(1, Ordering::SeqCst);
        }));
        // A remote rank learns of it a moment later.
        let began = Instant::now();
        while told.load(Ordering::SeqCst) < 5 {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{} of 5 were told",
                told.load(Ordering::SeqCst)
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_connection_that_ends_aborts_the_run() {
    let (_, mut ranks, _server) = remote(1);
    drop(ranks.pop());
    let errors = on_all(&ranks, |comm| comm.barrier("the end").unwrap_err().message().to_owned());
    assert_eq!(errors, ["another rank stopped the run: rank 3: gone"; 3]);
}

/// Dropping the server of an aborted run closes the connections. The reason must be sent before that.
#[test]
fn the_reason_of_an_abort_is_sent_before_connections_are_closed() {
    for _ in 0..50 {
        let (group, ranks, server) = remote(1);
        group.abort(&Error::failed("the run is in use"));
        drop(server);
        let errors =
            on_all(&ranks[1..], |comm| comm.barrier("the beginning").unwrap_err().message().to_owned());
        assert_eq!(errors, ["another rank stopped the run: the run is in use"; 3]);
    }
}

/// A suspended process reads nothing, so a send to it neither completes nor fails.
#[test]
fn a_rank_that_does_not_read_does_not_block_the_server() {
    let (here, mut there) = pair();
    let group = Group::new(2);
    let server = Server::start(&group, vec![(1, here)], TIMEOUT, Arc::new(|_| {})).unwrap();
    let values = vec![0.0f32; 16 << 20];
    let header = RankMessage::Collective { name: "gradients".to_owned(), kind: PayloadKind::SumF32 };
    thread::scope(|scope| {
        let sending = scope.spawn(|| there.send(&header, &[bytemuck::cast_slice(&values)]));
        group.local(0).all_reduce_sum_f32("gradients", &mut values.clone()).unwrap();
        sending.join().unwrap().unwrap();
    });
    group.abort(&Error::failed("no sign of rank 1"));
    let (sender, gone) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop(server);
        let _ = sender.send(());
    });
    gone.recv_timeout(Duration::from_secs(30)).expect("the server waits for a rank that does not read");
}

#[test]
fn a_finished_rank_may_disconnect() {
    let (group, mut ranks, _server) = remote(1);
    let gone = ranks.pop().unwrap();
    gone.set_status(5, RankPhase::Finished);
    drop(gone);
    assert!(!group.wait_for_abort(Duration::from_millis(100)), "{:?}", group.abort_reason());
}

/// A server that closed the connections of ranks that have trained, but not said so yet, would end the run of
/// each as failed.
#[test]
fn the_server_waits_for_ranks_that_are_about_to_finish() {
    let (group, ranks, server) = remote(1);
    let (sender, closed) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let server = server.expect("three ranks are remote");
        server.wait_until_finished();
        drop(server);
        let _ = sender.send(());
    });
    for rank in &ranks[1..] {
        let early = closed.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "it closes connections before rank {} is finished", rank.rank());
        rank.set_status(5, RankPhase::Finished);
    }
    closed.recv_timeout(Duration::from_secs(30)).expect("all ranks are finished");
    assert!(group.abort_reason().is_none() && ranks.iter().all(|rank| rank.abort_reason().is_none()));

    // Nobody waits for the ranks of a run that was aborted.
    let (group, _ranks, server) = remote(1);
    group.abort(&Error::failed("planned"));
    let began = Instant::now();
    server.expect("three ranks are remote").wait_until_finished();
    assert!(began.elapsed() < Duration::from_secs(9));
}

#[test]
fn ranks_notice_that_their_server_is_gone() {
    let (_, ranks, server) = remote(0);
    drop(server);
    let errors = on_all(&ranks, |comm| comm.barrier("the end").unwrap_err().message().to_owned());
    assert!(errors.iter().all(|e| e.contains("gone")), "{errors:?}");
}

#[test]
fn ranks_in_different_collectives_are_told_so() {
    for (_, ranks, _server) in groups() {
        let errors = on_all(&ranks, |comm| {
            let name = if comm.rank() == 2 { "the end of step 4" } else { "the end of step 3" };
            comm.barrier(name).unwrap_err().message().to_owned()
        });
        assert!(errors.iter().all(|e| e.contains("step 3") && e.contains("step 4")), "{errors:?}");
    }
    for (_, ranks, _server) in groups() {
        let errors = on_all(&ranks, |comm| {
            let mut values = vec![0.0; 1 + comm.rank() / 3];
            comm.all_reduce_sum_f32("gradients", &mut values).unwrap_err().message().to_owned()
        });
        assert!(errors.iter().all(|e| e.contains("different lengths, at gradients")), "{errors:?}");
    }
}

#[test]
fn the_server_can_request_a_stop() {
    let (here, there) = pair();
    let (sender, asked) = std::sync::mpsc::channel();
    let _rank = RemoteCommunicator::new(0, 1, there, GROUP, move || sender.send(()).unwrap()).unwrap();
    let server = Server::start(&Group::new(1), vec![(0, here)], TIMEOUT, Arc::new(|_| {})).unwrap();
    server.request_stop();
    asked.recv_timeout(Duration::from_secs(30)).unwrap();
}

#[test]
fn an_invalid_frame_aborts_the_run_and_allocates_nothing() {
    use std::io::Write;
    let (here, mut there) = pair();
    let group = Group::new(1);
    let _server = Server::start(&group, vec![(0, here)], TIMEOUT, Arc::new(|_| {})).unwrap();
    there.write_all(&[0xff; 12]).unwrap();
    assert!(group.wait_for_abort(Duration::from_secs(30)));
    assert!(group.abort_reason().unwrap().message().contains("invalid frame"), "{:?}", group.abort_reason());
}

/// Nothing arrives over an open connection: the process at the other end is suspended.
#[test]
fn a_rank_ends_itself_when_its_server_is_silent() {
    let timeout = Duration::from_millis(300);
    for watched in [true, false] {
        let (_here, there) = pair();
        let server = Peer { name: "rank 0", timeout, watched };
        let rank = RemoteCommunicator::new(1, 2, there, server, || {}).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| rank.barrier("the end").unwrap_err());
            let began = Instant::now();
            while began.elapsed() < 4 * timeout || (watched && rank.abort_reason().is_none()) {
                assert!(began.elapsed() < Duration::from_secs(60), "the silence is not noticed");
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(rank.abort_reason().is_some(), watched);
            rank.close();
            let said = waits.join().unwrap();
            assert_eq!(said.message().contains("no sign of the process of rank 0 for "), watched, "{said}");
        });
    }
}

#[test]
fn heartbeats_keep_a_rank_that_waits_for_another() {
    let timeout = Duration::from_secs(2);
    let (here, there) = pair();
    let group = Group::new(2);
    let _server = Server::start(&group, vec![(1, here)], timeout, Arc::new(|_| {})).unwrap();
    let server = Peer { name: "rank 0", timeout, watched: true };
    let rank = RemoteCommunicator::new(1, 2, there, server, || {}).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| rank.barrier("the end"));
        thread::sleep(timeout + timeout / 2);
        group.local(0).barrier("the end").unwrap();
        waits.join().unwrap().unwrap();
    });
}

/// A rank behind a connection and a rank in this process both work longer than the timeout.
#[test]
fn work_that_reports_progress_is_not_a_hang() {
    let timeout = Duration::from_secs(1);
    let (here, there) = pair();
    let group = Group::new(2);
    let _server = Server::start(&group, vec![(1, here)], timeout, Arc::new(|_| {})).unwrap();
    let peer = Peer { name: "rank 0", timeout, watched: true };
    let rank = RemoteCommunicator::new(1, 2, there, peer, || {}).unwrap();
    let _watchdog = Watchdog::start(&group, vec![0], timeout).unwrap();
    let began = Instant::now();
    while began.elapsed() < 3 * timeout {
        report_progress();
        thread::sleep(timeout / 100);
    }
    assert_eq!(group.abort_reason().map(|e| e.to_string()), None);
    assert_eq!(rank.abort_reason().map(|e| e.to_string()), None);
}
