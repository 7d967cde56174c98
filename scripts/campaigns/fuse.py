"""A file system that behaves like a network's, or fails on demand: the FUSE protocol over /dev/fuse, without a library.

A server process passes a folder through to one or two mounts. Two mounts are two clients: each has a cache of names and
attributes of its own, and the server knows what each has open. It needs root and /dev/fuse.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import stat
import struct
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKDIR, UNLINK, RMDIR, RENAME, LINK = 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29
FSYNCDIR, SETLK, SETLKW, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE = 30, 32, 33, 35, 36, 38, 42, 43
NAMES = {
    SETATTR: "setattr", MKDIR: "mkdir", UNLINK: "unlink", RMDIR: "rmdir", RENAME: "rename", CREATE: "create", WRITE: "write",
    FSYNC: "fsync", FSYNCDIR: "fsync of a folder", FLUSH: "close", OPEN: "open", READ: "read", LINK: "link", SYMLINK: "symlink",
}  # fmt: skip
# Operations that change something or make it durable. Faults are counted in these.
CHANGES = {SETATTR, MKDIR, UNLINK, RMDIR, RENAME, CREATE, WRITE, FSYNC, FSYNCDIR}
# If the server's answer gets lost, the client asks again, and the second answer is this error although the first try worked.
RETRIED = {MKDIR: errno.EEXIST, UNLINK: errno.ENOENT, RMDIR: errno.ENOENT, RENAME: errno.ENOENT, CREATE: errno.EEXIST}
FLOCK_LOCKS = 1 << 10
LARGEST_WRITE = 128 * 1024
ROOT = 1


@dataclass
class Behavior:
    """How the file system differs from a local one."""

    # A removed file that a client has open is renamed to `.nfs…`, and goes away with its last handle.
    silly_rename: bool = False
    # "local": locks are seen on one client only; "server": on both; "none": ENOLCK.
    locks: str = "local"
    # Seconds for which a client keeps names and attributes.
    cached_s: float = 0.0
    # Seconds that the server's clock is ahead, and the resolution of its times.
    clock_ahead_s: int = 0
    resolution_s: int = 0
    # Probability that the answer to a change is lost.
    lost_answers: float = 0.0
    # Errors of links, of fsync on folders, of fallocate; none if 0.
    link_error: int = 0
    folder_fsync_error: int = 0
    empty_statfs: bool = False
    ignores_case: bool = False


@dataclass
class Handle:
    """An open file of a client."""

    client: int
    descriptor: int
    node: int
    # The lowest offset that was written since the last fsync.
    unsynced: int | None = None


@dataclass
class Client:
    """A mount: its device and what the kernel was told about nodes."""

    device: int
    paths: dict[int, str | None] = field(default_factory=lambda: {ROOT: ""})
    nodes: dict[str, int] = field(default_factory=lambda: {"": ROOT})


class Faults:
    """A fault to inject, shared by the server and the trial."""

    # What happens at the change with the number `at`, counted from 1.
    # With CALM, no answer is lost either.
    NONE, KILL_BEFORE, KILL_AFTER, ONCE, FROM_THEN_ON, LATE, CALM = range(7)

    def __init__(self):
        self.memory = mmap.mmap(-1, 64)

    def set(self, mode: int, at: int = 0, error: int = 0) -> None:
        """Sets the fault and begins to count changes."""
        self.memory[:64] = struct.pack("<qqqqq", mode, at, error, 0, 0).ljust(64, b"\0")

    def get(self) -> tuple[int, int, int, int, int]:
        """Returns the mode, the number and the error that were set, the changes so far, and the faults so far."""
        return struct.unpack_from("<qqqqq", self.memory)

    def count(self, index: int) -> int:
        """Adds one to the changes (3) or to the faults (4)."""
        value = struct.unpack_from("<q", self.memory, 8 * index)[0] + 1
        struct.pack_into("<q", self.memory, 8 * index, value)
        return value


class Server:
    """The process that answers the kernel."""

    def __init__(self, backing: Path, behavior: Behavior, faults: Faults, random: Random, log: Path):
        self.backing, self.behavior, self.faults, self.random = str(backing), behavior, faults, random
        self.log = log.open("w", buffering=1)
        self.clients: list[Client] = []
        self.handles: dict[int, Handle] = {}
        self.last_node, self.last_handle, self.silly = ROOT, 0, 0
        # Locks by path: owners that hold it shared or exclusively; and requests that wait.
        self.locks: dict[str, dict[tuple[int, int], int]] = {}
        self.waiting: list[tuple[Client, int, str, tuple[int, int], int]] = []

    def serve(self, devices: list[int]) -> None:
        """Answers until all mounts are gone."""
        self.clients = [Client(device) for device in devices]
        open_ones = {client.device: client for client in self.clients}
        while open_ones:
            for device in select.select(list(open_ones), [], [])[0]:
                try:
                    request = os.read(device, LARGEST_WRITE + 4096)
                except OSError as failed:
                    if failed.errno == errno.ENODEV:
                        del open_ones[device]
                    continue
                self.answer(open_ones[device], request)

    def answer(self, client: Client, request: bytes) -> None:
        """Answers one request."""
        _, operation, unique, node, _, _, pid, _ = struct.unpack_from("<IIQQIIII", request)
        if operation in (FORGET, BATCH_FORGET, INTERRUPT):
            if operation == INTERRUPT:
                self.interrupt(client, struct.unpack_from("<Q", request, 40)[0])
            return
        try:
            body = self.with_faults(client, operation, node, pid, request[40:], unique)
        except OSError as failed:
            self.reply(client, unique, b"", failed.errno or errno.EIO)
            return
        if body is not None:
            self.reply(client, unique, body)

    def reply(self, client: Client, unique: int, body: bytes, error: int = 0) -> None:
        """Sends an answer; the caller may be gone."""
        try:
            os.write(client.device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except OSError:
            pass

    def with_faults(self, client: Client, operation: int, node: int, pid: int, body: bytes, unique: int) -> bytes | None:
        """Does what is asked, and what the fault is."""
        mode, at, error, _, _ = self.faults.get()
        number = self.faults.count(3) if operation in CHANGES else 0
        hit = number == at > 0
        if mode == Faults.FROM_THEN_ON and at and number >= at and operation in CHANGES:
            self.struck(operation, body, os.strerror(error))
            raise OSError(error, "")
        if mode == Faults.ONCE and hit:
            self.struck(operation, body, os.strerror(error))
            raise OSError(error, "")
        if mode == Faults.LATE and at and operation == FSYNC and self.faults.get()[3] >= at:
            # The client has taken the data; only now does the server say that it could not.
            self.lose(struct.unpack_from("<Q", body)[0])
            self.faults.set(Faults.NONE)
            self.struck(operation, body, "late " + os.strerror(error))
            raise OSError(error, "")
        if mode == Faults.KILL_BEFORE and hit:
            self.struck(operation, body, "killed before")
            os.kill(pid, signal.SIGKILL)
            raise OSError(errno.EINTR, "")
        done = self.perform(client, operation, node, body, unique)
        if mode == Faults.KILL_AFTER and hit:
            self.struck(operation, body, "killed after")
            os.kill(pid, signal.SIGKILL)
        if operation in RETRIED and mode != Faults.CALM and self.random.random() < self.behavior.lost_answers:
            self.struck(operation, body, "lost answer")
            raise OSError(RETRIED[operation], "")
        return done

    def struck(self, operation: int, body: bytes, what: str) -> None:
        """Records a fault."""
        self.faults.count(4)
        name = body.rstrip(b"\0")[-60:] if operation in RETRIED else b""
        self.log.write(f"{what}: {NAMES.get(operation, operation)} {name!r}\n")

    def lose(self, number: int) -> None:
        """Drops what was written to a file since its last fsync."""
        handle = self.handles.get(number)
        if handle and handle.unsynced is not None:
            os.ftruncate(handle.descriptor, handle.unsynced)

    def perform(self, client: Client, operation: int, node: int, body: bytes, unique: int) -> bytes | None:
        """Does what is asked; returns the answer, or None if it comes later."""
        if operation == INIT:
            flags = FLOCK_LOCKS if self.behavior.locks != "local" else 0
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 131072, flags, 0, 0, LARGEST_WRITE, 1, 0, 0, 0)
        if operation in (OPEN, CREATE):
            return self.open(client, operation, node, body)
        if operation in (READ, WRITE, FSYNC, FLUSH, RELEASE, FALLOCATE):
            return self.of_handle(client, operation, body)
        if operation in (SETLK, SETLKW):
            return self.lock(client, operation, node, body, unique)
        if operation == STATFS:
            system = os.statvfs(self.backing)
            blocks = (0, 0, 0, 0, 0) if self.behavior.empty_statfs else (
                system.f_blocks, system.f_bfree, system.f_bavail, system.f_files, system.f_ffree)  # fmt: skip
            return struct.pack("<QQQQQIIII24x", *blocks, system.f_bsize, 255, system.f_frsize, 0)
        if operation == OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if operation in (RELEASEDIR, DESTROY):
            return b""
        if operation == FSYNCDIR:
            if self.behavior.folder_fsync_error:
                raise OSError(self.behavior.folder_fsync_error, "")
            return b""
        return self.of_path(client, operation, node, body)

    def of_path(self, client: Client, operation: int, node: int, body: bytes) -> bytes:
        """Does what is asked of a name."""
        if operation == LOOKUP:
            return self.entry(client, self.child(client, node, body))
        if operation == GETATTR:
            return self.attributes_of(client, node)
        if operation == SETATTR:
            return self.set_attributes(client, node, body)
        if operation == READDIR:
            return self.listing(client, node, body)
        if operation in (LINK, SYMLINK) and self.behavior.link_error:
            raise OSError(self.behavior.link_error, "")
        if operation == READLINK:
            return os.fsencode(os.readlink(self.real(self.path(client, node))))
        if operation == MKDIR:
            path = self.child(client, node, body[8:])
            os.mkdir(self.real(path))
            return self.entry(client, path)
        if operation == RMDIR:
            path = self.child(client, node, body)
            os.rmdir(self.real(path))
            self.forget(path)
            return b""
        if operation == UNLINK:
            self.remove(client, self.child(client, node, body))
            return b""
        if operation == RENAME:
            self.rename(client, node, body)
            return b""
        if operation == LINK:
            path = self.child(client, node, body[8:])
            os.link(self.real(self.path(client, struct.unpack_from("<Q", body)[0])), self.real(path))
            return self.entry(client, path)
        if operation == SYMLINK:
            name, target = body.split(b"\0")[:2]
            path = self.child(client, node, name)
            os.symlink(target, self.real(path))
            return self.entry(client, path)
        raise OSError(errno.ENOSYS, "")

    # Names and nodes.

    def real(self, path: str) -> str:
        """Returns the path of a file in the backing folder."""
        return os.path.join(self.backing, path) if path else self.backing

    def path(self, client: Client, node: int) -> str:
        """Returns the path of a node.

        Raises:
            OSError: ESTALE if the file was removed.
        """
        path = client.paths.get(node)
        if path is None:
            raise OSError(errno.ESTALE, "")
        return path

    def child(self, client: Client, node: int, name: bytes) -> str:
        """Returns the path of a name in a folder."""
        text = os.fsdecode(name.split(b"\0")[0])
        folder = self.path(client, node)
        if self.behavior.ignores_case:
            try:
                text = next((is_there for is_there in os.listdir(self.real(folder)) if is_there.lower() == text.lower()), text)
            except OSError:
                pass
        return f"{folder}/{text}" if folder else text

    def entry(self, client: Client, path: str) -> bytes:
        """Returns what a lookup answers."""
        found = os.lstat(self.real(path))
        if path not in client.nodes:
            self.last_node += 1
            client.nodes[path] = self.last_node
            client.paths[self.last_node] = path
        valid = self.valid()
        return struct.pack("<QQQQII", client.nodes[path], 0, valid[0], valid[0], valid[1], valid[1]) + self.attributes(found)

    def valid(self) -> tuple[int, int]:
        """Returns how long the kernel may keep names and attributes."""
        return int(self.behavior.cached_s), int(self.behavior.cached_s % 1 * 1e9)

    def attributes(self, found: os.stat_result) -> bytes:
        """Returns the attributes of a file, with the server's times."""
        times = []
        for moment in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns):
            moment += self.behavior.clock_ahead_s * 10**9
            if self.behavior.resolution_s:
                moment -= moment % (self.behavior.resolution_s * 10**9)
            times.append(moment)
        seconds, rest = [t // 10**9 for t in times], [t % 10**9 for t in times]
        sizes = (found.st_ino, found.st_size, found.st_blocks, *seconds)
        return struct.pack("<QQQQQQ", *sizes) + struct.pack(
            "<IIIIIIIIII", *rest, found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0
        )

    def attributes_of(self, client: Client, node: int) -> bytes:
        """Returns what `stat` answers; a removed file is still there for who has it open."""
        valid = self.valid()
        if client.paths.get(node) is None:
            for handle in self.handles.values():
                if (self.clients[handle.client], handle.node) == (client, node):
                    found = os.fstat(handle.descriptor)
                    break
            else:
                raise OSError(errno.ESTALE, "")
        else:
            found = os.lstat(self.real(self.path(client, node)))
        return struct.pack("<QII", valid[0], valid[1], 0) + self.attributes(found)

    def set_attributes(self, client: Client, node: int, body: bytes) -> bytes:
        """Sets size, mode or times."""
        valid, _, number, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode = struct.unpack_from("<IIQQQQQQIIII", body)
        handle = self.handles.get(number) if valid & 64 else None
        target = handle.descriptor if handle else self.real(self.path(client, node))
        if valid & 8:
            os.truncate(target, size)
        if valid & 1:
            os.chmod(target, stat.S_IMODE(mode))
        if valid & 48:
            now = time.time_ns()
            times = (now if valid & 128 else atime * 10**9 + atime_ns, now if valid & 256 else mtime * 10**9 + mtime_ns)
            os.utime(target, ns=times)
        return self.attributes_of(client, node)

    def listing(self, client: Client, node: int, body: bytes) -> bytes:
        """Returns a part of a folder's names."""
        _, offset, size = struct.unpack_from("<QQI", body)
        folder, out = self.real(self.path(client, node)), b""
        for index, name in enumerate([".", "..", *sorted(os.listdir(folder))][offset:], offset + 1):
            encoded = os.fsencode(name)
            try:
                kind = os.lstat(os.path.join(folder, name)).st_mode >> 12
            except OSError:
                continue
            item = struct.pack("<QQII", 1, index, len(encoded), kind) + encoded
            item += bytes(-len(item) % 8)
            if len(out) + len(item) > size:
                break
            out += item
        return out

    def forget(self, path: str) -> None:
        """Marks the nodes of a removed file as stale, for all clients."""
        for client in self.clients:
            if (node := client.nodes.pop(path, None)) is not None:
                client.paths[node] = None

    def move(self, old: str, new: str) -> None:
        """Renames nodes, with everything below."""
        for client in self.clients:
            for path in [path for path in client.nodes if path == old or path.startswith(old + "/")]:
                node = client.nodes.pop(path)
                client.paths[node] = new + path[len(old) :]
                client.nodes[new + path[len(old) :]] = node

    def remove(self, client: Client, path: str) -> None:
        """Removes a file; one that this client has open gets another name instead."""
        node = client.nodes.get(path)
        held = any(self.clients[h.client] is client and h.node == node for h in self.handles.values())
        if self.behavior.silly_rename and held:
            self.silly += 1
            hidden = os.path.join(os.path.dirname(path), f".nfs{self.silly:024x}")
            os.rename(self.real(path), self.real(hidden))
            self.move(path, hidden)
            return
        os.unlink(self.real(path))
        self.forget(path)

    def rename(self, client: Client, node: int, body: bytes) -> None:
        """Renames a file or a folder, over another file if there is one."""
        old_name, new_name = body[8:].split(b"\0")[:2]
        old, new = self.child(client, node, old_name), self.child(client, struct.unpack_from("<Q", body)[0], new_name)
        if self.behavior.silly_rename and new in client.nodes and os.path.isfile(self.real(new)):
            self.remove(client, new)
        os.rename(self.real(old), self.real(new))
        if new != old:
            self.forget(new)
            self.move(old, new)

    # Open files.

    def open(self, client: Client, operation: int, node: int, body: bytes) -> bytes:
        """Opens a file, or creates one."""
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_NOFOLLOW | os.O_DIRECT)
        if operation == CREATE:
            path, entry = self.child(client, node, body[16:]), b""
            descriptor = os.open(self.real(path), flags | os.O_CREAT, stat.S_IMODE(struct.unpack_from("<I", body, 4)[0]))
            entry = self.entry(client, path)
            node = client.nodes[path]
        else:
            entry, descriptor = b"", os.open(self.real(self.path(client, node)), flags)
        if flags & os.O_APPEND:
            # The kernel sends offsets.
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_APPEND)
        self.last_handle += 1
        self.handles[self.last_handle] = Handle(self.clients.index(client), descriptor, node)
        return entry + struct.pack("<QII", self.last_handle, 0, 0)

    def of_handle(self, client: Client, operation: int, body: bytes) -> bytes:
        """Does what is asked of an open file."""
        number = struct.unpack_from("<Q", body)[0]
        handle = self.handles[number]
        if operation == RELEASE:
            self.release(client, number, handle, body)
            return b""
        if operation == FALLOCATE:
            raise OSError(errno.EOPNOTSUPP, "")
        if operation != FLUSH and self.behavior.silly_rename and client.paths.get(handle.node) is None:
            # Another client removed the file: only silly renames of the client itself keep it.
            raise OSError(errno.ESTALE, "")
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(handle.descriptor, size, offset)
        if operation == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            handle.unsynced = offset if handle.unsynced is None else min(offset, handle.unsynced)
            return struct.pack("<II", os.pwrite(handle.descriptor, body[40 : 40 + size], offset), 0)
        handle.unsynced = None
        return b""

    def release(self, client: Client, number: int, handle: Handle, body: bytes) -> None:
        """Closes a file and, with the last handle, removes what was hidden."""
        flags, owner = struct.unpack_from("<IQ", body, 12)
        if flags & 2:
            self.unlock(client, handle.node, owner)
        os.close(self.handles.pop(number).descriptor)
        path = client.paths.get(handle.node)
        still = any((h.client, h.node) == (handle.client, handle.node) for h in self.handles.values())
        if path and os.path.basename(path).startswith(".nfs") and not still:
            try:
                os.unlink(self.real(path))
            except OSError:
                pass
            self.forget(path)

    # Locks.

    def lock(self, client: Client, operation: int, node: int, body: bytes, unique: int) -> bytes | None:
        """Takes or gives back a lock; with SETLKW, the answer may come later."""
        _, owner, _, _, kind, _, _ = struct.unpack_from("<QQQQIII", body)
        if self.behavior.locks == "none":
            raise OSError(errno.ENOLCK, "")
        if kind == fcntl.F_UNLCK:
            self.unlock(client, node, owner)
            return b""
        path, mine = self.path(client, node), (self.clients.index(client), owner)
        if self.take(path, mine, kind):
            return b""
        if operation == SETLK:
            raise OSError(errno.EAGAIN, "")
        self.waiting.append((client, unique, path, mine, kind))
        return None

    def take(self, path: str, mine: tuple[int, int], kind: int) -> bool:
        """Takes a lock if nobody else holds one that excludes it."""
        held = self.locks.setdefault(path, {})
        if any(fcntl.F_WRLCK in (kind, other) for owner, other in held.items() if owner != mine):
            return False
        held[mine] = kind
        return True

    def unlock(self, client: Client, node: int, owner: int) -> None:
        """Gives back a lock, and gives it to those who wait."""
        path = client.paths.get(node)
        self.locks.get(path or "", {}).pop((self.clients.index(client), owner), None)
        for request in list(self.waiting):
            waiter, unique, wanted, mine, kind = request
            if wanted == path and self.take(wanted, mine, kind):
                self.waiting.remove(request)
                self.reply(waiter, unique, b"")

    def interrupt(self, client: Client, unique: int) -> None:
        """Ends the wait of an interrupted request."""
        for request in [one for one in self.waiting if one[0] is client and one[1] == unique]:
            self.waiting.remove(request)
            self.reply(client, unique, b"", errno.EINTR)


