#!/usr/bin/env python3
"""Checks that imports run one way between the folders of each crate, as layers.toml draws them, that each folder says which it uses, and
that ARCHITECTURE.md lists all code that starts threads.

    layers.py [CRATE ...]      from the root of the repository; all crates of layers.toml by default

A folder directly under `src` is a layer; the files directly in `src` are the layer "root". A file may import its own layer and the layers
below it. Code of tests (`#[cfg(test)]` modules, files `*_tests.rs`, files named tests.rs) may import anything of its crate.
Imports are read from the source text: paths that begin with `crate::`, `super::` or `self::`, in `use` lines and in code. Names that the
crate's root exports stand for the modules that they come from; an item that the root itself defines is in the layer "root". Imports that
the text does not show are refused: `use crate as`, `use crate::*`, and globs in the exports of the root.

The `mod.rs` of each layer has a sentence "Layer: uses `a` and `b`; is used by `c`." It names the folders of the crate from which and into
which the layer is imported, or "no other folder", "all other folders" (or "all of them") and "all other folders except `d`". Files of the root that it names are
not compared, and neither are the exceptions of layers.toml.

ARCHITECTURE.md has a table of threads, with a row, and a link to the file, for each place that calls a `spawn`.

Exit code: 0 if all is well, 1 if an import runs up, a cycle of files is longer than the crate allows, a file stands in no layer, a layer
does not say which folders it uses, or the table of threads is wrong.
"""

import collections
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).parent
# The crates whose threads ARCHITECTURE.md lists.
LIBRARY = ["ep", "ep/kernels", "ep/cpu", "ep/cuda", "ep/sim", "stream", "instructions", "program", "vm", "ranks", "verify", "files", "cli"]
TEST = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])")
NOISE = re.compile(r"'(?:\\.|[^'\\\n])'|" r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|"(?:\\.|[^"\\])*"', re.S)
PATH = re.compile(r"(?<![\w:])\$?(crate|self|super)((?:\s*::\s*(?:r#)?\w+)*)(\s*::\s*\{)?")
HIDDEN = re.compile(r"\bcrate\s+as\b|\bcrate\s*::\s*\*")


def without_noise(text):
    """The code without comments and strings."""
    return NOISE.sub(" ", text)


def without_tests(text):
    """The code without modules of tests, and the names of the files that are such."""
    files = set()
    while found := TEST.search(text):
        end = found.end()
        if found.group(2) == ";":
            files.add(found.group(1))
        else:
            end = closing(text, end)
        text = text[: found.start()] + " " + text[end:]
    return text, files


def closing(text, at):
    """The place behind the brace that closes the one before `at`."""
    depth = 1
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def branches(text, with_alias=False):
    """The paths of a group: "a::b, c::{d, e}" has a::b, c::d and c::e. With the name that each is used by behind it, if asked for."""
    depth, start, parts = 0, 0, []
    for at, char in enumerate(text + ","):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    for part in filter(None, parts):
        head, brace, rest = part.partition("{")
        names = [name for name in head.strip().removesuffix("::").split("::") if name]
        if brace:
            yield from (names + more for more in branches(rest[: rest.rindex("}")], with_alias))
        else:
            yield [name.split()[0] for name in names] + ([names[-1].split()[-1]] if with_alias else [])


def paths(code):
    """Each path of the crate that a file names, as names that begin with crate, self or super."""
    for found in PATH.finditer(code):
        names = [found.group(1)] + [name.strip().removeprefix("r#") for name in found.group(2).split("::") if name.strip()]
        if found.group(3):
            for more in branches(code[found.end() : closing(code, found.end()) - 1]):
                yield names + more
        else:
            yield names


def resolved(module, names):
    """A path from the root of the crate, as `module` names it."""
    at = []
    for place, name in enumerate(names):
        if name == "crate":
            at = []
        elif name == "self":
            at = list(module) if place == 0 else at
        elif name == "super":
            at = list(module[:-1]) if place == 0 else at[:-1]
        else:
            at.append(name)
    return tuple(at)


def modules(src):
    """The modules of a crate, as lists of names, with the code of each."""
    read, tests = {}, set()
    for file in sorted(src.rglob("*.rs")):
        names = file.relative_to(src).with_suffix("").parts
        if names[0] == "bin" or names == ("main",):
            continue
        names = names[:-1] if names[-1] in ("mod", "lib") else names
        code, of_tests = without_tests(without_noise(file.read_text()))
        read[names] = (code, file)
        tests |= {names + (name,) for name in of_tests} | {names[:-1] + (name,) for name in of_tests}
    return {names: code for names, code in read.items() if names not in tests and not names[-1:] == ("tests",) and not "".join(names[-1:]).endswith("_tests")}


