"""A script with its meaning: expressions and statements that have a text and can be carried out in NumPy.

Views of arrays are views in NumPy too, so what is written into one shows in the other as it must in streamvm. A result that streamvm may
give with an error is copied to the host at once and saved; when it has been found near enough, the script goes on in NumPy with the
numbers that streamvm gave, so errors do not add up from statement to statement.
"""

from collections import Counter

import numpy as np

import reference
from result import Exact, Near, mismatch


class Dropped(Exception):
    """A name is not there, because the statement that bound it was dropped while a script was made smaller."""


class Wrong(Exception):
    """streamvm gave something else than NumPy."""


class Tensor:
    """What a name stands for."""

    def __init__(self, array, dtype, place):
        self.array, self.dtype, self.place = array, dtype, place

    @property
    def shape(self):
        return self.array.shape


class State:
    """The names of a script so far, and how many blocks of each seed's random numbers are used up."""

    def __init__(self):
        self.names, self.blocks = {}, Counter()

    def __getitem__(self, name):
        if name not in self.names:
            raise Dropped(name)
        return self.names[name]


class Expr:
    """An expression: its text, what it gives in a state (result, dtype, place), and what is drawn with it, to be counted."""

    def __init__(self, text, meaning, drawn=(), atom=False):
        self.text, self.meaning, self.drawn, self.atom = text, meaning, Counter(drawn), atom

    def operand(self):
        return self.text if self.atom else f"({self.text})"

    def tensor(self, state):
        result, dtype, place = self.meaning(state)
        return Tensor(result.array, dtype, place)


def name(text):
    def meaning(state):
        tensor = state[text]
        return Exact(tensor.array), tensor.dtype, tensor.place
    return Expr(text, meaning, atom=True)


def lane_text(lane):
    return "" if lane is None else f" on lane {lane}"


def drawn_of(inputs, *more):
    counted = Counter(more)
    for each in inputs:
        counted += each.drawn
    return counted


def call(function, inputs, tail, compute, dtype, lane=None, dtype_of=None):
    """A kernel: `compute` gives the result from the arrays of the inputs; `tail` is the text behind them. `dtype` is what the kernel is
    chosen by, `dtype_of` what the result has if that is another."""
    text = " ".join([function] + [each.operand() for each in inputs]) + tail + lane_text(lane)

    def meaning(state):
        tensors = [each.tensor(state) for each in inputs]
        place = next(tensor.place for tensor in tensors if tensor.place is not None)
        return compute(*[tensor.array for tensor in tensors]), dtype_of or dtype, place

    lanes = ["on a lane"] if lane is not None else []
    return Expr(text, meaning, drawn_of(inputs, (function, dtype), *lanes))


def view(function, value, tail, compute, dtype, lane=None):
    def meaning(state):
        tensor = value.tensor(state)
        return Exact(compute(tensor.array)), tensor.dtype, tensor.place
    return Expr(f"{function} {value.operand()}{tail}{lane_text(lane)}", meaning, drawn_of([value], (function, dtype)))


