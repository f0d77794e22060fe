"""A training program of PyTorch that fails in a step, for `python -m tests.multiprocess.failures --peers`.

    torchrun --nproc-per-node 2 failing_torch.py KIND RANK SECONDS

It does what `tests/multiprocess/failing.py` does, with DistributedDataParallel.
"""

import datetime
import os
import signal
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
from torch import distributed, nn

FAULT, NUM_STEPS, BAD_STEP = "fault at ", 30, 10


def fail(kind):
    """Fail in this way, as in that program, whose imports PyTorch's Python may not have."""
    print(f"\n{FAULT}{time.time()}", flush=True)
    match kind:
        case "raise":
            raise LookupError("no such row")
        case "interrupt":
            signal.raise_signal(signal.SIGINT)
        case "exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(600)


def main():
    kind, rank, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(NUM_STEPS):
        if step == BAD_STEP and distributed.get_rank() == rank:
            fail(kind)
        optimizer.zero_grad()
        model(torch.full((4, 8), float(step))).mean().backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
