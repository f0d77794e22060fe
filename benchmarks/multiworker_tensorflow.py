"""TensorFlow's half of `multiworker.py`: two processes with `MultiWorkerMirroredStrategy`.

Answers as `training_tensorflow.py` does. The process that was started is worker 0; it starts worker 1 and
tells it how many steps to make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ports import free_ports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"


def start_follower(ports: list[int]) -> subprocess.Popen[str]:
    environment = os.environ | {"TF_CONFIG": config(ports, 1)}
    command = [sys.executable, __file__, *sys.argv[1:], "follow"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True)


def config(ports: list[int], index: int) -> str:
    workers = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def main() -> None:
    follows = sys.argv[-1] == "follow"
    follower = None
    if not follows:
        ports = free_ports(2)
        follower = start_follower(ports)
        os.environ["TF_CONFIG"] = config(ports, 0)

    import numpy as np
    import tensorflow as tf
    import training_tensorflow as training
    import training_work as work

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workload = work.WORKLOADS[str(np.load(sys.argv[1])["workload"])]
    step = training.make_step_with(strategy, workload)
    try:
        for line in sys.stdin:
            if follower is not None and follower.stdin is not None:
                print(line.strip(), file=follower.stdin, flush=True)
            training.answer(step, int(line), quiet=follows)
    finally:
        if follower is not None:
            follower.kill()


if __name__ == "__main__":
    main()
