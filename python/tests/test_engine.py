"""Engines, errors with their lines, functions as instructions, threads, compiled functions."""

from __future__ import annotations

import gc
import inspect
import re
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamvm as sv


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_failure_names_the_line_that_issued_it_and_the_one_that_waits() -> None:
    quotient = sv.asarray([1, 2]) // 0
    issued = line() - 1
    poisoned = sv.negative(quotient)
    with pytest.raises(sv.OperationError) as caught:
        poisoned.wait()
    waited = line() - 1
    error = caught.value
    assert (error.operation, error.stream, error.filename, error.lineno) == (
        "floor_div",
        "compute@cpu:0:0",
        __file__,
        issued,
    )
    assert getattr(error, "__notes__", [f"waited for at {__file__}:{waited}"]) == [f"waited for at {__file__}:{waited}"]
    with pytest.raises(sv.OperationError):
        quotient.numpy()


def test_functions_of_the_package_have_the_line_of_their_caller() -> None:
    taken = sv.take(sv.asarray([1, 2]), sv.asarray([7]))
    issued = line() - 1
    with pytest.raises(sv.OperationError) as caught:
        sv.sum(taken).item()
    assert (caught.value.filename, caught.value.lineno) == (__file__, issued)


def test_refused_calls_say_why_and_issue_nothing() -> None:
    with pytest.raises(sv.UsageError, match="do not broadcast"):
        sv.zeros((2,)) + sv.zeros((3,))
    with pytest.raises(sv.DTypeError, match="exp takes|real floating"):
        sv.exp(sv.asarray([1]))
    with pytest.raises(sv.UsageError, match="nothing has written"):
        sv.empty((2,)).numpy()
    assert (
        issubclass(sv.DTypeError, TypeError)
        and issubclass(sv.UsageError, ValueError)
        and issubclass(sv.OutOfMemoryError, MemoryError)
    )


def test_too_little_memory() -> None:
    vm = sv.Vm(memory_limit=1 << 20)
    with sv.use(vm), pytest.raises(sv.OutOfMemoryError, match="memory"):
        sv.zeros((1 << 20,)).wait()


def test_a_closed_engine_takes_nothing() -> None:
    vm = sv.Vm()
    with sv.use(vm):
        tensor = sv.ones((2,))
        vm.wait_all()
        vm.close()
        assert vm.closed
        with pytest.raises(sv.ClosedError, match="closed"):
            tensor + 1
    assert sv.ones(()).item() == 1, "the default engine goes on"


def test_tensors_of_two_engines_do_not_mix() -> None:
    with sv.use(sv.Vm()):
        one = sv.ones((2,))
    with pytest.raises(sv.UsageError, match="another engine"):
        one + sv.ones((2,))


def test_a_tensor_keeps_its_engine() -> None:
    vm = sv.Vm()
    with sv.use(vm):
        tensor = sv.ones((2,)) + 1
    del vm
    gc.collect()
    assert (tensor + 1).numpy().tolist() == [3, 3]


@pytest.mark.parametrize("mode", ["threaded", "inline", "simulated"])
def test_modes(mode: str) -> None:
    vm = sv.Vm(mode=mode, sim_devices=1 if mode == "simulated" else 0, seed=3)
    with sv.use(vm):
        device = "sim:0" if mode == "simulated" else "cpu:0"
        x = sv.arange(100, device=device)
        assert sv.sum(x * x).item() == 328350
        assert device in vm.devices()
    vm.wait_all()
    assert vm.races() == []


def test_arguments_of_engines() -> None:
    with pytest.raises(ValueError, match="no mode .fast."):
        sv.Vm(mode="fast")
    with pytest.raises(ValueError, match="timeout"):
        sv.wait_all(-1)
    assert "instructions" in sv.default_vm().stats()


def test_a_trace_is_written(tmp_path: Path) -> None:
    file = tmp_path / "trace.pftrace"
    vm = sv.Vm(trace=file)
    with sv.use(vm):
        (sv.ones((4,)) + 1).wait()
    vm.close()
    del vm
    gc.collect()
    assert file.stat().st_size > 100
    with pytest.raises(sv.Error, match="no trace"):
        sv.Vm(trace=tmp_path / "missing" / "trace")


def traced(file: Path, length: int) -> int:
    """The line of the sum."""
    vm = sv.Vm(trace=file)
    with sv.use(vm):
        big = sv.ones((length,))
        total = sv.sum(big + 1)
        issued = line() - 1
        assert total.item() == 2 * length
        del big, total
    vm.close()
    del vm
    gc.collect()
    return issued


