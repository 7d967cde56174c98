//! Environment variables of external launchers: torchrun, Open MPI, Slurm.

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::MAX_RANKS;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Variable with the secret that ranks on several machines share.
pub const SECRET: &str = "XRUN_SECRET";

/// Variable with the port that rank 0 listens on. If it is not set, the port is derived from the launcher's
/// variables.
pub const PORT: &str = "XRUN_PORT";

/// The rank that a launcher assigned to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankAssignment {
    /// Name of the launcher.
    pub launcher: &'static str,
    /// This rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Index of this rank among the ranks of its machine.
    pub local_rank: usize,
    /// Number of ranks on this machine.
    pub local_world_size: usize,
    /// Host name or address of the machine of rank 0.
    pub address: String,
    /// First port on which rank 0 tries to listen.
    pub port: u16,
    /// Tells this run apart from other runs of the same launcher.
    pub job: String,
    /// Variables of other launchers that are also set and were ignored.
    pub ignored: Vec<String>,
}

/// Names of the variables of a launcher.
struct LauncherVariables {
    launcher: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
    /// Further variables that must be set.
    needs: &'static [&'static str],
    job: &'static [&'static str],
}

/// In order of precedence.
const LAUNCHERS: [LauncherVariables; 3] = [
    LauncherVariables {
        launcher: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
        needs: &["MASTER_ADDR", "MASTER_PORT"],
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    LauncherVariables {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        needs: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
    },
    LauncherVariables {
        launcher: "Slurm",
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: "SLURM_NTASKS_PER_NODE",
        needs: &["SLURM_JOB_ID"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

impl LauncherVariables {
    /// Returns the variables that are missing; `None` if no variable of this launcher is set.
    fn missing(&self, set: &Variables) -> Option<Vec<&'static str>> {
        let own = [self.rank, self.world_size, self.local_rank];
        let all: Vec<&'static str> = own.into_iter().chain(self.needs.iter().copied()).collect();
        let any = own.iter().any(|name| set.get(name).is_some());
        any.then(|| all.into_iter().filter(|name| set.get(name).is_none()).collect())
    }
}

/// Variables by name; empty ones count as not set.
struct Variables(BTreeMap<String, String>);

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.trim().is_empty())
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let parsed = text.trim().parse();
        parsed.map(Some).map_err(|_| Error::usage(format!("{name} = `{text}` is not a valid number")))
    }

    fn needed<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        self.number(name)?.ok_or_else(|| Error::usage(format!("{name} is not set")))
    }
}

/// Returns the environment variables of this process, except those that are not valid Unicode.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Probes this machine, with the world size that its launcher set, if any.
pub fn machine() -> Machine {
    let launched_world = assignment_from(variables()).ok().map(|found| found.world_size);
    Machine { launched_world, ..Machine::here() }
}

/// Reads the assignment of this process from the first launcher whose variables are complete, in the order
/// torchrun, Open MPI, Slurm.
///
/// # Errors
/// If no launcher's variables are complete (the error lists what is missing), or if numbers contradict each
/// other.
pub fn assignment_from(variables: impl IntoIterator<Item = (String, String)>) -> Result<RankAssignment> {
    let variables = Variables(variables.into_iter().collect());
    let found: Vec<(&LauncherVariables, Vec<&str>)> =
        LAUNCHERS.iter().filter_map(|set| Some((set, set.missing(&variables)?))).collect();
    let Some((set, _)) = found.iter().find(|(_, missing)| missing.is_empty()) else {
        return Err(Error::usage(match found.first() {
            Some((set, missing)) => format!(
                "the variables of {} are incomplete: {} missing. Start xrun with `torchrun --no-python`, `mpirun` or `srun`, \
                 or set parallelism.launcher = \"process\"",
                set.launcher,
                missing.join(", ")
            ),
            None => "parallelism.launcher = \"env\", but no launcher's variables are set (RANK and WORLD_SIZE of torchrun, \
                     OMPI_COMM_WORLD_RANK of Open MPI, SLURM_PROCID of Slurm). Start xrun with one of them, or set \
                     parallelism.launcher = \"process\""
                .to_owned(),
        }));
    };
    let ignored = found.iter().filter(|(other, _)| other.launcher != set.launcher);
    let ignored = ignored.map(|(other, _)| format!("{} ({})", other.rank, other.launcher)).collect();
    assignment(set, &variables, ignored)
}

