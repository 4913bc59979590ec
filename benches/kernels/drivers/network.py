"""The cases of neural networks, and those that sort and add up along an axis, in PyTorch and NumPy (see src/cases.rs and src/composed.rs)."""

import numpy as np


CONVOLUTIONS = {
    "conv2d_32x1x8x8_16x3x3": ((32, 1, 8, 8), (16, 1, 3, 3)),
    "conv2d_32x16x4x4_32x3x3": ((32, 16, 4, 4), (32, 16, 3, 3)),
    "conv2d_1x64x56x56_64x3x3": ((1, 64, 56, 56), (64, 64, 3, 3)),
    "conv2d_8x64x56x56_64x3x3": ((8, 64, 56, 56), (64, 64, 3, 3)),
    "conv1d_8x64x1000_64x3": ((8, 64, 1000), (64, 64, 3)),
}
POOLINGS = ("max_pool2d_8x64x56x56_2x2", "avg_pool2d_8x64x56x56_2x2")
NAMES = {*CONVOLUTIONS, *POOLINGS, "cross_entropy_1024x1000", "rms_norm_1024x1024", "cumsum_1e6", "sort_1e6", "topk_10_of_1e6", "attention_12x128x64"}


def numbers(*shape, dtype=np.float32, least=-4.0):
    """As `number` in src/ours.rs."""
    count = int(np.prod(shape))
    return (np.arange(count) * 7919 % 8192 / 1024.0 + least).astype(dtype).reshape(shape)


def small(*shape):
    """As `numbers` in src/layer.rs."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7919 % 8192 / 4096.0 - 1.0) * 0.05).astype(np.float32).reshape(shape)


def scattered():
    """As `scattered` in src/composed.rs."""
    return ((np.arange(1_000_000, dtype=np.uint64) * 2_654_435_769 % 2**32) >> 8).astype(np.float32)


def in_numpy(name):
    """The call of a case of `NAMES`; None where NumPy has no function for it."""
    if name == "cumsum_1e6":
        a, out = numbers(1_000_000), np.zeros(1_000_000, np.float32)
        return lambda: np.cumsum(a, out=out)
    if name == "sort_1e6":
        a = scattered()
        return lambda: np.sort(a)
    return None


def in_torch(name):
    """The call of a case of `NAMES`."""
    import torch
    from torch.nn import functional

    if name in CONVOLUTIONS:
        x, weight = (torch.from_numpy(numbers(*shape)) for shape in CONVOLUTIONS[name])
        convolution = functional.conv1d if name.startswith("conv1d") else functional.conv2d
        return lambda: convolution(x, weight, padding=1)
    if name in POOLINGS:
        x = torch.from_numpy(numbers(8, 64, 56, 56))
        pooling = functional.max_pool2d if name.startswith("max") else functional.avg_pool2d
        return lambda: pooling(x, 2)
    if name == "cross_entropy_1024x1000":
        x, classes = torch.from_numpy(numbers(1024, 1000)), torch.arange(1024) * 31 % 1000
        return lambda: functional.cross_entropy(x, classes, reduction="none")
    if name == "rms_norm_1024x1024":
        x, weight = torch.from_numpy(numbers(1024, 1024)), torch.from_numpy(numbers(1024))
        return lambda: functional.rms_norm(x, (1024,), weight, 1e-6)
    if name == "cumsum_1e6":
        a, out = torch.from_numpy(numbers(1_000_000)), torch.zeros(1_000_000)
        return lambda: torch.cumsum(a, 0, out=out)
    if name == "sort_1e6":
        a, out = torch.from_numpy(scattered()), (torch.zeros(1_000_000), torch.zeros(1_000_000, dtype=torch.int64))
        return lambda: torch.sort(a, out=out)[0]
    if name == "topk_10_of_1e6":
        a, out = torch.from_numpy(scattered()), (torch.zeros(10), torch.zeros(10, dtype=torch.int64))
        return lambda: torch.topk(a, 10, out=out)[0]
    # The attention of each head to itself.
    x = torch.from_numpy(numbers(12, 128, 64))
    return lambda: functional.scaled_dot_product_attention(x, x, x)
