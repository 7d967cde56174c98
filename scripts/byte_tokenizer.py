"""xrun's tokenizer of bytes as one of transformers, for scripts that compare with its peers."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"


def byte_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token for each byte, then one for the end, and this chat template."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}
    words = Tokenizer(models.BPE(vocab=letters, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=END, chat_template=template)
