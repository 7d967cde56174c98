#!/usr/bin/env python3
"""Times attention alone on one NVIDIA GPU: xrun's kernels against cuDNN's and FlashAttention-2's.

    cargo build --release
    python3 scripts/attention_peers.py --xrun target/release/xrun            # microseconds per call, as Markdown
    python3 scripts/attention_peers.py --xrun target/release/xrun --errors   # PyTorch's errors beside `ops check --long`

Times are in bf16 with a causal mask. The calls cycle through inputs that together exceed the L2 cache, and all calls
are in one CUDA graph. The libraries alternate, and the table shows medians over the turns. PyTorch's two libraries run
through `scaled_dot_product_attention`; their backward is `torch.autograd.grad` in a graph.

An error is the root mean square, over all rows, of the error of a row against f64 divided by the size of the row's
terms. The inputs are normally distributed. `xrun ops check --long` computes the same over sampled rows, on nearly
normal inputs.
"""
import argparse
import math
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [
    "24,512,12,12,64",
    "16,1024,12,12,64",
    "16,1024,8,4,128",
    "8,2048,16,8,128",
    "4,4096,12,12,64",
    "32,256,24,24,32",
]
LIBRARIES = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}
# Tokens, heads, kv heads and head dimensions at which errors are measured.
LONG = [(4097, 1, 1, 64), (4097, 4, 1, 128), (16384, 2, 1, 64), (16384, 2, 1, 128), (32768, 2, 1, 128)]
TURNS_BYTES, MOST_TURNS = 512 << 20, 32
LAUNCHES = 10


def attention(q, k, v):
    """Computes causal attention, grouped-query if there are fewer kv heads than heads."""
    shared = q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)


