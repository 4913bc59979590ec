"""Which functions there are, in which form, and which dtypes they take: as docs/language.md says."""

from dtypes import ALL, FLOATS, INDICES, INTEGERS, SIGNED_INTEGERS

SIGNED = FLOATS + SIGNED_INTEGERS
NUMBERS = FLOATS + INTEGERS

# Form and dtypes of each function. `min` and `max` are reductions with one operand.
FUNCTIONS = {
    **dict.fromkeys(["neg", "abs", "relu", "sign"], ("unary", SIGNED)),
    **dict.fromkeys(["exp", "log", "sqrt", "tanh", "sigmoid", "erf", "gelu", "gelu_tanh", "silu", "rsqrt"], ("unary", FLOATS)),
    **dict.fromkeys(["reciprocal", "floor", "ceil", "round", "trunc", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"], ("unary", FLOATS)),
    **dict.fromkeys(["log1p", "expm1", "log2", "log10", "exp2"], ("unary", FLOATS)),
    "bit_not": ("unary", INTEGERS),
    "not": ("unary", ["bool"]),
    **dict.fromkeys(["isnan", "isinf", "isfinite"], ("predicate", FLOATS)),
    **dict.fromkeys(["add", "sub", "mul", "div", "pow", "floor_div", "remainder"], ("binary", NUMBERS)),
    "atan2": ("binary", FLOATS),
    **dict.fromkeys(["bit_and", "bit_or", "bit_xor", "shl", "shr"], ("binary", INTEGERS)),
    **dict.fromkeys(["and", "or", "xor"], ("binary", ["bool"])),
    **dict.fromkeys(["min", "max"], ("binary or reduce", ALL)),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge"], ("compare", ALL)),
    "where": ("where", ALL),
    "clamp": ("clamp", NUMBERS),
    "sum": ("reduce", NUMBERS),
    **dict.fromkeys(["mean", "var", "std"], ("reduce", FLOATS)),
    "prod": ("reduce", NUMBERS),
    **dict.fromkeys(["any", "all"], ("reduce", ["bool"])),
    **dict.fromkeys(["argmax", "argmin"], ("argmax", ALL)),
    "matmul": ("matmul", FLOATS + ["i32", "i64"]),
    **dict.fromkeys(["softmax", "log_softmax"], ("along", FLOATS)),
    **dict.fromkeys(["softmax_backward", "log_softmax_backward"], ("along pair", FLOATS)),
    **dict.fromkeys(["layer_norm", "rms_norm"], ("norm", FLOATS)),
    "index_select": ("index_select", ALL),
    "cast": ("cast", ALL),
    "pad": ("pad", ALL),
    "one_hot": ("one_hot", INDICES),
    "flip": ("flip", ALL),
    **dict.fromkeys(["tril", "triu"], ("triangle", ALL)),
    "cumsum": ("along", NUMBERS),
    **dict.fromkeys(["take_along_axis", "scatter"], ("by index", ALL)),
    "scatter_add": ("by index", NUMBERS),
    **dict.fromkeys(["sort", "argsort", "topk", "argtopk"], ("sort", ALL)),
    **dict.fromkeys(["cat", "stack", "tile", "roll", "eye"], ("arrange", ALL)),
    "arange": ("arrange", NUMBERS),
    "linspace": ("arrange", FLOATS),
    **dict.fromkeys(["cross_entropy", "cross_entropy_backward"], ("cross_entropy", FLOATS)),
    **dict.fromkeys(["conv2d", "conv2d_backward_input", "conv2d_backward_weight"], ("convolution", FLOATS)),
    **dict.fromkeys(["max_pool2d", "avg_pool2d", "max_pool2d_backward", "avg_pool2d_backward"], ("pooling", FLOATS)),
    "attention": ("attention", FLOATS),
    "group_norm": ("group_norm", FLOATS),
    "dropout": ("dropout", FLOATS),
    **dict.fromkeys(["load", "copy", "empty", "fill"], ("source", ALL)),
    **dict.fromkeys(["uniform", "normal"], ("source", FLOATS)),
    **dict.fromkeys(["reshape", "broadcast", "permute", "slice"], ("view", ALL)),
}

ELEMENTWISE = {"unary", "predicate", "binary", "compare", "where", "clamp", "cast"}
# What refuses an integer 0 on its right.
DIVISIONS = {"div", "floor_div", "remainder"}