def test_reports_of_traces(tmp_path: Path) -> None:
    before, after = tmp_path / "before.pftrace", tmp_path / "after.pftrace"
    issued = traced(before, 1_000_000)
    traced(after, 10)
    report = sv.report(before)
    assert str(report) == repr(report) and "the critical path" in str(report)
    memory = report.data["memory"][0]
    assert memory["pool"] == "device memory on cpu:0" and memory["peak_bytes"] >= 8_000_000
    owners = [(owner["of"]["line"], owner["of"]["name"]) for owner in memory["owners"]]
    assert any(f"test_engine.py:{issued}" in place and name == "add" for place, name in owners), owners
    page = tmp_path / "page.html"
    report.write_page(page)
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "before.pftrace" in text
    both = sv.report(str(after), before=before)
    changes = {change["pool"]: change for change in both.data["memory"]}
    change = changes["device memory on cpu:0"]
    assert change["before_bytes"] > 1000 * change["after_bytes"] > 0
    assert "before" in str(both)
    both.write_page(page)
    assert "after.pftrace" in page.read_text()
    with pytest.raises(FileNotFoundError, match="No such file or directory: '.*missing'"):
        sv.report(tmp_path / "missing")
    with pytest.raises(ValueError, match="would overwrite the trace"):
        report.write_page(before)
    # What was read does not change with the file.
    after.replace(before)
    first = page.read_text()
    report.write_page(page)
    assert page.read_text() == text != first
    with pytest.raises(FileNotFoundError, match="nowhere"):
        report.write_page(tmp_path / "nowhere" / "page.html")
    with pytest.raises(IsADirectoryError):
        sv.report(tmp_path)
    wrong = tmp_path / "wrong"
    wrong.write_text("no trace")
    with pytest.raises(ValueError, match="wrong: "):
        sv.report(wrong)
    wrong.write_bytes(b"")
    with pytest.raises(ValueError, match="no stream of the trace"):
        sv.report(wrong)
    with pytest.raises(TypeError):
        sv.report(7)  # type: ignore[arg-type]


def test_lanes() -> None:
    with sv.Lane(1):
        x = sv.ones((4,)) + 1
        with sv.Lane(2):
            y = sv.ones((4,)) + 2
    assert sv.sum(x * y).item() == 24
    assert sv.Lane(1) == sv.Lane(1) and repr(sv.Lane(3)) == "Lane(3)"
    with pytest.raises(RuntimeError, match="no lane"):
        sv.Lane(1).__exit__(None, None, None)


# Functions.


def test_functions_read_and_write_tensors() -> None:
    vm, x = sv.default_vm(), sv.arange(6, dtype=sv.float32)
    total, twice = sv.empty(()), sv.empty((6,))

    def both(array: np.ndarray) -> tuple[Any, Any]:
        assert array.dtype == np.float32 and array.shape == (6,)
        array += 0  # its own copy
        return array.sum(), array * 2

    vm.call(both, [x], [total, twice])
    assert total.item() == 15 and twice.numpy().tolist() == [0, 2, 4, 6, 8, 10]
    called = threading.Event()
    vm.call(lambda: called.set(), on_workers=True)
    vm.wait_all()
    assert called.is_set()


def test_an_exception_is_the_cause_of_those_who_wait() -> None:
    vm, out = sv.default_vm(), sv.empty((2,))

    def fails() -> None:
        raise KeyError("missing")

    vm.call(fails, [], [out])
    issued = line() - 1
    for _ in range(2):
        with pytest.raises(sv.OperationError, match="fails failed") as caught:
            (out + 1).numpy()
        assert isinstance(caught.value.__cause__, KeyError) and caught.value.lineno == issued
        traceback = caught.value.__cause__.__traceback__
        assert traceback is not None and traceback.tb_frame.f_code.co_name == "fails"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: None, "returned 0 arrays, and it writes 1"),
        (lambda: (1, 2), "returned 2 arrays, and it writes 1"),
        (lambda: np.zeros(3), "shape"),
        (lambda: np.zeros(2, complex), "complex128"),
        (lambda: "text", "text|str|shape"),
    ],
)
def test_functions_that_return_something_else(function: Callable[[], Any], message: str) -> None:
    out = sv.empty((2,))
    sv.default_vm().call(function, [], [out])
    with pytest.raises(sv.OperationError, match=message):
        out.wait()