def imports(src):
    """Which module imports which."""
    known = modules(src)
    shown = exports(known)
    arrows = {}
    for module, (code, _) in known.items():
        for names in paths(code):
            full = resolved(module, names)
            if full and full[:1] not in known:
                # A name that the crate's root exports again stands for the module that it comes from; the root has all others.
                full = shown.get(full[0], ("lib",))
            target = next((full[:end] for end in range(len(full), 0, -1) if full[:end] in known or full[:end] == ("lib",)), None)
            if target and target != module:
                arrows.setdefault(module, set()).add(target)
    return known, arrows


def exports(known):
    """The names that the root of the crate has of its modules, and exported macros: where each comes from. A glob is told as the name *."""
    code = known[()][0] if () in known else ""
    found = {}
    for used in re.finditer(r"\buse\s+([^;]+);", code):
        for names in branches(used.group(1), with_alias=True):
            names, alias = names[:-1], names[-1]
            full = resolved((), names)
            module = next((full[:end] for end in range(len(full), 0, -1) if full[:end] in known), None)
            if module:
                found[alias] = module
    # An exported macro stands at the root, wherever it is written.
    for module, (code, _) in known.items():
        for name in re.findall(r"#\[macro_export\]\s*macro_rules!\s*(\w+)", code):
            found[name] = module
    return found


def layer(src, module):
    """The folder of a module, or "root"."""
    return module[0] if len(module) > 1 or (src / module[0]).is_dir() else "root"


def said(half, others):
    """The folders that one half of a sentence "Layer: uses `a` and `b`; is used by `c`" names."""
    head, *but = re.split(r"\b(?:except|but)\b", half, maxsplit=1)
    every = set(others) if re.search(r"\ball (?:other folders|of them)\b", head) else set()
    named, left_out = (set(re.findall(r"`(\w+)`", part)) & set(others) for part in (head, "".join(but)))
    return (every or named) - left_out


def sentences(src, layers, arrows):
    """What is wrong with the sentences about layers, a line each."""
    pairs = {(layer(src, module), layer(src, other)) for module, others in arrows.items() for other in others if module and other}
    for name in layers:
        file = src / name / "mod.rs"
        if name == "root" or not file.is_file():
            continue
        text = " ".join(line[3:].strip() for line in file.read_text().splitlines() if line.startswith("//!"))
        # A full stop within backticks ends no sentence.
        found = re.search(r"\bLayer: uses ((?:`[^`]*`|[^`.;])*); (?:is )?used by ((?:`[^`]*`|[^`.])*)\.", text)
        if not found:
            yield f"{file} has no sentence \"Layer: uses …; is used by ….\" about its place in the crate"
            continue
        others = [other for other in layers if other not in (name, "root")]
        uses, users = {low for up, low in pairs if up == name}, {up for up, low in pairs if low == name}
        for half, what, real in ((1, "it uses", uses), (2, "use it", users)):
            if said(found.group(half), others) != real & set(others):
                names = ", ".join(other for other in others if other in real) or "no other folder"
                yield f"{file} is wrong about the folders that {what}; the imports say: {names}"


