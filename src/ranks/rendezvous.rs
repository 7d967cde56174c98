//! How processes that know only an address find each other: rank 0 listens, the others come, both prove that they know
//! the run's secret.
//!
//! ```text
//! rank → 0   Hello   { version, job, rank, world, nonce }
//! 0 → rank   Known   { nonce, proof of the secret over both nonces }       or Refused { why, for_good }
//! rank → 0   Proof   { proof of the secret over both nonces and the rank }
//! 0 → rank   Welcome                                                       or Refused { why, for_good }
//! ```

use super::environment::{PORTS, Place, SECRET, is_loopback};
use super::{Line, Stop, turn_away};
use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long a stranger may take over a word of the handshake.
const A_WORD: Duration = Duration::from_secs(2);

/// Pause between two tries to reach rank 0.
const PAUSE: Duration = Duration::from_millis(50);

/// Both ends have to be the same version: frames are not made to be understood by others.
const VERSION: &str = concat!("xrun ", env!("CARGO_PKG_VERSION"), " rendezvous 1");

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    version: String,
    job: String,
    rank: usize,
    world: usize,
    nonce: [u8; 16],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Known { nonce: [u8; 16], proof: [u8; 32] },
    Refused { why: String, for_good: bool },
    Welcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Proof {
    proof: [u8; 32],
}

/// What ranks of a run know and nobody else.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret of a run that meets at `address`.
    ///
    /// # Errors
    /// Where others can reach the address, and there is no secret.
    pub fn of(text: Option<&str>, address: &str) -> Result<Self> {
        let text = text.unwrap_or_default();
        if text.is_empty() && !is_loopback(address) {
            return Err(Error::usage(format!(
                "ranks meet at {address}, which other machines can reach, and {SECRET} is not set: set it to the same random \
                 text for every rank, such as the output of `openssl rand -hex 16`"
            )));
        }
        Ok(Self(blake3::derive_key("xrun 2026 rendezvous of ranks", text.as_bytes())))
    }

    fn proof(&self, who: &str, a: [u8; 16], b: [u8; 16], rank: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(who.as_bytes()).update(&a).update(&b).update(&(rank as u64).to_le_bytes());
        *hasher.finalize().as_bytes()
    }
}

fn nonce() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::failed(format!("the system has no random numbers: {e}")))?;
    Ok(bytes)
}

/// Waits, as rank 0, for all other ranks; the lines to them, each with its rank.
///
/// # Errors
/// When no port is free, ranks do not come within `patience`, two contradict each other, or a stop is asked for.
pub fn listen(place: &Place, secret: &Secret, patience: Duration, stop: &Stop) -> Result<Vec<(usize, Line)>> {
    let mut lines = Vec::new();
    match gather(&mut lines, place, secret, patience, stop) {
        Ok(()) => Ok(lines),
        Err(e) => {
            lines.into_iter().for_each(|(_, line)| turn_away(line, &e));
            Err(e)
        }
    }
}

/// Waits until `lines` has all other ranks.
fn gather(
    lines: &mut Vec<(usize, Line)>,
    place: &Place,
    secret: &Secret,
    patience: Duration,
    stop: &Stop,
) -> Result<()> {
    let listener = bind(place)?;
    let deadline = Instant::now() + patience;
    let mut refused = Vec::new();
    while lines.len() + 1 < place.world {
        match listener.accept() {
            Ok((stream, from)) => match receive(stream, place, secret, lines) {
                Ok(Ok(line)) => lines.push(line),
                Ok(Err(contradiction)) => return Err(contradiction),
                // Others may knock at a port by mistake; one of ours comes again.
                Err(why) => refused.push(format!("{from}: {why}")),
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE / 5),
            Err(e) => return Err(Error::failed(format!("cannot listen for ranks: {e}"))),
        }
        unless_stopped(stop)?;
        if Instant::now() > deadline {
            let missing = (1..place.world).filter(|rank| lines.iter().all(|(found, _)| found != rank));
            let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
            let last = refused.last().map(|why| format!(" The last one refused: {why}")).unwrap_or_default();
            return Err(Error::failed(format!(
                "of {} ranks, {} did not come to {}:{} within {} s.{last}",
                place.world,
                missing.join(", "),
                place.address,
                place.port,
                patience.as_secs_f64()
            )));
        }
    }
    Ok(())
}

