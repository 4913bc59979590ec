"""What every script does: says that it is ready, then does the work that a line names, for each line that it reads.

The first line out is `ready` and what PyTorch this is, or why there is none; each other the seconds of one run.
"""

import sys
import time


def sizes():
    return [int(text) for text in sys.argv[1:]]


def torch_or_exit():
    try:
        import torch
    except Exception as error:
        print(f"no PyTorch: {error}".splitlines()[0], flush=True)
        sys.exit(0)
    if not torch.cuda.is_available():
        print("PyTorch sees no CUDA device", flush=True)
        sys.exit(0)
    # Full precision on all sides.
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def serve(torch, works):
    """For each line, a name of `works`, runs that, which queues; the time ends when the device is done."""
    print(f"ready PyTorch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    for line in sys.stdin:
        try:
            work = works[line.strip()]
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            torch.cuda.synchronize()
            print(time.perf_counter() - start, flush=True)
        except Exception as error:
            print(f"PyTorch failed: {error}".splitlines()[0], flush=True)
