#!/usr/bin/env python3
"""Measures fine-tuning with trl and unsloth: tokens per second and memory, on a model of random weights.

    fine_tuning_peers.py --shape 0.6b --model FOLDER               writes the model, then ends
    fine_tuning_peers.py --shape 0.6b --model FOLDER --peer trl [--adapter] [--compile] [--batch 8]

Sequences have 2,048 tokens, all of them trained on. The peer is `trl.SFTTrainer` on transformers' model with Liger's
kernels, or on unsloth's; adapters have rank 16 beside all matrices of the blocks. Prints one JSON line.
"""

import argparse
import json
import os
import statistics
import sys
import time

SEQ = 2048
WARM_UP = 4
STEPS = 14
SHAPES = {
    "0.6b": dict(hidden_size=1024, intermediate_size=3072),
    "1.7b": dict(hidden_size=2048, intermediate_size=6144),
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_model(shape: str, folder: str) -> None:
    """Writes a random model of Qwen3's class."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        **SHAPES[shape],
        vocab_size=151_936,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def tokenizer(folder: str) -> None:
    """Gives the folder a tokenizer of two words, which nothing encodes with."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="a"))
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    fast.save_pretrained(folder)


def train(arguments) -> dict:
    """Trains, and returns the figures."""
    unsloth = arguments.peer == "unsloth"
    if unsloth:
        from unsloth import FastLanguageModel
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    path = arguments.model
    if unsloth:
        model, words = FastLanguageModel.from_pretrained(
            path, max_seq_length=SEQ, dtype=torch.bfloat16, load_in_4bit=False, full_finetuning=not arguments.adapter
        )
        if arguments.adapter:
            model = FastLanguageModel.get_peft_model(
                model, r=16, lora_alpha=32, lora_dropout=0, bias="none", target_modules=TARGETS, use_gradient_checkpointing=False
            )
    else:
        words = AutoTokenizer.from_pretrained(path)
        dtype = torch.bfloat16 if arguments.adapter else torch.float32
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
    peft = None
    if arguments.adapter and not unsloth:
        from peft import LoraConfig

        peft = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 151_000, (arguments.batch * STEPS, SEQ), generator=generator).tolist()
    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    config = SFTConfig(
        output_dir="/tmp/peer-out",
        per_device_train_batch_size=arguments.batch,
        max_steps=STEPS,
        learning_rate=1e-4,
        bf16=True,
        max_length=SEQ,
        packing=False,
        gradient_checkpointing=False,
        use_liger_kernel=not unsloth,
        torch_compile=arguments.compile,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=0,
        max_grad_norm=1.0,
    )
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_dict({"input_ids": tokens}),
        processing_class=words,
        peft_config=peft,
        callbacks=[Clock()],
    )
    trainer.train()
    steps = [b - a for a, b in zip(ends[WARM_UP:], ends[WARM_UP + 1 :])]
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return {
        "tokens_per_s": arguments.batch * SEQ / statistics.median(steps),
        "step_ms": 1000 * statistics.median(steps),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "trained": trained,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", choices=["trl", "unsloth"])
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    if not arguments.peer:
        write_model(arguments.shape, arguments.model)
        return
    # A folder with a tokenizer of another vocabulary would be refused as initial weights, so it gets a link.
    linked = arguments.model.rstrip("/") + "-with-tokenizer"
    os.makedirs(linked, exist_ok=True)
    for name in os.listdir(arguments.model):
        if not os.path.exists(f"{linked}/{name}"):
            os.symlink(os.path.abspath(f"{arguments.model}/{name}"), f"{linked}/{name}")
    tokenizer(linked)
    arguments.model = linked
    named = {key: getattr(arguments, key) for key in ["peer", "shape", "adapter", "compile", "batch"]}
    print(json.dumps({**named, **train(arguments)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
