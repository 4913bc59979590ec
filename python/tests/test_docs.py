"""What the documentation says: examples run, and the table of the standard is that of the package."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import importlib.metadata
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import array_api_strict
import pytest

import streamvm as sv

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"
MODULES = [name for _, name, _ in pkgutil.iter_modules(sv.__path__) if name != "_core"]


@pytest.mark.parametrize("name", ["", *MODULES])
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"streamvm.{name}" if name else "streamvm")
    assert doctest.testmod(module).failed == 0


def test_the_wheel_has_the_package_alone() -> None:
    files = [file for file in importlib.metadata.files("streamvm") or [] if "__pycache__" not in str(file)]
    assert {file.parts[0] for file in files} == {"streamvm", f"streamvm-{sv.__version__}.dist-info"}
    assert {file.suffix for file in files if file.parts[0] == "streamvm"} == {".py", ".pyi", ".so", ".typed"}
    assert sum(file.size or 0 for file in files) < 20 << 20


def test_every_function_says_what_it_does() -> None:
    silent = [name for name in sv.__all__ if callable(getattr(sv, name)) and not getattr(sv, name).__doc__]
    silent += [
        f"Tensor.{name}" for name in dir(sv.Tensor) if not name.startswith("_") and not getattr(sv.Tensor, name).__doc__
    ]
    silent += [f"Vm.{name}" for name in dir(sv.Vm) if not name.startswith("_") and not getattr(sv.Vm, name).__doc__]
    assert silent == []


def test_the_examples_of_the_page_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "float32 (3,) cpu:0" in printed and "divides by zero at element 1" in printed


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(
        r"^```text\n(import streamvm.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    exec(block, {})
    assert capsys.readouterr().out == "[1. 9.]\n"


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "python" / "examples").glob("*.py")))
def test_examples(example: str) -> None:
    file = ROOT / "python" / "examples" / example
    ended = subprocess.run([sys.executable, "-W", "error", str(file)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout, ended.stderr


def table() -> str:
    names = [
        name for name in array_api_strict.__all__ if not name.startswith("_") and name != "get_array_api_strict_flags"
    ]
    names = [
        name
        for name in names
        if not name.endswith("_array_api_strict_flags") and name not in ("ArrayAPIStrictFlags", "Device")
    ]
    extensions = {"linalg": array_api_strict.linalg.__all__, "fft": array_api_strict.fft.__all__}
    here = sorted((name for name in names if hasattr(sv, name)), key=str.lower)
    missing = sorted((name for name in names if not hasattr(sv, name) and name not in extensions), key=str.lower)
    rows = [f"| here, {len(here)} of {len(here) + len(missing)} | {', '.join(f'`{name}`' for name in here)} |"]
    rows.append(f"| missing | {', '.join(f'`{name}`' for name in missing)} |")
    rows += [f"| the extension `{name}` | no function |" for name in extensions]
    return "\n".join(["| | |", "|---|---|", *rows])


def test_the_table_of_the_standard_is_true() -> None:
    page = PAGE.read_text()
    begin, end = "<!-- standard -->\n", "\n<!-- /standard -->"
    before, _, rest = page.partition(begin)
    found, _, after = rest.partition(end)
    if os.environ.get("STREAMVM_WRITE_DOCS"):
        PAGE.write_text(before + begin + table() + end + after)
    else:
        assert found == table(), "STREAMVM_WRITE_DOCS=1 make test-python writes it"


def executed(source: str, names: dict[str, Any]) -> str:
    """What a cell shows: what it prints, then the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if (
            isinstance(last, ast.Expr)
            and (value := eval(compile(ast.Expression(last.value), "cell", "eval"), names)) is not None
        ):
            print(repr(value))
    return printed.getvalue()


def test_the_notebook_shows_what_its_cells_give() -> None:
    """Set STREAMVM_NOTEBOOK=write to write down what they give."""
    notebook = ROOT / "python" / "examples" / "tour.ipynb"
    whole = json.loads(notebook.read_text())
    names: dict[str, Any] = {}
    for number, cell in enumerate((cell for cell in whole["cells"] if cell["cell_type"] == "code"), start=1):
        given = executed("".join(cell["source"]), names)
        lines = given.splitlines(keepends=True)
        cell["execution_count"] = number
        shown = [{"name": "stdout", "output_type": "stream", "text": lines}]
        if os.environ.get("STREAMVM_NOTEBOOK") != "write":
            assert cell["outputs"] == shown, f"cell {number} gives {given!r}"
        cell["outputs"] = shown
    if os.environ.get("STREAMVM_NOTEBOOK") == "write":
        notebook.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
