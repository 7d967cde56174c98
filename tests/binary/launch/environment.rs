//! What launchers put in the environment, and what happens if they contradict themselves.

use super::launched::{Launcher, Member, port};
use crate::place::{Place, SOON};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const QUICK: [&str; 3] = ["tiny.toml", "training.steps=4", "generation.samples=0"];

const SLURM: [(&str, &str); 5] = [
    ("SLURM_PROCID", "0"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_JOB_ID", "1"),
    ("SLURM_NNODES", "1"),
];

fn env(place: &Place, more: &[&str], variables: &[(&str, &str)]) -> Member {
    let mut member =
        Member::start(place, &[&QUICK[..], &["parallelism.launcher=env"], more].concat(), variables);
    member.ends();
    member
}

#[test]
fn a_plain_run_inside_an_allocation_is_local() {
    let place = Place::new();
    let mut member = Member::start(&place, &QUICK, &[&SLURM[..], &[("RANK", "3")]].concat());
    member.ends();
    assert_eq!(member.code, Some(0), "{}", member.stderr);
    assert_eq!(place.run().rows(), 4);
}

#[test]
fn incomplete_sets_are_refused_before_anything_is_written() {
    let place = Place::new();
    for (variables, says) in [
        (vec![], "no launcher's variables are set"),
        (
            vec![("RANK", "0"), ("WORLD_SIZE", "2")],
            "torchrun are incomplete: LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
        ),
        (vec![("OMPI_COMM_WORLD_RANK", "0")], "Open MPI are incomplete"),
        (SLURM[..2].to_vec(), "Slurm are incomplete: SLURM_LOCALID, SLURM_JOB_ID"),
    ] {
        let member = env(&place, &[], &variables);
        assert_eq!(member.code, Some(2), "{}", member.stderr);
        assert!(member.stderr.contains(says), "{}", member.stderr);
    }
    let one =
        [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")];
    let member = env(&place, &["parallelism.world_size=2"], &one);
    assert_eq!(member.code, Some(2));
    assert!(member.stderr.contains("Open MPI started 1 ranks, but the recipe wants 2"), "{}", member.stderr);
    assert!(!place.path().join("results").exists());
}

#[test]
fn the_launcher_is_named_and_so_is_what_was_passed_over() {
    let place = Place::new();
    let one =
        [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")];
    let member = env(&place, &["parallelism.world_size=auto"], &[&one[..], &SLURM].concat());
    assert_eq!(member.code, Some(0), "{}", member.stderr);
    let log = place.run().text("log");
    assert!(log.contains("rank 0 of 1, started by Open MPI"), "{log}");
    assert!(log.contains("ignored: SLURM_PROCID (Slurm) is set too"), "{log}");
    assert!(place.run().text("resolved.toml").contains("world_size = 1"));
}

/// On one machine, the ranks of Slurm and Open MPI find each other without an address.
#[test]
fn ranks_of_one_machine_need_no_address() {
    for names in [
        ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"],
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE"],
    ] {
        let place = Place::new();
        let job = format!("{}", port());
        let start = |rank: &'static str| {
            let variables = [(names[0], rank), (names[1], "2"), (names[2], rank), (names[3], job.as_str())];
            let local = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
            let arguments =
                [&QUICK[..], &["parallelism.launcher=env", "parallelism.world_size=auto"]].concat();
            let more = if names[0].starts_with("OMPI") { &local[..] } else { &[] };
            Member::start(&place, &arguments, &[&variables[..], more].concat())
        };
        let mut members = [start("0"), start("1")];
        members.iter_mut().for_each(Member::ends);
        for member in &members {
            assert_eq!(member.code, Some(0), "{}", member.stderr);
        }
        assert!(place.run().path.join("logs/rank-1.log").is_file());
    }
}

fn torchrun<'a>(rank: &'a str, world: &'a str, port: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("RANK", rank),
        ("LOCAL_RANK", rank),
        ("WORLD_SIZE", world),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", port),
    ]
}

