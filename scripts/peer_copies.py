#!/usr/bin/env python3
"""Tests whether copies between two GPUs of one process finish, by way of peer access and by graphs queued at once.

    python3 scripts/peer_copies.py                 # both ways of access, 1 to 30 launches queued at once
    python3 scripts/peer_copies.py --limit 20      # seconds after which a case counts as hanging

Uses only the driver, through ctypes, and nothing of xrun. Two threads launch a graph each, one per GPU. A graph has
several exchanges. Each sets a flag in the other GPU's memory, waits for its own flag, copies into the other GPU's
memory, and signals and waits again with a second flag, as xrun's copy collectives do. With `peer`, each context can
access all memory of the other (cuCtxEnablePeerAccess); with `mapped`, only one allocation (cuMemSetAccess). Every case
runs in its own process, which is killed if it does not finish.
"""

import argparse
import ctypes
import subprocess
import sys
import threading
import time

EXCHANGES = 12
BYTES = 12 << 20
ROUNDS = 20
PAGE = 2 << 20
WAIT, WRITE, EQUAL = 1, 2, 1

cuda = ctypes.CDLL("libcuda.so.1") if "--case" in sys.argv else None


class Operation(ctypes.Structure):
    """CUstreamBatchMemOpParams: a wait for a value, or a write of one."""

    _fields_ = [
        ("kind", ctypes.c_uint),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 2),
    ]


class Properties(ctypes.Structure):
    """CUmemAllocationProp for memory on a GPU."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", ctypes.c_uint64 * 2),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc for a GPU that reads and writes."""

    _fields_ = [("location", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


def call(name: str, *arguments: object) -> None:
    """Calls the driver and raises if it returns an error."""
    status = getattr(cuda, name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name}: {status}")


def plain(device: int) -> int:
    """Allocates memory on the current context's GPU."""
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(2 * PAGE + BYTES))
    return address.value


def mapped(device: int) -> int:
    """Allocates memory on a GPU that both GPUs can access."""
    properties = Properties(kind=1, location=1, device=device)
    size = ctypes.c_size_t(-(-(2 * PAGE + BYTES) // PAGE) * PAGE)
    handle, address = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
    nothing = ctypes.c_uint64(0)
    call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), nothing, nothing)
    call("cuMemMap", address, size, ctypes.c_size_t(0), handle, nothing)
    both = (Access * 2)(Access(1, 0, 3), Access(1, 1, 3))
    call("cuMemSetAccess", address, size, both, ctypes.c_size_t(2))
    return address.value


def one(way: str, queued: int) -> None:
    """Runs one case and prints the microseconds per launch."""
    call("cuInit", 0)
    contexts, memory = [ctypes.c_void_p(), ctypes.c_void_p()], []
    for device, context in enumerate(contexts):
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        memory.append({"peer": plain, "mapped": mapped}[way](device))
        call("cuMemsetD8_v2", ctypes.c_uint64(memory[-1]), ctypes.c_ubyte(0), ctypes.c_size_t(2 * PAGE + BYTES))
        call("cuCtxSynchronize")
    if way == "peer":
        for device, context in enumerate(contexts):
            call("cuCtxSetCurrent", context)
            call("cuCtxEnablePeerAccess", contexts[1 - device], 0)
    meet, times = threading.Barrier(2), []
    work = lambda device: rank(device, contexts[device], memory, queued, meet, times)  # noqa: E731
    threads = [threading.Thread(target=work, args=(device,), daemon=True) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(times) != 2:
        raise RuntimeError("a thread failed")
    print(f"{max(times) / (ROUNDS * queued) * 1e6:.0f}")


def rank(
    device: int, context: ctypes.c_void_p, memory: list[int], queued: int, meet: threading.Barrier, times: list[float]
) -> None:
    """Captures a graph and launches it repeatedly; each thread runs this for its GPU."""
    call("cuCtxSetCurrent", context)
    own, other = memory[device], memory[1 - device]
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    # Thread-local capture, as in xrun: other threads may make any driver call meanwhile.
    call("cuStreamBeginCapture_v2", stream, 1)
    for _ in range(EXCHANGES):
        for flag in (0, 4):
            operations = (Operation * 3)(
                Operation(WRITE, other + flag, 1, 0), Operation(WAIT, own + flag, 1, EQUAL), Operation(WRITE, own + flag, 0, 0)
            )
            call("cuStreamBatchMemOp_v2", stream, 3, operations, 0)
            if flag == 0:
                to, source = ctypes.c_uint64(other + PAGE), ctypes.c_uint64(own + PAGE)
                call("cuMemcpyDtoDAsync_v2", to, source, ctypes.c_size_t(BYTES), stream)
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    meet.wait()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        for _ in range(queued):
            call("cuGraphLaunch", executable, stream)
        call("cuStreamSynchronize", stream)
    times.append(time.perf_counter() - began)


def main() -> None:
    """Runs the cases, each in its own process, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=15.0, help="seconds that a case may take")
    parser.add_argument("--case", nargs=2, metavar=("WAY", "QUEUED"), help="run one case in this process")
    args = parser.parse_args()
    if args.case:
        one(args.case[0], int(args.case[1]))
        return
    queues = (1, 3, 10, 30)
    print(f"| access | {' | '.join(f'{queued} queued' for queued in queues)} |\n|---|{'---|' * len(queues)}")
    for way in ("peer", "mapped"):
        cells = []
        for queued in queues:
            command = [sys.executable, __file__, "--case", way, str(queued)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
                words = done.stderr.strip().splitlines()
                cells.append(f"{done.stdout.strip()} µs" if done.returncode == 0 else (words or ["failed"])[-1])
            except subprocess.TimeoutExpired:
                cells.append("does not end")
        print(f"| {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
