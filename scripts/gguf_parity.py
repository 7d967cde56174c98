#!/usr/bin/env python3
"""Compares files of `xrun export --format gguf` with llama.cpp, and what it computes from them with xrun.

    gguf_parity.py XRUN RUN [RUN ...] [--dtype fp32 fp16 bf16] [--within LOGITS]

For each run and element type:

- The gguf package reads the file. Its tensors, turned back into the form of transformers by code of this script, must be
  those of `xrun export`, to the bit in fp32 and rounded in the others.
- xrun imports these tensors. Its logits after a prompt are compared with llama.cpp's.
- llama.cpp splits texts into tokens: 20 prompts, mixtures of odd characters, and every character of Unicode among
  letters, spaces and digits. HuggingFace's tokenizers must split them alike.
- Both generate 48 tokens greedily after each of 20 prompts. At a first difference, the logits that llama.cpp gives to the
  two tokens must be within LOGITS of each other.

llama.cpp runs on the CPU with keys and values in fp32 and without flash attention. Needs gguf, numpy, safetensors,
tokenizers and llama-cpp-py-sync, whose wheel has llama.cpp's library. LLAMA_CPP_LIB names another library of the same
version, such as xllamacpp's, which runs on older systems.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

PROMPTS = [
    "The", "A run", "Once upon a time", "xrun sample", "## How to", "The loss of a step is", "On a GPU,", "If the file",
    "Every rank", "| a | b |", "    let x = 1;", "It's", "In 2026, 12345 tokens", "tokens/s", "\n\n", "“Quoted” text",
    "naïve café", "model.n_layers = 12", "Checkpoints are written", "What can go wrong?",
]
TOKENS = 48
OLD = {"llama": "model.layers.{}.", "qwen3": "model.layers.{}.", "gpt2": "transformer.h.{}."}
LLAMA = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
}
GPT2 = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj", "token_embd": "transformer.wte", "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f", "output": "lm_head",
}


class File:
    """A file as the gguf package reads it."""

    def __init__(self, path: Path):
        self.reader = GGUFReader(path)
        self.arch = self.field("general.architecture")

    def field(self, key: str):
        field = self.reader.fields.get(key)
        return None if field is None else field.contents()

    def size(self, key: str):
        return self.field(f"{self.arch}.{key}")

    def tensors(self) -> dict[str, np.ndarray]:
        """Returns the tensors in fp32 with the names, rows and columns of transformers."""
        found = {}
        for tensor in self.reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            kind = tensor.tensor_type.name
            if kind == "BF16":
                bits = tensor.data.view(np.uint16).astype(np.uint32) << 16
                numbers = bits.view(np.float32)
            else:
                assert kind in ("F32", "F16"), kind
                numbers = tensor.data.astype(np.float32)
            if tensor.name != "rope_freqs.weight":
                name, numbers = self.renamed(tensor.name, numbers.reshape(shape))
                found[name] = np.ascontiguousarray(numbers)
        return found

    def renamed(self, name: str, numbers: np.ndarray) -> tuple[str, np.ndarray]:
        table = GPT2 if self.arch == "gpt2" else LLAMA
        parts = name.split(".")
        kind = parts[-1]
        if parts[0] != "blk":
            return f"{table[parts[0]]}.{kind}", numbers
        inside = parts[2]
        if self.arch == "gpt2" and numbers.ndim == 2:
            numbers = numbers.T
        if self.arch == "llama" and inside in ("attn_q", "attn_k"):
            # Pairs of rows side by side, back to the two halves of a head.
            width = self.size("attention.key_length")
            pairs = numbers.reshape(-1, width // 2, 2, *numbers.shape[1:])
            numbers = pairs.swapaxes(1, 2).reshape(numbers.shape)
        return f"{OLD[self.arch].format(parts[1])}{table[inside]}.{kind}", numbers

    def folder(self, folder: Path, tokenizer: str, settings: str, scaling: dict | None) -> None:
        """Writes a folder in the form of transformers. Only the tokenizer and Llama 3's `scaling` are from xrun."""
        tensors = self.tensors()
        tied = "lm_head.weight" not in tensors
        vocab = len(self.field("tokenizer.ggml.tokens"))
        common = {"vocab_size": vocab, "tie_word_embeddings": tied, "torch_dtype": "float32",
                  "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
                  "eos_token_id": self.field("tokenizer.ggml.eos_token_id")}
        if self.arch == "gpt2":
            config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": self.size("context_length"),
                      "n_embd": self.size("embedding_length"), "n_layer": self.size("block_count"),
                      "n_head": self.size("attention.head_count"), "n_inner": self.size("feed_forward_length"),
                      "activation_function": "gelu_new",
                      "layer_norm_epsilon": shortest(self.size("attention.layer_norm_epsilon"))}
        else:
            if self.size("rope.scaling.type"):
                scaling = {"rope_type": self.size("rope.scaling.type"), "factor": shortest(self.size("rope.scaling.factor"))}
                original = self.size("rope.scaling.original_context_length")
                if original:
                    scaling["original_max_position_embeddings"] = original
            name = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[self.arch]
            bias = "model.layers.0.self_attn.q_proj.bias" in tensors
            config = {"architectures": [name], "model_type": self.arch, "hidden_size": self.size("embedding_length"),
                      "intermediate_size": self.size("feed_forward_length"), "num_hidden_layers": self.size("block_count"),
                      "num_attention_heads": self.size("attention.head_count"),
                      "num_key_value_heads": self.size("attention.head_count_kv"), "head_dim": self.size("attention.key_length"),
                      "max_position_embeddings": self.size("context_length"), "hidden_act": "silu",
                      "rms_norm_eps": shortest(self.size("attention.layer_norm_rms_epsilon")),
                      "rope_theta": shortest(self.size("rope.freq_base")), "rope_scaling": scaling, "attention_bias": bias}
            if self.arch == "llama":
                config["mlp_bias"] = bias
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config | common))
        (folder / "tokenizer.json").write_text(tokenizer)
        (folder / "tokenizer_config.json").write_text(settings)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def shortest(number: float) -> float:
    """Returns the shortest decimal number that is this one in fp32."""
    return float(str(np.float32(number)))


