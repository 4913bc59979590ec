"""Draws scripts that must run: each with what it gives in NumPy."""

import random

import numpy as np

import composed
import images
import philox
import reference
from dtypes import ALL, FLOATS, INDICES, SIGNED_INTEGERS, is_float
from script import (Expr, State, Statement, Target, accuracy, call, constant, copy, drawn_of, expect, into, is_certain, lane_text, let, name,
                    number, refill, repeat, save, view)
from tables import DIVISIONS, ELEMENTWISE, FUNCTIONS, ROWS
from result import Exact
from values import elements

SEVERAL_BLOCKS = "attention of several blocks of queries"
# What every run of enough scripts has, besides every function with every dtype.
TAGS = [f"{SEVERAL_BLOCKS} with {mask}" for mask in ("no mask", "a mask")]

DEVICES = ["cpu:0", "cpu:1", "sim:0"]


class Draw:
    """One script. `focus` are pairs of a function and a dtype that it must have."""

    KIND = "scripts that must run"

    def __init__(self, seed, focus):
        self.choice = random.Random(f"{seed[0]} {seed[1]}")
        self.numbers = np.random.default_rng(list(seed))
        self.state, self.statements, self.ends = State(), [], []
        self.inputs, self.files, self.count = {}, {}, 0
        self.focus = focus
        self.named = self.choice.random() < 0.5
        if self.named:
            self.add_lines([f"device acc = {self.choice.choice(['cpu:1', 'cuda:7 else cpu:1'])}"])
        self.large = self.choice.random() < 0.06
        self.shapes = [self.shape() for _ in range(3)]
        # The chance of a name that is there, if one fits, in place of a new tensor.
        self.reuse = self.choice.choice([0.3, 0.6, 0.9])

    # Statements.

    def add(self, statement):
        statement.run(self.state, None)
        self.statements.append(statement)

    def add_lines(self, lines):
        self.statements.append(Statement(lines, lambda state, outputs: None))

    def fresh(self, letter="x"):
        self.count += 1
        return f"{letter}{self.count}"

    def draw(self):
        for function, dtype in self.focus:
            # A cast has many pairs of dtypes.
            for _ in range(4 if function == "cast" else 1):
                self.use(function, dtype)
        for _ in range(self.choice.randint(2, 8)):
            function = self.choice.choice(sorted(FUNCTIONS) + ["cast"] * 5)
            self.use(function, self.choice.choice(FUNCTIONS[function][1]))
        if self.choice.random() < 0.15:
            self.print_accuracy()
        if self.choice.random() < 0.2:
            self.repeat()
        for bound, tensor in list(self.state.names.items()):
            if not bound.startswith("s"):
                self.add(save(bound, tensor.dtype, tensor.place, f"end_{bound}"))
        return self

    def use(self, function, dtype):
        """A statement of a function, and what it needs in front of it."""
        form = FUNCTIONS[function][0]
        if form == "source":
            return self.source(function, dtype)
        if form == "arrange":
            place = self.place()
            return self.bind(self.arrange(function, dtype, place), dtype, place)
        if form == "dropout":
            return self.dropout(dtype, self.place(kernel=True))
        place = self.place(kernel=form != "view")
        if form == "view":
            return self.bind(self.view(function, dtype, self.any_shape(), place, 0), dtype, place)
        if self.chance(0.25) and form in ("unary", "binary", "binary or reduce") and self.in_place(function, dtype, place):
            return None
        expr, result_dtype, lane = self.call(function, dtype, place)
        # What is made of several ops cannot be written into a tensor.
        if function not in ("sort", "topk", "attention", "group_norm") and self.chance(0.3):
            return self.write(expr, result_dtype, place, lane)
        return self.bind(expr, result_dtype, place)

    def bind(self, expr, dtype, place, certain=None):
        """`let`, sometimes of a name that is there already."""
        old = [bound for bound in self.state.names if bound.startswith("x")]
        bound = self.choice.choice(old) if old and self.chance(0.08) else self.fresh()
        snapshot = None
        if certain is None:
            certain = self.certain(expr)
        if not certain or self.chance(0.3):
            snapshot = self.fresh("s")
        self.add(let(bound, expr, dtype, place, snapshot))
        if self.chance(0.06):
            # By `==` a NaN differs from itself, so floats are compared by `~=`; `stop.py` draws a NaN by `==`.
            tolerance = self.choice.choice([0.0, 0.5]) if is_float(dtype) else self.choice.choice([None, 0.5])
            self.add(expect(bound, self.choice.choice(["host", place]), tolerance))
        return bound

    def certain(self, expr):
        return is_certain(expr.meaning(self.state)[0])

    def write(self, expr, dtype, place, lane):
        """The result of a call, or a copy, into a tensor that is there."""
        result = expr.meaning(self.state)[0]
        target = self.target(dtype, result.array.shape, place, expr)
        snapshot = self.fresh("s") if not is_certain(result) or self.chance(0.3) else None
        text = f"{expr.text} into {target.text}"
        self.add(into(expr, text, target, dtype, place, snapshot))
        if self.chance(0.3) and dtype != "bool":
            value, shown = self.literal(dtype)
            self.add(refill(self.target(dtype, result.array.shape, place, expr), value, shown, dtype, self.lane()))

    def target(self, dtype, shape, place, expr):
        """Where to write: a tensor of its own, a part of one, a permuted one; or one that is there and that `expr` does not read."""
        read = [tensor for tensor in self.read_by(expr)]
        found = [bound for bound, tensor in self.state.names.items()
                 if bound.startswith("x") and (tensor.dtype, tensor.place, tensor.shape) == (dtype, place, shape)
                 and tensor.array.flags.writeable and not any(np.shares_memory(tensor.array, other) for other in read)]
        if found and self.chance(self.reuse):
            return Target(self.choice.choice(found), drawn=["into a tensor in use"])
        if shape and self.chance(0.5):
            inner, ranges = self.cut(shape)
            bound = self.base(dtype, inner, place, new=True)
            return Target(bound.text, ranges, ["into a part"])
        if len(shape) > 1 and self.chance(0.4):
            axes = self.choice.sample(range(len(shape)), len(shape))
            inner = [0] * len(shape)
            for axis, size in zip(axes, shape):
                inner[axis] = size
            base = self.base(dtype, tuple(inner), place, new=True)
            permuted = self.fresh()
            self.add(let(permuted, self.permuted(base, axes, dtype), dtype, place))
            return Target(permuted, drawn=["into a permuted view"])
        return Target(self.base(dtype, shape, place, new=True).text, drawn=["into a whole tensor"])

    def read_by(self, expr):
        """The arrays of all names: what an expression may read."""
        words = set(expr.text.replace("(", " ").replace(")", " ").split())
        return [tensor.array for bound, tensor in self.state.names.items() if bound in words]

    def in_place(self, function, dtype, place):
        """An elementwise function whose result is exactly the view that it reads."""
        found = [bound for bound, tensor in self.state.names.items()
                 if bound.startswith("x") and (tensor.dtype, tensor.place) == (dtype, place) and tensor.array.flags.writeable]
        bound = self.choice.choice(found) if found else self.base(dtype, self.any_shape(), place, new=True).text
        array = self.state[bound].array
        ranges = self.parts(array.shape) if array.ndim and self.chance(0.5) else []
        target = Target(bound, ranges, ["in place"])
        shape = target.array(self.state).shape
        value = Expr(target.operand(), lambda state: (Exact(target.array(state)), dtype, place), atom=True)
        if FUNCTIONS[function][0] == "unary":
            inputs, compute = [value], self.unary(function, dtype)
        else:
            other = self.right_operand(function, dtype, self.shrunk(shape), place)
            if any(np.shares_memory(array, read) for read in self.read_by(other)):
                return False
            inputs, compute = [value, other], self.binary(function, dtype)
            if function not in DIVISIONS | {"pow"} and self.chance(0.4):
                inputs.reverse()
        expr = call(function, inputs, "", compute, dtype, self.lane())
        result = expr.meaning(self.state)[0]
        snapshot = self.fresh("s") if not is_certain(result) or self.chance(0.3) else None
        self.add(into(expr, f"{expr.text} into {target.text}", target, dtype, place, snapshot))
        return True

    def repeat(self):
        body, dtype = [], self.choice.choice(["f32", "i32", "u8", "i64", "bf16", "u32", "i16"])
        place = self.place(kernel=True)
        shape = self.any_shape()
        one, two = self.base(dtype, shape, place, new=True), self.base(dtype, shape, place, new=True)
        for _ in range(self.choice.randint(1, 3)):
            function = self.choice.choice(["add", "sub", "mul"])
            inputs = self.choice.choice([[one, two], [two, one], [one, one]])
            target = Target(self.choice.choice([one, two]).text)
            expr = call(function, inputs, "", self.binary(function, dtype), dtype, self.lane())
            body.append(into(expr, f"{expr.text} into {target.text}", target, dtype, place))
        self.add(repeat(self.choice.randint(1, 4), body))

    def print_accuracy(self):
        rows, classes = self.choice.randint(1, 9), self.choice.randint(1, 5)
        dtype = self.choice.choice(ALL)
        scores = self.base(dtype, (rows, classes), self.place(), new=True).text
        labels = self.loaded("i64", np.asarray(self.numbers.integers(0, classes, rows), np.int64), self.place())
        self.add(accuracy(scores, labels.text))

    # What is drawn by itself.

    def chance(self, share):
        return self.choice.random() < share

    def lane(self):
        return self.choice.randint(0, 3) if self.chance(0.25) else None

    def place(self, kernel=False):
        return self.choice.choice((["host"] if not kernel else []) + ["cpu:0", "cpu:0", "cpu:1", "sim:0"])

    def place_text(self, place):
        return "acc" if place == "cpu:1" and self.named and self.chance(0.7) else place

    def size(self):
        if self.large and self.chance(0.4):
            return self.choice.choice([63, 64, 65, 130, 257])
        return self.choice.choices([0, 1, 2, 3, 4, 5, 7, 8, 17], [1, 4, 5, 5, 3, 2, 2, 2, 1])[0]

    def shape(self, least=0):
        while True:
            rank = max(least, self.choice.choices(range(9), [2, 6, 8, 5, 2, 0.5, 0.3, 0.2, 0.2])[0])
            shape = tuple(self.size() if rank < 5 else self.choice.choice([1, 1, 2, 3]) for _ in range(rank))
            if np.prod(shape, dtype=np.int64) <= (20000 if self.large else 1500):
                return shape

    def any_shape(self, least=0):
        fitting = [shape for shape in self.shapes if len(shape) >= least]
        return self.choice.choice(fitting) if fitting and self.chance(0.7) else self.shape(least)

    def literal(self, dtype):
        """A number as a value and as it is written."""
        if dtype == "bool":
            value = self.chance(0.5)
            return value, "true" if value else "false"
        if is_float(dtype):
            value = self.choice.choice([0.5, -0.5, 2, -3, 0.1, 1e-4, 1e30, -1e300, 1e-320, 0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 65520.0,
                                        16777217, 9007199254740993, 3.0, 1.0009765625, 1.00048828125])
            return value, repr(value)
        most = np.iinfo(reference.STORE[dtype])
        # The largest number that a script can write is that of an i64.
        value = int(self.choice.choice([0, 1, 2, 3, min(most.max, 2**63 - 1), most.min, most.max // 3, 7]))
        return value, repr(value)

    def shrunk(self, shape):
        """A shape that broadcasts to this one."""
        sizes = [1 if self.chance(0.2) else size for size in shape]
        while sizes and sizes[0] == 1 and self.chance(0.6):
            sizes.pop(0)
        return tuple(sizes)

    def spread(self, shape, count):
        """Shapes that broadcast together to this one."""
        if self.chance(0.5):
            return [shape] * count
        all_shapes = [self.shrunk(shape) for _ in range(count)]
        all_shapes[self.choice.randrange(count)] = shape
        return all_shapes

    # Tensors.

    def source(self, function, dtype):
        shape = self.any_shape()
        if function == "load":
            return self.loaded(dtype, elements(self.numbers, dtype, shape), "host")
        if function == "copy":
            place, to = self.place(), self.place()
            value = self.make(dtype, shape, place)
            if self.chance(0.4):
                expr = Expr(f"copy {value.operand()}", value.meaning, drawn_of([value], ("copy", dtype), f"copy into {to}"))
                target = self.target(dtype, shape, to, expr)
                lane = self.lane()
                text = f"{expr.text} into {target.text}{lane_text(lane)}"
                snapshot = self.fresh("s") if self.chance(0.3) else None
                return self.add(into(expr, text, target, dtype, to, snapshot))
            return self.bind(copy(value, to, self.place_text(to), dtype, self.lane()), dtype, to)
        place = self.place(kernel=function in ("uniform", "normal"))
        return self.bind(self.constant(function, dtype, shape, place), dtype, place, certain=function != "normal")

    def constant(self, function, dtype, shape, place):
        """`empty`, `fill`, `uniform`, `normal`."""
        sizes = "".join(f" {size}" for size in shape)
        tail = f"on {self.place_text(place)}{lane_text(self.lane())}"
        if function == "empty":
            return constant(f"empty {dtype}{sizes} {tail}", function,
                            lambda state: Exact(np.zeros(shape, reference.STORE[dtype])), dtype, place)
        if function == "fill":
            value, shown = self.literal(dtype)
            element = reference.literal(value, dtype)
            return constant(f"fill {dtype}{sizes} value {shown} {tail}", function,
                            lambda state: Exact(np.full(shape, element, reference.STORE[dtype])), dtype, place)
        seed = self.choice.choice([0, 1, 7, 2**40 + 5])

        def make(state):
            result, blocks = getattr(philox, function)(dtype, shape, seed, state.blocks[seed])
            state.blocks[seed] += blocks
            return result

        return constant(f"{function} {dtype}{sizes} seed {seed} {tail}", function, make, dtype, place)

    def loaded(self, dtype, array, place):
        """A tensor of a file, copied to a place."""
        bound = self.fresh()
        how = self.choice.choice(["C", "F", "safetensors", "safetensors"]) if dtype != "bf16" else "safetensors"
        self.inputs[bound] = (array, dtype, how)
        text = f'load "in.safetensors" "{bound}"' if how == "safetensors" else f'load "{bound}.npy"'
        expr = Expr(text, lambda state: (Exact(array.copy()), dtype, "host"), [("load", dtype), f"load {how}"])
        if place == "host":
            self.add(let(bound, expr, dtype, place))
        else:
            self.add(let(bound, copy(expr, place, self.place_text(place), dtype, self.lane()), dtype, place))
        return name(bound)

    def base(self, dtype, shape, place, new=False, kind=None):
        """A name of a tensor: one that is there, or a new one."""
        if not new and not kind:
            found = [bound for bound, tensor in self.state.names.items()
                     if bound.startswith("x") and (tensor.dtype, tensor.place, tensor.shape) == (dtype, place, shape)]
            if found and self.chance(self.reuse):
                return name(self.choice.choice(found))
            if self.chance(0.12):
                functions = ["empty", "fill"] + (["uniform"] if dtype in FLOATS and place != "host" else [])
                bound = self.fresh()
                self.add(let(bound, self.constant(self.choice.choice(functions), dtype, shape, place), dtype, place))
                return name(bound)
        return self.loaded(dtype, elements(self.numbers, dtype, shape, kind), place)

    def make(self, dtype, shape, place, depth=0, kind=None):
        """An operand of a shape: a name, or views of one, or exact calls."""
        if kind is None and depth < 3 and self.chance(0.4):
            function = self.choice.choice(["permute", "slice", "broadcast", "reshape", "stepped"])
            if function == "stepped" and len(shape) < 8:
                expr = self.stepped(dtype, shape, place)
            else:
                expr = self.view("slice" if function == "stepped" else function, dtype, shape, place, depth + 1)
            if self.chance(0.3):
                bound = self.fresh()
                self.add(let(bound, expr, dtype, place))
                return name(bound)
            return expr
        if kind is None and depth < 2 and place != "host" and self.chance(0.12):
            expr, _, _ = self.call(self.choice.choice(["where", "cast"] + ["add", "mul"] * (dtype != "bool")), dtype, place, shape, depth + 1)
            return expr
        return self.base(dtype, shape, place, kind=kind)

    # Views. Each is made backwards: the shape of the result is given.

    def view(self, function, dtype, shape, place, depth):
        if function == "permute":
            axes = self.choice.sample(range(len(shape)), len(shape))
            inner = [0] * len(shape)
            for axis, size in zip(axes, shape):
                inner[axis] = size
            return self.permuted(self.make(dtype, tuple(inner), place, depth), axes, dtype)
        if function == "slice" and shape:
            inner, ranges = self.cut(shape)
            tail = "".join(f" {text}" for text, _ in ranges)

            def cut(array):
                for _, part in ranges:
                    array = part(array)
                return array

            return view("slice", self.make(dtype, inner, place, depth), tail, cut, dtype, self.lane())
        if function == "broadcast":
            inner = self.shrunk(shape)
            tail = "".join(f" {size}" for size in shape)
            value = self.make(dtype, inner, place, depth)
            return view("broadcast", value, tail, lambda array: np.broadcast_to(array, shape), dtype, self.lane())
        inner = self.regrouped(shape)
        sizes = list(shape)
        if sizes and self.chance(0.3):
            open_axis = self.choice.randrange(len(sizes))
            if all(size for axis, size in enumerate(sizes) if axis != open_axis):
                sizes[open_axis] = -1
        tail = "".join(f" {size}" for size in sizes)
        return view("reshape", self.make(dtype, inner, place, depth), tail, lambda array: np.reshape(array, sizes), dtype, self.lane())

    def stepped(self, dtype, shape, place):
        """A view whose elements lie apart on every axis: one place of a last axis that is cut off by a reshape."""
        step = self.choice.choice([2, 3, 5])
        at = self.choice.randrange(step)
        inner = self.base(dtype, tuple(shape) + (step,), place)
        column = view("slice", inner, f" axis -1 {at}..{at + 1}", lambda array: array[..., at:at + 1], dtype)
        tail = "".join(f" {size}" for size in shape)
        expr = view("reshape", column, tail, lambda array: np.reshape(array, shape), dtype, self.lane())
        expr.drawn["a view of elements that lie apart"] += 1
        return expr

    def permuted(self, value, axes, dtype):
        shown = [axis - len(axes) if self.chance(0.2) else axis for axis in axes]
        tail = "".join(f" {axis}" for axis in shown)
        return view("permute", value, tail, lambda array: np.transpose(array, axes), dtype, self.lane())

    def cut(self, shape):
        """A larger shape, and ranges of it that give this one."""
        inner, ranges = list(shape), []
        for axis in self.choice.sample(range(len(shape)), self.choice.randint(1, min(2, len(shape)))):
            before, after = self.choice.choice([0, 0, 1, 2]), self.choice.choice([0, 0, 1, 3])
            inner[axis] = before + shape[axis] + after
            ranges.append(self.range(axis, len(shape), before, before + shape[axis], inner[axis]))
        return tuple(inner), ranges

    def parts(self, shape):
        """Ranges of a shape."""
        axis = self.choice.randrange(len(shape))
        first = self.choice.randint(0, shape[axis])
        return [self.range(axis, len(shape), first, self.choice.randint(first, shape[axis]), shape[axis])]

    def range(self, axis, rank, first, last, size):
        words = [f"axis {axis}", f"axis {axis - rank}"] + (["rows"] if axis == 0 else []) + (["cols"] if axis == 1 else [])
        start = "" if first == 0 and self.chance(0.5) else str(first)
        end = "" if last == size and self.chance(0.5) else str(last)
        where = (slice(None),) * axis + (slice(first, last),)
        return f"{self.choice.choice(words)} {start}..{end}", lambda array: array[where]

    def regrouped(self, shape):
        """Another shape with as many elements."""
        sizes = list(shape)
        for _ in range(self.choice.randint(1, 2)):
            if len(sizes) >= 2 and self.chance(0.6):
                axis = self.choice.randrange(len(sizes) - 1)
                sizes[axis:axis + 2] = [sizes[axis] * sizes[axis + 1]]
            elif len(sizes) < 8:
                axis = self.choice.randint(0, len(sizes))
                sizes.insert(axis, 1)
        for axis, size in enumerate(sizes):
            if size > 2 and size % 2 == 0 and len(sizes) < 8 and self.chance(0.5):
                sizes[axis:axis + 1] = self.choice.choice([[2, size // 2], [size // 2, 2]])
                break
        return tuple(sizes)

    # Calls.

    def unary(self, function, dtype):
        return lambda a: reference.unary(function)(dtype, a)

    def binary(self, function, dtype):
        return lambda a, b: reference.binary(function)(dtype, a, b)

    def right_operand(self, function, dtype, shape, place, depth=0):
        """One that does not fail: no zero divides an integer, and no exponent of one is negative."""
        if is_float(dtype) or function not in DIVISIONS | {"pow"}:
            return self.make(dtype, shape, place, depth)
        value = self.make(dtype, shape, place, depth)
        if function in DIVISIONS:
            is_zero = call("eq", [value, number(0, dtype)], "", self.binary("eq", dtype), dtype, dtype_of="bool")
            return call("where", [is_zero, number(1, dtype), value], "", lambda c, a, b: reference.where(dtype, c, a, b), dtype)
        low = call("max", [value, number(0, dtype)], "", self.binary("max", dtype), dtype)
        return call("min", [low, number(9, dtype)], "", self.binary("min", dtype), dtype) if self.chance(0.7) else low

    def call(self, function, dtype, place, shape=None, depth=0):
        """A call with operands that fit: the expression, the dtype of its result, its lane."""
        form = FUNCTIONS[function][0]
        lane = self.lane()
        if form == "binary or reduce":
            form = "reduce" if shape is None and self.chance(0.5) else "binary"
        if form == "unary":
            value = self.make(dtype, shape or self.any_shape(), place, depth)
            return call(function, [value], "", self.unary(function, dtype), dtype, lane), dtype, lane
        if form == "predicate":
            value = self.make(dtype, shape or self.any_shape(), place, depth)
            compute = lambda a: reference.unary(function)(dtype, a)  # noqa: E731
            return call(function, [value], "", compute, dtype, lane, dtype_of="bool"), "bool", lane
        if form in ("binary", "compare"):
            return self.binary_call(function, dtype, place, shape, depth, form, lane)
        if form == "where":
            shapes = self.spread(self.any_shape() if shape is None else shape, 3)
            condition = self.make("bool", shapes[0], place, depth)
            values = [self.make(dtype, each, place, depth) for each in shapes[1:]]
            if self.chance(0.15) and shape is None:
                values[self.choice.randrange(2)] = number(self.literal(dtype)[0], dtype)
            expr = call("where", [condition, *values], "", lambda c, a, b: reference.where(dtype, c, a, b), dtype, lane)
            return expr, dtype, lane
        if form == "clamp":
            shapes = self.spread(self.any_shape() if shape is None else shape, 3)
            values = [self.make(dtype, each, place, depth) for each in shapes]
            if self.chance(0.3) and shape is None:
                values[1:] = [number(self.literal(dtype)[0], dtype) for _ in range(2)]
            return call("clamp", values, "", lambda a, b, c: reference.clamp(dtype, a, b, c), dtype, lane), dtype, lane
        if form == "cast":
            source, to = (dtype, self.choice.choice(ALL)) if shape is None else (self.choice.choice(ALL), dtype)
            hard = is_float(to) and source in ("f64", "f32", "i64", "i32") and self.chance(0.7)
            value = self.make(source, self.any_shape() if shape is None else shape, place, depth, "between" if hard else None)
            expr = call("cast", [value], f" {to}", lambda a: reference.cast(source, a, to), source, lane, dtype_of=to)
            expr.drawn[f"cast {source} to {to}"] += 1
            return expr, to, lane
        if form in ("reduce", "argmax", "along", "along pair"):
            return self.over_axes(function, form, dtype, place, lane)
        if form == "matmul":
            batches = self.spread(tuple(self.choice.choice([0, 1, 2, 3]) for _ in range(self.choice.choice([0, 0, 1, 2]))), 2)
            sizes = [1, 2, 3, 5, 8, 16, 17] if not self.large else [1, 8, 33, 64, 129, 260]
            m, k, n = (self.choice.choice(sizes + [0]) if self.chance(0.2) else self.choice.choice(sizes) for _ in range(3))
            inputs = [self.make(dtype, batches[0] + (m, k), place), self.make(dtype, batches[1] + (k, n), place)]
            return call("matmul", inputs, "", lambda a, b: reference.matmul(dtype, a, b), dtype, lane), dtype, lane
        if form == "pad":
            return self.pad(dtype, place, lane)
        if form == "norm":
            return self.norm(function, dtype, place, lane)
        if form == "index_select":
            return self.index_select(dtype, place, lane)
        if form == "flip":
            return self.flip(dtype, place, lane)
        if form == "triangle":
            return self.triangle(function, dtype, place, lane)
        if form == "by index":
            return self.by_index(function, dtype, place, lane)
        if form == "sort":
            return self.sort(function, dtype, place, lane)
        if form == "cross_entropy":
            return self.cross_entropy(function, dtype, place, lane)
        if form == "convolution":
            return self.convolution(function, dtype, place, lane)
        if form == "pooling":
            return self.pooling(function, dtype, place, lane)
        if form == "attention":
            return self.attention(dtype, place, lane)
        if form == "group_norm":
            return self.group_norm(dtype, place, lane)
        return self.one_hot(dtype, place, lane)

    def binary_call(self, function, dtype, place, shape, depth, form, lane):
        shapes = self.spread(self.any_shape() if shape is None else shape, 2)
        inputs = [self.make(dtype, shapes[0], place, depth), self.right_operand(function, dtype, shapes[1], place, depth)]
        if shape is None and self.chance(0.2):
            side = self.choice.randrange(2) if is_float(dtype) or function not in DIVISIONS | {"pow"} else 0
            inputs[side] = number(self.literal(dtype)[0], dtype)
        result = "bool" if form == "compare" else dtype
        return call(function, inputs, "", self.binary(function, dtype), dtype, lane, dtype_of=result), result, lane

    def over_axes(self, function, form, dtype, place, lane):
        shape = list(self.any_shape(least=0 if form == "reduce" else 1))
        if form in ("argmax", "along", "along pair"):
            axes = [self.choice.randrange(len(shape))]
        else:
            axes = self.choice.sample(range(len(shape)), self.choice.randint(0, len(shape))) if shape else []
        if form == "argmax" or form == "reduce" and not ROWS[function]["reduces_no_elements"]:
            # They have no result over no elements.
            for axis in axes or range(len(shape)):
                shape[axis] = max(shape[axis], 1)
        value = self.make(dtype, tuple(shape), place)
        shown = [str(axis - len(shape) if self.chance(0.3) else axis) for axis in axes]
        tail = f" axis {shown[0]}" if len(axes) == 1 else f" axes {' '.join(shown)}" if axes else ""
        if form == "reduce":
            keep = self.chance(0.4)
            expr = call(function, [value], tail + (" keep" if keep else ""),
                        lambda a: reference.reduction(function)(dtype, a, axes, keep), dtype, lane)
            expr.drawn[f"{function} over axes"] += 1
            return expr, dtype, lane
        axis = axes[0]
        if form == "argmax":
            keep = self.chance(0.4)
            expr = call(function, [value], tail + (" keep" if keep else ""), lambda a: reference.ARG[function](dtype, a, axis, keep), dtype, lane,
                        dtype_of="i64")
            return expr, "i64", lane
        if form == "along":
            return call(function, [value], tail, lambda a: reference.ALONG[function](dtype, a, axis), dtype, lane), dtype, lane
        other = self.make(dtype, tuple(shape), place)
        return call(function, [value, other], tail, lambda y, dy: reference.ALONG_PAIR[function](dtype, y, dy, axis), dtype, lane), dtype, lane

    def pad(self, dtype, place, lane):
        shape = self.any_shape()
        axes = self.choice.sample(range(len(shape)), self.choice.randint(0, len(shape))) if shape else []
        value = self.make(dtype, shape, place)
        # No axes are all of them, which would make much of little.
        most = 2 if len(axes or shape) < 5 else 1
        before, after = self.choice.randint(0, most), self.choice.randint(0, most)
        shown = [str(axis - len(shape) if self.chance(0.3) else axis) for axis in axes]
        tail = f" axis {shown[0]}" if len(axes) == 1 else f" axes {' '.join(shown)}" if axes else ""
        filled, text = self.literal(dtype) if self.chance(0.5) else (False if dtype == "bool" else 0, None)
        tail = f" {before} {after}{tail}" + (f" value {text}" if text else "")
        return call("pad", [value], tail, lambda a: reference.pad(dtype, a, before, after, axes, filled), dtype, lane), dtype, lane

    def norm(self, function, dtype, place, lane):
        shape, rows = self.any_shape(least=1), 2 if function == "layer_norm" else 1
        inputs = [self.make(dtype, each, place) for each in (shape, *[shape[-1:]] * rows)]
        epsilon = self.choice.choice(["1e-12", "1e-5", "0.5", "3"])
        compute = lambda *arrays: getattr(reference, function)(dtype, *arrays, float(epsilon))  # noqa: E731
        return call(function, inputs, f" epsilon {epsilon}", compute, dtype, lane), dtype, lane

    def group_norm(self, dtype, place, lane):
        shape, groups = list(self.any_shape(least=2)), self.choice.choice([1, 1, 2, 3])
        shape[1] = groups * self.choice.choice([0, 1, 1, 2, 3])
        inputs = [self.make(dtype, each, place) for each in (tuple(shape), (shape[1],), (shape[1],))]
        epsilon = self.choice.choice(["0", "1e-12", "1e-5", "0.5", "3"])
        compute = lambda a, w, b: composed.group_norm(dtype, a, w, b, groups, float(epsilon))  # noqa: E731
        expr = call("group_norm", inputs, f" groups {groups} epsilon {epsilon}", compute, dtype, lane)
        expr.drawn[f"group_norm of {'several groups' if groups > 1 else 'one group'}"] += 1
        return expr, dtype, lane

    def dropout(self, dtype, place):
        """A statement of its own: each time that its meaning is asked for, it takes random numbers."""
        p, seed = self.choice.choice(["0", "0.1", "0.5", "0.9"]), self.choice.choice([0, 1, 7, 2**40 + 5])
        lane, value = self.lane(), self.make(dtype, self.any_shape(), place)

        def meaning(state):
            array = value.tensor(state).array
            result, blocks = composed.dropout(dtype, array, float(p), seed, state.blocks[seed])
            state.blocks[seed] += blocks
            return result, dtype, place

        lanes = ["on a lane"] if lane is not None else []
        text = f"dropout {value.operand()} {p} seed {seed}{lane_text(lane)}"
        return self.bind(Expr(text, meaning, drawn_of([value], ("dropout", dtype), *lanes)), dtype, place, certain=True)

    def attention(self, dtype, place, lane):
        sizes = [0, 1, 2, 3, 5, 8]
        # More than 128 queries are taken in several blocks.
        m = self.choice.choice([129, 130, 257] if self.chance(0.4) else sizes)
        n, d, e = (self.choice.choice(sizes) for _ in range(3))
        batches = self.spread(tuple(self.choice.choice([1, 2, 3]) for _ in range(self.choice.choice([0, 0, 1, 2]))), 3)
        of_scores = np.broadcast_shapes(*batches[:2]) + (m, n)
        shapes = [batch + inner for batch, inner in zip(batches, [(m, d), (n, d), (n, e)])]
        # Of numbers of every size nearly all weights are 0 or 1, or NaN, so no element of a block would be told from another.
        kind = self.choice.choice(["small", "ordinary", "ordinary"] + [None] * (m <= 128))
        inputs = [self.make(dtype, shape, place, kind=kind) for shape in shapes]
        mask = self.choice.choice(["no mask", "a mask of bools", "a mask of numbers"])
        if mask == "a mask of bools":
            inputs.append(self.make("bool", self.shrunk(of_scores), place))
        elif mask == "a mask of numbers":
            shape = self.shrunk(of_scores)
            numbers = np.where(self.numbers.random(shape) < 0.2, -np.inf, elements(self.numbers, dtype, shape, "ordinary"))
            inputs.append(self.loaded(dtype, numbers.astype(reference.STORE[dtype]), place))
        expr = call("attention", inputs, "", lambda *arrays: composed.attention(dtype, *arrays), dtype, lane)
        expr.drawn[f"attention with {mask}"] += 1
        if m > 128:
            expr.drawn[f"{SEVERAL_BLOCKS} with {'no mask' if mask == 'no mask' else 'a mask'}"] += 1
        return expr, dtype, lane

    def index_select(self, dtype, place, lane):
        shape, index_dtype = self.any_shape()[:7], self.choice.choice(INDICES)
        rows, columns = self.choice.choice([1, 2, 3, 5, 9]), self.choice.choice([0, 1, 2, 3, 8, 17])
        table = self.make(dtype, (rows, columns), place)
        indices = self.loaded(index_dtype, np.asarray(self.numbers.integers(0, rows, shape), reference.STORE[index_dtype]), place)
        compute = lambda a, i: reference.index_select(dtype, a, i)  # noqa: E731
        return call("index_select", [table, indices], "", compute, dtype, lane), dtype, lane

    def flip(self, dtype, place, lane):
        shape = self.any_shape()
        axes = self.choice.sample(range(len(shape)), self.choice.randint(0, len(shape))) if shape else []
        shown = [str(axis - len(shape) if self.chance(0.3) else axis) for axis in axes]
        tail = f" axis {shown[0]}" if len(axes) == 1 else f" axes {' '.join(shown)}" if axes else ""
        value = self.make(dtype, shape, place)
        return call("flip", [value], tail, lambda a: reference.flip(dtype, a, axes), dtype, lane), dtype, lane

    def triangle(self, function, dtype, place, lane):
        diagonal = self.choice.choice([None, 0, 1, -1, 2, -3, 300, -300])
        value = self.make(dtype, self.any_shape(least=2), place)
        tail = "" if diagonal is None else f" diagonal {diagonal}"
        return call(function, [value], tail, lambda a: reference.triangle(function, a, diagonal or 0), dtype, lane), dtype, lane

    def by_index(self, function, dtype, place, lane):
        shape, index_dtype = list(self.any_shape(least=1)), self.choice.choice(INDICES)
        axis = self.choice.randrange(len(shape))
        shape[axis] = max(shape[axis], 1)
        inner = list(shape)
        inner[axis] = self.choice.choice([0, 1, 2, 3, 8, 17])
        numbers = self.numbers.integers(0, min(shape[axis], 256), inner)
        inputs = [self.make(dtype, tuple(shape), place), self.loaded(index_dtype, np.asarray(numbers, reference.STORE[index_dtype]), place)]
        if function != "take_along_axis":
            inputs.append(self.make(dtype, tuple(inner), place))
        tail = f" axis {axis - len(shape) if self.chance(0.3) else axis}"
        compute = lambda a, *rest: reference.BY_INDEX[function](dtype, a, axis, *rest)  # noqa: E731
        return call(function, inputs, tail, compute, dtype, lane), dtype, lane

    def sort(self, function, dtype, place, lane):
        shape = self.any_shape(least=1)
        axis = self.choice.randrange(len(shape))
        counts, reverses = "topk" in function, self.chance(0.5)
        count = self.choice.randint(0, shape[axis]) if counts else shape[axis]
        tail = f" {count}" * counts + f" axis {axis - len(shape) if self.chance(0.3) else axis}"
        tail += f" {'smallest' if counts else 'descending'}" * reverses
        # The largest come first unless the smallest are asked for.
        descending = reverses != counts
        value, gives_places = self.make(dtype, shape, place), function.startswith("arg")
        result = "i64" if gives_places else dtype
        compute = lambda a: reference.sort(a, axis, descending, count, gives_places)  # noqa: E731
        return call(function, [value], tail, compute, dtype, lane, dtype_of=result), result, lane

    def arrange(self, function, dtype, place):
        """What copies or fills parts of a new tensor: it may be on the host."""
        lane = self.lane()
        if function == "eye":
            sizes = [self.size() for _ in range(self.choice.randint(1, 2))]
            text = f"eye {dtype}{''.join(f' {size}' for size in sizes)} on {self.place_text(place)}{lane_text(lane)}"
            return constant(text, function, lambda state: Exact(np.eye(sizes[0], sizes[-1], dtype=reference.STORE[dtype])), dtype, place)
        if function in ("arange", "linspace"):
            return self.range_of(function, dtype, place if place != "host" else "cpu:0", lane)
        shape = self.any_shape(least=1) if function != "tile" else self.any_shape()
        if function == "tile":
            counts, elements_now = [], max(np.prod(shape, dtype=np.int64), 1)
            for _ in shape:
                count = self.choice.choice([0, 1, 1, 2, 2, 3]) if elements_now < 3000 else 1
                counts.append(count)
                elements_now *= max(count, 1)
            tail = "".join(f" {count}" for count in counts)
            return call(function, [self.make(dtype, shape, place)], tail, lambda a: Exact(np.array(np.tile(a, counts))), dtype, lane)
        if function == "stack":
            shape = shape[:7]
            axis = self.choice.randint(0, len(shape))
            shown = axis - len(shape) - 1 if self.chance(0.3) else axis
            inputs = [self.make(dtype, shape, place) for _ in range(self.choice.randint(1, 3))]
            return call(function, inputs, f" axis {shown}", lambda *all_of: Exact(np.stack(all_of, axis)), dtype, lane)
        axis = self.choice.randrange(len(shape))
        tail = f" axis {axis - len(shape) if self.chance(0.3) else axis}"
        if function == "roll":
            shift = self.choice.choice([-17, -2, -1, 0, 1, 2, 3, 5, 10**12])
            value = self.make(dtype, shape, place)
            return call(function, [value], f" {shift}{tail}", lambda a: Exact(np.roll(a, shift, axis)), dtype, lane)
        sizes = [shape[:axis] + (self.choice.choice([0, 1, 2, shape[axis]]),) + shape[axis + 1:] for _ in range(self.choice.randint(1, 3))]
        inputs = [self.make(dtype, each, place) for each in sizes]
        return call(function, inputs, tail, lambda *all_of: Exact(np.concatenate(all_of, axis)), dtype, lane)

    def range_of(self, function, dtype, place, lane):
        on = f"on {self.place_text(place)}{lane_text(lane)}"
        if function == "linspace":
            first, last = (self.choice.choice([0, 1, -0.3, 0.1, 100.5, -1e30, 2.0**60]) for _ in range(2))
            count = self.choice.choice([0, 1, 2, 3, 7, 50])
            step = np.float64(last - first) / (count - 1) if count > 1 else np.float64(0)
            numbers = np.float64(first) + np.arange(count) * step
            if count > 1:
                numbers[-1] = last
            return constant(f"linspace {dtype} {first!r} {last!r} {count} {on}", function,
                            lambda state: Exact(reference.rounded(numbers, dtype)), dtype, place)
        count = self.choice.choice([0, 1, 2, 3, 7, 50])
        if is_float(dtype):
            # Halves and their like, so that the end is exact.
            first, step = self.choice.choice([0, 1, -3, 0.5, 1000.25]), self.choice.choice([1, 0.5, -0.25, 2, -3])
        else:
            # Signed ones go down too; the last number is within i8.
            first, step = self.choice.choice([0, 1, 20, 5]), self.choice.choice([1, 2, -1] if dtype in SIGNED_INTEGERS else [1, 2])
        end = first + count * step
        numbers = first + np.arange(count) * step
        make = (lambda state: Exact(reference.rounded(numbers.astype(np.float64), dtype))) if is_float(dtype) else \
            (lambda state: Exact(numbers.astype(reference.STORE[dtype])))
        return constant(f"arange {dtype} {first!r} {end!r} {step!r} {on}", function, make, dtype, place)

    def cross_entropy(self, function, dtype, place, lane):
        rows, classes = self.any_shape()[:7], self.choice.choice([1, 2, 3, 8, 17])
        logits = self.make(dtype, (*rows, classes), place)
        targets = self.loaded("i64", np.asarray(self.numbers.integers(-1, classes + 1, rows), np.int64), place)
        if function == "cross_entropy":
            return call(function, [logits, targets], "", lambda a, t: reference.cross_entropy(dtype, a, t), dtype, lane), dtype, lane
        compute = lambda a, t, dy: reference.cross_entropy_backward(dtype, a, t, dy)  # noqa: E731
        return call(function, [logits, targets, self.make(dtype, rows, place)], "", compute, dtype, lane), dtype, lane

    def pair(self, word, most, least=1):
        """A height and a width, and how they are written."""
        found = self.choice.randint(least, most), self.choice.randint(least, most)
        short = found[0] == found[1] and self.chance(0.5)
        return found, f" {word} {found[0]}" + ("" if short else f" {found[1]}")

    def image(self, window, padding, dilation):
        """Sizes of an image that the window fits into."""
        sizes = []
        for size, frame, gaps in zip(window, padding, dilation):
            reach = (size - 1) * gaps + 1
            sizes.append(max(reach - 2 * frame, 1) + self.choice.choice([0, 0, 1, 2, 4, 9]))
        return tuple(sizes)

    def convolution(self, function, dtype, place, lane):
        window = self.choice.randint(1, 3), self.choice.randint(1, 4)
        (stride, padding, dilation), tail, groups = ((1, 1), (0, 0), (1, 1)), "", 1
        if self.chance(0.6):
            stride, text = self.pair("stride", 3)
            tail += text
        if self.chance(0.5):
            padding, text = self.pair("padding", 2, least=0)
            tail += text
        if self.chance(0.3):
            dilation, text = self.pair("dilation", 3)
            tail += text
        if self.chance(0.3):
            groups = self.choice.choice([1, 2, 3])
            tail += f" groups {groups}"
        by = stride, padding, dilation, groups
        batch, channels, outputs = self.choice.choice([0, 1, 1, 2, 3]), self.choice.choice([0, 1, 1, 2, 3, 5]), self.choice.choice([0, 1, 2, 3])
        x = (batch, groups * channels, *self.image(window, padding, dilation))
        weight = (groups * outputs, channels, *window)
        y = (batch, groups * outputs, *(images.positions(x[2 + axis], window[axis], stride[axis], padding[axis], dilation[axis]) for axis in (0, 1)))
        of = {"conv2d": "y", "conv2d_backward_input": "x", "conv2d_backward_weight": "weight"}[function]
        inputs = [self.make(dtype, shape, place) for shape in ((x, weight) if of == "y" else (x, weight, y))]
        compute = lambda x, w, dy=y: images.convolution(dtype, of, x, w, dy, by)  # noqa: E731
        return call(function, inputs, tail, compute, dtype, lane), dtype, lane

    def pooling(self, function, dtype, place, lane):
        window, tail = self.pair("window", 3)
        stride, padding = window, (0, 0)
        if self.chance(0.5):
            stride, text = self.pair("stride", 3)
            tail += text
        if self.chance(0.4):
            padding = self.choice.randint(0, window[0] - 1), self.choice.randint(0, window[1] - 1)
            tail += f" padding {padding[0]} {padding[1]}"
        by = window, stride, padding
        x = (self.choice.choice([0, 1, 2]), self.choice.choice([0, 1, 2, 3]), *self.image(window, padding, (1, 1)))
        inputs = [self.make(dtype, shape, place) for shape in ((x, images.pooled_shape(x, by)) if function.endswith("_backward") else (x,))]
        compute = lambda *arrays: getattr(images, function)(dtype, *arrays, by)  # noqa: E731
        return call(function, inputs, tail, compute, dtype, lane), dtype, lane

    def one_hot(self, dtype, place, lane):
        shape = self.any_shape()[:7]
        classes, to = self.choice.choice([0, 1, 2, 3, 5]), self.choice.choice(ALL)
        value = self.make(dtype, shape, place)
        compute = lambda a: reference.one_hot(dtype, a, classes, to)  # noqa: E731
        return call("one_hot", [value], f" {classes} {to}", compute, dtype, lane, dtype_of=to), to, lane
