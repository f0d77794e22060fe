"""Which functions may run at the same time."""

import random

import pytest

import replicax as rx
from replicax.parameter_server._staleness import StalenessLimit


@pytest.mark.parametrize("most", [0, 1, 3, None])
def test_no_function_misses_more_than_the_limit(most):
    """Functions of four workers start and end in random order."""
    limit, rng = StalenessLimit(most), random.Random(0)
    running, missed, at_once = {}, 0, 0
    for number in range(2000):
        if len(running) < 4 and limit.may_start() and rng.random() < 0.6:
            limit.start(number)
            running[number] = 0
            at_once = max(at_once, len(running))
        elif running:
            ended = rng.choice(list(running))
            limit.end(ended)
            missed = max(missed, running.pop(ended))
            running = {call: count + 1 for call, count in running.items()}
    assert at_once == min(4, 4 if most is None else most + 1)
    assert missed > 3 if most is None else missed == most


def test_the_limit_is_a_whole_number():
    with pytest.raises(ValueError, match="max_staleness=-1: pass how many updates a gradient may miss"):
        rx.ParameterServerStrategy(num_ps=1, num_workers=1, max_staleness=-1)
