"""Runs random scripts by `streamvm run` and compares what they save with NumPy, as `make diff` calls it.

usage: diff.py [-h] [--scripts N] [--seed SEED] [--only INDEX] [--keep FOLDER] COMMAND

COMMAND is the `streamvm` to test. Script INDEX of a seed is always the same; a failure names both, is made smaller by dropping lines, and
is left in FOLDER. At the end stands how much was drawn of what; a function of the command that no script had is a failure too.
"""

import argparse
import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

import numpy as np

from draw import TAGS, Draw
from files import write_npy, write_safetensors
from refuse import Refuse
from script import Dropped, State, Wrong
from stop import Stop
import tables
from tables import FUNCTIONS

# Seconds for a script, which takes some hundredths of one.
PATIENCE = 120


def pairs():
    """Of a function and a dtype: every run of enough scripts has all."""
    return [(function, dtype) for function, (_, dtypes) in sorted(FUNCTIONS.items()) for dtype in dtypes]


class Outputs:
    """What a script has saved and printed."""

    def __init__(self, folder, printed):
        self.folder, self.printed = folder, printed

    def __call__(self, file):
        return np.load(self.folder / f"{file}.npy")


def modes(seed):
    """How a script is run: on threads, in the caller, or stepped."""
    return [["--mode", "threaded"], ["--mode", "threaded"], ["--mode", "inline"], ["--mode", f"sim:{seed}"]]


def inputs_of(before, steps, inputs):
    """The names that the lines before a program load and that no step may write, by their own name or as a view, each as an input of the program."""
    found = {}
    for line in before:
        loaded = re.match(r"let (\w+) = (?:load .*|copy \(load .*\) to (\S+).*)$", line)
        if loaded and loaded.group(1) in inputs:
            bound, place = loaded.groups()
            array, dtype, _ = inputs[bound]
            found[bound] = " ".join(["(" + bound, dtype, *map(str, array.shape), "on", (place or "host") + ")"])
    # For each name those that it may be a view of.
    views = {bound: {bound} for bound in found}
    for line in steps:
        used = set().union(*(views.get(word, ()) for word in re.findall(r"\w+", line)))
        bound = re.match(r"\s*let ([\w ]+) =", line)
        for word in bound.group(1).split() if bound else ():
            views[word] = views.get(word, set()) | used
        for word in re.findall(r" into (\w+)|^\s*fill (\w+)", line):
            for written in views.get(word[0] or word[1], ()):
                found.pop(written, None)
    return found


def as_program(statements, inputs):
    """The lines of a script whose statements are a program that is run once: what is loaded stands before it, and what only reads after it. `inputs` has the loaded
    arrays that are inputs of the program, unless it writes them; it has the others by their names."""
    before, steps, after = [], [], []
    for statement in statements:
        first = statement.lines[0]
        where = before if "load " in first or first.startswith("device ") else after if first.startswith(("expect ", "print ", "save ")) else steps
        where += statement.lines
    bound = Counter(line.split()[1] for line in steps if line.startswith("let "))
    # What is expected of a name that is bound again later cannot be told after the run.
    after = [line for line in after if not line.startswith("expect ") or bound[line.split()[1]] < 2]
    if not bound:
        return before + steps + after
    steps = ["  " + line for line in steps]
    names = " ".join(bound)
    given = inputs_of(before, steps, inputs)
    given = {bound: text for bound, text in given.items() if bound not in names.split()}
    ports = " ".join([*given.values(), "->"]) if given else "->"
    return before + [f"program steps {ports} {names} {{"] + steps + ["}", " ".join([f"let {names} = run steps", *given])] + after