/// Nothing has begun that could be saved.
fn unless_stopped(stop: &Stop) -> Result<()> {
    match stop.asked() {
        true => Err(Error::new(Kind::Interrupted, "stopped by a signal before all ranks had come")),
        false => Ok(()),
    }
}

fn bind(place: &Place) -> Result<TcpListener> {
    let mut failed = None;
    for port in ports(place) {
        let bound = resolve(place, port)?.into_iter().map(TcpListener::bind);
        for result in bound {
            match result.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
                Ok(listener) => return Ok(listener),
                Err(e) => failed = Some(e),
            }
        }
    }
    let why = failed.map_or_else(|| "it has no address".to_owned(), |e| e.to_string());
    Err(Error::failed(format!(
        "rank 0 cannot listen at {} on a port from {} on: {why}. MASTER_ADDR has to be this machine's",
        place.address, place.port
    )))
}

fn ports(place: &Place) -> impl Iterator<Item = u16> {
    (0..PORTS).filter_map({
        let first = place.port;
        move |more| first.checked_add(more)
    })
}

fn resolve(place: &Place, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (place.address.as_str(), port).to_socket_addrs();
    found.map(Iterator::collect).map_err(|e| Error::failed(format!("MASTER_ADDR = {}: {e}", place.address)))
}

/// Receives whoever came. The outer error is of a stranger, the inner one of a rank that cannot belong to this run.
fn receive(
    stream: TcpStream,
    place: &Place,
    secret: &Secret,
    known: &[(usize, Line)],
) -> Result<Result<(usize, Line)>, String> {
    let text = |e: io::Error| e.to_string();
    stream.set_nonblocking(false).map_err(text)?;
    let mut line = prepare(stream).map_err(text)?;
    let hello: Hello = line.receive_word(Instant::now() + A_WORD).map_err(text)?;
    let refuse = |line: &mut Line, why: String, for_good: bool| {
        let refused = Answer::Refused { why: why.clone(), for_good };
        let _ = line.send(&refused, &[]);
        why
    };
    if hello.version != VERSION {
        let why = format!("rank 0 is {VERSION}, and rank {} is {}", hello.rank, hello.version);
        return Err(refuse(&mut line, why, true));
    }
    if hello.job != place.job {
        return Err(refuse(&mut line, "this is another run".to_owned(), false));
    }
    let nonce = nonce().map_err(|e| e.to_string())?;
    let proof = secret.proof("rank 0", hello.nonce, nonce, 0);
    line.send(&Answer::Known { nonce, proof }, &[]).map_err(text)?;
    let closed =
        |e: io::Error| format!("rank {} left without a proof ({e}): it has another {SECRET}", hello.rank);
    let proof: Proof = line.receive_word(Instant::now() + A_WORD).map_err(closed)?;
    let expected = secret.proof("rank", nonce, hello.nonce, hello.rank);
    // Hashes compare in constant time.
    if blake3::Hash::from(proof.proof) != blake3::Hash::from(expected) {
        return Err(refuse(&mut line, format!("rank {} has another {SECRET}", hello.rank), true));
    }
    let contradiction = if hello.world != place.world {
        Some(format!(
            "rank {} is one of {} ranks, and rank 0 one of {}",
            hello.rank, hello.world, place.world
        ))
    } else if hello.rank == 0
        || hello.rank >= place.world
        || known.iter().any(|(rank, _)| *rank == hello.rank)
    {
        Some(format!("two processes are rank {}", hello.rank))
    } else {
        None
    };
    if let Some(why) = contradiction {
        return Ok(Err(Error::usage(refuse(&mut line, why, true))));
    }
    line.send(&Answer::Welcome, &[]).and_then(|()| line.limit(None)).map_err(text)?;
    Ok(Ok((hello.rank, line)))
}