/// Every process ends with an error that says what the two disagree about.
#[test]
fn ranks_that_contradict_each_other_are_errors() {
    let arguments = [&QUICK[..], &["parallelism.launcher=env", "parallelism.world_size=auto"]].concat();
    for (second, says) in [(("1", "3"), "one of 3 ranks"), (("0", "2"), "cannot listen")] {
        let place = Place::new();
        let port = port().to_string();
        let soon = [&arguments[..], &["parallelism.timeout_s=2"]].concat();
        let mut members = [
            Member::start(&place, &soon, &torchrun("0", "2", &port)),
            Member::start(&place, &soon, &torchrun(second.0, second.1, &port)),
        ];
        members.iter_mut().for_each(Member::ends);
        let said: String = members.iter().map(|member| member.stderr.as_str()).collect();
        assert!(members.iter().all(|member| !matches!(member.code, Some(0) | None)), "{said}");
        // If both are rank 0, they listen on two ports, and nobody connects to either.
        assert!(said.contains(says) || said.contains("of 2 ranks, 1 did not connect"), "{said}");
        assert!(place.runs().is_empty());
    }
}

#[test]
fn ranks_with_other_recipes_are_errors() {
    let place = Place::new();
    let port = port().to_string();
    let start = |rank: &'static str, lr: &'static str| {
        let own = ["parallelism.launcher=env", "parallelism.world_size=2", lr];
        Member::start(&place, &[&QUICK[..], &own].concat(), &torchrun(rank, "2", &port))
    };
    let mut members = [start("0", "optimizer.lr=0.001"), start("1", "optimizer.lr=0.002")];
    members.iter_mut().for_each(Member::ends);
    let said: String = members.iter().map(|member| member.stderr.as_str()).collect();
    assert!(members.iter().all(|member| member.code == Some(2)), "{said}");
    assert!(said.contains("recipe differs from rank 0's: optimizer.lr = 0.002 (0.001 on rank 0)"), "{said}");
}

/// What rank 0 finds out alone, it tells all ranks; here, that another process is using the run it would
/// continue.
#[test]
fn others_hear_why_rank_0_does_not_begin() {
    let place = Place::new();
    let long = ["tiny.toml", "training.steps=100000", "validation.interval=0", "checkpoint.resume=auto"];
    let mut first = Launcher::Env.start(&place, 2, &long, &[]);
    first.trained(&place, 2);
    let second = Launcher::Env.start(&place, 2, &long, &[]).ends_within(SOON);
    for member in &second.members {
        assert_eq!(member.code, Some(1), "{}", member.stderr);
        assert!(member.stderr.contains("is in use by process"), "{}", member.stderr);
    }
    assert_eq!(place.runs().len(), 1);
}

/// Otherwise every rank would look for the run by itself.
#[test]
fn several_ranks_need_the_name_of_the_run_to_resume() {
    let place = Place::new();
    let failed = Launcher::Env.start(&place, 2, &["tiny.toml"], &[("XRUN_FAULT", "panic 0 3")]).ends();
    assert_eq!(failed.members[0].code, Some(1), "{}", failed.said());
    let launched = Launcher::Env.start(&place, 2, &["resume"], &[]).ends();
    let run = place.run();
    let name = run.path.file_name().unwrap().to_str().unwrap();
    for member in &launched.members {
        assert_eq!(member.code, Some(2), "{}", member.stderr);
        assert!(member.stderr.contains(name), "{}", member.stderr);
    }
    Launcher::Env.trains(&place, 2, &["resume", name]);
}

#[test]
fn workers_are_not_for_people() {
    let place = Place::new();
    let mut member = Member::start(&place, &["worker"], &[]);
    member.ends();
    assert_eq!(member.code, Some(2));
    let _ = Launcher::Process;
}