class Case:
    """A script in a folder of its own."""

    def __init__(self, command, seed, index):
        self.command, self.seed, self.index = command, seed, index
        # Every seventh script must be refused, and every eleventh must stop in the middle.
        if index % 7 == 6:
            self.drawn = Refuse((seed, index)).draw()
        elif index % 11 == 10:
            self.drawn = Stop((seed, index)).draw()
        else:
            first = 2 * index
            of = pairs()
            self.drawn = Draw((seed, index), [of[at % len(of)] for at in (first, first + 1)]).draw()
        self.mode = modes(index)[index // 3 % 4]
        # A third of the scripts that must run is a program, most of them compiled. Programs have no random numbers.
        drawn = {key[0] for statement in self.drawn.statements for key in statement.drawn if isinstance(key, tuple)}
        self.is_program = self.drawn.KIND == Draw.KIND and index % 3 == 1 and drawn.isdisjoint(["uniform", "normal", "dropout"])
        # Half of them get what they read and do not write as inputs.
        self.is_fed = self.is_program and index // 3 % 2 == 1
        if self.is_program:
            self.mode += [[], ["--compiled"], ["--compiled", "--lanes", "2"], ["--compiled", "--lanes", "3"]][index // 12 % 4]

    def text(self, statements):
        lines = as_program(statements, self.drawn.inputs if self.is_fed else {}) if self.is_program else [line for statement in statements for line in statement.lines]
        return "\n".join(lines + [line for statement in statements for line in statement.saves]) + "\n"

    def run(self, folder, statements):
        """Runs these statements; gives what is wrong, or nothing."""
        script = folder / "script.svm"
        script.write_text(self.text(statements))
        for saved in folder.glob("*.npy"):
            if saved.name[0] in "se":
                saved.unlink()
        options = [*self.mode, "--cpu-devices", "2", "--sim-devices", "1"]
        try:
            done = subprocess.run([self.command, "run", *options, "script.svm"], cwd=folder, capture_output=True, text=True,
                                  timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return f"not over after {PATIENCE} s"
        return self.drawn.judge(statements, done, Outputs(folder, done.stdout.splitlines()))

    def write_inputs(self, folder):
        tensors = {}
        for name, (array, dtype, how) in self.drawn.inputs.items():
            if how == "safetensors":
                tensors[name] = (array, dtype)
            else:
                write_npy(folder / f"{name}.npy", array, how == "F")
        write_safetensors(folder / "in.safetensors", tensors)

    def smaller(self, folder, wrong):
        """The statements that are left when as many as possible are dropped and the same kind of thing is still wrong."""
        left = list(self.drawn.statements)
        for at in range(len(left) - 1, -1, -1):
            fewer = left[:at] + left[at + 1:]
            try:
                self.drawn.judge(fewer, None, None)
                # A script that is refused, as a name is missing, is no smaller case of a wrong value.
                found = self.run(folder, fewer)
                if found and kind_of(found) == kind_of(wrong):
                    left = fewer
            except Dropped:
                pass
        return left


def kind_of(wrong):
    """The exit code that a script should not have ended with, or that something else is wrong."""
    return wrong.split(":")[0] if wrong.startswith("exit code") else "another"


def judge_run(statements, done, outputs):
    """Of a script that must run: what is wrong, or nothing. Without an outcome: can these statements be carried out?"""
    state = State()
    if done is None:
        for statement in statements:
            statement.run(state, None)
        return None
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr.strip()}"
    try:
        for statement in statements:
            statement.run(state, outputs)
    except Wrong as wrong:
        return str(wrong)
    except FileNotFoundError as missing:
        return f"nothing was saved: {missing}"
    return None


Draw.judge = staticmethod(judge_run)


def one(job):
    """Draws, runs and judges a script; gives what was drawn and what is wrong."""
    command, seed, index, keep = job
    np.seterr(all="ignore")
    case = Case(command, seed, index)
    counted = Counter([case.drawn.KIND] + ["scripts that are a program"] * case.is_program + ["of these, with inputs"] * case.is_fed + ["of these, compiled"] * ("--compiled" in case.mode))
    for statement in case.drawn.statements:
        counted += statement.drawn
    counted["statements"] = sum(len(statement.lines) for statement in case.drawn.statements)
    with tempfile.TemporaryDirectory(prefix="streamvm-diff-") as path:
        folder = pathlib.Path(path)
        case.write_inputs(folder)
        wrong = case.run(folder, case.drawn.statements)
        if not wrong:
            return counted, None
        left = case.smaller(folder, wrong)
        wrong = case.run(folder, left) or wrong
        kept = keep / f"seed{seed}-script{index}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)
        numbered = "\n".join(f"{at + 1:4} {line}" for at, line in enumerate(case.text(left).splitlines()))
        return counted, (f"script {index} of seed {seed} ({' '.join(case.mode)}), left in {kept}:\n{numbered}\n{wrong}\n"
                         f"again: make diff SEED={seed} ONLY={index}")


def summary(counted):
    """Lines about what was drawn."""
    found = {key: count for key, count in counted.items() if isinstance(key, tuple)}
    for function in sorted(FUNCTIONS):
        dtypes = [f"{dtype} {found[function, dtype]}" for dtype in FUNCTIONS[function][1] if (function, dtype) in found]
        yield f"{function:21} {', '.join(dtypes)}"
    casts = sum(1 for key in counted if isinstance(key, str) and key.startswith("cast "))
    yield f"{'pairs of a cast':21} {casts} of 64"
    for key in sorted(key for key in counted if isinstance(key, str) and not key.startswith("cast ")):
        yield f"{key:50} {counted[key]}"


def missing(counted, scripts):
    """What should have been drawn and was not: every function of the command, and with enough scripts every tag of `TAGS`, and each function with
    all its dtypes."""
    seen = {key[0] for key in counted if isinstance(key, tuple)}
    gone = [function for function in FUNCTIONS if function not in seen]
    # A tag is drawn about six times or more then, and `make diff` runs as many.
    if scripts >= 2 * len(pairs()):
        gone += [tag for tag in TAGS if tag not in counted]
    if scripts >= 3 * len(pairs()):
        gone += [f"{function} of {dtype}" for function, dtype in pairs() if (function, dtype) not in counted]
    return gone


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", help="the streamvm to test")
    parser.add_argument("--scripts", type=int, default=2000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="INDEX", help="this script alone")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("target/diff"), metavar="FOLDER")
    given = parser.parse_args()
    indices = range(given.scripts) if given.only is None else [given.only]
    command = str(pathlib.Path(given.command).resolve())
    tables.read(command)
    jobs = [(command, given.seed, index, given.keep.resolve()) for index in indices]
    counted, failures = Counter(), []
    with multiprocessing.Pool(os.cpu_count(), tables.read, (command,)) as pool:
        for drawn, failure in pool.imap_unordered(one, jobs, chunksize=4):
            counted += drawn
            if failure:
                failures.append(failure)
                print(failure, flush=True)
            if len(failures) == 20:
                pool.terminate()
                break
    print("\n".join(summary(counted)))
    gone = missing(counted, len(jobs)) if given.only is None and not failures else []
    for what in gone:
        print(f"no script had {what}: teach it to draw.py")
    print(f"seed {given.seed}: {len(jobs)} scripts, {counted['statements']} lines, {len(failures)} wrong")
    return 1 if failures or gone else 0


if __name__ == "__main__":
    sys.exit(main())
