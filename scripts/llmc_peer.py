#!/usr/bin/env python3
"""Trains GPT-2 124M with llm.c on random tokens and prints a line of JSON per step for `xrun compare --before-cmd`.

    llmc_peer.py --binary train_gpt2cu > rows.jsonl

Build llm.c (github.com/karpathy/llm.c, measured at commit f1e2ace) in its folder with

    nvcc --use_fast_math -std=c++17 -O3 --generate-code arch=compute_90,code=[compute_90,sm_90] -DENABLE_BF16 \\
        -DENABLE_CUDNN -I cudnn-frontend/include llmc/cudnn_att.cpp train_gpt2.cu -lcublas -lcublasLt -lcudnn \\
        -lnvidia-ml -o train_gpt2cu

This build uses cuDNN's attention and fp32 master weights, and recomputes nothing; with --gelu-fusion, cuBLASLt computes
GELU in the epilogue of its matmul. Its model differs from xrun's base-160m: it has LayerNorm and GELU with biases,
learned positions and a tied head. It has 124M parameters in 12 layers of width 768, and the same FLOPs per token as
base-160m.
"""

import argparse
import array
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

VOCAB = 50_257
# llm.c's data file has a header of 256 32-bit integers that begins with these, then 16-bit tokens.
MAGIC, VERSION, HEADER = 20_240_520, 1, 256
STEP = re.compile(r"step\s+(\d+)/\d+ .*?\|\s*([0-9.]+) ms \|")


def write_tokens(path: Path, count: int) -> None:
    """Writes a data file of random tokens."""
    header = array.array("i", [MAGIC, VERSION, count] + [0] * (HEADER - 3))
    draw = random.Random(0)
    with path.open("wb") as file:
        header.tofile(file)
        array.array("H", (draw.randrange(VOCAB) for _ in range(count))).tofile(file)


def main() -> None:
    """Trains and prints the steps after the warm-up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="llm.c's train_gpt2cu")
    parser.add_argument("--model", default="d12", help="llm.c's name for a model with random weights: d and its depth")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--gelu-fusion", type=int, default=0, choices=[0, 1, 2], help="fuse GELU into the matmul: 0 never, 1 in the forward, 2 also in the backward"
    )
    args = parser.parse_args()
    tokens, count = args.batch * args.seq, args.warmup + args.steps
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tokens.bin"
        # The extra token is the target of the last one.
        write_tokens(data, 32 * tokens + 1)
        options = {"e": args.model, "i": data, "j": data, "b": args.batch, "t": args.seq, "d": tokens, "x": count}
        # No recompute, ZeRO or HellaSwag; validation and samples only before the first and after the last
        # step.
        options |= {"r": 0, "z": 0, "v": 100_000, "s": 100_000, "h": 0, "ge": args.gelu_fusion}
        command = [str(args.binary), *(str(word) for name, value in options.items() for word in (f"-{name}", value))]
        done = subprocess.run(command, capture_output=True, text=True)
    times = [(int(step), float(ms)) for step, ms in STEP.findall(done.stdout)]
    if done.returncode or len(times) != count:
        sys.exit(f"llm.c ended with {done.returncode} after {len(times)} of {count} steps: {done.stdout[-500:]}{done.stderr[-500:]}")
    for step, ms in times[args.warmup :]:
        print(json.dumps({"step": step - args.warmup, "step_ms": ms, "tok_s": tokens / ms * 1e3}))


if __name__ == "__main__":
    main()
