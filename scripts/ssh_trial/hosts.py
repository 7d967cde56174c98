"""Hosts on this machine: one `sshd` for each, on a port of its own, whose processes can be killed together."""

import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"

DAEMON = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/{name}.pid
AuthorizedKeysFile {folder}/user_key.pub
PasswordAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""

CLIENT = """\
Host {name}
HostName 127.0.0.1
Port {port}
User root
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking accept-new
LogLevel ERROR
"""


def find(program: str) -> str | None:
    return shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


def missing() -> list[str]:
    """Returns what hosts need and this machine does not have."""
    programs = [name for name in ("sshd", "ssh", "ssh-keygen", "unshare", "setsid") if find(name) is None]
    return programs + ([] if os.geteuid() == 0 else ["root"])


def namespace(pid: int | str) -> int:
    """Returns the number of the mount namespace of a process; 0 if it has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


class Hosts:
    """Hosts whose files are in `folder`; `folder/config` is the configuration of `ssh` for them."""

    def __init__(self, folder: Path, names: list[str]):
        self.folder, self.names, self.daemons = folder, names, {}
        folder.mkdir(parents=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host_key", "user_key"):
            command = [find("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True)
        first = 20_000 + os.getpid() % 20_000
        self.ports = {name: first + at for at, name in enumerate(names)}
        clients = [CLIENT.format(name=name, port=port, folder=folder) for name, port in self.ports.items()]
        (folder / "config").write_text("".join(clients))

    def start(self, name: str) -> None:
        """Starts a host. Its own boot id makes it another machine for the ledger, which the locks of the file system
        would otherwise tell at once that a process died."""
        config, boot = self.folder / f"{name}.daemon", self.folder / f"{name}.boot"
        config.write_text(DAEMON.format(name=name, port=self.ports[name], folder=self.folder))
        boot.write_text(f"{uuid.uuid4()}\n")
        inside = f"mount --bind '{boot}' {BOOT_ID} && exec {find('sshd')} -D -e -f '{config}'"
        with (self.folder / f"{name}.log").open("w") as log:
            self.daemons[name] = subprocess.Popen(
                [find("unshare"), "--mount", "sh", "-c", inside],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        for _ in range(100):
            command = ["ssh", "-F", str(self.folder / "config"), name, f"cat {BOOT_ID}"]
            shown = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False)
            if shown.stdout == boot.read_text():
                return
            time.sleep(0.1)
        raise SystemExit(f"{name} does not answer: {shown.stderr}{(self.folder / f'{name}.log').read_text()}")

    def processes(self, name: str) -> list[int]:
        """Returns the ids of the processes of a host: its daemon and everything that was started through it."""
        own = namespace(self.daemons[name].pid)
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in numbers if own and namespace(pid) == own]

    def fail(self, name: str) -> int:
        """Ends everything on a host at once, as if it had lost its power. Returns how many processes that were."""
        killed = self.processes(name)
        for pid in killed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.daemons.pop(name).wait()
        return len(killed)

    def stop(self) -> None:
        for name in list(self.daemons):
            self.fail(name)