/// Each side names the cause, both early and at its end.
#[test]
fn another_secret_is_named_on_both_sides() {
    let place = Place::new();
    let port = port().to_string();
    let arguments =
        [&QUICK[..], &["parallelism.launcher=env", "parallelism.world_size=2", "parallelism.timeout_s=3"]]
            .concat();
    let start = |rank: &'static str, secret: &'static str| {
        let variables = [&torchrun(rank, "2", &port)[..], &[("XRUN_SECRET", secret)]].concat();
        Member::start(&place, &arguments, &variables)
    };
    let mut members = [start("0", "one"), start("1", "another")];
    members.iter_mut().for_each(Member::ends);
    for (member, other) in members.iter().zip(["rank 1", "rank 0"]) {
        assert_eq!(member.code, Some(1), "{}", member.stderr);
        let cause = format!("{other} has a different XRUN_SECRET");
        for line in ["warning: ", "error: "] {
            let said = member.stderr.lines().any(|said| said.starts_with(line) && said.contains(&cause));
            assert!(said, "no {line}{cause} in\n{}", member.stderr);
        }
    }
}

/// Rank 0 cannot listen and ends; the others report what they find instead of it.
#[test]
fn ports_that_others_have_are_named() {
    let place = Place::new();
    let (first, _taken) = taken_ports();
    let before = (first - 1).to_string();
    let arguments =
        [&QUICK[..], &["parallelism.launcher=env", "parallelism.world_size=2", "parallelism.timeout_s=8"]]
            .concat();
    let here = [("MASTER_ADDR", "127.0.0.1")];
    let start =
        |rank| Member::start(&place, &arguments, &[&torchrun(rank, "2", &before)[..], &here].concat());
    let mut members = ["0", "1"].map(start);
    members.iter_mut().for_each(Member::ends);
    let [zero, one] = &members;
    assert!(zero.stderr.contains("cannot listen"), "{}", zero.stderr);
    for line in ["rank 1 is looking for rank 0 at ", "error: rank 1 did not find rank 0 at "] {
        let found = one.stderr.lines().find(|said| said.starts_with(line));
        let found = found.unwrap_or_else(|| panic!("no `{line}` in\n{}", one.stderr));
        assert!(found.contains(&format!("other programs use ports {first}")), "{found}");
    }
}

/// Returns eight consecutive ports with a listener that never answers on each: the first port and the
/// listeners.
fn taken_ports() -> (u16, Vec<TcpListener>) {
    for _ in 0..1000 {
        let first = port();
        let taken: Result<Vec<TcpListener>, _> =
            (first..first.saturating_add(8)).map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
        if let (Ok(taken), true) = (taken, first > 1) {
            return (first, taken);
        }
    }
    panic!("no eight ports in a row are free");
}

/// Two programs connect to rank 0's port, say nothing, and connect again once they are disconnected.
#[test]
fn programs_that_say_nothing_do_not_keep_a_run_from_starting() {
    let place = Place::new();
    let before = port();
    let over = AtomicBool::new(false);
    let members = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    match TcpStream::connect(("127.0.0.1", before + 1)) {
                        // Until rank 0 closes it.
                        Ok(mut silent) => _ = silent.read(&mut [0]),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }
        let (text, here) = (before.to_string(), [("MASTER_ADDR", "127.0.0.1")]);
        let arguments = [&QUICK[..], &["parallelism.launcher=env", "parallelism.world_size=2"]].concat();
        let start =
            |rank| Member::start(&place, &arguments, &[&torchrun(rank, "2", &text)[..], &here].concat());
        let zero = start("0");
        // Rank 0 meets those programs first.
        std::thread::sleep(Duration::from_secs(1));
        let mut members = [zero, start("1")];
        members.iter_mut().for_each(Member::ends);
        over.store(true, Ordering::SeqCst);
        members
    });
    members.iter().for_each(|member| assert_eq!(member.code, Some(0), "{}", member.stderr));
    assert_eq!(place.run().rows(), 4);
}