def number(value, dtype):
    """A number as an operand, which has the dtype of the tensor beside it."""
    text = value if isinstance(value, str) else {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    array = np.asarray(reference.literal(value, dtype))
    return Expr(text, lambda state: (Exact(array), dtype, None), ["a number as an operand"], atom=True)


def copy(value, place, place_text, dtype, lane=None):
    def meaning(state):
        tensor = value.tensor(state)
        return Exact(tensor.array.copy()), tensor.dtype, place
    drawn = drawn_of([value], ("copy", dtype), f"copy to {place}")
    return Expr(f"copy {value.operand()} to {place_text}{lane_text(lane)}", meaning, drawn)


def constant(text, function, make, dtype, place):
    """A tensor from nothing. `make` is given the state."""
    return Expr(text, lambda state: (make(state), dtype, place), [(function, dtype)])


class Statement:
    """Lines of a script. `run` carries them out in a state; `outputs` are the arrays that streamvm has saved, or nothing while a script
    is being drawn. `saves` are lines for the end of the script."""

    def __init__(self, lines, run, drawn=(), saves=()):
        self.lines, self.run, self.drawn, self.saves = lines, run, Counter(drawn), list(saves)


def compare(what, result, found):
    wrong = mismatch(result, found)
    if wrong:
        raise Wrong(f"{what}: {wrong}")


def host_text(value, dtype, place):
    """A copy on the host that can be saved: .npy has no bf16, and f32 holds every bf16."""
    if dtype != "bf16":
        return f"copy {value} to host"
    inner = value if place != "host" else f"(copy {value} to cpu:0)"
    return f"copy (cast {inner} f32) to host"


def is_certain(result):
    """Is every bit known, so that NumPy can go on with what it has itself?"""
    return isinstance(result, Exact) and not (result.zeros and result.array.dtype.kind == "f")


def snapshot_of(snapshot, value, dtype, place):
    """The lines that copy a value to the host, and those that save the copy at the end of the script."""
    if not snapshot:
        return [], []
    return [f"let {snapshot} = {host_text(value, dtype, place)}"], [f'save {snapshot} "{snapshot}.npy"']


def settled(what, result, snapshot, outputs):
    """The array to go on with: what streamvm has saved, if it may be off."""
    if not (snapshot and outputs):
        return result.array
    found = outputs(snapshot)
    compare(what, result, found)
    return result.array if is_certain(result) else found


def let(bound, expr, dtype, place, snapshot=None):
    """`let`. With a snapshot, the name of a copy on the host, the result is saved and compared."""
    text = f"let {bound} = {expr.text}"

    def run(state, outputs):
        result, _, _ = expr.meaning(state)
        state.names[bound] = Tensor(settled(text, result, snapshot, outputs), dtype, place)

    lines, saves = snapshot_of(snapshot, bound, dtype, place)
    return Statement([text] + lines, run, expr.drawn, saves)


def into(expr, text, target, dtype, place, snapshot=None, drawn=()):
    """A call or a copy into a tensor that is there; `text` is the line."""
    def run(state, outputs):
        result, _, _ = expr.meaning(state)
        written = target.array(state)
        written[...] = np.array(settled(text, result, snapshot, outputs))

    lines, saves = snapshot_of(snapshot, target.operand(), dtype, place)
    return Statement([text] + lines, run, expr.drawn + Counter(["into", *drawn, *target.drawn]), saves)


class Target:
    """A name and ranges of it, to write to."""

    def __init__(self, bound, ranges=(), drawn=()):
        self.bound, self.ranges, self.drawn = bound, list(ranges), list(drawn)
        self.text = " ".join([bound] + [text for text, _ in self.ranges])

    def operand(self):
        return f"(slice {self.text})" if self.ranges else self.bound

    def array(self, state):
        array = state[self.bound].array
        for _, cut in self.ranges:
            array = cut(array)
        return array


def refill(target, value, text, dtype, lane=None):
    """`fill T value V`"""
    element = reference.literal(value, dtype)

    def run(state, outputs):
        target.array(state)[...] = element

    drawn = [("fill", dtype), "fill of a tensor", *target.drawn]
    return Statement([f"fill {target.text} value {text}{lane_text(lane)}"], run, drawn)


def save(bound, dtype, place, file):
    """Saves what a name stands for, and compares it."""
    def run(state, outputs):
        expected = Exact(state[bound].array)
        if outputs:
            compare(f"{bound} at the end", expected, outputs(file))

    value = bound if dtype != "bf16" else f"({host_text(bound, dtype, place)})"
    return Statement([f'save {value} "{file}.npy"'], run)


def expect(bound, place, tolerance=None):
    """A tensor is what a copy of it is."""
    def run(state, outputs):
        state[bound]
    sign = "==" if tolerance is None else "~="
    tail = "" if tolerance is None else f" tol {tolerance}"
    return Statement([f"expect {bound} {sign} (copy {bound} to {place}){tail}"], run, ["expect"])


def repeat(count, body):
    """Statements without snapshots, several times."""
    def run(state, outputs):
        for _ in range(count):
            for each in body:
                each.run(state, None)
    lines = [f"repeat {count} {{"] + ["  " + line for each in body for line in each.lines] + ["}"]
    return Statement(lines, run, drawn_of(body, "repeat"))


def program(header, body, call, value, outside, names):
    """A program and a run of it. Each part of `body` is a name in it, what that is made of, and how. `names` are the results, outside and in the program."""
    def run(state, outputs):
        of_input, dtype, place = value.meaning(state)
        inner = {"a": of_input.array, outside: state[outside].array}
        for bound, source, make, _ in body:
            inner[bound] = make(inner[source])
        for bound, result in names:
            # A run gives results of its own.
            state.names[bound] = Tensor(np.array(inner[result]), dtype, place)
    lines = [header] + [f"  let {bound} = {text}" for bound, _, _, text in body] + ["}", call]
    return Statement(lines, run, drawn_of([value], "a run of a program"))


def accuracy(scores, labels):
    """`print accuracy`, as the line that it prints."""
    def run(state, outputs):
        best = np.argmax(state[scores].array, axis=-1)
        expected = state[labels].array
        right, rows = int(np.count_nonzero(best == expected)), expected.size
        line = f"accuracy of {scores}: {right / max(rows, 1):.4f} ({right} of {rows})"
        if outputs and line not in outputs.printed:
            raise Wrong(f"print accuracy {scores} {labels}: expected the line {line!r}, printed {outputs.printed}")
    return Statement([f"print accuracy {scores} {labels}"], run, ["print accuracy"])
