"""Prints what PyTorch makes of every bf16 number as an 8-bit float, as one number per format.

The test `device::fp8::tests::casts_are_those_of_pytorch` has these numbers. PyTorch does not saturate, so numbers are
brought into the range of the format first, as its own fp8 recipes do.
"""

import torch


def combined(codes: list[int]) -> int:
    """Combines bytes in order, as the test does."""
    total = 0
    for code in codes:
        total = (total * 31 + code) % 2**64
    return total


def main() -> None:
    bits = torch.arange(65_536, dtype=torch.int32).to(torch.uint16)
    numbers = bits.view(torch.bfloat16).float()
    numbers = numbers[~numbers.isnan()]
    for name, dtype in [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)]:
        largest = torch.finfo(dtype).max
        codes = numbers.clamp(-largest, largest).to(dtype).view(torch.uint8)
        print(f"{name} {combined(codes.tolist()):#018x} of {len(numbers)} numbers, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
