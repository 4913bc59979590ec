"""Single ops over large tensors, one name of an op a line. Sizes: n, repetitions."""

from turns import serve, sizes, torch_or_exit

torch = torch_or_exit()
n, repetitions = sizes()
F = torch.nn.functional

x = torch.rand(n, n, device="cuda") - 0.5
row = torch.rand(n, device="cuda")
half = x.half()
integers = torch.randint(0, n, (n,), device="cuda")
images = torch.rand(32, 64, n // 128, n // 128, device="cuda")
filters = torch.rand(64, 64, 3, 3, device="cuda")
torch.backends.cudnn.allow_tf32 = False

OPS = {
    "add": lambda: x + x,
    "exp": lambda: torch.exp(x),
    "gelu": lambda: F.gelu(x),
    "add a row": lambda: x + row,
    "cast to f16": lambda: x.half(),
    "transposed copy": lambda: x.t().contiguous(),
    "sum": lambda: x.sum(),
    "sum of rows": lambda: x.sum(1),
    "sum of columns": lambda: x.sum(0),
    "argmax of rows": lambda: x.argmax(1),
    "softmax of rows": lambda: torch.softmax(x, 1),
    "layer norm": lambda: F.layer_norm(x, (n,), row, row),
    "cumsum of rows": lambda: x.cumsum(1),
    "index_select": lambda: x[integers],
    "matmul f16": lambda: half @ half,
    "conv2d": lambda: F.conv2d(images, filters, padding=1),
    "max_pool2d": lambda: F.max_pool2d(images, 2),
}


def work(op):
    for _ in range(repetitions):
        OPS[op]()


serve(torch, {op: (lambda op=op: work(op)) for op in OPS})