fn assignment(
    set: &LauncherVariables,
    variables: &Variables,
    ignored: Vec<String>,
) -> Result<RankAssignment> {
    let (rank, world_size): (usize, usize) = (variables.needed(set.rank)?, variables.needed(set.world_size)?);
    let local_rank: usize = variables.needed(set.local_rank)?;
    if world_size == 0 || rank >= world_size {
        return Err(Error::usage(format!(
            "{} = {rank} is not a rank of {} = {world_size}",
            set.rank, set.world_size
        )));
    }
    if world_size as u64 > MAX_RANKS {
        return Err(Error::usage(format!(
            "{} = {world_size}: at most {MAX_RANKS} ranks are possible",
            set.world_size
        )));
    }
    let job: Vec<&str> = set.job.iter().filter_map(|name| variables.get(name)).collect();
    let job = format!("{} {}", set.launcher, job.join(" "));
    let local_world_size = match variables.number::<usize>(set.local_world_size)? {
        // Slurm sets the variable only if the job asked for a number per node. It keeps that value in smaller
        // steps of the job, too.
        _ if set.launcher == "Slurm" && nodes(variables)? == 1 => world_size,
        Some(local_world_size) if set.launcher == "Slurm" => local_world_size.min(world_size),
        Some(local_world_size) => local_world_size,
        // Ranks of a machine must agree, so the machines are taken to have equally many. On a machine with
        // more, only the ranks beyond that number know it.
        None => world_size.div_ceil(nodes(variables)?.max(1)).max(local_rank + 1).min(world_size),
    };
    if local_world_size == 0 || local_rank >= local_world_size || local_world_size > world_size {
        return Err(Error::usage(format!(
            "{} = {local_rank} is not a rank of {local_world_size} on this machine, of {world_size} in all",
            set.local_rank
        )));
    }
    let address = match variables.get("MASTER_ADDR") {
        Some(address) => address.to_owned(),
        None if local_world_size == world_size => "127.0.0.1".to_owned(),
        None if set.launcher == "Slurm" => first_host(variables)?,
        None => {
            return Err(Error::usage(format!(
                "{} started ranks on several machines, but MASTER_ADDR does not name the machine of rank 0",
                set.launcher
            )));
        }
    };
    let port = match (variables.number::<u16>(PORT)?, variables.number::<u16>("MASTER_PORT")?) {
        (Some(0), _) | (None, Some(0)) => {
            return Err(Error::usage(format!(
                "{PORT} or MASTER_PORT = 0: ranks need a port to connect to; set the same port for all"
            )));
        }
        (Some(port), _) => port,
        // The launcher itself may listen on its port, so rank 0 uses the next one.
        (None, Some(port)) => port.checked_add(1).unwrap_or(port - PORTS),
        (None, None) => from_job(&job),
    };
    // Jobs of one launcher may all have the same name; address and port tell them apart.
    let value = |name: &str| variables.get(name).unwrap_or_default();
    let job = format!("{job} {}:{}", value("MASTER_ADDR"), value("MASTER_PORT"));
    let launcher = set.launcher;
    Ok(RankAssignment {
        launcher,
        rank,
        world_size,
        local_rank,
        local_world_size,
        address,
        port,
        job,
        ignored,
    })
}

/// Number of consecutive ports to try, starting with the assigned one.
pub const PORTS: u16 = 8;

/// Returns a port that all ranks of a job agree on. Other jobs rarely get the same one.
fn from_job(job: &str) -> u16 {
    let hash = blake3::hash(job.as_bytes());
    let number = u16::from_le_bytes([hash.as_bytes()[0], hash.as_bytes()[1]]);
    20_000 + number % 20_000 / PORTS * PORTS
}

fn nodes(variables: &Variables) -> Result<usize> {
    Ok(variables.number("SLURM_NNODES")?.or(variables.number("SLURM_JOB_NUM_NODES")?).unwrap_or(1))
}

