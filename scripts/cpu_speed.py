#!/usr/bin/env python3
"""Measures tokens per second on this CPU: xrun and PyTorch with torch.compile, in turns.

    cargo build --release
    python3 scripts/cpu_speed.py            # needs torch; prints one JSON line per run, then the ratio

Both sides train the same model (width 128, 4 layers, 4 heads of 32, FFN 384, vocabulary 512, fp32) on 16 sequences of
128 tokens per step, with AdamW and clipping by the global norm, on the same number of threads. Both keep all
activations. Each turn is a fresh process. The ratio is the ratio of the medians over the turns; its spread is the
smallest and largest ratio within a turn.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

LAYERS, DIM, HEADS, HEAD_DIM, FFN, VOCAB = 4, 128, 4, 32, 384, 512
BATCH, SEQ = 16, 128
RECIPE = f"""
[model]
dim = {DIM}
n_layers = {LAYERS}
n_heads = {HEADS}
head_dim = {HEAD_DIM}
ffn_dim = {FFN}
[training]
seq_len = {SEQ}
local_batch_size = {BATCH}
steps = STEPS
dtype = "fp32"
[lr_scheduler]
warmup_steps = 10
[activation_checkpoint]
mode = "none"
[data]
corpus = "stories"
tokenizer = "stories"
train_tokens = 300000
[validation]
interval = 0
steps = 1
[generation]
samples = 0
[metrics]
warmup = 20
[engine]
threads = THREADS
"""


def run_xrun(binary, threads, steps):
    """Trains with xrun and returns the median tokens per second of the steady state."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        recipe = folder / "speed.toml"
        recipe.write_text(RECIPE.replace("STEPS", str(steps)).replace("THREADS", str(threads)))
        command = [binary, "--results", str(folder / "results"), str(recipe), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (summary,) = folder.glob("results/speed/*/summary.json")
        return json.loads(summary.read_text())["tok_s"]


def run_torch(threads, steps):
    """Trains with PyTorch in a fresh process and returns the median tokens per second."""
    command = [sys.executable, __file__, "--peer", "--threads", str(threads), "--steps", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["tok_s"]


def peer(threads, steps):
    """Trains the model with PyTorch and prints its median speed as JSON."""
    import time

    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            width = HEADS * HEAD_DIM
            self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM, eps=1e-6), nn.RMSNorm(DIM, eps=1e-6)
            self.q_norm, self.k_norm = nn.RMSNorm(HEAD_DIM, eps=1e-6), nn.RMSNorm(HEAD_DIM, eps=1e-6)
            self.qkv = nn.Linear(DIM, 3 * width, bias=False)
            self.out = nn.Linear(width, DIM, bias=False)
            self.gate_up = nn.Linear(DIM, 2 * FFN, bias=False)
            self.down = nn.Linear(FFN, DIM, bias=False)

        def forward(self, x, cos, sin):
            rows = x.shape[0], x.shape[1], HEADS, HEAD_DIM

            def rotate(t):
                a, b = t.chunk(2, -1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

            q, k, v = self.qkv(self.attention_norm(x)).chunk(3, -1)
            q = rotate(self.q_norm(q.view(rows)).transpose(1, 2))
            k = rotate(self.k_norm(k.view(rows)).transpose(1, 2))
            y = F.scaled_dot_product_attention(q, k, v.view(rows).transpose(1, 2), is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, DIM)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.RMSNorm(DIM, eps=1e-6), nn.Linear(DIM, VOCAB, bias=False)

        def forward(self, tokens, targets):
            frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
            angles = torch.arange(tokens.shape[1]).float()[:, None] * frequencies
            x, cos, sin = self.embedding(tokens), angles.cos(), angles.sin()
            for block in self.blocks:
                x = block(x, cos, sin)
            return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB), targets.reshape(-1))

    model = Model()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    windows = torch.randint(0, VOCAB, (8, BATCH, SEQ + 1))

    def step(i):
        window = windows[i % len(windows)]
        loss = compiled(window[:, :-1].contiguous(), window[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for i in range(20):
        step(i)
    times = []
    for i in range(steps):
        started = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - started)
    print(json.dumps({"torch": torch.__version__, "tok_s": BATCH * SEQ / statistics.median(times)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", default="target/release/xrun", help="the binary to measure")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="run only PyTorch's side; the script calls itself with this")
    arguments = parser.parse_args()
    if arguments.peer:
        return peer(arguments.threads, arguments.steps)
    ours, theirs = [], []
    for turn in range(arguments.turns):
        ours.append(run_xrun(arguments.xrun, arguments.threads, arguments.steps))
        theirs.append(run_torch(arguments.threads, arguments.steps))
        print(json.dumps({"turn": turn, "xrun_tok_s": round(ours[-1]), "torch_tok_s": round(theirs[-1])}), flush=True)
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"xrun / torch.compile: {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} turns)")


if __name__ == "__main__":
    main()
