"""PyTorch, NumPy or ONNX Runtime as an entrant: python.py torch|numpy|onnxruntime THREADS MODEL, cases on stdin (see src/entrant.rs)."""

import pathlib
import statistics
import sys
import time

import model
import network
import numpy as np
from network import numbers, small

BATCHES = 9


def measure(call, budget):
    """The median time of a call in nanoseconds, as `time` in src/ours.rs measures it."""
    start = time.perf_counter_ns()
    call()
    call()
    once = max((time.perf_counter_ns() - start) // 2, 20)
    batch = min(max(int(budget / BATCHES / once), 1), 1 << 20)
    times = []
    begin = time.perf_counter_ns()
    while len(times) < BATCHES and (len(times) < 3 or time.perf_counter_ns() - begin < budget * 2):
        start = time.perf_counter_ns()
        for _ in range(batch):
            call()
        times.append((time.perf_counter_ns() - start) / batch)
    return statistics.median(times)


def copied(out, a, casting="same_kind"):
    """`out`, into which `a` is copied: `np.copyto` itself gives nothing that can be compared."""
    np.copyto(out, a, casting=casting)
    return out


def halves(*shape):
    return (np.arange(int(np.prod(shape))) * 31 % 0x3C00).astype(np.uint16).view(np.float16).reshape(shape)


COUNTS = {"1e3": 1_000, "1e5": 100_000, "1e7": 10_000_000}
MATMULS = {
    "matmul_128x384x384": ((128, 384), (384, 384), (128, 384)),
    "matmul_128x384x1536": ((128, 384), (384, 1536), (128, 1536)),
    "matmul_1024x1024x1024": ((1024, 1024), (1024, 1024), (1024, 1024)),
    "matmul_12x128x32x128": ((12, 128, 32), (12, 32, 128), (12, 128, 128)),
}


# Cases of streamvm alone.
PROGRAMS = ("fused_", "unfused_")


def in_numpy(name):
    if name.startswith(("bert_layer_", *PROGRAMS)):
        return None
    if name in network.NAMES:
        return network.in_numpy(name)
    if name in MATMULS:
        a, b, out = MATMULS[name]
        a, b, out = numbers(*a), numbers(*b), np.zeros(out, np.float32)
        return lambda: np.matmul(a, b, out=out)
    op, _, size = name.rpartition("_")
    if name.endswith("softmax_12x128x128"):
        a, log = numbers(12, 128, 128), name.startswith("log")

        def softmax():
            shifted = a - a.max(axis=-1, keepdims=True)
            powers = np.exp(shifted)
            total = powers.sum(axis=-1, keepdims=True)
            return shifted - np.log(total) if log else powers / total

        return softmax
    if name == "bias_128x384":
        a, b, out = numbers(128, 384), numbers(384), np.zeros((128, 384), np.float32)
        return lambda: np.add(a, b, out=out)
    if name in ("permuted_copy_128x12x32", "transposed_copy_1000x1000"):
        a = numbers(128, 12, 32).transpose(1, 0, 2) if name[0] == "p" else numbers(1000, 1000).T
        out = np.zeros(a.shape, np.float32)
        return lambda: copied(out, a)
    shape = (128, 384) if size == "128x384" else (COUNTS[size],)
    a = numbers(*shape, least=0.125 if op == "log" else -4.0)
    if op == "argmax":
        out = np.zeros(shape[:-1], np.int64)
        return lambda: np.argmax(a, axis=-1, out=out)
    if op == "sum":
        out = np.zeros(shape[:-1], np.float32)
        return lambda: np.sum(a, axis=-1, out=out)
    if op == "cast_f16":
        out = np.zeros(shape, np.float16)
        return lambda: copied(out, a, casting="unsafe")
    out = np.zeros(shape, np.float32)
    if op == "cast_from_f16":
        half = halves(*shape)
        return lambda: copied(out, half)
    if op == "add":
        b = numbers(*shape)
        return lambda: np.add(a, b, out=out)
    if op == "relu":
        return lambda: np.maximum(a, np.float32(0), out=out)
    if op.endswith("_f64"):
        op, a, out = op.removesuffix("_f64"), numbers(*shape, dtype=np.float64), np.zeros(shape)
    function = {"exp": np.exp, "tanh": np.tanh, "log": np.log}.get(op)
    return None if function is None else lambda: function(a, out=out)


def in_torch(name):
    import torch

    def tensor(array):
        return torch.from_numpy(array)

    def zeros(*shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype)

    if name.startswith(PROGRAMS):
        return None
    if name.startswith("bert_layer_"):
        return layer_in_torch(int(name.removeprefix("bert_layer_")))
    if name in network.NAMES:
        return network.in_torch(name)
    if name in MATMULS:
        a, b, out = MATMULS[name]
        a, b, out = tensor(numbers(*a)), tensor(numbers(*b)), zeros(*out)
        return lambda: torch.matmul(a, b, out=out)
    op, _, size = name.rpartition("_")
    if name.endswith("softmax_12x128x128"):
        a, out = tensor(numbers(12, 128, 128)), zeros(12, 128, 128)
        function = torch.log_softmax if name.startswith("log") else torch.softmax
        return lambda: function(a, -1, out=out)
    if name == "bias_128x384":
        a, b, out = tensor(numbers(128, 384)), tensor(numbers(384)), zeros(128, 384)
        return lambda: torch.add(a, b, out=out)
    if name in ("permuted_copy_128x12x32", "transposed_copy_1000x1000"):
        a = tensor(numbers(128, 12, 32)).permute(1, 0, 2) if name[0] == "p" else tensor(numbers(1000, 1000)).t()
        out = zeros(*a.shape)
        return lambda: out.copy_(a)
    shape = (128, 384) if size == "128x384" else (COUNTS[size],)
    a = tensor(numbers(*shape, least=0.125 if op == "log" else -4.0))
    if op == "argmax":
        out = zeros(*shape[:-1], dtype=torch.int64)
        return lambda: torch.argmax(a, -1, out=out)
    if op == "sum":
        out = zeros(*shape[:-1])
        return lambda: torch.sum(a, -1, out=out)
    if op == "cast_f16":
        out = zeros(*shape, dtype=torch.float16)
        return lambda: out.copy_(a)
    out = zeros(*shape)
    if op == "cast_from_f16":
        half = tensor(halves(*shape))
        return lambda: out.copy_(half)
    if op == "add":
        b = tensor(numbers(*shape))
        return lambda: torch.add(a, b, out=out)
    if op == "relu":
        return lambda: torch.clamp_min(a, 0, out=out)
    if op.endswith("_f64"):
        op, a, out = op.removesuffix("_f64"), tensor(numbers(*shape, dtype=np.float64)), zeros(*shape, dtype=torch.float64)
    function = getattr(torch, op)
    return lambda: function(a, out=out)


HIDDEN, HEADS, TOKENS, INNER = 384, 12, 128, 1536


def layer_in_torch(batch):
    """The layer of src/layer.rs, as a user of PyTorch writes it."""
    import torch
    from torch.nn import functional

    def linear(source, target):
        return torch.from_numpy(small(source, target)).t().contiguous(), torch.from_numpy(small(target))

    query, key, value, output = (linear(HIDDEN, HIDDEN) for _ in range(4))
    up, down = linear(HIDDEN, INNER), linear(INNER, HIDDEN)
    gain, offset = torch.ones(HIDDEN), torch.zeros(HIDDEN)
    x = torch.from_numpy(small(batch * TOKENS, HIDDEN))

    def heads(weights):
        split = functional.linear(x, *weights).view(batch, TOKENS, HEADS, HIDDEN // HEADS)
        return split.transpose(1, 2)

    def norm(y):
        return functional.layer_norm(y, (HIDDEN,), gain, offset, 1e-12)

    def layer():
        attended = functional.scaled_dot_product_attention(heads(query), heads(key), heads(value))
        attended = attended.transpose(1, 2).reshape(batch * TOKENS, HIDDEN)
        middle = norm(functional.linear(attended, *output) + x)
        wide = functional.gelu(functional.linear(middle, *up), approximate="tanh")
        return norm(functional.linear(wide, *down) + middle)

    return layer


def model_of(library, threads, folder):
    """Calls of a batch size, or None where the model or what runs it is missing."""
    if library == "torch" and (pathlib.Path(folder) / "model.safetensors").is_file():
        return model.in_torch(folder)
    file = pathlib.Path(__file__).parent / "minilm.onnx"
    if library == "onnxruntime" and file.is_file():
        return model.in_onnxruntime(file, threads)
    return None


def element(name, result):
    """The element that is compared, as src/entrant.rs says."""
    if result is None:
        raise TypeError(f"the call of {name} returns nothing, so its result cannot be compared")
    if name.startswith("minilm_"):
        return float(result[-1, 0])
    elements = result.reshape(-1)
    return float(elements[len(elements) // 10])


def main():
    library, threads, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    make = {"numpy": in_numpy, "torch": in_torch}.get(library, lambda name: None)
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
    models = None
    for line in sys.stdin:
        name, budget = line.split()
        if name.startswith("minilm_"):
            models = models or model_of(library, threads, folder)
            call = models and models(int(name.removeprefix("minilm_")))
        else:
            call = make(name)
        if call is None:
            answer = "-"
        elif budget == "0":
            answer = element(name, call())
        else:
            answer = measure(call, int(budget) * 1_000_000)
        print(answer, flush=True)


main()
