#!/usr/bin/env python3
"""Trains nanochat's own model with its own optimizer on random tokens and prints the speed.

    nanochat_peer.py CLONE [--depth 12] [--batch 16] [--window L] [--flash-attention-3 FOLDER]

CLONE is a git clone of karpathy/nanochat, read at the commit that data/models/ideas/nanochat_2026.model names. The model
is compiled as its training script compiles it, and computes in bf16. Attention is FlashAttention 3 if the package
`kernels` can load it or --flash-attention-3 names its folder `hopper`, built in place (`FLASH_ATTENTION_DISABLE_…=TRUE
python setup.py build_ext --inplace`), else PyTorch's; the line says which. The same model here:

    xrun run nanochat-d12 model.definition=data/models/ideas/nanochat_2026.model model.vocab_size=32768 \\
      model.rope_theta=100000 model.norm_eps=1.1920929e-7 training.local_batch_size=16 optimizer.name=muon \\
      data.corpus=random data.tokenizer=byte training.steps=50
"""

import argparse
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import types
from pathlib import Path

import torch
from model_texts import NANOCHAT

SEQ, VOCAB, STEPS, WARMUP = 2048, 32_768, 45, 15


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("clone", metavar="CLONE", type=Path)
    arguments.add_argument("--depth", type=int, default=12)
    arguments.add_argument("--batch", type=int, default=16, help="sequences in a step")
    arguments.add_argument("--window", default="L", help="nanochat's pattern of windows; L: every block sees all keys")
    arguments.add_argument("--flash-attention-3", metavar="FOLDER", type=Path, help="folder of flash_attn_interface.py, built")
    args = arguments.parse_args()
    if args.flash_attention_3:
        offer_flash_attention(args.flash_attention_3)
    archive = subprocess.run(["git", "-C", args.clone, "archive", NANOCHAT, "nanochat"], check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        tarfile.open(fileobj=io.BytesIO(archive.stdout)).extractall(folder, filter="data")
        sys.path.insert(0, folder)
        from nanochat import flash_attention
        from nanochat.gpt import GPT, GPTConfig

    torch.set_float32_matmul_precision("high")
    dim = 64 * args.depth
    config = GPTConfig(SEQ, VOCAB, args.depth, dim // 128, dim // 128, dim, args.window)
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cuda")
    model.init_weights()
    optimizer = model.setup_optimizer(weight_decay=0.1)
    compiled = torch.compile(model, dynamic=False)
    seconds = []
    for _ in range(STEPS):
        windows = torch.randint(0, VOCAB, (args.batch, SEQ + 1), device="cuda")
        tokens, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = compiled(tokens, targets)
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    rate = args.batch * SEQ / statistics.median(seconds[WARMUP:])
    attention = "FlashAttention 3" if flash_attention.USE_FA3 else "PyTorch's attention"
    setup = f"depth {args.depth}, windows {args.window}, {attention}, torch {torch.__version__}"
    print(f"nanochat {setup}: {rate:.0f} tok/s, loss {loss.item():.4f}")


def offer_flash_attention(folder: Path) -> None:
    """Lets nanochat load FlashAttention 3 from a folder, where it asks the package `kernels` to fetch it."""
    sys.path.insert(0, str(folder.resolve()))
    import flash_attn_interface

    package = types.ModuleType("kernels")
    package.get_kernel = lambda _: types.SimpleNamespace(flash_attn_interface=flash_attn_interface)
    package.has_kernel = lambda _: True
    sys.modules["kernels"] = package


if __name__ == "__main__":
    main()
