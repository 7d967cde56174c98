#!/usr/bin/env python3
"""Measures how fast xrun and transformers generate with the same weights, in turns.

    generation_peers.py --xrun target/release/xrun --run RUN --prompt-tokens 64 --tokens 512 --samples 1 16
    generation_peers.py --xrun ./xrun --run RUN --prompt-tokens 1024 --tokens 1 --samples 1 16     # only prefill
    generation_peers.py --side transformers --folder EXPORTED --prompt-tokens 64 --tokens 512 --samples 1

Prints lines of JSON with prefill and decode apart. RUN is a run with a checkpoint, trained or imported; it is exported
once for transformers. Both sides decode greedily, in bf16 unless --dtype says otherwise, and no token ends a text.

transformers runs as its documentation advises: `generate` with the static cache and a decode step compiled with
mode="reduce-overhead", on warm graphs. Its prefill is the time of `generate` for one new token; its decode is the time
for all tokens minus the prefill. A turn is one process per side. The last line for each number of samples has the
ratio of the medians, and the smallest and largest ratio within a turn.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM_UP, REPEATS = 3, 5
STRIDE = 7919


def transformers_times(folder, samples, prompt_tokens, tokens, dtype):
    """Generates with transformers and yields a row per repetition after the warm-up."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.configuration_utils import CompileConfig

    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="sdpa").to(device).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    vocab = model.config.vocab_size
    rows = [[(s + i * STRIDE) % vocab for i in range(prompt_tokens)] for s in range(samples)]
    ids = torch.tensor(rows, device=device)

    def timed(count):
        torch.cuda.synchronize() if device == "cuda" else None
        began = time.perf_counter()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            cache_implementation="static",
            compile_config=CompileConfig(mode="reduce-overhead", fullgraph=True),
        )
        torch.cuda.synchronize() if device == "cuda" else None
        assert out.shape[1] == prompt_tokens + count, f"{out.shape[1] - prompt_tokens} new tokens instead of {count}"
        return time.perf_counter() - began

    with torch.inference_mode():
        for repetition in range(WARM_UP + REPEATS):
            prefill = timed(1)
            decode = timed(tokens) - prefill if tokens > 1 else 0.0
            if repetition >= WARM_UP:
                yield row("transformers", samples, prompt_tokens, tokens, prefill, decode)


def row(side, samples, prompt_tokens, tokens, prefill, decode):
    made = samples * (tokens - 1)
    return {
        "side": side,
        "samples": samples,
        "prompt_tokens": prompt_tokens,
        "new_tokens": tokens,
        "prefill_ms": prefill * 1e3,
        "decode_ms": decode * 1e3,
        "decode_tok_s": made / decode if decode > 0 else None,
    }


def lines(command):
    """Runs a command and returns the lines of JSON that it prints."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def medians(rows):
    return {key: statistics.median(r[key] for r in rows) for key in ("prefill_ms", "decode_ms")}


def compare(args, folder, samples):
    """Runs both sides in turns; prints their rows, then their ratio."""
    sides = {"xrun": [], "transformers": []}
    fixed = ["--tokens", str(args.tokens)]
    for turn in range(args.turns):
        for side, turns in sides.items():
            if side == "xrun":
                command = [args.xrun, "sample", args.run, "--bench", str(args.prompt_tokens), "--samples", str(samples)]
                command += ["--temperature", "0", *fixed, f"training.dtype={args.dtype}", *args.set]
            else:
                command = [sys.executable, __file__, "--side", "transformers", "--folder", folder, "--samples", str(samples)]
                command += ["--prompt-tokens", str(args.prompt_tokens), "--dtype", args.dtype, *fixed]
            found = lines(command)
            turns.append(medians(found))
            for one in found:
                print(json.dumps({"turn": turn, **one}), flush=True)
    ratio = {"samples": samples, "prompt_tokens": args.prompt_tokens, "new_tokens": args.tokens}
    for key in ("prefill_ms", "decode_ms"):
        ours, theirs = ([turn[key] for turn in sides[side]] for side in ("xrun", "transformers"))
        if min(ours) > 0 and min(theirs) > 0:
            pairs = [b / a for a, b in zip(ours, theirs, strict=True)]
            ratio[f"{key}_ratio"] = statistics.median(theirs) / statistics.median(ours)
            ratio[f"{key}_ratio_range"] = [min(pairs), max(pairs)]
    print(json.dumps(ratio), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=["both", "transformers"], default="both")
    parser.add_argument("--xrun", default="target/release/xrun", help="the binary")
    parser.add_argument("--run", help="the run's folder or name")
    parser.add_argument("--folder", help="an exported folder [default: export the run]")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--dtype", choices=["bf16", "fp32", "tf32"], default="bf16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a recipe key of xrun's side")
    args = parser.parse_args()
    if args.side == "transformers":
        for samples in args.samples:
            for found in transformers_times(args.folder, samples, args.prompt_tokens, args.tokens, args.dtype):
                print(json.dumps(found), flush=True)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or str(Path(temporary) / "exported")
        if not args.folder:
            subprocess.run([args.xrun, "export", args.run, "--to", folder], check=True, stdout=sys.stderr)
        for samples in args.samples:
            compare(args, folder, samples)


if __name__ == "__main__":
    main()
