//! Rendezvous with strangers around, and of ranks that do not belong together.

use super::handshake::MESSAGE_TIMEOUT;
use super::{Secret, accept_ranks, join};
use crate::error::{ErrorKind, Result};
use crate::ranks::environment::{RankAssignment, SECRET};
use crate::ranks::{Peer, RemoteCommunicator, Stop};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Returns a port that no other test in this process uses.
fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn assignment(rank: usize, world: usize, port: u16) -> RankAssignment {
    RankAssignment {
        launcher: "test",
        rank,
        world_size: world,
        local_rank: rank,
        local_world_size: world,
        address: "127.0.0.1".to_owned(),
        port,
        // Tests run in parallel, and their ports are close together.
        job: format!("at {port}"),
        ignored: Vec::new(),
    }
}

fn secret(text: &str) -> Secret {
    Secret::from_text(Some(text), "127.0.0.1").unwrap()
}

const TIMEOUT: Duration = Duration::from_secs(20);

const RANK_0: Peer<'_> = Peer { name: "rank 0", timeout: TIMEOUT, watched: true };

/// Returns the ranks that rank 0 accepted, and the result of each other rank.
fn rendezvous(
    zero: RankAssignment,
    others: Vec<(RankAssignment, &'static str)>,
    timeout: Duration,
) -> (Result<Vec<usize>>, Vec<Result<()>>) {
    let zero = std::thread::spawn(move || {
        accept_ranks(&zero, &secret("s"), timeout, &Stop::default())
            .map(|connections| connections.into_iter().map(|(rank, _)| rank).collect())
    });
    let others: Vec<_> = others
        .into_iter()
        .map(|(assignment, text)| {
            std::thread::spawn(move || {
                join(&assignment, &secret(text), timeout, &Stop::default()).map(|_| ())
            })
        })
        .collect();
    (zero.join().unwrap(), others.into_iter().map(|other| other.join().unwrap()).collect())
}

#[test]
fn ranks_connect_in_any_order() {
    let port = port();
    let others = (1..4).rev().map(|rank| (assignment(rank, 4, port), "s")).collect();
    let (found, joined) = rendezvous(assignment(0, 4, port), others, TIMEOUT);
    let mut found = found.unwrap();
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3]);
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
}

#[test]
fn connected_ranks_are_told_which_are_missing() {
    use crate::device::communicator::Communicator;
    let port = port();
    let zero = std::thread::spawn(move || {
        accept_ranks(&assignment(0, 3, port), &secret("s"), Duration::from_secs(1), &Stop::default())
            .map(|_| ())
    });
    let connection = join(&assignment(1, 3, port), &secret("s"), TIMEOUT, &Stop::default()).unwrap();
    let one = RemoteCommunicator::new(1, 3, connection, RANK_0, || {}).unwrap();
    assert!(zero.join().unwrap().unwrap_err().message().contains("of 3 ranks, 2 did not connect"));
    let told = one.barrier("the beginning").unwrap_err();
    assert!(told.message().contains("of 3 ranks, 2 did not connect"), "{told}");
}

#[test]
fn a_port_in_use_is_passed_over() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let (found, _) = rendezvous(assignment(0, 2, port), vec![(assignment(1, 2, port), "s")], TIMEOUT);
    assert_eq!(found.unwrap(), [1]);
}

#[test]
fn ranks_that_contradict_each_other_are_refused() {
    let first = port();
    let (found, joined) = rendezvous(assignment(0, 2, first), vec![(assignment(1, 3, first), "s")], TIMEOUT);
    assert!(found.unwrap_err().message().contains("rank 1 is one of 3 ranks, but rank 0 is one of 2"));
    assert!(joined[0].as_ref().unwrap_err().message().contains("one of 3 ranks"));
    let second = port();
    let both = vec![(assignment(1, 3, second), "s"), (assignment(1, 3, second), "s")];
    let (found, joined) = rendezvous(assignment(0, 3, second), both, TIMEOUT);
    assert!(found.unwrap_err().message().contains("two processes are rank 1"));
    assert_eq!(joined.iter().filter(|joined| joined.is_err()).count(), 1);
}