/// Returns the first machine in Slurm's list: `gpu07` for `gpu[07-09,12],login`.
fn first_host(variables: &Variables) -> Result<String> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
    let list = names.iter().find_map(|name| variables.get(name));
    let list = list.ok_or_else(|| {
        Error::usage("Slurm started ranks on several machines but does not name them: set MASTER_ADDR")
    })?;
    let Some((prefix, rest)) = list.split_once('[').filter(|(prefix, _)| !prefix.contains(',')) else {
        return Ok(list.split(',').next().unwrap_or(list).to_owned());
    };
    let first = rest.split([',', '-', ']']).next().unwrap_or_default();
    let after = rest.split_once(']').map_or("", |(_, after)| after.split(',').next().unwrap_or_default());
    Ok(format!("{prefix}{first}{after}"))
}

/// Returns true if only this machine can reach the address.
pub fn is_loopback(address: &str) -> bool {
    address == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<RankAssignment> {
        assignment_from(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    const TORCHRUN: [(&str, &str); 7] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "10.0.0.7"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "a"),
    ];
    const OMPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    const SLURM: [(&str, &str); 6] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_NODELIST", "gpu[07-09,12],login"),
    ];

    #[test]
    fn the_variables_of_each_launcher_are_read() {
        let found = read(&TORCHRUN).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank, found.local_world_size), (3, 4, 1, 2));
        assert_eq!((found.address.as_str(), found.port), ("10.0.0.7", 29501));
        let found = read(&OMPI).unwrap();
        assert_eq!((found.launcher, found.rank, found.world_size), ("Open MPI", 1, 2));
        assert_eq!(found.address, "127.0.0.1");
        assert_eq!(found.port, read(&OMPI).unwrap().port);
        let found = read(&SLURM).unwrap();
        assert_eq!((found.launcher, found.rank, found.world_size, found.local_rank), ("Slurm", 5, 8, 1));
        assert_eq!(found.address, "gpu07");
    }

    #[test]
    fn all_ranks_of_a_machine_count_the_same_number_of_them() {
        for local_rank in ["0", "1", "3"] {
            let mut slurm = SLURM;
            slurm[2].1 = local_rank;
            assert_eq!(read(&slurm).unwrap().local_world_size, 4, "local rank {local_rank}");
        }
    }

    #[test]
    fn the_first_complete_set_wins_and_lower_ones_are_named() {
        let all = [&TORCHRUN[..], &OMPI, &SLURM].concat();
        let found = read(&all).unwrap();
        assert_eq!(found.launcher, "torchrun");
        assert_eq!(found.ignored, ["OMPI_COMM_WORLD_RANK (Open MPI)", "SLURM_PROCID (Slurm)"]);
        let partial = [&TORCHRUN[..1], &OMPI, &SLURM].concat();
        let found = read(&partial).unwrap();
        assert_eq!((found.launcher, found.ignored.len()), ("Open MPI", 2));
    }

    #[test]
    fn incomplete_or_contradictory_variables_are_refused() {
        let error = |pairs: &[(&str, &str)]| read(pairs).unwrap_err().message().to_owned();
        assert!(error(&[]).contains("no launcher's variables"));
        let said = error(&TORCHRUN[..3]);
        assert!(said.contains("torchrun are incomplete: MASTER_ADDR, MASTER_PORT missing"), "{said}");
        let mut wrong = TORCHRUN;
        wrong[0].1 = "4";
        assert!(error(&wrong).contains("RANK = 4 is not a rank of WORLD_SIZE = 4"));
        let mut nowhere = TORCHRUN;
        nowhere[5].1 = "0";
        assert!(error(&nowhere).contains("MASTER_PORT = 0"));
        wrong[0].1 = "x";
        assert!(error(&wrong).contains("RANK = `x`"));
        let mut wrong = OMPI;
        wrong[3].1 = "1";
        assert!(error(&wrong).contains("not a rank of 1 on this machine"));
        let several: Vec<_> = OMPI
            .into_iter()
            .map(|(k, v)| (k, if v == "2" && k.ends_with("D_SIZE") { "4" } else { v }))
            .collect();
        assert!(error(&several).contains("MASTER_ADDR"));
    }

    #[test]
    fn lists_of_machines_begin_with_the_first() {
        let first = |list: &str| {
            first_host(&Variables([("SLURM_NODELIST".to_owned(), list.to_owned())].into())).unwrap()
        };
        assert_eq!(first("node1,node2"), "node1");
        assert_eq!(first("gpu[3,5]"), "gpu3");
        assert_eq!(first("a[08-10]-ib,b1"), "a08-ib");
        assert_eq!(first("login,gpu[1-2]"), "login");
    }
}
