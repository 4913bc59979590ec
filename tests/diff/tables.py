"""Which functions there are, in which form, and which dtypes they take: as `streamvm functions --json` says."""

import json
import subprocess

# Form and dtypes of each function. `min` and `max` are reductions with one operand. `read` fills these.
FUNCTIONS = {}
# What the command says of each function.
ROWS = {}

# The form in which a function is drawn, by the class of its op, or by its name.
FORMS = {
    "Unary": "unary", "Predicate": "predicate", "Binary": "binary", "Comparison": "compare", "Reduction": "reduce",
    **dict.fromkeys(["min", "max"], "binary or reduce"),
    **dict.fromkeys(["where", "clamp", "matmul", "index_select", "cast", "pad", "one_hot", "flip", "attention", "group_norm", "dropout"]),
    **dict.fromkeys(["argmax", "argmin"], "argmax"),
    **dict.fromkeys(["softmax", "log_softmax", "cumsum"], "along"),
    **dict.fromkeys(["softmax_backward", "log_softmax_backward"], "along pair"),
    **dict.fromkeys(["layer_norm", "rms_norm"], "norm"),
    **dict.fromkeys(["tril", "triu"], "triangle"),
    **dict.fromkeys(["take_along_axis", "scatter", "scatter_add"], "by index"),
    **dict.fromkeys(["sort", "argsort", "topk", "argtopk"], "sort"),
    **dict.fromkeys(["cat", "stack", "tile", "roll", "eye", "arange", "linspace"], "arrange"),
    **dict.fromkeys(["cross_entropy", "cross_entropy_backward"], "cross_entropy"),
    **dict.fromkeys(["conv2d", "conv2d_backward_input", "conv2d_backward_weight"], "convolution"),
    **dict.fromkeys(["max_pool2d", "avg_pool2d", "max_pool2d_backward", "avg_pool2d_backward"], "pooling"),
    **dict.fromkeys(["load", "copy", "empty", "fill", "uniform", "normal"], "source"),
    **dict.fromkeys(["reshape", "broadcast", "permute", "slice"], "view"),
}

ELEMENTWISE = {"unary", "predicate", "binary", "compare", "where", "clamp", "cast"}
# What refuses an integer 0 on its right.
DIVISIONS = {"div", "floor_div", "remainder"}


def read(command):
    """Asks the command for its functions. A function that no form is known for is a failure: its name is its form where nothing else is said."""
    for row in json.loads(subprocess.check_output([command, "functions", "--json"])):
        name = row["function"]
        known = name if name in FORMS else row["class"]
        if known not in FORMS:
            raise SystemExit(f"{name}: no form says how it is drawn; teach it to tables.py and draw.py")
        ROWS[name] = row
        FUNCTIONS[name] = FORMS[known] or name, row["dtypes"]
