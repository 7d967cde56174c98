"""A Slurm cluster on this machine: one controller and several nodes, which share its processors."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")

# A task that is queued again waits for as long as a credential lasts, 120 s by default.
CONFIGURATION = """\
ClusterName=trial
SlurmctldHost=localhost
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,max_rpc_cnt=0,default_queue_depth=1000
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=5
MinJobAge=300
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=4000
PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Returns what a cluster needs and does not have: programs, and the rights of root."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None] + ["root"] * (os.geteuid() != 0)


def processes(wanted) -> list[int]:
    """Returns the ids of the processes whose environment or command line `wanted` accepts."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
            except OSError:
                continue
            if wanted(environment.split(b"\0"), command.split(b"\0")):
                found.append(int(process.name))
    return found


def kill(pids: list[int]) -> None:
    """Kills processes, which may have ended."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Cluster:
    """A cluster whose files are in `folder`. It needs to be started as root."""

    def __init__(self, folder: Path, nodes: int = 4, cpus: int = 2, port: int = 0):
        self.folder, self.nodes = folder, [f"n{at + 1}" for at in range(nodes)]
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state").mkdir(exist_ok=True)
        for node in self.nodes:
            (folder / f"spool.{node}").mkdir(exist_ok=True)
        port = port or 20_000 + os.getpid() % 20_000
        ports = {"port": port, "first": port + 1, "last": port + nodes}
        text = CONFIGURATION.format(folder=folder, user="root", nodes=nodes, cpus=cpus, **ports)
        (folder / "slurm.conf").write_text(text)

    def run(self, *command: str, check: bool = True) -> str:
        """Runs a command with the cluster's configuration and returns what it prints."""
        done = subprocess.run(command, env=self.environment, text=True, capture_output=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def start(self) -> None:
        """Starts the daemons and waits until every node is idle."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = ["munged", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket"]
        names = {"pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        self.run(*munge, *(f"--{option}={self.folder}/{name}" for option, name in names.items()))
        self.run("slurmctld", "-c")
        for node in self.nodes:
            self.start_node(node)
        for _ in range(100):
            if self.run("sinfo", "-h", "-o", "%t", check=False).split() == ["idle"]:
                return
            time.sleep(0.3)
        raise SystemExit(f"the nodes do not become idle; see {self.folder}/slurmctld.log")

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node."""
        self.run("slurmd", "-N", node)

    def fail_node(self, node: str) -> None:
        """Ends everything on a node at once, as if it had lost its power."""
        name = f"SLURMD_NODENAME={node}".encode()
        tasks = processes(lambda environment, _: name in environment)
        daemon = int((self.folder / f"slurmd.{node}.pid").read_text())
        steps = processes(lambda environment, command: b"slurmstepd" in command[0])
        parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in tasks}
        kill([daemon, *(pid for pid in steps if pid in parents), *tasks])

    def processes(self, wanted) -> list[int]:
        """Returns the ids of the processes of this cluster's tasks whose command line `wanted` accepts."""
        configuration = b"SLURM_CONF=" + str(self.folder).encode() + b"/slurm.conf"
        return processes(lambda environment, command: configuration in environment and wanted(command))

    def stop(self) -> None:
        """Ends the daemons and whatever still runs."""
        self.run("scancel", "--state=PENDING,RUNNING", "--user=root", check=False)
        mine = str(self.folder).encode()
        configuration = b"SLURM_CONF=" + mine + b"/slurm.conf"
        kill(processes(lambda environment, command: configuration in environment or any(mine in word for word in command)))
