"""How programs end: with work that is pending, by Ctrl-C, in forked and spawned processes, with failures that nobody has seen."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

LIMIT = 60


def run(program: str, *, expect: int = 0) -> tuple[str, str]:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=LIMIT
    )
    assert ended.returncode == expect, ended.stderr
    return ended.stdout, ended.stderr


def test_work_that_is_pending_is_done_before_the_end() -> None:
    out, err = run(
        """
        import time, streamvm as sv
        x = sv.ones((1000,))
        for _ in range(3000):
            x = x + 1
        def late():
            time.sleep(0.2)
            print("late\\n", end="")
        sv.default_vm().call(late)
        other = sv.Vm()
        other.call(late, on_workers=True)
        """
    )
    assert (out, err) == ("late\nlate\n", "")


def test_memory_of_others_does_not_keep_the_end_waiting() -> None:
    """Its library needs the interpreter's lock to take it back, which nobody gets after the end."""
    for ends in ("", "vm.close()", "del kept, late"):
        out, err = run(
            f"""
            import time, numpy as np, streamvm as sv
            array = np.arange(64.0)
            array.flags.writeable = False
            vm = sv.Vm()
            kept = [sv.from_dlpack(array) for _ in range(2000)]
            with sv.use(vm):
                kept += [sv.from_dlpack(array) for _ in range(2000)]
                late = sv.from_dlpack(array)
                vm.call(lambda x: time.sleep(0.1), [late])
            print(sum(tensor.shape[0] for tensor in kept))
            {ends}
            """
        )
        assert (out, err) == ("256000\n", "")


def test_a_failure_that_nobody_has_seen_is_told_at_the_end() -> None:
    out, err = run(
        """
        import streamvm as sv
        x = sv.asarray([1]) // 0
        print("goes on")
        """
    )
    assert out == "goes on\n" and "OperationError" in err and "divides by zero" in err


# What runs in the background ignores interrupts, and so do its children.
HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(program: str, says: str, after: float) -> tuple[str, str, int]:
    """Interrupts a program some seconds after it has said that; returns what it wrote after that, and its exit status."""
    with subprocess.Popen(
        [sys.executable, "-c", HEARS + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == says + "\n"
            time.sleep(after)
            assert process.poll() is None, "it waits"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    return out, err, process.returncode


INTERRUPTED = {
    "tensor.wait()": "KeyboardInterrupt",
    "tensor.numpy()": "KeyboardInterrupt",
    "tensor.item()": "KeyboardInterrupt",
    "vm.wait_all()": "KeyboardInterrupt",
    "for _ in range(10**6): vm.call(function, on_workers=False)": "KeyboardInterrupt",
    "asyncio.run(coroutine())": "KeyboardInterrupt",
}


@pytest.mark.parametrize("wait", INTERRUPTED)
def test_an_interrupt_ends_each_wait(wait: str) -> None:
    program = f"""
        import asyncio, os, threading, streamvm as sv
        vm = sv.default_vm()
        go = threading.Event()
        tensor = sv.empty((1,))
        def function():
            go.wait()
        def fills():
            go.wait()
            return [0]
        vm.call(fills, [], [tensor])
        async def coroutine():
            await tensor
        try:
            print("waits", flush=True)
            {wait}
        except BaseException as error:
            print(type(error).__name__, flush=True)
        go.set()
        os._exit(0) if "10**6" in {wait!r} else None
        """
    out, err, code = interrupted(program, "waits", 0.5)
    assert (out, code) == (INTERRUPTED[wait] + "\n", 0), err


def test_an_interrupt_ends_the_wait_at_the_end() -> None:
    program = """
        import threading, streamvm as sv
        sv.default_vm().call(threading.Event().wait)
        print("ends", flush=True)
        """
    _, err, _ = interrupted(program, "ends", 0.7)
    assert "KeyboardInterrupt" in err


def test_a_forked_child_says_so_and_ends() -> None:
    out, _ = run(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        import streamvm as sv
        x = sv.ones((2,)) + 1
        x.wait()
        child = os.fork()
        if child == 0:
            try:
                x + 1
            except sv.ClosedError as error:
                print("forked" in str(error), flush=True)
            with sv.use(sv.Vm()):
                print((sv.ones((2,)) + 2).numpy().tolist(), flush=True)
        else:
            _, status = os.waitpid(child, 0)
            print(status, (x + 1).numpy().tolist())
        """
    )
    assert out == "True\n[3.0, 3.0]\n0 [3.0, 3.0]\n"


def test_spawned_processes_take_tensors(tmp_path: pathlib.Path) -> None:
    program = """
        import multiprocessing, streamvm as sv
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print([y.numpy().tolist() for y in pool.map(sv.negative, [sv.ones((2,)), sv.zeros((1,))])])
        """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    ended = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=LIMIT)
    assert ended.stdout == "[[-1.0, -1.0], [-0.0]]\n", ended.stderr


def test_threads_that_still_issue_at_the_end() -> None:
    run(
        """
        import threading, time, streamvm as sv
        def issues():
            x = sv.ones((4,))
            while True:
                try:
                    x = x + 1
                except sv.ClosedError:
                    return
        for _ in range(4):
            threading.Thread(target=issues, daemon=True).start()
        time.sleep(0.2)
        """
    )


def test_a_trace_is_written_at_the_end(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "trace.pftrace"
    ended = subprocess.run(
        [sys.executable, "-c", "import streamvm as sv; x = sv.ones((2,)) + 1"],
        env={**os.environ, "STREAMVM_TRACE": str(file)},
        timeout=LIMIT,
    )
    assert ended.returncode == 0 and file.stat().st_size > 100
    last = tmp_path / "last.pftrace"
    env = {**os.environ, "STREAMVM_TRACE": str(last), "STREAMVM_TRACE_LAST": "60"}
    program = "import os, streamvm as sv; (sv.ones((2,)) + 1).wait(); sv.default_vm().write_trace(); os._exit(0)"
    ended = subprocess.run([sys.executable, "-c", program], env=env, timeout=LIMIT)
    assert ended.returncode == 0 and last.stat().st_size > 100


def test_an_import_is_quick() -> None:
    out, _ = run(
        """
        import numpy, time
        start = time.perf_counter()
        import streamvm
        print(time.perf_counter() - start)
        """
    )
    # A load of the machine is not what is measured.
    assert float(out) < 2


@pytest.mark.parametrize("holder", ["vm", "tensor"])
def test_an_engine_that_is_dropped_waits_for_functions(holder: str) -> None:
    out, _ = run(
        f"""
        import time, streamvm as sv
        vm = sv.Vm()
        with sv.use(vm):
            tensor = sv.ones((2,))
        def late():
            time.sleep(0.2)
            print("late\\n", end="")
        vm.call(late)
        if {holder!r} == "tensor":
            del vm
            del tensor
        else:
            del tensor
            del vm
        print("dropped")
        """
    )
    assert out == "late\ndropped\n"


def test_large_tensors_are_read() -> None:
    """A read that takes longer than a try of a wait is made once."""
    run(
        """
        import numpy as np, streamvm as sv, time
        x = sv.ones((64, 1 << 20))
        sv.default_vm().call(lambda: time.sleep(1.5))
        assert float(x.numpy().sum()) == 64 << 20
        assert x.T.numpy().shape == (1 << 20, 64)
        """
    )