class Mounted:
    """Mounts of a folder, with the server behind them."""

    def __init__(self, folder: Path, behavior: Behavior, seed: str, clients: int = 1):
        self.backing, self.log, self.faults = folder / "backing", folder / "server.log", Faults()
        self.mounts = [folder / f"client-{number}" for number in range(clients)]
        for path in (self.backing, *self.mounts):
            path.mkdir(parents=True)
        devices = [mount(path) for path in self.mounts]
        self.server = os.fork()
        if self.server == 0:
            code = 1
            try:
                # So that nobody takes the server for a process of the trial.
                os.chdir("/")
                Server(self.backing, behavior, self.faults, Random(seed), self.log).serve(devices)
                code = 0
            except BaseException:
                self.log.write_text(f"the server failed: {traceback.format_exc()}")
            finally:
                os._exit(code)
        for device in devices:
            os.close(device)

    def close(self) -> None:
        """Removes the mounts and waits for the server."""
        for path in self.mounts:
            unmount(path)
        os.kill(self.server, signal.SIGKILL)
        os.waitpid(self.server, 0)


LIBC = ctypes.CDLL(None, use_errno=True)


def mount(path: Path) -> int:
    """Mounts a FUSE file system; returns its device.

    Raises:
        OSError: if /dev/fuse is missing, or this user may not mount.
    """
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    no_devices_or_setuid = 6
    if LIBC.mount(b"xrun-campaign", os.fsencode(path), b"fuse", no_devices_or_setuid, options.encode()) != 0:
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, f"mount: {os.strerror(number)}")
    return device


def unmount(path: Path) -> None:
    """Removes a mount, also while it is in use."""
    detach = 2
    LIBC.umount2(os.fsencode(path), detach)