/// Finds rank 0 and joins it.
///
/// # Errors
/// When it does not answer within `patience`, or refuses, or a stop is asked for.
pub fn join(place: &Place, secret: &Secret, patience: Duration, stop: &Stop) -> Result<Line> {
    let deadline = Instant::now() + patience;
    // What somebody said there tells more than that nobody answered.
    let (mut silent, mut said) = ("nobody listens".to_owned(), None);
    loop {
        for port in ports(place) {
            for address in resolve(place, port)? {
                let stream = match TcpStream::connect_timeout(&address, A_WORD) {
                    Ok(stream) => stream,
                    Err(e) => {
                        silent = e.to_string();
                        continue;
                    }
                };
                match knock(stream, place, secret, deadline) {
                    Ok(Ok(line)) => return Ok(line),
                    Ok(Err(refused)) => return Err(refused),
                    Err(why) => said = Some(why),
                }
            }
        }
        if Instant::now() > deadline {
            return Err(Error::failed(format!(
                "rank {} did not find rank 0 at {}:{} within {} s: {}",
                place.rank,
                place.address,
                place.port,
                patience.as_secs_f64(),
                said.unwrap_or(silent)
            )));
        }
        unless_stopped(stop)?;
        std::thread::sleep(PAUSE);
    }
}

/// Tries one address. The outer error is worth another try, the inner one is not.
fn knock(
    stream: TcpStream,
    place: &Place,
    secret: &Secret,
    deadline: Instant,
) -> Result<Result<Line>, String> {
    let text = |e: io::Error| e.to_string();
    let mut line = prepare(stream).map_err(text)?;
    let mine = nonce().map_err(|e| e.to_string())?;
    let (rank, world) = (place.rank, place.world);
    let hello = Hello { version: VERSION.to_owned(), job: place.job.clone(), rank, world, nonce: mine };
    line.send(&hello, &[]).map_err(text)?;
    // Once it is known who is there, that it is slow is no reason to come again: it may count this rank already.
    let mut patience = Instant::now() + A_WORD;
    loop {
        match line.receive_word(patience).map_err(text)? {
            Answer::Refused { why, for_good: true } => {
                return Ok(Err(Error::usage(format!("rank 0 refused rank {rank}: {why}"))));
            }
            Answer::Refused { why, .. } => return Err(why),
            Answer::Known { nonce, proof } => {
                let expected = secret.proof("rank 0", mine, nonce, 0);
                if blake3::Hash::from(proof) != blake3::Hash::from(expected) {
                    return Err(format!("who listens there has another {SECRET}"));
                }
                line.send(&Proof { proof: secret.proof("rank", nonce, mine, rank) }, &[]).map_err(text)?;
                patience = deadline.max(Instant::now() + A_WORD);
            }
            Answer::Welcome => {
                line.limit(None).map_err(text)?;
                return Ok(Ok(line));
            }
        }
    }
}

