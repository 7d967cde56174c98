"""The trainings that are timed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A training to time: a built-in recipe with keys changed, and the options that give PyTorch the same work."""

    recipe: str
    keys: tuple[str, ...]
    peer: tuple[str, ...]
    # PyTorch's modes, best first according to earlier measurements; empty if PyTorch is not compared.
    modes: tuple[tuple[str, ...], ...] = ()


PADDED = ("--mode", "compile", "--pad")
GRAPHS = ("--mode", "graphs", "--pad")
CUDNN, FLASH = ((*GRAPHS, "--attention", kernel) for kernel in ("cudnn", "flash"))


def grouped(kv_heads: int, *modes: tuple[str, ...]) -> Size:
    """Returns the size with width 1,024, 8 heads of dimension 128, and 1,024 tokens."""
    keys = ("model.n_heads=8", f"model.n_kv_heads={kv_heads}", "model.head_dim=128", "model.ffn_dim=2816")
    keys += ("training.seq_len=1024", "training.local_batch_size=16")
    peer = ("--model", f"1024,18,8,{kv_heads},128,2816", "--seq", "1024", "--batch", "16")
    return Size("v8-dim1024", keys, peer, modes)


SIZES = {
    "dim384": Size("dim384", (), ("--model", "dim384"), (GRAPHS, PADDED)),
    "dim768": Size("dim768", (), ("--model", "dim768"), (GRAPHS, PADDED)),
    "dim1024": Size("v8-dim1024", (), ("--model", "dim1024"), (GRAPHS, PADDED)),
    "base-160m": Size(
        "base-160m", (), ("--model", "base-160m", "--seq", "1024", "--batch", "16"), (CUDNN, GRAPHS, FLASH)
    ),
    "qwen3-0.6b-shape": Size(
        "qwen3-0.6b-shape", (), ("--model", "qwen3-0.6b-shape", "--seq", "2048", "--batch", "8"), (CUDNN, GRAPHS, FLASH)
    ),
    "long-context": Size(
        "long-context", (), ("--model", "base-160m", "--seq", "4096", "--batch", "4"), (CUDNN, GRAPHS, FLASH)
    ),
    "dim768-batch64": Size(
        "dim768", ("training.local_batch_size=64",), ("--model", "dim768", "--batch", "64"), (GRAPHS, PADDED)
    ),
    "dim768-heads64-seq512": Size(
        "dim768",
        ("model.n_heads=12", "model.head_dim=64", "training.seq_len=512", "training.local_batch_size=24"),
        ("--model", "768,18,12,12,64,2048", "--seq", "512", "--batch", "24"),
        (CUDNN, PADDED),
    ),
    "dim1024-grouped-seq1024": grouped(4, CUDNN, PADDED),
    "base-160m-heads96": Size(
        "base-160m",
        ("model.n_heads=8", "model.head_dim=96"),
        ("--model", "768,12,8,8,96,2048", "--seq", "1024", "--batch", "16"),
        (CUDNN, GRAPHS),
    ),
    "dim1024-groups-of-8": grouped(1, CUDNN, GRAPHS),
    "base-160m-batch1": Size(
        "base-160m",
        ("training.local_batch_size=1",),
        ("--model", "base-160m", "--seq", "1024", "--batch", "1"),
        (CUDNN, GRAPHS),
    ),
    "base-160m-seq1000": Size(
        "base-160m",
        ("training.seq_len=1000",),
        ("--model", "base-160m", "--seq", "1000", "--batch", "16"),
        (CUDNN, GRAPHS),
    ),
    "base-160m-seq16384": Size(
        "base-160m",
        ("training.seq_len=16384", "training.local_batch_size=1"),
        ("--model", "base-160m", "--seq", "16384", "--batch", "1"),
        (CUDNN, GRAPHS),
    ),
    "dim1024-recompute": Size(
        "v8-dim1024", ("activation_checkpoint.mode=full",), ("--model", "dim1024", "--recompute"), (PADDED,)
    ),
    "dim768-tf32": Size("dim768", ("training.dtype=tf32",), ("--model", "dim768", "--precision", "tf32"), (PADDED,)),
    "dim768-fp32": Size(
        "dim768",
        ("training.dtype=fp32", "training.local_batch_size=16"),
        ("--model", "dim768", "--precision", "fp32", "--batch", "16"),
        (PADDED,),
    ),
}
# The default sizes of comparisons; few, because compiling PyTorch's side takes the longest.
COMPARED = ("dim384", "dim768", "dim1024")
# Shapes beside those of the recipes; at each of them, xrun must not be slower than PyTorch.
OTHERS = (
    "dim768-batch64",
    "dim768-heads64-seq512",
    "dim1024-grouped-seq1024",
    "base-160m-heads96",
    "dim1024-groups-of-8",
    "base-160m-batch1",
    "base-160m-seq1000",
    "base-160m-seq16384",
)