class Calls:
    """The forward and the backward of several inputs, each captured as one graph."""

    def __init__(self, shape, backend):
        batch, seq_len, heads, kv, dim = shape
        bytes_of_one = 2 * batch * seq_len * (heads + 2 * kv) * dim
        turns = min(MOST_TURNS, max(2, -(-TURNS_BYTES // bytes_of_one)))
        self.count = turns
        # Everything uses one stream: the backward runs on the stream of its forward, and the capture must see
        # it.
        self.stream = torch.cuda.Stream()

        def normal(h):
            return torch.randn(batch, seq_len, h, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

        with torch.cuda.stream(self.stream), sdpa_kernel(backend):
            self.inputs = [tuple(normal(h).requires_grad_() for h in (heads, kv, kv)) for _ in range(turns)]
            self.upstream = [normal(heads) for _ in range(turns)]
            self.outputs = [self.attend(i) for i in range(turns)]
            self.forward = self.capture(lambda: [self.attend(i).detach() for i in range(turns)])
            self.backward = self.capture(lambda: [self.gradient(i) for i in range(turns)])

    def attend(self, i):
        """Runs the forward of input `i`."""
        q, k, v = self.inputs[i]
        return attention(q, k, v)

    def gradient(self, i):
        """Runs the backward of input `i`."""
        return torch.autograd.grad(self.outputs[i], self.inputs[i], self.upstream[i], retain_graph=True)

    def capture(self, work):
        """Runs `work` once as a warm-up, then captures it as a graph."""
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            work()
        return graph

    def microseconds(self, graph):
        """Returns the mean time of one call in a graph."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            graph.replay()
            start.record()
            for _ in range(LAUNCHES):
                graph.replay()
            end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / LAUNCHES / self.count


def xrun_times(binary, shape, norm=False):
    """Returns xrun's forward and backward times of one shape in microseconds."""
    command = [binary, "ops", "attention", *(["--norm"] if norm else []), shape]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    words = done.stdout.split()
    return [float(words[words.index(name) + 1]) for name in ("forward", "backward")]


def times(args):
    """Prints the table of times."""
    columns = ["xrun", *LIBRARIES]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| batch, tokens, heads, kv heads, head_dim | " + " | ".join(f"{c} forward / backward" for c in columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for shape in args.shapes:
        numbers = tuple(int(n) for n in shape.split(","))
        found = {column: ([], []) for column in columns}
        calls = {name: Calls(numbers, backend) for name, backend in LIBRARIES.items()}
        for _ in range(args.turns):
            for i, time in enumerate(xrun_times(args.xrun, shape)):
                found["xrun"][i].append(time)
            for name, of in calls.items():
                for i, graph in enumerate((of.forward, of.backward)):
                    found[name][i].append(of.microseconds(graph))
        cells = [" / ".join(f"{statistics.median(turns):.1f}" for turns in found[c]) for c in columns]
        print(f"| {shape.replace(',', ', ')} | {' | '.join(cells)} |", flush=True)
        del calls, of, graph
        torch.cuda.empty_cache()
    for shape in args.norm_shapes:
        turns = zip(*(xrun_times(args.xrun, shape, norm=True) for _ in range(args.turns)))
        forward, backward = (statistics.median(times) for times in turns)
        name = f"{shape.replace(',', ', ')}, with norm and rotation"
        print(f"| {name} | {forward:.1f} / {backward:.1f} |" + " |" * len(LIBRARIES))


def relative(have, want):
    """Returns the root mean square over rows of a row's error divided by the size of its terms."""
    value, size = want
    errors = (have.double() - value).square().sum(-1)
    return float((errors / size.clamp_min(1e-300)).mean().sqrt())


def errors(args):
    """Prints PyTorch's errors at the lengths of `xrun ops check --long`, on different inputs."""
    print("| tokens, heads, kv heads, head_dim | library | output | dq | dk | dv |\n|---|---|--:|--:|--:|--:|")
    for seq_len, heads, kv, dim in LONG:
        torch.manual_seed(0)
        sizes = [(1, h, seq_len, dim) for h in (heads, kv, kv)]
        q, k, v = (torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for size in sizes)
        upstream = torch.randn_like(q)
        wants = reference(q.detach(), k.detach(), v.detach(), upstream)
        for name, backend in LIBRARIES.items():
            with sdpa_kernel(backend):
                out = attention(q, k, v)
                grads = torch.autograd.grad(out, (q, k, v), upstream)
            found = [relative(have.detach(), want) for have, want in zip((out, *grads), wants)]
            cells = " | ".join(f"{error:.2e}" for error in found)
            print(f"| {seq_len}, {heads}, {kv}, {dim} | {name} | {cells} |", flush=True)


def reference(q, k, v, upstream, rows=1024):
    """Computes output and gradients in f64, `rows` rows at a time, each with the squared size of every row's terms."""
    group, (seq_len, dim) = q.shape[1] // k.shape[1], q.shape[2:]
    q, k, v, upstream = (t[0].double() for t in (q, k, v, upstream))
    found = [(torch.zeros_like(t), torch.zeros_like(t[..., 0])) for t in (q, q, k, v)]
    (out, out_size), (dq, dq_size), (dk, dk_size), (dv, dv_size) = found
    columns = torch.arange(seq_len, device=q.device)
    squares = {name: t.square().sum(-1) for name, t in {"q": q, "k": k, "v": v, "do": upstream}.items()}
    for h in range(q.shape[0]):
        g = h // group
        for first in range(0, seq_len, rows):
            piece = slice(first, min(first + rows, seq_len))
            scores = q[h, piece] @ k[g].T / math.sqrt(dim)
            scores.masked_fill_(columns > columns[piece, None], -math.inf)
            p = scores.softmax(-1)
            out[h, piece], out_size[h, piece] = p @ v[g], p.square() @ squares["v"][g]
            dp = upstream[h, piece] @ v[g].T
            dot = (upstream[h, piece] * out[h, piece]).sum(-1, keepdim=True)
            ds = p * (dp - dot) / math.sqrt(dim)
            size = (p * (dp.abs() + dot.abs()) / math.sqrt(dim)).square()
            dq[h, piece], dq_size[h, piece] = ds @ k[g], size @ squares["k"][g]
            dk[g] += ds.T @ q[h, piece]
            dk_size[g] += size.T @ squares["q"][h, piece]
            dv[g] += p.T @ upstream[h, piece]
            dv_size[g] += p.square().T @ squares["do"][h, piece]
    return [(value[None], size[None]) for value, size in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", default="target/release/xrun", help="the binary")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, help="batch,tokens,heads,kv_heads,head_dim")
    parser.add_argument(
        "--norm-shapes", nargs="*", default=["32,256,24,24,32"], help="shapes that xrun also times with QK-norm and RoPE"
    )
    parser.add_argument("--turns", type=int, default=3, help="how often the libraries take turns")
    parser.add_argument("--errors", action="store_true", help="print PyTorch's errors instead of times")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no NVIDIA GPU, and this script compares GPU kernels")
    errors(args) if args.errors else times(args)


if __name__ == "__main__":
    main()
