"""Draws scripts that run and must stop at one statement: integers divided by zero, negative exponents, an `expect` that does not hold, as
the elements differ or one is a NaN."""

import re

import numpy as np

from draw import Draw
from dtypes import is_float
from script import State, Statement
from tables import DIVISIONS
from values import elements


class Stop(Draw):
    KIND = "scripts that must stop in the middle"

    def __init__(self, seed):
        super().__init__(seed, [])

    def draw(self):
        super().draw()
        # What comes behind it does not run; what stands in front of it has run.
        place = self.choice.choice(["cpu:0", "cpu:1", "sim:0"])
        kind = self.choice.choice(["pow", "expect", "expect of a NaN", *sorted(DIVISIONS)])
        dtypes = {**dict.fromkeys(DIVISIONS, ["i32", "i64", "u8", "i8", "u16", "u64"]), "expect of a NaN": ["f32", "f64"]}
        dtype = self.choice.choice(dtypes.get(kind, ["i32", "i64", "i8", "i16"]))
        shape = tuple(max(size, 1) for size in self.any_shape())
        bad = {"pow": self.numbers.integers(-3, 0), "expect of a NaN": np.nan}.get(kind, 0)
        right = np.asarray(elements(self.numbers, dtype, shape, "small"))
        right = np.where(right <= 0, right.dtype.type(1), right)
        right[tuple(self.choice.randrange(size) for size in shape)] = bad
        a, b = self.base(dtype, shape, place, new=True), self.loaded(dtype, right, place)
        first = int(np.flatnonzero(np.isnan(right) if kind == "expect of a NaN" else right.reshape(-1) == bad)[0])
        if kind == "expect":
            c = self.loaded(dtype, np.where(np.arange(right.size).reshape(shape) >= first, ~right, right), place)
            index = [int(at) for at in np.unravel_index(first, shape)]
            self.line, self.message = f"expect {b.text} == {c.text}", f"element {index} is "
        elif kind == "expect of a NaN":
            index = [int(at) for at in np.unravel_index(first, shape)]
            self.line, self.message = f"expect {b.text} == (copy {b.text} to host)", f"element {index} is "
        else:
            self.line = f"let bad = {kind} {a.text} {b.text}"
            self.message = "divides by zero" if kind in DIVISIONS else "exponent"
            self.message_at = f"at element {first} of the output"
        self.statements.append(Statement([self.line], lambda state, outputs: [state[a.text], state[b.text]], [f"stops by {kind}"]))
        if not kind.startswith("expect"):
            self.statements.append(Statement(['save bad "s_bad.npy"'], lambda state, outputs: None))
        return self

    def judge(self, statements, done, outputs):
        state = State()
        if done is None:
            for statement in statements:
                statement.run(state, None)
            return None
        lines = [line for statement in statements for line in statement.lines]
        if self.line not in lines:
            return None
        at = lines.index(self.line) + 1
        if done.returncode != 1:
            return f"exit code {done.returncode}, expected 1 by line {at}: {done.stderr.strip()}"
        found = re.findall(r"^script\.svm:(\d+):\d+: error: (.*)$", done.stderr, re.MULTILINE)
        expected = [self.message] + ([self.message_at] if hasattr(self, "message_at") else [])
        if len(found) != 1 or int(found[0][0]) != at or not all(part in found[0][1] for part in expected):
            return f"expected an error in line {at} that says {expected}, found {done.stderr.strip()}"
        return None