def test_functions_use_tensors_and_wait_for_none_that_comes_after() -> None:
    vm, inner = sv.default_vm(), []
    out = sv.empty((2,))

    def function() -> np.ndarray:
        tensor = sv.ones((2,)) + 1
        try:
            tensor.numpy()
        except sv.DeadlockError as error:
            inner.append(error)
        return np.full(2, 7)

    vm.call(function, [], [out])
    assert out.numpy().tolist() == [7, 7]
    assert len(inner) == 1


def test_a_full_queue_of_functions_lets_them_run() -> None:
    """Submitting blocks while the queue is full, without the interpreter's lock, which the functions in it need."""
    vm, count, lock = sv.default_vm(), [0], threading.Lock()

    def counts() -> None:
        with lock:
            count[0] += 1

    for _ in range(20_000):
        vm.call(counts)
    vm.wait_all()
    assert count[0] == 20_000


# Threads.


def test_tensors_are_made_used_and_dropped_on_any_thread() -> None:
    def chain(number: int) -> sv.Tensor:
        with sv.Lane(number % 3):
            tensor = sv.full((64,), float(number))
            for _ in range(50):
                tensor = tensor + 1
        return tensor

    with ThreadPoolExecutor(8) as pool:
        tensors = list(pool.map(chain, range(64)))
        values = list(pool.map(lambda tensor: tensor.numpy()[0], tensors))
    assert values == [number + 50 for number in range(64)]


def test_a_wait_has_a_limit_and_lets_other_threads_run() -> None:
    vm, out, go = sv.default_vm(), sv.empty((1,)), threading.Event()

    def waits() -> np.ndarray:
        go.wait()
        return np.zeros(1)

    vm.call(waits, [], [out], on_workers=True)
    start = time.monotonic()
    with pytest.raises(sv.WaitTimeoutError, match="0.1|100"):
        out.wait(timeout=0.1)
    assert time.monotonic() - start < 5
    assert not out.is_ready()
    with pytest.raises(TimeoutError):
        vm.wait_all(timeout=0.01)
    threading.Timer(0.05, go.set).start()
    out.wait()
    assert out.is_ready()


def test_a_read_on_a_busy_stream_is_submitted_once() -> None:
    vm, x, go = sv.Vm(cpu_threads=1), None, threading.Event()
    with sv.use(vm):
        x = sv.ones(())
    x.wait()
    vm.call(lambda: go.wait() and None)
    issued = sum(map(int, re.findall(r"\binstructions: (\d+)", vm.stats())))
    assert issued > 0
    threading.Timer(0.5, go.set).start()
    assert x.item() == 1 and float(x) == 1 and x.numpy() == 1
    # Each may be a conversion, a copy and a read.
    assert sum(map(int, re.findall(r"\binstructions: (\d+)", vm.stats()))) - issued <= 9


def test_nothing_is_left_of_what_was_dropped() -> None:
    class Big:
        def __call__(self) -> None:
            pass

    function = Big()
    gone = weakref.ref(function)
    sv.default_vm().call(function)
    del function
    sv.wait_all()
    gc.collect()
    for _ in range(100):
        if gone() is None:
            break
        time.sleep(0.01)
    assert gone() is None


# Compiled functions.


def test_a_compiled_function_is_recorded_once_for_each_signature() -> None:
    calls = []

    @sv.compile
    def layer(x: sv.Tensor, w: sv.Tensor) -> sv.Tensor:
        calls.append(x.shape)
        return sv.relu(x @ w) * 2 + 1

    for rows in (2, 3, 2, 2):
        x = sv.randn((rows, 4), seed=rows)
        w = sv.randn((4, 5), seed=9)
        assert np.allclose(layer(x, w).numpy(), np.maximum(x.numpy() @ w.numpy(), 0) * 2 + 1, atol=1e-5)
    assert calls == [(2, 4), (3, 4)] and layer.programs == 2
    assert "matmul" in layer.plan(x, w) and layer.__name__ == "layer"
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: layer(x, w).numpy().sum(), range(40)))
    assert len(set(results)) == 1


def test_a_compiled_function_may_have_several_results() -> None:
    @sv.compile()
    def both(x: sv.Tensor) -> tuple[sv.Tensor, sv.Tensor]:
        return x + 1, sv.sum(x, axis=0)

    plus, total = both(sv.ones((3, 2)))
    assert plus.numpy().tolist() == [[2, 2]] * 3 and total.numpy().tolist() == [3, 3]


