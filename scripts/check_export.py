#!/usr/bin/env python3
"""Loads a folder from `xrun export` in HuggingFace transformers and prints greedily generated text.

    check_export.py DIR [--prompt TEXT] [--tokens N]

Exits with 1 if a weight is missing, unexpected, or has a shape that the architecture does not. Needs torch and
transformers.
"""

import argparse
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", metavar="DIR")
    arguments.add_argument("--prompt", default="", help="text to continue [default: only the end token]")
    arguments.add_argument("--tokens", type=int, default=16, help="tokens to generate")
    args = arguments.parse_args()

    model, loading = AutoModelForCausalLM.from_pretrained(
        args.folder, dtype="auto", output_loading_info=True
    )
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    problems = {what: keys for what, keys in loading.items() if keys}
    for what, keys in problems.items():
        print(f"{what}: {keys}", file=sys.stderr)

    config = model.config
    count = sum(p.numel() for p in model.parameters())
    print(f"architecture  {type(model).__name__}, {model.dtype}, {count:,} parameters")
    print(f"rope          {getattr(config, 'rope_parameters', None) or config.rope_theta}")
    print(f"end token     {tokenizer.eos_token!r} = {tokenizer.eos_token_id}, config {config.eos_token_id}")

    # The prompt follows an end token, as in `xrun sample`: in training, every text follows the end of
    # another.
    ids = [config.eos_token_id, *tokenizer.encode(args.prompt)]
    prompt = torch.tensor([ids])
    with torch.no_grad():
        mask = torch.ones_like(prompt)
        out = model.generate(prompt, attention_mask=mask, max_new_tokens=args.tokens, do_sample=False)
    tokens = out[0, len(ids):].tolist()
    print(f"greedy        {tokens}")
    print(f"text          {tokenizer.decode(tokens, skip_special_tokens=True)!r}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
