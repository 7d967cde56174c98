#!/usr/bin/env python3
"""Compares how `xrun import` and transformers read variants of configurations and of weight files.

    hugging_face_variants.py XRUN [--only TEXT] [--keep DIR] [--list]
    hugging_face_variants.py XRUN --mixed N [--seed S]    N folders with two or three of the changes at once

A variant changes one thing in a small model's folder: a key that is absent, null, or has another value or another
type; a form of version 4 or 5; an unknown key; a name, a prefix, a shard, a format. For each, transformers builds the
model from the folder's own config.json and computes logits, and `xrun import` compares them with its own
(xrun-reference.json). A folder that is read is exported, loaded by transformers, compared, and imported again; ids of
special tokens must come out as they went in. The outcome of a variant is one of

    equal     both read the same model
    refused   xrun refuses it, with a message that names the key or the tensor
    UNNAMED   xrun refuses it with a message that names neither
    WRONG     both read it, and they compute different logits, or the export differs
    strict    transformers refuses it, and xrun too
    lenient   transformers refuses it, and xrun reads it: to be looked at

Exits with 1 if anything is WRONG or UNNAMED. Needs torch, transformers and safetensors.
"""

import argparse
import copy
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, SEQ = 97, 32
ABSENT = object()
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
ROTARY = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
    "use_cache": True, "dtype": "float32", "transformers_version": "5.24.0", **TOKENS,
}
V5, V4 = {"rope_parameters": {"rope_theta": 777.0, "rope_type": "default"}}, {"rope_theta": 777.0, "rope_scaling": None}
BASES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "mlp_bias": False,
              "pretraining_tp": 1, **ROTARY, **V5},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", **ROTARY,
              "head_dim": 16, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 28, **V5},
    "nanochat": {"architectures": ["NanoChatForCausalLM"], "model_type": "nanochat", "hidden_act": "relu2",
                 "final_logit_softcapping": 15.0,
                 **{k: v for k, v in ROTARY.items() if k != "head_dim"}, **V5},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": SEQ,
             "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": None, "activation_function": "gelu_new",
             "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "scale_attn_weights": True,
             "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "add_cross_attention": False,
             "tie_word_embeddings": True, "use_cache": True, "dtype": "float32", "resid_pdrop": 0.1, "embd_pdrop": 0.1,
             "attn_pdrop": 0.1, **TOKENS},
}
# Other values of a key, all of which transformers reads.
OTHERS = {
    "vocab_size": [128], "hidden_size": [64], "intermediate_size": [80], "num_hidden_layers": [1, 3],
    "num_attention_heads": [2, 8], "num_key_value_heads": [1, 4], "head_dim": [4, 12], "max_position_embeddings": [64],
    "rms_norm_eps": [1e-2], "tie_word_embeddings": [True, False], "attention_bias": [True], "mlp_bias": [True],
    "hidden_act": ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "gelu_accurate", "swish",
                   "relu", "relu2", "tanh", "quick_gelu", "mish", "linear", "sigmoid", "relu6", "gelu_10"],
    "final_logit_softcapping": [30.0, 1.5], "layer_norm_epsilon": [1e-2], "n_positions": [64], "n_embd": [64],
    "n_layer": [1], "n_head": [2], "n_inner": [40], "scale_attn_weights": [False],
    "scale_attn_by_inverse_layer_idx": [True], "reorder_and_upcast_attn": [True], "add_cross_attention": [True],
    "use_sliding_window": [True], "sliding_window": [3], "max_window_layers": [0, 1, 2], "pretraining_tp": [2, None],
    "use_cache": [False], "dtype": ["bfloat16", "float16"], "bos_token_id": [5, None], "eos_token_id": [[2, 3], 7, None],
    "pad_token_id": [4, 0, -1], "attention_dropout": [0.5, 0], "initializer_range": [0.5], "resid_pdrop": [0.0],
    "architectures": [[], None, "{bare}", ["{bare}"], ["{whole}", "X"], ["{whole}ish"]],
    "model_type": ["no_such_model"],
}
OTHERS["activation_function"] = OTHERS["hidden_act"]
WRONG_TYPES = ["1", 1.0, True, [], {}, -1]
UNKNOWN = {
    "attention_multiplier": 0.5, "logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0,
    "query_pre_attn_scalar": 4, "attn_logit_softcapping": 5.0, "qk_layernorm": True, "is_causal": False,
    "per_layer_config": {"0": {"intermediate_size": 40}}, "no_rope_layers": [0, 1], "num_experts": 4, "mup_base": 2,
    "norm_topk_prob": True, "quantization_config": {"bits": 4}, "auto_map": {"AutoModel": "m.M"},
    "pruned_heads": {"0": [1]}, "is_encoder_decoder": True, "configuration_files": ["config.5.0.0.json"],
    "transformers_weights": "other.safetensors", "layer_types": ["sliding_attention", "full_attention"],
}
HARMLESS = {
    "is_causal": True, "attention_multiplier": None, "quantization_config": None, "auto_map": None, "_name_or_path": "x",
    "id2label": {"0": "a"}, "num_labels": 3, "problem_type": None, "torch_dtype": "float16", "temperature": 0.5,
    "do_sample": True, "task_specific_params": {"a": {"b": 1}}, "n_ctx": 5, "is_llama_config": True,
    "rope_interleaved": False, "return_dict": True, "output_attentions": False, "chunk_size_feed_forward": 0,
    "tokenizer_class": "X", "unsloth_version": "1", "_attn_implementation_autoset": True, "pruned_heads": {},
    "is_decoder": False, "sep_token_id": 3, "max_length": 20, "summary_type": "last", "per_layer_config": None,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LINEAR = {"rope_type": "linear", "factor": 2.0}
TABLES = [
    {}, {"rope_type": "default"}, {"type": "default"}, {"rope_theta": 555.0}, {"rope_theta": 555}, {"rope_theta": None},
    {"rope_type": None}, {"rope_type": "dynamic", "factor": 2.0}, {"type": "dynamic", "factor": 2.0},
    {"type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}, {"rope_type": "su"},
    {"rope_type": "default", "factor": 4.0}, {"rope_type": "default", "mrope_section": [2, 1, 1]},
    LINEAR, {"type": "linear", "factor": 2}, LINEAR | {"type": "yarn"}, {"factor": 2.0}, {"rope_type": "linear"},
    LINEAR | {"factor": None}, LINEAR | {"factor": 1.0}, LINEAR | {"factor": 0.5}, LINEAR | {"factor": "2"},
    LINEAR | {"rope_theta": 100.0}, LINEAR | {"foo": 1}, LINEAR | {"foo": None}, LINEAR | {"attention_factor": 2.0},
    LINEAR | {"original_max_position_embeddings": 8}, LINEAR | {"partial_rotary_factor": 1.0},
    LINEAR | {"partial_rotary_factor": 0.5}, LINEAR | {"finetuned": True},
    {"rope_type": "proportional", "factor": 2.0}, {"rope_type": "proportional"},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    YARN, {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"}, YARN | {"factor": None},
    YARN | {"factor": 4}, {k: v for k, v in YARN.items() if k != "factor"}, YARN | {"attention_factor": 1.5},
    YARN | {"attention_factor": 1}, YARN | {"attention_factor": None}, YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    YARN | {"mscale": 0.7}, YARN | {"mscale": 0.0, "mscale_all_dim": 1.3},
    YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "attention_factor": 1.1}, YARN | {"beta_fast": 16, "beta_slow": 2},
    YARN | {"beta_fast": 0, "beta_slow": None}, YARN | {"truncate": True}, YARN | {"truncate": False},
    YARN | {"truncate": None}, YARN | {"low_freq_factor": 2.0}, YARN | {"rope_theta": 55.0}, YARN | {"bar": 3},
    LLAMA3, LLAMA3 | {"factor": 4, "low_freq_factor": 1}, LLAMA3 | {"low_freq_factor": 0.5},
    {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}, LLAMA3 | {"high_freq_factor": None},
    {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}, LLAMA3 | {"beta_fast": 5},
    {"full_attention": {"rope_theta": 5.0, "rope_type": "default"}},
]


def config_variants(family: str):
    """Yields a name, the changes of config.json, and the keys that a refusal may name."""
    base = BASES[family]
    whole = base["architectures"][0]
    bare = {"llama": "LlamaModel", "qwen3": "Qwen3Model", "nanochat": "NanoChatModel", "gpt2": "GPT2Model"}[family]
    kind = type(AutoConfig.for_model(family))
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    yield "unchanged", {}, []
    keys = dict.fromkeys([*base, *defaults, "rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim"])
    if family == "gpt2":
        keys = [key for key in keys if not key.startswith("rope") and key not in ("partial_rotary_factor", "head_dim")]
    for key in keys:
        values = [ABSENT, None, *WRONG_TYPES, *OTHERS.get(key, [])]
        if isinstance(defaults.get(key), (int, float, str, bool)):
            values.append(defaults[key])
        for value in values:
            text = json.dumps(value) if value is not ABSENT else "absent"
            value = json.loads(text.replace("{bare}", bare).replace("{whole}", whole)) if value is not ABSENT else value
            yield f"{key} = {text}", {key: value}, [key]
    for key, value in UNKNOWN.items():
        if key not in base and not (family == "qwen3" and key == "layer_types"):
            yield f"unknown {key} = {json.dumps(value)}", {key: value}, [key]
    for key, value in HARMLESS.items():
        yield f"harmless {key} = {json.dumps(value)}", {key: value}, [key]
    foreign = {"n_embd": 64, "rms_norm_eps": 0.1} if family == "gpt2" else {"n_embd": 64, "layer_norm_epsilon": 0.1}
    for key, value in foreign.items():
        yield f"of another class {key} = {value}", {key: value}, [key]
    if family == "gpt2":
        for alias, value in [("hidden_size", 64), ("num_hidden_layers", 1), ("num_attention_heads", 2),
                             ("max_position_embeddings", 16), ("num_hidden_layers", None), ("hidden_size", "64")]:
            yield f"alias {alias} = {value}", {alias: value}, [alias, {"hidden_size": "n_embd"}.get(alias, "n_layer")]
        yield "rope_theta = 5.0", {"rope_theta": 5.0}, ["rope_theta"]
        return
    for form in ("rope_scaling", "rope_parameters"):
        for table in TABLES:
            for theta in ([ABSENT, 99.0] if form == "rope_scaling" else [ABSENT]):
                changes = {"rope_parameters": ABSENT, "rope_scaling": ABSENT, "rope_theta": theta, form: table}
                name = f"{form} {json.dumps(table)}" + (f", rope_theta {theta}" if theta is not ABSENT else "")
                names = [*table, form, "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "factor"]
                yield name, changes, names
    both = [
        {"rope_scaling": LINEAR, "rope_theta": ABSENT}, {"rope_scaling": {}, "rope_theta": 5.0},
        {"rope_scaling": None, "rope_theta": 5.0}, {"rope_scaling": False}, {"rope_parameters": None, "rope_theta": 5},
        {"rope_parameters": {}, "rope_scaling": {}}, {"rope_parameters": ABSENT}, {"rope_parameters": ABSENT, "rope_theta": None},
        {"rope_parameters": ABSENT, "rope_theta": 1e6}, {"rope_parameters": ABSENT, "rope_theta": 3580165449.0},
        {"rope_parameters": ABSENT, "rope_theta": "5"}, {"rope_theta": 5.0},
        {"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": None},
        {"original_max_position_embeddings": 16}, {"original_max_position_embeddings": 16, "rope_parameters": YARN},
        {"original_max_position_embeddings": None, "rope_parameters": YARN},
        {"original_max_position_embeddings": 16, "rope_parameters": LLAMA3}, {"rope_scaling": [], "rope_theta": 5.0},
    ]
    for changes in both:
        shown = {key: "absent" if value is ABSENT else value for key, value in changes.items()}
        yield f"both {json.dumps(shown)}", changes, [*changes, "type"]
    more = [{"mlp_bias": True, "attention_bias": True}, {"tie_word_embeddings": True, "num_key_value_heads": ABSENT},
            {"head_dim": ABSENT, "num_key_value_heads": None}, {"num_attention_heads": 3}, {"hidden_size": 36}]
    if family == "qwen3":
        window = {"use_sliding_window": True, "sliding_window": 3}
        F, S = "full_attention", "sliding_attention"
        more += [window | extra for extra in (
            {"max_window_layers": 0}, {"max_window_layers": 1}, {"max_window_layers": 2}, {"max_window_layers": ABSENT},
            {"max_window_layers": -1}, {"sliding_window": None}, {"sliding_window": ABSENT, "max_window_layers": 0},
            {"layer_types": [S, F]}, {"layer_types": [F, S]}, {"layer_types": [S, S]}, {"layer_types": [F, F]},
            {"layer_types": [F]}, {"layer_types": ["attention", S]}, {"layer_types": [S, "attention"]},
            {"layer_types": None}, {"layer_types": ["chunked_attention", F]}, {"layer_types": ["conv", F]},
            {"num_hidden_layers": 4, "layer_types": [S, S, F, S]}, {"num_hidden_layers": 4, "layer_types": [S, F, S, F]},
            {"num_hidden_layers": 4, "layer_types": [F, S, S, F]})]
        more += [{"layer_types": [F, F]}, {"layer_types": [S, F]}, {"layer_types": [F]}, {"sliding_window": 3}]
    for changes in more:
        shown = {key: "absent" if value is ABSENT else value for key, value in changes.items()}
        yield f"several {json.dumps(shown)}", changes, list(changes)


def mixed_variants(family: str, count: int, seed: int):
    """Yields `count` variants that join two or three changes of configurations, and in a third of them a form of the
    files, at random."""
    random = Random(f"{family} {seed}")
    wrong = [repr(value) for value in WRONG_TYPES]
    # A key of a wrong type hides what the others do.
    is_right = lambda changes: not any(repr(value) in wrong for value in changes.values())
    single = [variant for variant in config_variants(family) if variant[1] and is_right(variant[1])]
    forms = [variant for variant in storage_variants(family) if variant[3]]
    for _ in range(count):
        chosen = random.sample(single, random.choice((2, 2, 3)))
        changes = {key: value for _, changed, _ in chosen for key, value in changed.items()}
        name, files, readable = " + ".join(name for name, _, _ in chosen), None, None
        if random.random() < 1 / 3:
            form, tied, files, _ = random.choice(forms)
            name, changes = f"{name} + {form}", changes | tied
        yield name, changes, [name for _, _, names in chosen for name in names] + [*changes], files, readable


def bare(name: str) -> str:
    return name.removeprefix("model.").removeprefix("transformer.")


def storage_variants(family: str):
    """Yields a name, the changes of config.json, and a function from tensors to files and whether it is readable."""
    one = "model.safetensors"
    index = lambda files: {"metadata": {}, "weight_map": {name: file for file, tensors in files.items() for name in tensors}}

    def shards(tensors):
        names = sorted(tensors)
        return {f"model-{i + 1:05}-of-00002.safetensors": {n: tensors[n] for n in names[i::2]} for i in range(2)}

    rename = lambda change: lambda t: ({one: {change(k): v for k, v in t.items()}}, None)
    yes = [
        ("bare", rename(bare)), ("half bare", rename(lambda n: bare(n) if "mlp" in n else n)),
        ("torch.compile", rename(lambda n: f"_orig_mod.{n}")), ("DataParallel", rename(lambda n: f"module.{n}")),
        ("both wrappers", rename(lambda n: f"module._orig_mod.{n}")),
        ("compiled inside", rename(lambda n: n.replace("model.", "model._orig_mod.").replace("transformer.", "transformer._orig_mod."))),
        ("sharded", lambda t: (shards(t), index(shards(t)))),
        ("indexed single file", lambda t: ({one: t}, index({one: t}))),
        ("indexed other name", lambda t: ({"weights.safetensors": t}, index({"weights.safetensors": t}))),
        ("bf16", lambda t: ({one: {k: v.bfloat16() for k, v in t.items()}}, None)),
        ("mixed formats", lambda t: ({one: {k: v.half() if "norm" in k else v for k, v in t.items()}}, None)),
        ("inv_freq", lambda t: ({one: t | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}}, None)
         if family != "gpt2" else ({one: t | {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4), "transformer.h.0.attn.masked_bias": torch.ones(())}}, None)),
    ]
    for tied in (False, True):
        for name, files in yes:
            yield f"{name}, {'tied' if tied else 'untied'}", {"tie_word_embeddings": tied}, files, True
    embedding = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"
    yield "tied with an equal head", {"tie_word_embeddings": True}, lambda t: ({one: t | {"lm_head.weight": t[embedding].clone()}}, None), True
    yield "tied, stored as the head", {"tie_word_embeddings": True}, lambda t: (
        {one: {("lm_head.weight" if k == embedding else k): v for k, v in t.items()}}, None), True
    yield "tied with another head", {"tie_word_embeddings": True}, lambda t: ({one: t | {"lm_head.weight": t[embedding] + 1}}, None), False
    yield "untied without a head", {"tie_word_embeddings": False}, lambda t: ({one: {k: v for k, v in t.items() if k != "lm_head.weight"}}, None), False
    yield "a tensor missing", {}, lambda t: ({one: {k: v for k, v in t.items() if "ln_1.weight" not in k and "k_proj" not in k}}, None), False
    yield "a tensor more", {}, lambda t: ({one: t | {"model.extra.weight": torch.ones(3)}}, None), False
    yield "int8", {}, lambda t: ({one: {k: v.to(torch.int8) for k, v in t.items()}}, None), False


def tokenizer() -> str:
    vocab = {chr(ord("!") + i): i for i in range(VOCAB - 1)} | {"<|endoftext|>": VOCAB - 1}
    end = {"id": VOCAB - 1, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    return json.dumps({"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": None,
                       "post_processor": None, "decoder": {"type": "Fuse"},
                       "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "merges": [],
                                 "vocab": {k: v for k, v in vocab.items() if v < VOCAB - 1}}})


def randomized(model):
    """Random weights, large enough that every part of the model changes the logits."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and bool((parameter == 1).all())
            parameter.copy_(1 + noise / 4 if is_norm else noise * (0.35 if parameter.dim() == 2 else 0.2))
    return model.float().eval()


def prompt(config) -> list[int]:
    vocabulary = min(config.vocab_size, VOCAB)
    context = config.max_position_embeddings
    return [(i * 37 + 5) % vocabulary for i in range(min(24, context))]


def logits(model, tokens) -> list[float]:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1].float().tolist()


def write_folder(folder: Path, config: dict, files: dict, index: dict | None) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(tokenizer())
    for name, tensors in files.items():
        save_file({key: value.contiguous() for key, value in tensors.items()}, folder / name, metadata={"format": "pt"})
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def whole(model) -> dict:
    """The tensors that save_pretrained writes: all, without the head of tied embeddings."""
    tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


class Variants:
    def __init__(self, xrun: Path, work: Path):
        self.xrun, self.work, self.count = xrun, work, 0
        self.fallback = {}

    def run(self, *args: str) -> tuple[int, str]:
        done = subprocess.run([self.xrun, *args], capture_output=True, text=True, errors="replace")
        return done.returncode, done.stderr + done.stdout

    def prepare(self, family: str, changes: dict, files=None, readable=None):
        """Writes the folder of a variant. Returns it with the tokens and what transformers computes, if it reads it."""
        self.count += 1
        folder = self.work / f"{self.count:04}"
        config = copy.deepcopy(BASES[family]) | {key: value for key, value in changes.items()}
        config = {key: value for key, value in config.items() if value is not ABSENT}
        base = lambda: randomized(AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(BASES[family]))))
        parts = files or (lambda tensors: ({"model.safetensors": tensors}, None))
        written = self.work / "config" / str(self.count)
        written.mkdir(parents=True)
        (written / "config.json").write_text(json.dumps(config))
        try:
            model = randomized(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(written), attn_implementation="eager"))
            tokens = prompt(model.config)
            tensors = whole(model)
            write_folder(folder, config, *parts(tensors))
            if files is None:
                # What the folder gives must be what its configuration gives.
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            else:
                # PyTorch's wrappers are not read by transformers; the weights are rounded as they are stored.
                stored = {k: v for part in parts(tensors)[0].values() for k, v in part.items()}
                formats = [stored[k].dtype if k in stored else None for k in tensors]
                with torch.no_grad():
                    for (name, value), dtype in zip(tensors.items(), formats):
                        if dtype in (torch.bfloat16, torch.float16):
                            model.state_dict()[name].copy_(value.to(dtype).float())
            expected = logits(model, tokens)
            assert all(x == x and abs(x) != float("inf") for x in expected), "logits are not finite"
        except Exception as e:  # transformers refuses in many ways
            if not folder.exists():
                write_folder(folder, config, *parts(whole(base())))
            return folder, None, None, f"{type(e).__name__}: {str(e).splitlines()[0][:100] if str(e) else ''}"
        reference = {"format": 1, "tokens": tokens, "logits": expected}
        (folder / "xrun-reference.json").write_text(json.dumps(reference))
        return folder, tokens, expected, None

    def judge(self, prepared, names: list[str], readable=None):
        folder, tokens, expected, refusal = prepared
        results = folder.parent / f"{folder.name}-results"
        code, said = self.run("import", str(folder), "--name", "v", "--results", str(results))
        last = next((line for line in said.splitlines() if line.startswith("error")), said.strip()[-300:])
        if code not in (0, 2):
            return "WRONG", f"exit code {code}: {last}"
        if code == 2 and "has the logit" in said:
            return "WRONG", last
        if code == 2:
            named = not names or any(name in said for name in names) or readable is False
            if refusal:
                return "strict", f"{last} | {refusal}"
            return ("refused" if named and readable is not True else "UNNAMED"), last
        if refusal:
            return "lenient", refusal
        if readable is False:
            return "WRONG", "read, though it is not whole"
        to = folder.parent / f"{folder.name}-export"
        code, said = self.run("export", "v", "--results", str(results), "--to", str(to))
        if code:
            return "WRONG", f"export: {said.strip()[-300:]}"
        return "exported", (folder, to, tokens, expected, results)

    def compare(self, folder, to, tokens, expected, results):
        """Compares an export with what came in."""
        model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float32).eval()
        found = torch.tensor(logits(model, tokens))
        expected = torch.tensor(expected)
        apart, scale = (found - expected).abs().max().item(), max(1.0, expected.abs().max().item())
        if not apart <= 1e-4 * scale:
            return "WRONG", f"the export's logits differ by {apart:.2e}"
        before, after = (json.loads((at / "config.json").read_text()) for at in (folder, to))
        ids = [{k: v for k, v in config.items() if k.endswith("_token_id")} for config in (before, after)]
        if ids[0] != ids[1]:
            return "WRONG", f"ids {ids[0]} became {ids[1]}"
        contexts = [AutoConfig.from_pretrained(at).max_position_embeddings for at in (folder, to)]
        if contexts[0] != contexts[1]:
            return "WRONG", f"the context {contexts[0]} became {contexts[1]}"
        code, said = self.run("import", str(to), "--name", "again", "--results", str(results))
        return ("equal", "") if code == 0 else ("WRONG", f"again: {said.strip()[-300:]}")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("xrun", metavar="XRUN", type=Path)
    arguments.add_argument("--only", default="", help="only variants whose name has this text")
    arguments.add_argument("--keep", metavar="DIR", type=Path, help="where to leave the folders")
    arguments.add_argument("--mixed", metavar="N", type=int, default=0, help="random mixtures of changes per class")
    arguments.add_argument("--seed", type=int, default=0, help="seed of the mixtures")
    arguments.add_argument("--list", action="store_true", help="print every variant, not only those to look at")
    args = arguments.parse_args()
    work = args.keep or Path(tempfile.mkdtemp())
    variants = Variants(args.xrun.resolve(), work)
    counts = {}
    torch.set_num_threads(1)
    with ThreadPoolExecutor(2) as pool:
        for family in BASES:
            counts[family] = Counter()
            if args.mixed:
                found = list(mixed_variants(family, args.mixed, args.seed))
            else:
                found = [(name, changes, names, None, None) for name, changes, names in config_variants(family)]
                found += [(name, changes, [], files, readable) for name, changes, files, readable in storage_variants(family)]
            found = [variant for variant in found if args.only in f"{family} {variant[0]}"]
            waiting = []
            for name, changes, names, files, readable in found:
                prepared = variants.prepare(family, changes, files, readable)
                waiting.append((name, prepared, pool.submit(variants.judge, prepared, names, readable)))
            for name, prepared, judged in waiting:
                outcome, said = judged.result()
                if outcome == "exported":
                    try:
                        outcome, said = variants.compare(*said)
                    except Exception as e:
                        outcome, said = "WRONG", f"the export does not load: {type(e).__name__} {str(e)[:200]}"
                counts[family][outcome] += 1
                if args.list or outcome not in ("equal", "strict"):
                    print(f"{outcome:<8} {prepared[0].name} {family} {name}: {said}", flush=True)
                if not args.keep:
                    for at in work.glob(f"{prepared[0].name}*"):
                        shutil.rmtree(at)
            print(f"-- {family}: {sum(counts[family].values())} variants, {dict(counts[family])}", flush=True)
    total = sum(counts.values(), Counter())
    print(f"{sum(total.values())} variants: {dict(total)}")
    if not args.keep:
        shutil.rmtree(work)
    return 1 if total["WRONG"] or total["UNNAMED"] else 0


if __name__ == "__main__":
    sys.exit(main())