def test_what_a_compiled_function_cannot_do() -> None:
    outside = sv.ones((2,))

    @sv.compile
    def captures(x: sv.Tensor) -> sv.Tensor:
        return x + outside

    with pytest.raises(sv.Error):
        captures(sv.ones((2,)))

    @sv.compile
    def reads(x: sv.Tensor) -> sv.Tensor:
        return x if x[0] > 0 else -x

    with pytest.raises(sv.Error):
        reads(sv.ones((2,)))

    @sv.compile
    def raises(x: sv.Tensor) -> sv.Tensor:
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        raises(sv.ones((2,)))

    @sv.compile
    def returns(x: sv.Tensor) -> Any:
        return "text"

    with pytest.raises(TypeError, match="returns a tensor"):
        returns(sv.ones((2,)))
    with pytest.raises(TypeError, match="needs a tensor"):
        returns()
    with pytest.raises(TypeError, match="is a int"):
        returns(1)


def test_a_step_of_a_compiled_function_that_fails_names_its_line() -> None:
    @sv.compile
    def divides(x: sv.Tensor, y: sv.Tensor) -> sv.Tensor:
        return (x + 1) // y

    with pytest.raises(sv.OperationError, match="divides by zero") as caught:
        divides(sv.asarray([1]), sv.asarray([0])).wait()
    assert f"{__file__}:{line() - 4}" in str(caught.value)


def test_a_compiled_function_may_call_compiled_functions_and_itself() -> None:
    @sv.compile
    def total(x: sv.Tensor) -> sv.Tensor:
        return x[0] if x.shape[0] == 1 else x[0] + total(x[1:])

    @sv.compile
    def twice(x: sv.Tensor) -> sv.Tensor:
        return total(x) * 2

    assert twice(sv.arange(5)).item() == 20
    assert total.programs == 0, "it is a part of the other one"
    assert total(sv.arange(5)).item() == 10


def test_numbers_and_tensors_like_others_are_steps_of_a_compiled_function() -> None:
    @sv.compile
    def steps(x: sv.Tensor) -> tuple[sv.Tensor, ...]:
        y = sv.where(x > 1, x, 0.0) + sv.ones_like(x) * sv.full_like(x, 2)
        x = x + 0
        x[x > 2] = 9
        return y, sv.cumulative_sum(x, include_initial=True), sv.logaddexp(x, x)

    y, sums, logs = steps(sv.asarray([1.0, 2.0, 3.0]))
    assert y.numpy().tolist() == [2, 4, 5] and sums.numpy().tolist() == [0, 1, 3, 12]
    assert np.allclose(logs.numpy(), np.logaddexp([1, 2, 9], [1, 2, 9]))

    @sv.compile
    def makes(x: sv.Tensor) -> sv.Tensor:
        return x + sv.ones((2,))

    with pytest.raises(sv.UsageError, match="give it the tensor as an argument"):
        makes(sv.ones((2,)))
    assert sv.ones((2,)).size == 2, "the recording is over"


def test_a_compiled_function_keeps_no_engine() -> None:
    @sv.compile
    def plus(x: sv.Tensor) -> sv.Tensor:
        return x + 1

    for _ in range(3):
        vm = sv.Vm()
        gone = weakref.ref(vm)
        with sv.use(vm):
            assert plus(sv.ones(())).item() == 2
        del vm
        gc.collect()
        assert gone() is None
    assert plus.programs == 1 and plus(sv.ones(())).item() == 2
    assert plus.programs == 1, "programs of engines that have ended are dropped"


def test_tensors_of_an_engine_stay_there() -> None:
    with sv.use(sv.Vm()):
        x = sv.asarray([3, 1, 3])
    assert (x[x > 1] + x[:2]).numpy().tolist() == [6, 4]
    assert (sv.unique_values(x) + x[:2]).numpy().tolist() == [4, 4]
    assert (sv.nonzero(x)[0] + x).numpy().tolist() == [3, 2, 5]


def test_what_a_call_refuses() -> None:
    vm, x = sv.default_vm(), sv.asarray([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(sv.UsageError, match="reads. has memory of one of .writes"):
        vm.call(lambda a: a, [x], [x])
    with pytest.raises(sv.UsageError, match="gaps"):
        vm.call(lambda: 0, [], [x.T])
    out = sv.empty((2, 2))
    vm.call(lambda a: a, [x.T], [out])
    assert out.numpy().tolist() == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match="timeout"):
        x.wait(float("nan"))
    with pytest.raises(ValueError, match="modulus|seed"):
        sv.rand((2,), seed=-1)
    with pytest.raises(TypeError, match="modulus"):
        pow(x, 2, 5)
