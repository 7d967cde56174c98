"""Nodes of a cluster on this machine: each with its own name, boot, clock and view of the shared folder."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

HERE = Path(__file__).resolve().parent

# Runs a command with a node's name and boot.
IDENTITY = """\
mount --bind "$TRIAL_BOOT" /proc/sys/kernel/random/boot_id
echo "$TRIAL_NODE" >/proc/sys/kernel/hostname
exec "$@"
"""
# Variables that mark the processes of a node.
FOLDER, NODE = "TRIAL_FOLDER", "TRIAL_NODE"


def missing() -> list[str]:
    """Returns what the trial needs and what is not there."""
    programs = [name for name in ("cc", "pkg-config", "unshare", "mount", "umount") if shutil.which(name) is None]
    fuse = "pkg-config" in programs or subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode
    absent = programs + ["libfuse3-dev"] * bool(fuse) + ["/dev/fuse"] * (not Path("/dev/fuse").exists())
    return absent + ["the user root"] * (os.geteuid() != 0)


def build(folder: Path) -> None:
    """Compiles the file system and the clock of the nodes into a folder."""
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], text=True, capture_output=True, check=True)
    sources = {"nodefs": flags.stdout.split(), "clock.so": ["-shared", "-fPIC"]}
    for name, options in sources.items():
        source = str(HERE / name.replace(".so", "")) + ".c"
        subprocess.run(["cc", "-O2", "-o", str(folder / name), source, *options, "-lpthread"], check=True)


@dataclass
class View:
    """How a node sees the shared folder."""

    ttl: float = 3.0
    delay_us: int = 300
    # Of every so many claims, the answer to one is lost, and then the request is repeated or fails.
    lose: int = 0
    repeats: bool = False
    server_locks: bool = True
    # Opening a folder asks for its attributes, as on NFS.
    fresh_folders: bool = True


@dataclass
class Node:
    """A node. `folder` is the trial's, `backing` the shared folder as the server has it."""

    name: str
    folder: Path
    backing: Path
    view: View = field(default_factory=View)
    clock: int = 0
    daemon: subprocess.Popen | None = None

    @property
    def mount(self) -> Path:
        """The shared folder as this node has it."""
        return self.folder / f"mount.{self.name}"

    @property
    def lost(self) -> int:
        """The number of claims whose answer was lost."""
        return (self.folder / f"nodefs.{self.name}").read_text().count("lost the answer")

    def start(self) -> "Node":
        """Mounts the shared folder."""
        self.mount.mkdir(exist_ok=True)
        (self.folder / f"boot.{self.name}").write_text(f"{uuid4()}\n")
        view = self.view
        options = [view.ttl, view.delay_us, view.lose, "again" if view.repeats else "eio"]
        locks = "server" if view.server_locks else "local"
        folders = "fresh" if view.fresh_folders else "stale"
        command = [self.folder / "nodefs", self.backing, self.mount, *options, locks, folders]
        with (self.folder / f"nodefs.{self.name}").open("w") as said:
            # In a group of its own, so that Ctrl-C leaves it to serve the processes that end.
            self.daemon = subprocess.Popen([str(word) for word in command], stderr=said, start_new_session=True)
        for _ in range(100):
            if os.path.ismount(self.mount):
                return self
            time.sleep(0.05)
        raise SystemExit(f"{self.mount} is not mounted: {(self.folder / f'nodefs.{self.name}').read_text()}")

    def run(self, *command: str) -> subprocess.Popen:
        """Starts a command on this node."""
        environment = os.environ | {
            FOLDER: str(self.folder),
            NODE: self.name,
            "TRIAL_BOOT": str(self.folder / f"boot.{self.name}"),
            "TRIAL_CLOCK": str(self.clock),
            "LD_PRELOAD": str(self.folder / "clock.so"),
            "XRUN_CACHE": str(self.folder / f"cache.{self.name}"),
        }
        return subprocess.Popen(
            ["unshare", "--mount", "--uts", "sh", "-ec", IDENTITY, "sh", *command], cwd=self.folder, env=environment,
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def processes(self, wanted: Callable[[list[bytes]], bool] = lambda _: True) -> list[int]:
        """Returns the ids of this node's processes whose command line `wanted` accepts."""
        marks = {f"{FOLDER}={self.folder}".encode(), f"{NODE}={self.name}".encode()}
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    environment = set((process / "environ").read_bytes().split(b"\0"))
                    command = (process / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if marks <= environment and wanted(command):
                    found.append(int(process.name))
        return found

    def signal(self, number: signal.Signals, wanted: Callable[[list[bytes]], bool] = lambda _: True) -> None:
        """Sends a signal to this node's processes."""
        for pid in self.processes(wanted):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def fail(self) -> None:
        """Ends everything on this node at once, as if it had lost its power."""
        self.signal(signal.SIGKILL)
        while self.processes():
            time.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        """Ends whatever still runs, and unmounts the shared folder."""
        self.signal(signal.SIGKILL)
        if os.path.ismount(self.mount):
            subprocess.run(["umount", "--lazy", str(self.mount)], check=False)
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None