class Llama:
    """A model in llama.cpp."""

    def __init__(self, path: Path):
        self.ffi = get_ffi()
        own = os.environ.get("LLAMA_CPP_LIB")
        self.lib = self.ffi.dlopen(own) if own else get_lib()
        # Only a failure says anything.
        self.quiet = self.ffi.callback("void(enum ggml_log_level, const char *, void *)", lambda *_: None)
        self.lib.llama_log_set(self.quiet, self.ffi.NULL)
        self.lib.llama_backend_init()
        options = self.lib.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), options)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.entries = self.lib.llama_vocab_n_tokens(self.vocab)
        options = self.lib.llama_context_default_params()
        assert (options.n_batch, options.rope_scaling_type) == (2048, -1), "the library has another version"
        options.n_ctx, options.n_batch, options.n_ubatch = 0, 512, 512
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = self.lib.GGML_TYPE_F32
        options.flash_attn_type = self.lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = self.lib.llama_init_from_model(self.model, options)
        assert self.context

    def close(self) -> None:
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)

    def tokens(self, text: str, begin: bool = True, special: bool = False) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        out = self.ffi.new("llama_token[]", room)
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, room, begin, special)
        assert count >= 0
        return list(out[0:count])

    def logits(self, tokens: list[int], fresh: bool = True) -> np.ndarray:
        """Returns the logits after tokens, which follow those before unless they are `fresh`."""
        if fresh:
            self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        batch = self.ffi.new("llama_token[]", tokens)
        assert self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(batch, len(tokens))) == 0
        found = self.lib.llama_get_logits_ith(self.context, -1)
        return np.frombuffer(self.ffi.buffer(found, 4 * self.entries), dtype=np.float32).copy()

    def greedy(self, prompt: list[int], wanted: list[int]) -> tuple[int, float] | None:
        """Returns where the greedy tokens differ from the wanted ones first, and how far apart the two logits are."""
        logits = self.logits(prompt)
        for at, token in enumerate(wanted):
            best = int(np.argmax(logits))
            if best != token:
                return at, float(logits[best] - logits[token])
            if at + 1 < len(wanted):
                logits = self.logits([token], fresh=False)
        return None


def run(*command) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def sampled(xrun: Path, folder: Path) -> list[list[int]]:
    """Returns the greedy tokens of a run after each prompt."""
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    said = run(xrun, "sample", folder, "training.dtype=fp32", "--json", "--temperature", 0, "--samples", 1, "--tokens", TOKENS,
               *prompts)
    return [json.loads(line)["tokens"] for line in said.splitlines() if line.startswith("{\"prompt\"")]


