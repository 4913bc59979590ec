"""What docs/language.md says of functions: which there are, and which dtypes each takes."""

import pathlib
import re

from dtypes import ALL
from tables import FUNCTIONS

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "language.md"


def rows(text, head):
    """The cells of the table with this first line."""
    lines = text.split(f"\n{head}\n")[1].splitlines()[1:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield line.strip("| ").split(" | ")


def functions(text):
    """Every function of the first table, with its dtypes of the second: those up to the first comma of a cell."""
    named = []
    for cells in rows(text, "| function | gives |"):
        for call in re.findall(r"`([^`]*)`", cells[0]):
            # The operands behind the functions begin with another sign than a small letter.
            named += re.match(r"[a-z0-9_ ]*", call)[0].split()
    taken, others = {}, None
    for cells in rows(text, "| functions | dtypes |"):
        dtypes = ALL if cells[1] == "all" else cells[1].split(",")[0].split()
        if cells[0] == "all others":
            others = dtypes
            continue
        taken.update(dict.fromkeys(cells[0].strip("`").split(), dtypes))
    return {function: sorted(taken.get(function, others)) for function in named}


def undrawn():
    """What the page says and `FUNCTIONS`, whose functions and dtypes are all drawn, does not; and the other way round."""
    said = functions(PAGE.read_text())
    drawn = {function: sorted(dtypes) for function, (_, dtypes) in FUNCTIONS.items()}
    for function in sorted({*said, *drawn}):
        if said.get(function) != drawn.get(function):
            yield (f"{function}: docs/language.md says {' '.join(said.get(function, ['nothing']))}, "
                   f"and tables.py {' '.join(drawn.get(function, ['nothing']))}")
