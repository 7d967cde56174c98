#!/usr/bin/env python3
"""Compares what xrun trains on of conversations with labels that are made without a chat template.

    chat_masks.py XRUN --tokenizer FORMAT=FOLDER [--tokenizer ...]

FORMAT is chatml, qwen3, llama3, smollm2 or mistral, and FOLDER has the tokenizer and, but for chatml and mistral,
its chat template.
For each, a hundred conversations are written down turn by turn as the format defines them, and each turn of the
assistant is labelled there, with the token that ends it. The text must be that of transformers' `apply_chat_template`,
the tokens those that the tokenizers library makes of it by the tokenizer.json (transformers 5 splits text otherwise for
SmolLM2), and the labels what `xrun data show` says of each token.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

CONVERSATIONS = 100
SEQ = 1024
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# The one that Mistral 7B Instruct was published with, without its checks.
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
WORDS = (
    "why how sea two Ünïcode 東京 naïve 3.14 a,b (x) def f(x): return 'ok' \"quoted\" emoji 🙂 don't — dash tab\tinside"
).split(" ")


def conversations() -> list[list[dict]]:
    """Returns conversations of one to four turns, some with a system message, line breaks and odd characters."""
    source = random.Random(47)
    made = []
    for i in range(CONVERSATIONS):
        def text(most: int) -> str:
            words = [source.choice(WORDS) for _ in range(source.randint(1, most))]
            return source.choice([" ", "\n", " ", "\n\n"]).join(words).strip()

        messages = [{"role": "system", "content": text(8)}] if i % 3 == 0 else []
        for turn in range(1 + i % 4):
            messages += [{"role": "user", "content": f"{i}.{turn} {text(12)}"}, {"role": "assistant", "content": text(20)}]
        made.append(messages)
    return made


def turns(messages: list[dict], form: str) -> list[tuple[str, bool]]:
    """Writes a conversation in a format, in parts that are trained on or not."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    rest = messages[1:] if system is not None else messages
    parts: list[tuple[str, bool]] = []
    if form in ("chatml", "qwen3", "smollm2"):
        if system is None and form == "smollm2":
            system = SMOLLM2_SYSTEM
        if system is not None:
            parts.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
        for at, message in enumerate(rest):
            if message["role"] == "user":
                parts.append((f"<|im_start|>user\n{message['content']}<|im_end|>\n", False))
                continue
            # Qwen3's template writes empty thoughts into the last turn, and removes them when messages follow: only the last
            # turn is what the model generates.
            is_last = at == len(rest) - 1
            thoughts = "<think>\n\n</think>\n\n" if form == "qwen3" and is_last else ""
            answer = (f"{thoughts}{message['content']}<|im_end|>", is_last or form != "qwen3")
            parts += [("<|im_start|>assistant\n", False), answer, ("\n", False)]
    elif form == "llama3":
        head = "<|start_header_id|>{}<|end_header_id|>\n\n".format
        parts.append(("<|begin_of_text|>", False))
        for message in messages:
            if message["role"] != "assistant":
                parts.append((f"{head(message['role'])}{message['content']}<|eot_id|>", False))
            else:
                parts += [(head("assistant"), False), (f"{message['content']}<|eot_id|>", True)]
    elif form == "mistral":
        parts.append(("<s>", False))
        for message in rest:
            if message["role"] == "user":
                parts.append((f"[INST] {message['content']} [/INST]", False))
            else:
                parts.append((f"{message['content']}</s>", True))
    return parts


def labelled(tokenizer, text: str, parts: list[tuple[str, bool]]) -> list[tuple[int, bool]]:
    """Returns the tokens of a text with their labels: a token is trained on if a character of it is."""
    trained = [is_trained for part, is_trained in parts for _ in part]
    encoded = tokenizer.encode(text, add_special_tokens=False)
    return [(token, any(trained[a:b])) for token, (a, b) in zip(encoded.ids, encoded.offsets)]


def shown(xrun: str, folder: Path, tokenizer: Path, template: Path | None) -> dict[tuple[int, ...], list[bool]]:
    """Returns what xrun trains on, by the tokens of a conversation."""
    keys = [
        "quickstart", f"data.corpus={folder / 'chat.jsonl'}", f"data.validation={folder / 'held.jsonl'}", "data.format=chat",
        "data.packing=document", f"data.tokenizer={tokenizer / 'tokenizer.json'}", f"training.seq_len={SEQ}",
        f"training.local_batch_size={CONVERSATIONS}",
    ]
    keys += [f"data.chat_template={template}"] if template else []
    command = [xrun, "data", "show", *keys, "--sequences", str(CONVERSATIONS), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True)
    if printed.returncode:
        sys.exit(printed.stderr)
    found = {}
    for sequence in json.loads(printed.stdout)["sequences"]:
        [piece] = sequence["pieces"]
        # A conversation ends where the padding begins: the window has one token more than a row.
        found[tuple(piece["tokens"])] = piece["trained"]
    return found


def compare(xrun: str, form: str, source: Path) -> str:
    tokenizer = AutoTokenizer.from_pretrained(source)
    library = Tokenizer.from_file(str(source / "tokenizer.json"))
    template = {"chatml": CHATML, "mistral": MISTRAL}.get(form, tokenizer.chat_template)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        own = None
        if form in ("chatml", "mistral"):
            own = folder / f"{form}.jinja"
            own.write_text(template)
        talks = conversations()
        if form == "mistral":
            # Its template has no place for a system message.
            talks = [talk if talk[0]["role"] == "user" else talk[1:] for talk in talks]
        lines = [json.dumps({"messages": talk}) + "\n" for talk in talks]
        (folder / "chat.jsonl").write_text("".join(lines))
        (folder / "held.jsonl").write_text("".join(lines[:3]))
        found = shown(xrun, folder, source, own)
    wrong, tokens, trained = [], 0, 0
    for i, talk in enumerate(talks):
        parts = turns(talk, form)
        text = "".join(part for part, _ in parts)
        rendered = tokenizer.apply_chat_template(talk, tokenize=False, chat_template=template)
        if text != rendered:
            wrong.append(f"conversation {i}: the text by hand is not that of the template:\n{text!r}\n{rendered!r}")
            continue
        wanted = labelled(library, text, parts)
        ids = [token for token, _ in wanted]
        got = [marks[: len(ids)] for have, marks in found.items() if list(have[: len(ids)]) == ids and not any(marks[len(ids):])]
        if [label for _, label in wanted] not in got:
            wrong.append(f"conversation {i}: {text!r}: {len(got)} of the same tokens, with other labels")
            continue
        tokens += len(ids)
        trained += sum(label for _, label in wanted)
    for line in wrong[:3]:
        print(line)
    return f"{form}: {len(talks) - len(wrong)} of {len(talks)} conversations, {tokens} tokens, {trained} trained on"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("xrun", metavar="XRUN")
    arguments.add_argument("--tokenizer", action="append", required=True, metavar="FORMAT=FOLDER")
    args = arguments.parse_args()
    lines = [compare(args.xrun, *(kind(part) for kind, part in zip((str, Path), one.split("=", 1)))) for one in args.tokenizer]
    print("\n".join(lines))
    if any(f": {CONVERSATIONS} of" not in line for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