/// Small frames are sent at once, words of the handshake have a limit, and a machine that vanished is noticed within
/// seconds.
fn prepare(stream: TcpStream) -> io::Result<Line> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(2))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        // Probes are not sent while words are under way that nobody confirms.
        sockopt::set_tcp_user_timeout(&stream, 5000)?;
    }
    let line = Line::Tcp(stream);
    line.limit(Some(A_WORD))?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that nobody else in this process was given.
    fn port() -> u16 {
        TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
    }

    fn place(rank: usize, world: usize, port: u16) -> Place {
        Place {
            launcher: "test",
            rank,
            world,
            local_rank: rank,
            local_world: world,
            address: "127.0.0.1".to_owned(),
            port,
            // Tests run at once, and ports lie close together.
            job: format!("at {port}"),
            ignored: Vec::new(),
        }
    }

    fn secret(text: &str) -> Secret {
        Secret::of(Some(text), "127.0.0.1").unwrap()
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    /// What rank 0 found, and what each other rank did.
    fn meet(
        zero: Place,
        others: Vec<(Place, &'static str)>,
        patience: Duration,
    ) -> (Result<Vec<usize>>, Vec<Result<()>>) {
        let zero = std::thread::spawn(move || {
            listen(&zero, &secret("s"), patience, &Stop::default())
                .map(|lines| lines.into_iter().map(|(rank, _)| rank).collect())
        });
        let others: Vec<_> = others
            .into_iter()
            .map(|(place, text)| {
                std::thread::spawn(move || {
                    join(&place, &secret(text), patience, &Stop::default()).map(|_| ())
                })
            })
            .collect();
        (zero.join().unwrap(), others.into_iter().map(|other| other.join().unwrap()).collect())
    }

    #[test]
    fn ranks_find_each_other_whoever_comes_first() {
        let port = port();
        let others = (1..4).rev().map(|rank| (place(rank, 4, port), "s")).collect();
        let (found, joined) = meet(place(0, 4, port), others, PATIENCE);
        let mut found = found.unwrap();
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
        assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    }

    #[test]
    fn those_who_came_are_told_who_did_not() {
        use crate::device::communicator::Communicator;
        use crate::ranks::Remote;
        let port = port();
        let zero = std::thread::spawn(move || {
            listen(&place(0, 3, port), &secret("s"), Duration::from_secs(1), &Stop::default()).map(|_| ())
        });
        let line = join(&place(1, 3, port), &secret("s"), PATIENCE, &Stop::default()).unwrap();
        let one = Remote::new(1, 3, line, "rank 0", || {}).unwrap();
        assert!(zero.join().unwrap().unwrap_err().message().contains("of 3 ranks, 2 did not come"));
        let told = one.barrier("the beginning").unwrap_err();
        assert!(told.message().contains("of 3 ranks, 2 did not come"), "{told}");
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let (found, _) = meet(place(0, 2, port), vec![(place(1, 2, port), "s")], PATIENCE);
        assert_eq!(found.unwrap(), [1]);
    }

    #[test]
    fn ranks_that_contradict_each_other_are_refused() {
        let first = port();
        let (found, joined) = meet(place(0, 2, first), vec![(place(1, 3, first), "s")], PATIENCE);
        assert!(found.unwrap_err().message().contains("rank 1 is one of 3 ranks, and rank 0 one of 2"));
        assert!(joined[0].as_ref().unwrap_err().message().contains("one of 3 ranks"));
        let second = port();
        let both = vec![(place(1, 3, second), "s"), (place(1, 3, second), "s")];
        let (found, joined) = meet(place(0, 3, second), both, PATIENCE);
        assert!(found.unwrap_err().message().contains("two processes are rank 1"));
        assert_eq!(joined.iter().filter(|joined| joined.is_err()).count(), 1);
    }

    #[test]
    fn another_secret_or_another_run_does_not_join() {
        let soon = Duration::from_millis(400);
        let first = port();
        let (found, joined) = meet(place(0, 2, first), vec![(place(1, 2, first), "other")], soon);
        let said = found.unwrap_err();
        assert!(said.message().contains("of 2 ranks, 1 did not come"), "{said}");
        assert!(joined[0].is_err(), "it does not know the secret");
        let second = port();
        let stranger = Place { job: "another".to_owned(), ..place(1, 2, second) };
        let (found, joined) = meet(place(0, 2, second), vec![(stranger, "s")], soon);
        assert!(found.unwrap_err().message().contains("another run"));
        assert!(joined[0].as_ref().unwrap_err().message().contains("did not find rank 0"));
    }

    #[test]
    fn a_stranger_who_takes_its_time_holds_nobody_up() {
        use std::io::Write;
        let port = port();
        let drip = move || {
            let deadline = Instant::now() + PATIENCE;
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => break stream,
                    Err(e) => assert!(Instant::now() < deadline, "{e}"),
                }
            };
            // Announces a long word, and sends it byte by byte until nobody wants it any more.
            let announced = [&1000_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
            let mut sent = stream.write_all(&announced);
            while sent.is_ok() && Instant::now() < deadline {
                std::thread::sleep(A_WORD / 8);
                sent = stream.write_all(b" ");
            }
            sent.is_err()
        };
        let stranger = std::thread::spawn(drip);
        let (found, joined) = meet(place(0, 2, port), vec![(place(1, 2, port), "s")], PATIENCE);
        assert_eq!(found.unwrap(), [1]);
        assert!(joined[0].is_ok());
        assert!(stranger.join().unwrap(), "it was sent away");
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let stop = Stop::default();
        stop.ask();
        let port = port();
        let waits = [
            listen(&place(0, 2, port), &secret("s"), PATIENCE, &stop).map(|_| ()),
            join(&place(1, 2, port), &secret("s"), PATIENCE, &stop).map(|_| ()),
        ];
        for ended in waits {
            assert_eq!(ended.unwrap_err().kind(), Kind::Interrupted);
        }
    }

    #[test]
    fn where_others_can_knock_a_secret_is_needed() {
        assert!(Secret::of(None, "localhost").is_ok());
        let error = Secret::of(None, "10.0.0.7").unwrap_err();
        assert!(error.message().contains(SECRET), "{error}");
        assert!(Secret::of(Some("x"), "10.0.0.7").is_ok());
    }
}
