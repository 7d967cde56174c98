#!/usr/bin/env python3
"""Measures how fast the GPUs of one host copy to each other, by size, from one GPU or from all at once.

    python3 scripts/peer_rates.py                    # all GPUs of this machine
    python3 scripts/peer_rates.py --mib 1 16 --seconds 0.05

Uses nothing of xrun: it calls cuMemcpyDtoDAsync between PyTorch allocations, on a stream of the GPU that has the data
(pushed) or of the GPU that receives it (pulled). Prints for each case the GB/s (10⁹ bytes) that one GPU sends, timed
until the slowest sender is done.
"""

import argparse
import ctypes
import time

import torch

driver = ctypes.CDLL("libcuda.so.1") if torch.cuda.is_available() else None


def copy(target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Queues a copy of the whole `source` on a stream."""
    size = source.numel() * source.element_size()
    pointers = (ctypes.c_uint64(target.data_ptr()), ctypes.c_uint64(source.data_ptr()))
    code = driver.cuMemcpyDtoDAsync_v2(*pointers, ctypes.c_size_t(size), ctypes.c_void_p(stream.cuda_stream))
    if code != 0:
        raise SystemExit(f"cuMemcpyDtoDAsync failed with error {code}")


def rate(senders: list[int], peers: int, size: int, pushed: bool, seconds: float) -> float:
    """Returns the GB/s that one GPU sends while each of `senders` copies to its next `peers` GPUs."""
    count = torch.cuda.device_count()
    links = [(a, (a + 1 + k) % count) for a in senders for k in range(peers)]
    queues = []
    for a, b in links:
        on = a if pushed else b
        source = torch.empty(size, dtype=torch.uint8, device=f"cuda:{a}")
        target = torch.empty(size, dtype=torch.uint8, device=f"cuda:{b}")
        # PyTorch's own copy enables peer access between the two contexts.
        target.copy_(source)
        queues.append((on, target, source, torch.cuda.Stream(on)))
    repeats = 4
    while True:
        for device in range(count):
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        for _ in range(repeats):
            for on, target, source, stream in queues:
                with torch.cuda.device(on):
                    copy(target, source, stream)
        for *_, stream in queues:
            stream.synchronize()
        took = time.perf_counter() - begun
        if took >= seconds:
            return repeats * peers * size / took / 1e9
        repeats *= 2


def main() -> None:
    """Measures all cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, nargs="+", default=[0.25, 1, 4, 16, 64], help="sizes of a copy in MiB")
    parser.add_argument("--seconds", type=float, default=0.03, help="minimum time of a case")
    args = parser.parse_args()
    count = torch.cuda.device_count()
    if count < 2:
        raise SystemExit("this script needs at least two GPUs")
    cases = [("one GPU to one", [0], 1), ("each to the next", list(range(count)), 1)]
    if count > 2:
        cases += [(f"one GPU to {count - 1}", [0], count - 1), (f"each to {count - 1}", list(range(count)), count - 1)]
    print(f"{count} × {torch.cuda.get_device_name(0)}; GB/s that a GPU sends\n")
    print("| | " + " | ".join(f"{mib:g} MiB" for mib in args.mib) + " |")
    print("|---|" + "--:|" * len(args.mib))
    for what, senders, peers in cases:
        for pushed in (True, False):
            found = [rate(senders, peers, int(mib * 2**20), pushed, args.seconds) for mib in args.mib]
            print(f"| {what}, {'pushed' if pushed else 'pulled'} | " + " | ".join(f"{value:.0f}" for value in found) + " |")


if __name__ == "__main__":
    main()