def cycles(arrows):
    """Groups of more than one module that import each other (Tarjan 1972)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in arrows.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
                on.discard(group[-1])
            if len(group) > 1:
                found.append(group)

    sys.setrecursionlimit(10_000)
    for node in list(arrows):
        if node not in index:
            visit(node)
    return found


def check(src, layers, longest, upwards=None):
    """What is wrong in one crate, a line each. `upwards` has the imports that may run up: a file, and the layers that it may import."""
    known, arrows = imports(src)
    for file, above in (upwards or {}).items():
        module = next((module for module, (_, path) in known.items() if path == src / file), None)
        reached = {other for other in arrows.get(module, ()) if other and layer(src, other) in above}
        if not reached:
            return [f"{src / file} imports nothing of {', '.join(above)}: strike it off `upwards`"]
        arrows[module] -= reached
    height = {name: at for at, name in enumerate(layers)}
    if not known:
        return [f"{src} has no module: run this from the root of the repository"]
    wrong = [f"{src} has no layer {name}, which layers.toml names" for name in layers if name != "root" and not (src / name).is_dir()]
    for _, (code, file) in known.items():
        if HIDDEN.search(code):
            wrong.append(f"{file} imports the whole crate by another name or a glob, which hides what it needs: name it")
    if "*" in exports(known):
        wrong.append(f"{src}: the root exports a module by a glob, which hides where names come from: name them")
    for module in known:
        if module and layer(src, module) not in height:
            wrong.append(f"{known[module][1]} is in no layer of layers.toml")
    if wrong:
        return sorted(wrong)
    for module, others in sorted(arrows.items()):
        for other in sorted(others):
            if module and height[layer(src, other)] > height[layer(src, module)]:
                wrong.append(f"{known[module][1]} imports {'::'.join(other)}, which lies above it: move what it needs down, or hand it in")
    wrong += sentences(src, layers, arrows)
    below = {module: {other for other in others if other} for module, others in arrows.items() if module}
    for group in cycles(below):
        if len(group) > longest:
            names = ", ".join(sorted("::".join(module) for module in group))
            wrong.append(f"{src}: {len(group)} files import each other, {longest} may: {names}")
    return wrong


def threads(sources, page):
    """Where `page` is wrong about the code that starts threads, a line each. Its section "Threads" has a table with a row for each place that does."""
    rows = [line for line in page.partition("\n## Threads\n")[2].partition("\n## ")[0].splitlines() if line.startswith("|")]
    named = collections.Counter(file for row in rows for file in re.findall(r"\]\(([^)]+\.rs)\)", row))
    places = collections.Counter()
    for src in sources:
        for code, file in modules(src).values():
            # A process is spawned without arguments.
            places[str(file)] += len(re.findall(r"\bspawn(?:_scoped)?\s*\((?!\s*\))", code))
    for file in sorted((named | places).keys()):
        if named[file] != places[file]:
            yield f"{file} starts threads in {places[file]} places, and the table of threads in ARCHITECTURE.md has {named[file]} rows for it"


def main(names):
    crates = tomllib.loads((HERE / "layers.toml").read_text())
    if unknown := [name for name in names if name not in crates]:
        sys.exit(f"layers.py: no crate {', '.join(unknown)} in {HERE / 'layers.toml'}; it has {', '.join(crates)}")
    # A check that finds nothing in a crate with an arrow that runs up would be worth nothing.
    sample = HERE / "sample"
    found = check(sample, ["low", "high", "root"], 1)
    up = "which lies above it: move what it needs down, or hand it in"
    expected = [
        f"{sample}/high/mod.rs has no sentence \"Layer: uses …; is used by ….\" about its place in the crate",
        f"{sample}/low/inner.rs imports high, {up}",
        f"{sample}/low/inner.rs imports high::upper, {up}",
        f"{sample}/low/inner.rs imports lib, {up}",
        f"{sample}/low/mod.rs imports high, {up}",
        f"{sample}/low/mod.rs is wrong about the folders that it uses; the imports say: high",
        f"{sample}/low/mod.rs is wrong about the folders that use it; the imports say: high",
        f"{sample}/low/other.rs imports high, {up}",
        f"{sample}/low/other.rs imports high::second, {up}",
        f"{sample}/low/other.rs imports high::upper, {up}",
        f"{sample}: 3 files import each other, 1 may: high::upper, low::inner, low::other",
    ]
    if sorted(found) != expected:
        sys.exit("layers.py: in its sample it finds\n" + "\n".join(sorted(found)) + "\nand should find\n" + "\n".join(expected))
    sample = HERE / "sample_apart"
    found = check(sample, ["low", "gone"], 9, {"low/mod.rs": ["root"]})
    expected = [
        f"{sample} has no layer gone, which layers.toml names",
        f"{sample}/apart/mod.rs is in no layer of layers.toml",
        f"{sample}/low/mod.rs imports the whole crate by another name or a glob, which hides what it needs: name it",
        f"{sample}: the root exports a module by a glob, which hides where names come from: name them",
    ]
    if found != expected:
        sys.exit("layers.py: in its second sample it finds\n" + "\n".join(found) + "\nand should find\n" + "\n".join(expected))
    # A table that has one row for a file with two places, and one for a file with none.
    rows = "".join(f"| thread | [{file}]({file}) |\n" for file in (f"{HERE}/sample/high/upper.rs", f"{HERE}/sample/lib.rs"))
    found = list(threads([HERE / "sample"], f"\n## Threads\n\n{rows}\n## Next\n"))
    starts = "starts threads in {} places, and the table of threads in ARCHITECTURE.md has {} rows for it"
    expected = [f"{HERE}/sample/high/upper.rs {starts.format(2, 1)}", f"{HERE}/sample/lib.rs {starts.format(0, 1)}"]
    if found != expected:
        sys.exit("layers.py: about threads of its sample it finds\n" + "\n".join(found) + "\nand should find\n" + "\n".join(expected))
    wrong = list(threads([pathlib.Path(crate) / "src" for crate in LIBRARY], pathlib.Path("ARCHITECTURE.md").read_text()))
    for name in names or crates:
        crate = crates[name]
        wrong += check(pathlib.Path(name) / "src", crate["layers"], crate["longest_cycle"], crate.get("upwards"))
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