def texts() -> list[str]:
    """Returns mixtures of odd characters, and every character among letters, spaces and digits."""
    source = random.Random(7)
    parts = ["a", "B", "Zz", "'", "'s", "'LL", "'d ", "1", "23", "456", "é", "É", "ß", "ſ", "٣", "½", "中文", "🙂", "\u0301", "\u200b", " ",
             "  ", "\t", "\n", "\r\n", "\u00a0", "\u2028", "\u3000", "-", "!?", "/", "_", "…", "<|endoftext|>", "<", "|>"]
    mixed = ["".join(source.choice(parts) for _ in range(source.randint(1, 24))) for _ in range(3000)]
    # Surrogates are no characters, and no text has a zero for llama.cpp.
    every = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    return mixed + [f"a{c}b {c}c{c}{c} 1{c}2\n{c}\n" for c in every]


def compare_tokens(llama: Llama, tokenizer: Tokenizer, all_texts: list[str]) -> list[str]:
    """Returns the texts that become other tokens."""
    wrong = []
    for start in range(0, len(all_texts), 4096):
        part = all_texts[start:start + 4096]
        for text, encoded in zip(part, tokenizer.encode_batch(part, add_special_tokens=False)):
            if llama.tokens(text, begin=False) != encoded.ids:
                wrong.append(text)
    return wrong


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("xrun", type=Path)
    arguments.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    arguments.add_argument("--dtype", nargs="+", default=["fp32", "fp16", "bf16"])
    arguments.add_argument("--within", type=float, default=0.02, help="most that two logits differ by at a first difference")
    arguments.add_argument("--texts", type=int, help="texts to split into tokens [default: all]")
    args = arguments.parse_args()
    failed = False
    all_texts = texts()[:args.texts]
    print("architecture dtype tensors logits_apart texts_alike prompts_alike first_differences")
    for folder in args.runs:
        for dtype in args.dtype:
            with tempfile.TemporaryDirectory() as temporary:
                at = Path(temporary)
                run(args.xrun, "export", folder, "--format", "gguf", "--dtype", dtype, "--to", at / "a.gguf")
                run(args.xrun, "export", folder, "--dtype", "fp32", "--no-reference", "--to", at / "hf")
                file = File(at / "a.gguf")
                tensors, own = file.tensors(), load_file(at / "hf/model.safetensors")
                assert sorted(tensors) == sorted(own), set(tensors) ^ set(own)
                for name, numbers in tensors.items():
                    assert numbers.shape == own[name].shape, name
                    if dtype == "fp32":
                        assert np.array_equal(numbers.view(np.uint32), own[name].view(np.uint32)), name
                    else:
                        bits = {"fp16": 11, "bf16": 8}[dtype]
                        off = np.abs(numbers - own[name]) - np.abs(own[name]) * 2.0 ** -bits
                        # fp16 has steps of 2^-24 close to zero.
                        assert off.max() <= (2.0 ** -25 if dtype == "fp16" else 0.0), name

                settings = (at / "hf/tokenizer_config.json").read_text()
                # The file has Llama 3's scaling as divisors, which say its numbers only roughly.
                scaling = json.loads((at / "hf/config.json").read_text()).get("rope_scaling")
                scaling = scaling if scaling and scaling["rope_type"] == "llama3" else None
                file.folder(at / "again", (at / "hf/tokenizer.json").read_text(), settings, scaling)
                run(args.xrun, "import", at / "again", "--name", "again", "--results", at / "runs")
                again = next(path.parent for path in at.glob("runs/**/checkpoint"))
                run(args.xrun, "export", again, "--to", at / "checked")
                reference = json.loads((at / "checked/xrun-reference.json").read_text())

                llama = Llama(at / "a.gguf")
                logits = llama.logits(reference["tokens"])
                apart = float(np.abs(logits - np.array(reference["logits"])).max())
                tokenizer = Tokenizer.from_file(str(at / "hf/tokenizer.json"))
                # Special tokens written in a text are text, as in xrun.
                tokenizer.encode_special_tokens = True
                prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
                assert [llama.tokens(prompt) for prompt in PROMPTS] == prompts, "prompts become other tokens"
                # The tokenizer is the same in every element type.
                compared = all_texts if dtype == args.dtype[0] else []
                wrong = compare_tokens(llama, tokenizer, compared)
                found = [llama.greedy(prompt, wanted) for prompt, wanted in zip(prompts, sampled(args.xrun, again))]
                llama.close()
                differences = [difference for difference in found if difference]
                said = ", ".join(f"token {step}: {gap:.2g}" for step, gap in differences) or "none"
                print(file.arch, dtype, len(tensors), f"{apart:.1e}", f"{len(compared) - len(wrong)}/{len(compared)}",
                      f"{len(found) - len(differences)}/{len(found)}", said, flush=True)
                if wrong:
                    print("  other tokens:", *(ascii(text) for text in wrong[:6]), flush=True)
                failed |= len(found) != len(PROMPTS) or any(gap > args.within for _, gap in differences)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
