"""Settings of the tests: how many cases are drawn, and a time limit for each test."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# STREAMVM_CASES multiplies the drawn cases, as in the tests of the engine.
CASES = int(os.environ.get("STREAMVM_CASES", "1"))
settings.register_profile(
    "cases",
    max_examples=40 * CASES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=CASES == 1,
    database=None,
)
settings.load_profile("cases")

# A hang ends the run with the stacks of all threads.
LIMIT = 120 * CASES


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