#[test]
fn another_secret_or_another_run_does_not_join() {
    let soon = Duration::from_millis(400);
    let first = port();
    let (found, joined) = rendezvous(assignment(0, 2, first), vec![(assignment(1, 2, first), "other")], soon);
    let said = found.unwrap_err();
    assert!(said.message().contains("of 2 ranks, 1 did not connect"), "{said}");
    // Each side names the cause, not the outcome of its last attempt.
    assert!(said.message().contains(&format!("rank 1 has a different {SECRET}")), "{said}");
    let said = joined[0].as_ref().unwrap_err();
    assert!(said.message().contains(&format!("rank 0 has a different {SECRET}")), "{said}");
    let second = port();
    let other = RankAssignment { job: "another".to_owned(), ..assignment(1, 2, second) };
    let (found, joined) = rendezvous(assignment(0, 2, second), vec![(other, "s")], soon);
    assert!(found.unwrap_err().message().contains("another run"));
    assert!(joined[0].as_ref().unwrap_err().message().contains("did not find rank 0"));
}

#[test]
fn a_peer_that_sends_slowly_delays_no_rank() {
    use std::io::Write;
    let port = port();
    let drip = move || {
        let deadline = Instant::now() + TIMEOUT;
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(e) => assert!(Instant::now() < deadline, "{e}"),
            }
        };
        // Announces a long message and sends it byte by byte until the other end closes.
        let announced = [&1000_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
        let mut sent = stream.write_all(&announced);
        while sent.is_ok() && Instant::now() < deadline {
            std::thread::sleep(MESSAGE_TIMEOUT / 8);
            sent = stream.write_all(b" ");
        }
        sent.is_err()
    };
    let peer = std::thread::spawn(drip);
    let (found, joined) = rendezvous(assignment(0, 2, port), vec![(assignment(1, 2, port), "s")], TIMEOUT);
    assert_eq!(found.unwrap(), [1]);
    assert!(joined[0].is_ok());
    assert!(peer.join().unwrap(), "its connection was closed");
}

/// Connects and stays silent, again and again, until rank 0 stops listening. Returns the number of
/// connections.
fn say_nothing(port: u16) -> usize {
    let (mut connections, deadline) = (0, Instant::now() + TIMEOUT);
    let mut listened = false;
    while Instant::now() < deadline {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(mut stream) => {
                (connections, listened) = (connections + 1, true);
                // Waits until rank 0 closes it. A connection may also have met itself: nobody listened, and
                // the OS chose this port for this end.
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let _ = std::io::Read::read(&mut stream, &mut [0]);
            }
            Err(_) if listened => break,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    connections
}

#[test]
fn strangers_that_say_nothing_delay_no_rank() {
    // 150 is more than the number of handshakes that may be in progress at once.
    for strangers in [2, 150] {
        let port = port();
        let silent: Vec<_> = (0..strangers).map(|_| std::thread::spawn(move || say_nothing(port))).collect();
        // The strangers reach rank 0 first.
        let zero = std::thread::spawn(move || {
            accept_ranks(&assignment(0, 2, port), &secret("s"), TIMEOUT, &Stop::default()).map(|_| ())
        });
        std::thread::sleep(MESSAGE_TIMEOUT / 4);
        let began = Instant::now();
        join(&assignment(1, 2, port), &secret("s"), TIMEOUT, &Stop::default()).unwrap();
        zero.join().unwrap().unwrap();
        assert!(began.elapsed() < TIMEOUT / 2, "{strangers}: {:?}", began.elapsed());
        let connections: usize = silent.into_iter().map(|stranger| stranger.join().unwrap()).sum();
        assert!(connections >= strangers, "{connections} connections of {strangers}");
    }
}

#[test]
fn a_stop_ends_the_wait() {
    let stop = Stop::default();
    stop.request();
    let port = port();
    let waits = [
        accept_ranks(&assignment(0, 2, port), &secret("s"), TIMEOUT, &stop).map(|_| ()),
        join(&assignment(1, 2, port), &secret("s"), TIMEOUT, &stop).map(|_| ()),
    ];
    for ended in waits {
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
    }
}

#[test]
fn an_address_that_others_can_reach_needs_a_secret() {
    assert!(Secret::from_text(None, "localhost").is_ok());
    let error = Secret::from_text(None, "10.0.0.7").unwrap_err();
    assert!(error.message().contains(SECRET), "{error}");
    assert!(Secret::from_text(Some("x"), "10.0.0.7").is_ok());
}
