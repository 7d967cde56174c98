//! Meetings of ranks of one process and of several.

use super::connection::{Kind, Up};
use super::{Group, Hub, Line, Lost, Remote};
use crate::device::communicator::{Activity, Communicator};
use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A group, its ranks, and who serves those at the ends of lines.
type Ranks = (Arc<Group>, Vec<Arc<dyn Communicator>>, Option<Hub>);

/// Groups of four: threads, and ranks at the ends of lines.
fn groups() -> Vec<Ranks> {
    let group = Group::new(4);
    let local = |rank| -> Arc<dyn Communicator> { Arc::new(group.local(rank)) };
    let threads = (Arc::clone(&group), (0..4).map(local).collect(), None);
    vec![threads, lines(0), lines(1)]
}

/// A group with `locals` ranks of its own process; the others are at the ends of lines.
fn lines(locals: usize) -> Ranks {
    let group = Group::new(4);
    let mut ranks: Vec<Arc<dyn Communicator>> = Vec::new();
    (0..locals).for_each(|rank| ranks.push(Arc::new(group.local(rank))));
    let mut ends = Vec::new();
    for rank in locals..4 {
        let (here, there) = pair();
        ends.push((rank, here));
        ranks.push(Arc::new(Remote::new(rank, 4, there, "the group", || {}).unwrap()));
    }
    let lost = Arc::downgrade(&group);
    let lost: Lost = Arc::new(move |rank| {
        lost.upgrade().into_iter().for_each(|group| group.abort_by(rank, &Error::failed("gone")));
    });
    let hub = Hub::serve(&group, ends, lost).unwrap();
    (group, ranks, Some(hub))
}

fn pair() -> (Line, Line) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let there = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    // As in a rendezvous: small frames are not held back.
    for end in [&here, &there] {
        end.set_nodelay(true).unwrap();
    }
    (Line::Tcp(here), Line::Tcp(there))
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
    for (_, ranks, _hub) in groups() {
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

/// Added in rank order, 1 is lost in 1e8 before -1e8 comes; in other orders it is not.
#[test]
fn sums_are_added_in_rank_order_wherever_ranks_are() {
    for (_, ranks, _hub) in groups() {
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
fn a_rank_that_ends_the_run_ends_the_others() {
    for (group, ranks, _hub) in groups() {
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
                comm.now(7, Activity::Steps);
                comm.abort(&Error::does_not_fit("out of memory"));
                String::new()
            }
            _ => {
                let error = comm.barrier("the end").unwrap_err();
                assert_eq!(error.kind(), crate::error::Kind::DoesNotFit);
                error.message().to_owned()
            }
        });
        for error in &errors[..3] {
            assert_eq!(error, "another rank stopped the run: rank 3 at step 7: out of memory");
        }
        assert_eq!(group.ended().unwrap().message(), "rank 3 at step 7: out of memory");
        assert!(ranks[0].barrier("later").is_err(), "it stays ended");
        let late = Arc::clone(&told);
        ranks[1].on_abort(Box::new(move |_| {
            late.fetch_add(1, Ordering::SeqCst);
        }));
        // Who is at the end of a line hears of it a moment later.
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
fn a_line_that_ends_is_a_rank_that_is_gone() {
    let (_, mut ranks, _hub) = lines(1);
    drop(ranks.pop());
    let errors = on_all(&ranks, |comm| comm.barrier("the end").unwrap_err().message().to_owned());
    assert_eq!(errors, ["another rank stopped the run: rank 3: gone"; 3]);
}

/// Who ends a run closes the lines and goes; the words that say why must have been sent by then.
#[test]
fn everybody_hears_why_before_the_lines_are_closed() {
    for _ in 0..50 {
        let (group, ranks, hub) = lines(1);
        group.abort(&Error::failed("the run is in use"));
        drop(hub);
        let errors =
            on_all(&ranks[1..], |comm| comm.barrier("the beginning").unwrap_err().message().to_owned());
        assert_eq!(errors, ["another rank stopped the run: the run is in use"; 3]);
    }
}

/// A process that was stopped takes in nothing: what is being sent to it is neither finished nor given up.
#[test]
fn a_rank_that_does_not_read_keeps_nobody_from_leaving() {
    let (here, mut there) = pair();
    let group = Group::new(2);
    let hub = Hub::serve(&group, vec![(1, here)], Arc::new(|_| {})).unwrap();
    let much = vec![0.0f32; 16 << 20];
    let header = Up::Meet { meeting: "gradients".to_owned(), kind: Kind::SumF32 };
    thread::scope(|scope| {
        let bringing = scope.spawn(|| there.send(&header, &[bytemuck::cast_slice(&much)]));
        group.local(0).all_reduce_sum_f32("gradients", &mut much.clone()).unwrap();
        bringing.join().unwrap().unwrap();
    });
    group.abort(&Error::failed("no sign of rank 1"));
    let (sender, gone) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop(hub);
        let _ = sender.send(());
    });
    gone.recv_timeout(Duration::from_secs(30)).expect("the hub waits for a rank that does not read");
}

#[test]
fn a_rank_that_is_done_may_go() {
    let (group, mut ranks, _hub) = lines(1);
    let gone = ranks.pop().unwrap();
    gone.now(5, Activity::Left);
    drop(gone);
    assert!(!group.wait_for_end(Duration::from_millis(100)), "{:?}", group.ended());
}

#[test]
fn who_serves_is_missed_when_it_is_gone() {
    let (_, ranks, hub) = lines(0);
    drop(hub);
    let errors = on_all(&ranks, |comm| comm.barrier("the end").unwrap_err().message().to_owned());
    assert!(errors.iter().all(|e| e.contains("gone")), "{errors:?}");
}

#[test]
fn ranks_at_different_meetings_are_told_so() {
    for (_, ranks, _hub) in groups() {
        let errors = on_all(&ranks, |comm| {
            let meeting = if comm.rank() == 2 { "the end of step 4" } else { "the end of step 3" };
            comm.barrier(meeting).unwrap_err().message().to_owned()
        });
        assert!(errors.iter().all(|e| e.contains("step 3") && e.contains("step 4")), "{errors:?}");
    }
    for (_, ranks, _hub) in groups() {
        let errors = on_all(&ranks, |comm| {
            let mut values = vec![0.0; 1 + comm.rank() / 3];
            comm.all_reduce_sum_f32("gradients", &mut values).unwrap_err().message().to_owned()
        });
        assert!(errors.iter().all(|e| e.contains("different things at gradients")), "{errors:?}");
    }
}

#[test]
fn whoever_serves_can_ask_to_stop() {
    let (here, there) = pair();
    let (sender, asked) = std::sync::mpsc::channel();
    let _rank = Remote::new(0, 1, there, "the group", move || sender.send(()).unwrap()).unwrap();
    let hub = Hub::serve(&Group::new(1), vec![(0, here)], Arc::new(|_| {})).unwrap();
    hub.ask_to_stop();
    asked.recv_timeout(Duration::from_secs(30)).unwrap();
}

#[test]
fn what_is_no_frame_ends_the_run_and_takes_no_memory() {
    use std::io::Write;
    let (here, mut there) = pair();
    let group = Group::new(1);
    let _hub = Hub::serve(&group, vec![(0, here)], Arc::new(|_| {})).unwrap();
    there.write_all(&[0xff; 12]).unwrap();
    assert!(group.wait_for_end(Duration::from_secs(30)));
    assert!(group.ended().unwrap().message().contains("no frame"), "{:?}", group.ended());
}
