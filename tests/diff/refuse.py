"""Draws scripts of which some lines must be refused before anything runs: wrong shapes, axes, dtypes, places, numbers, overlaps.

Whether a line is wrong is predicted by NumPy where NumPy raises for it (shapes, axes, views), and by docs/language.md elsewhere. About
half of the lines are right, so that refusing too much is found too. If no line is wrong the script must run.
"""

import re

import numpy as np

from draw import Draw
from dtypes import ALL, FLOATS, INTEGERS, STORE
from script import State, Statement
from tables import FUNCTIONS


def raises(call):
    try:
        call()
        return False
    except (ValueError, IndexError):
        return True


class Refuse(Draw):
    KIND = "scripts with lines that must be refused"

    def __init__(self, seed):
        super().__init__(seed, [])

    def draw(self):
        kinds = [getattr(self, kind) for kind in dir(self) if kind.startswith("line_")]
        words = [getattr(self, kind) for kind in dir(self) if kind.startswith("word_")]
        # What the parser refuses is told before anything else is looked at.
        chosen = words if self.chance(0.15) else kinds
        for _ in range(self.choice.randint(4, 14)):
            kind = self.choice.choice(chosen)
            drawn = kind()
            if drawn is None:
                continue
            line, bad = drawn
            tag = f"{kind.__name__[5:].replace('_', ' ')}: {'refused' if bad else 'taken'}"
            statement = Statement([line], lambda state, outputs: None, [tag])
            statement.bad = bad
            self.statements.append(statement)
        return self

    def judge(self, statements, done, outputs):
        if done is None:
            state = State()
            for statement in statements:
                statement.run(state, None)
            return None
        expected, at = set(), 1
        for statement in statements:
            if getattr(statement, "bad", False):
                expected.add(at)
            at += len(statement.lines)
        found = {int(line) for line in re.findall(r"^script\.svm:(\d+):\d+: error: ", done.stderr, re.MULTILINE)}
        code = 2 if expected else 0
        if found != expected or done.returncode != code:
            return (f"expected exit code {code} and errors in lines {sorted(expected)}, found exit code {done.returncode} and errors in "
                    f"lines {sorted(found)}:\n{done.stderr.strip()}")
        return None

    # What lines are made of.

    def tensor(self, dtype, shape, place="cpu:0"):
        found = [bound for bound, each in self.state.names.items() if (each.dtype, each.place, each.shape) == (dtype, place, tuple(shape))]
        if found and self.chance(0.7):
            return self.choice.choice(found)
        return self.base(dtype, tuple(shape), place, new=True, kind="small").text

    def small(self, least=0, most=3):
        return tuple(self.choice.choice([1, 2, 3, 3, 0]) for _ in range(self.choice.randint(least, most)))

    def let(self, text):
        return f"let {self.fresh('y')} = {text}"

    def pair(self):
        """Two shapes, often alike."""
        one = self.small()
        two = list(one)
        for axis in range(len(two)):
            if self.chance(0.3):
                two[axis] = self.choice.choice([1, 2, 3, 4])
        return one, tuple(two) if self.chance(0.8) else self.small()

    def axis(self, rank):
        return self.choice.randint(-rank - 1, rank)

    # One kind of line each: the line, and whether it is wrong.

    def line_broadcast_of_operands(self):
        function = self.choice.choice(["add", "sub", "mul", "min", "max", "lt", "eq"])
        one, two = self.pair()
        text = f"{function} {self.tensor('f32', one)} {self.tensor('f32', two)}"
        return self.let(text), raises(lambda: np.broadcast_shapes(one, two))

    def line_broadcast_of_where(self):
        shapes = [*self.pair(), self.small()]
        condition, one, two = (self.tensor(dtype, shape) for dtype, shape in zip(["bool", "i32", "i32"], shapes))
        return self.let(f"where {condition} {one} {two}"), raises(lambda: np.broadcast_shapes(*shapes))

    def line_condition(self):
        dtype = self.choice.choice(ALL)
        return self.let(f"where {self.tensor(dtype, (2,))} {self.tensor('f32', (2,))} {self.tensor('f32', (2,))}"), dtype != "bool"

    def line_two_dtypes(self):
        one, two = self.choice.choice(ALL), self.choice.choice(ALL)
        function = self.choice.choice(["add", "min", "eq", "where", "matmul", "softmax_backward", "pow"])
        taken = dict(FUNCTIONS)[function][1]
        shape = (2, 2)
        a, b = self.tensor(one, shape), self.tensor(two, shape)
        head = f"where {self.tensor('bool', shape)}" if function == "where" else function
        tail = " axis 0" if function == "softmax_backward" else ""
        if function == "pow":
            b = self.tensor(two, (0, 1))
            a = self.tensor(one, (0, 1))
        return self.let(f"{head} {a} {b}{tail}"), one != two or one not in taken

    def line_dtype(self):
        function = self.choice.choice([name for name, (form, _) in FUNCTIONS.items() if form in ("unary", "predicate", "reduce", "along", "one_hot")]
                                      + ["matmul", "argmax", "pad", "cast"])
        dtype = self.choice.choice(ALL)
        a = self.tensor(dtype, (2, 2))
        form, taken = FUNCTIONS[function]
        text = {"along": f"{function} {a} axis 0", "one_hot": f"one_hot {a} 3 f32", "matmul": f"matmul {a} {a}",
                "argmax": f"argmax {a} axis 1", "pad": f"pad {a} 1 0", "cast": f"cast {a} u8"}.get(form, f"{function} {a}")
        return self.let(text), dtype not in taken

    def line_random_dtype(self):
        function, dtype = self.choice.choice(["uniform", "normal"]), self.choice.choice(ALL)
        place = self.choice.choice(["cpu:0", "sim:0", "host"])
        return self.let(f"{function} {dtype} 2 seed 1 on {place}"), dtype not in FLOATS or place == "host"

    def line_places(self):
        one, two = (self.choice.choice(["cpu:0", "cpu:1", "sim:0", "host"]) for _ in range(2))
        text = f"add {self.tensor('f32', (2,), one)} {self.tensor('f32', (2,), two)}"
        return self.let(text), one != two or "host" in (one, two)

    def line_on_host(self):
        function = self.choice.choice(["neg", "sum", "relu", "cast"])
        place = self.choice.choice(["host", "cpu:1"])
        return self.let(f"{function} {self.tensor('f32', (2,), place)}{' i32' if function == 'cast' else ''}"), place == "host"

    def line_matmul(self):
        m, k, n = (self.choice.choice([1, 2, 3]) for _ in range(3))
        one = self.small(0, 1) + ((m, k) if self.chance(0.8) else (k,))
        two = self.small(0, 1) + ((k, n) if self.chance(0.6) else self.small(0, 2))
        text = f"matmul {self.tensor('f32', one)} {self.tensor('f32', two)}"
        # NumPy takes vectors, which streamvm does not.
        bad = min(len(one), len(two)) < 2 or raises(lambda: np.matmul(np.zeros(one), np.zeros(two)))
        return self.let(text), bad

    def line_axes_of_reductions(self):
        function = self.choice.choice(["sum", "prod", "mean", "max", "min"])
        shape = self.small(0, 3)
        axes = [self.axis(len(shape)) for _ in range(self.choice.randint(0, 3))]
        tail = f" axes {' '.join(map(str, axes))}" if axes else ""
        over = tuple(axes) if axes else None
        bad = raises(lambda: np.sum(np.zeros(shape), axis=over))
        # Of these only a sum and a product have a value over no elements, also where there are none to make.
        if not bad and function not in ("sum", "prod"):
            bad = any(shape[axis] == 0 for axis in (axes or range(len(shape))))
        return self.let(f"{function} {self.tensor('f64', shape)}{tail}"), bad

    def line_one_axis(self):
        function = self.choice.choice(["argmax", "argmin", "softmax", "log_softmax"])
        shape = self.small(0, 3)
        axis = self.axis(len(shape))
        bad = not -len(shape) <= axis < len(shape)
        bad = bad or (function in ("argmax", "argmin") and shape[axis] == 0)
        return self.let(f"{function} {self.tensor('f32', shape)} axis {axis}"), bad

    def line_sort(self):
        function = self.choice.choice(["sort", "argsort", "topk", "argtopk"])
        shape = self.small(0, 3)
        axis, count = self.axis(len(shape)), self.choice.choice([0, 1, 2, 3])
        bad = not -len(shape) <= axis < len(shape)
        bad = bad or ("topk" in function and count > shape[axis])
        shown = f" {count}" if "topk" in function else ""
        return self.let(f"{function} {self.tensor('u16', shape)}{shown} axis {axis}"), bad

    def line_attention(self):
        m, n, d, e = (self.choice.choice([1, 2, 3]) for _ in range(4))
        batches = [self.choice.choice([(), (), (1,), (2,), (3,)]) for _ in range(4)]
        shapes = [batches[0] + (m, d), batches[1] + (n, d if self.chance(0.9) else 4), batches[2] + (n if self.chance(0.9) else 4, e)]
        if self.chance(0.1):
            at = self.choice.randrange(3)
            shapes[at] = shapes[at][-1:]
        dtypes = [self.choice.choice(["f32", "f32", "f32", "f64", "i32"])] * 3
        if self.chance(0.1):
            dtypes[self.choice.randrange(3)] = "f16"
        q, k, v = (np.zeros(shape) for shape in shapes)
        if self.chance(0.6):
            shapes.append(batches[3] + self.choice.choice([(m, n), (1, n), (n,), (m, 1), (4, n), ()]))
            dtypes.append(self.choice.choice(["bool", dtypes[0], "f64"]))
        bad = min(len(shape) for shape in shapes[:3]) < 2 or raises(lambda: np.matmul(np.matmul(q, np.swapaxes(k, -1, -2)), v))
        bad = bad or len({*dtypes[:3]}) > 1 or dtypes[0] not in FLOATS
        if not bad and len(shapes) > 3:
            of_scores = np.broadcast_shapes(q.shape[:-2], k.shape[:-2]) + (m, n)
            bad = dtypes[3] not in ("bool", dtypes[0]) or raises(lambda: np.broadcast_to(np.zeros(shapes[3]), of_scores))
        return self.let(f"attention {' '.join(self.tensor(dtype, shape) for dtype, shape in zip(dtypes, shapes))}"), bad

    def line_group_norm(self):
        shape = tuple(self.choice.choice([1, 2, 3, 4, 6]) for _ in range(self.choice.choice([1, 2, 3, 3, 4])))
        channels, groups = shape[1] if len(shape) > 1 else 1, self.choice.choice([0, 1, 1, 2, 2, 3])
        shapes = [(channels,) if self.chance(0.85) else self.choice.choice([(), (5,), (channels, 1)]) for _ in range(2)]
        dtype, epsilon = self.choice.choice(["f32", "f16", "f64", "bf16", "f32", "i32"]), self.choice.choice(["1e-5", "0", "1", "-1", "inf"])
        bad = len(shape) < 2 or groups == 0 or channels % groups != 0 or any(each != (channels,) for each in shapes)
        bad = bad or dtype not in FLOATS or epsilon in ("-1", "inf")
        inputs = " ".join(self.tensor(dtype, each) for each in (shape, *shapes))
        return self.let(f"group_norm {inputs} groups {groups} epsilon {epsilon}"), bad

    def line_dropout(self):
        dtype, place = self.choice.choice(FLOATS + ["f16", "i32", "bool"]), self.choice.choice(["cpu:0", "cpu:0", "sim:0", "host"])
        p = self.choice.choice(["0", "0.25", "0.999", "0.99999", "1", "-0.5", "nan", "inf"])
        # A factor that f16 does not have is refused.
        bad = dtype not in FLOATS or place == "host" or not 0 <= float(p) < 1 or (dtype == "f16" and p == "0.99999")
        return self.let(f"dropout {self.tensor(dtype, (2,), place)} {p} seed 1"), bad

    def line_gradient(self):
        one, two = self.pair()
        axis = self.axis(len(one))
        bad = one != two or not -len(one) <= axis < len(one)
        function = self.choice.choice(["softmax_backward", "log_softmax_backward"])
        return self.let(f"{function} {self.tensor('f32', one)} {self.tensor('f32', two)} axis {axis}"), bad

    def line_reshape(self):
        shape = self.small()
        sizes = self.small()
        if self.chance(0.5) and shape:
            sizes = self.choice.choice([(-1,), (shape[0], -1), (-1, 2), (1, -1, 1), (int(np.prod(shape)),), (-1, -1), (-2,)])
        bad = raises(lambda: np.zeros(shape).reshape(sizes)) or -2 in sizes
        return self.let(f"reshape {self.tensor('i32', shape, self.place())} {' '.join(map(str, sizes))}"), bad

    def line_broadcast(self):
        one, two = self.pair()
        text = f"broadcast {self.tensor('u8', one, self.place())} {' '.join(map(str, two))}"
        return self.let(text), raises(lambda: np.broadcast_to(np.zeros(one), two))

    def line_permute(self):
        shape = self.small(1, 3)
        axes = self.choice.sample(range(len(shape)), len(shape))
        if self.chance(0.5):
            axes = [self.axis(len(shape)) for _ in range(self.choice.choice([len(shape), len(shape), len(shape) - 1, len(shape) + 1]))]
        # Without axes NumPy turns them all around.
        bad = len(axes) != len(shape) or raises(lambda: np.transpose(np.zeros(shape), axes))
        return self.let(f"permute {self.tensor('i64', shape, self.place())} {' '.join(map(str, axes))}"), bad

    def line_slice(self):
        shape = self.small(1, 3)
        axis, first, last = self.axis(len(shape)), self.choice.randint(0, 3), self.choice.randint(0, 4)
        text = f"slice {self.tensor('f16', shape, self.place())} axis {axis} {first}..{last}"
        # NumPy cuts what goes past the end.
        bad = not -len(shape) <= axis < len(shape) or not first <= last <= shape[axis]
        return self.let(text), bad

    def line_pad(self):
        shape = self.small(0, 2)
        axes = [self.axis(len(shape)) for _ in range(self.choice.randint(0, 2))]
        value = self.choice.choice([None, "1", "1.5", "-1", "true"])
        dtype = self.choice.choice(["f32", "i32", "u8", "bool"])
        fits = {"f32": [None, "1", "1.5", "-1"], "i32": [None, "1", "-1"], "u8": [None, "1"], "bool": [None, "true"]}[dtype]
        tail = f" axes {' '.join(map(str, axes))}" if axes else ""
        bad = raises(lambda: np.sum(np.zeros(shape), axis=tuple(axes))) or value not in fits
        return self.let(f"pad {self.tensor(dtype, shape)} 1 2{tail}{f' value {value}' if value else ''}"), bad

    def line_number_of_fill(self):
        dtype = self.choice.choice(ALL)
        value = self.choice.choice(["0", "1", "-1", "255", "256", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "0.5",
                                    "1e3", "inf", "nan", "true"])
        if value == "true":
            fits = dtype == "bool"
        elif dtype in INTEGERS:
            ends = np.iinfo(STORE[dtype])
            fits = value.lstrip("-").isdigit() and ends.min <= int(value) <= ends.max
        else:
            fits = dtype in FLOATS
        if self.chance(0.5):
            return self.let(f"fill {dtype} 2 value {value} on cpu:0"), not fits
        if dtype in INTEGERS + FLOATS and value != "true":
            return self.let(f"add {self.tensor(dtype, (2,))} {value}"), not fits
        return f"fill {self.tensor(dtype, (2,))} value {value}", not fits

    def line_numbers_alone(self):
        a = self.tensor("f32", (2, 2))
        text, bad = self.choice.choice([("add 1 2", True), (f"matmul {a} 2", True), ("sum 1", True), (f"add {a} 2", False), ("neg 1", True),
                                        (f"where 1 {a} {a}", True), (f"where {self.tensor('bool', (2, 2))} 1 2", True),
                                        (f"where {self.tensor('bool', (2, 2))} {a} 2", False)])
        return self.let(text), bad

    def line_into(self):
        shape, other = self.pair()
        dtype, place = self.choice.choice(["f32", "f32", "i32"]), self.choice.choice(["cpu:0", "cpu:0", "cpu:1"])
        a = self.tensor("f32", shape)
        target = self.base(dtype, other, place, new=True, kind="small").text
        function = self.choice.choice(["neg", "copy", "sum"])
        if function == "copy":
            return f"copy {a} into {target}", (shape, "f32") != (other, dtype)
        result = shape if function == "neg" else ()
        return f"{function} {a} into {target}", (result, "f32", "cpu:0") != (other, dtype, place)

    def line_overlap(self):
        bound = self.base("f32", (4, 4), "cpu:0", new=True).text
        array = np.zeros((4, 4))
        parts = [("rows", np.s_[0:2]), ("rows", np.s_[1:3]), ("rows", np.s_[2:4]), ("cols", np.s_[0:2]), ("cols", np.s_[2:4])]

        def part():
            word, cut = self.choice.choice(parts)
            return f"{word} {cut.start}..{cut.stop}", array[cut] if word == "rows" else array[:, cut]

        (from_text, source), (to_text, target) = part(), part()
        function = self.choice.choice(["neg", "copy", "softmax", "add"])
        fits = source.shape == target.shape
        meet = np.shares_memory(source, target)
        same = from_text == to_text and function in ("neg", "add")
        value = f"(slice {bound} {from_text})"
        call = {"neg": f"neg {value}", "copy": f"copy {value}", "softmax": f"softmax {value} axis 0", "add": f"add {value} {value}"}[function]
        return f"{call} into {bound} {to_text}", not fits or (meet and not same)

    def line_into_repeated(self):
        repeated = self.fresh()
        base = self.tensor("f32", (1, 3))
        rows = self.choice.choice([1, 2])
        self.statements.append(Statement([f"let {repeated} = broadcast {base} {rows} 3"], lambda state, outputs: None))
        text = self.choice.choice([f"copy {self.tensor('f32', (rows, 3), 'cpu:1')} into {repeated}", f"fill {repeated} value 1"])
        return text, rows == 2

    def line_one_hot_of_rank(self):
        rank = self.choice.choice([7, 8])
        return self.let(f"one_hot {self.tensor('i32', (1,) * rank)} 2 f32"), rank == 8

    def line_save(self):
        dtype = self.choice.choice(["bf16", "f16", "bool"])
        file = self.choice.choice(["saved.npy", "saved.npy", "saved.txt"])
        return f'save {self.tensor(dtype, (2,))} "{file}"', dtype == "bf16" or file.endswith("txt")

    def line_names(self):
        a = self.tensor("f32", (2,))
        return self.choice.choice([(self.let("neg nobody"), True), (self.let(f"neg {a}"), False), (self.let(f"copy {a} to nowhere"), True),
                                   (f"fill nobody value 1", True), (self.let('load "nothing.npy"'), True)])

    def line_accuracy(self):
        shape, labels = self.small(0, 2), self.small(0, 2)
        dtype = self.choice.choice(["i64", "i64", "i32"])
        bad = dtype != "i64" or not shape or labels != shape[:-1]
        return f"print accuracy {self.tensor('f32', shape)} {self.tensor(dtype, labels)}", bad

    def line_expect(self):
        dtype, shape = self.choice.choice(["i32", "f32"]), self.small(0, 2)
        a = self.tensor("f32", shape)
        other = shape if self.chance(0.6) else self.small(0, 2)
        b = a if (dtype, other) == ("f32", shape) else self.base(dtype, other, "cpu:0", new=True).text
        return f"expect {a} == {b}", b != a

    def word_lane(self):
        lane = self.choice.choice([0, 63, 64, 100])
        return self.let(f"fill f32 2 value 1 on cpu:0 on lane {lane}"), lane > 63

    def word_rank(self):
        rank = self.choice.choice([8, 9])
        return self.let(f"empty i32 {'1 ' * rank}on host"), rank > 8

    def word_into(self):
        a = self.base("f32", (2,), "cpu:0", new=True).text
        b = self.base("f32", (2,), "cpu:0", new=True).text
        return self.choice.choice([(f"slice {a} rows 0..2 into {b}", True), (f"neg {a} into {b}", False), (f"reshape {a} 2 into {b}", True),
                                   (f"fill f32 2 value 1 on cpu:0 into {b}", True), (f"neg {a}", True)])

    def word_operands(self):
        a = self.tensor("f32", (2, 2))
        return self.choice.choice([(self.let(f"add {a}"), True), (self.let(f"neg {a} {a}"), True), (self.let(f"sum {a} axes"), True),
                                   (self.let(f"argmax {a}"), True), (self.let(f"pad {a} -1 0"), True), (self.let(f"pad {a} 1 0"), False),
                                   (self.let(f"cast {a} f8"), True), (self.let(f"slice {a}"), True), (self.let(f"slice {a} rows -1..2"), True),
                                   (self.let(f"one_hot {a} 2"), True), (self.let(f"softmax {a}"), True), (self.let(f"attention {a} {a}"), True),
                                   (self.let(f"group_norm {a} {a} {a} groups 2"), True), (self.let(f"dropout {a} seed 1"), True)])
