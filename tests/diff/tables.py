"""Which functions there are, in which form, and which dtypes they take: as docs/language.md says."""

from dtypes import ALL, FLOATS, INTEGERS

SIGNED = FLOATS + ["i32", "i64"]
NUMBERS = FLOATS + INTEGERS

# Form and dtypes of each function. `min` and `max` are reductions with one operand.
FUNCTIONS = {
    **dict.fromkeys(["neg", "abs", "relu"], ("unary", SIGNED)),
    **dict.fromkeys(["exp", "log", "sqrt", "tanh", "sigmoid", "erf", "gelu", "gelu_tanh", "silu", "rsqrt"], ("unary", FLOATS)),
    **dict.fromkeys(["add", "sub", "mul", "div", "pow"], ("binary", NUMBERS)),
    **dict.fromkeys(["min", "max"], ("binary or reduce", ALL)),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge"], ("compare", ALL)),
    "where": ("where", ALL),
    "sum": ("reduce", NUMBERS),
    "mean": ("reduce", FLOATS),
    "argmax": ("argmax", ALL),
    "matmul": ("matmul", SIGNED),
    **dict.fromkeys(["softmax", "log_softmax"], ("along", FLOATS)),
    **dict.fromkeys(["softmax_backward", "log_softmax_backward"], ("along pair", FLOATS)),
    "layer_norm": ("layer_norm", FLOATS),
    "index_select": ("index_select", ALL),
    "cast": ("cast", ALL),
    "pad": ("pad", ALL),
    "one_hot": ("one_hot", INTEGERS),
    **dict.fromkeys(["load", "copy", "empty", "fill"], ("source", ALL)),
    **dict.fromkeys(["uniform", "normal"], ("source", FLOATS)),
    **dict.fromkeys(["reshape", "broadcast", "permute", "slice"], ("view", ALL)),
}

ELEMENTWISE = {"unary", "binary", "compare", "where", "cast"}
