"""The time of a device is split into parts that add up: on profiles that are made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.reporting._intervals import difference, intersection, length, union
from replicax.reporting._parts import PARTS, Kinds, device_parts, mean_parts
from replicax.reporting._profile import Operation, Profile

KINDS = Kinds(collectives={"all-reduce"}, containers={"while"})


def profile(devices, **host):
    known = {"steps": [], "input": [], "compiling": [], **host}
    return Profile(window=(0, 100), devices=devices, **known)


def op(name, start, end, run=None):
    return Operation(name, start, end, run)


def lengths(profile):
    return {
        name: {part: length(times) for part, times in parts.items() if times}
        for name, parts in device_parts(profile, KINDS).items()
    }


def test_each_part():
    found = lengths(
        profile(
            {
                "GPU:0": [op("dot", 10_000, 10_030)],
                "CPU:0": [op("dot", 10, 30), op("all-reduce", 30, 60)],
                "CPU:1": [op("dot", 10, 50), op("all-reduce", 50, 60)],
            },
            input=[(0, 5)],
            compiling=[(4, 8)],
        )
    )
    assert found["CPU:0"] == {
        "compute": 20,
        "imbalance": 20,
        "collectives": 10,
        "compilation": 4,
        "input": 4,
        "host": 42,
    }
    assert found["CPU:1"] == {"compute": 40, "collectives": 10, "compilation": 4, "input": 4, "host": 42}
    assert found["GPU:0"] == {"compilation": 4, "input": 4, "host": 92}, "outside of the recorded steps"


def test_a_collective_in_a_loop_is_matched_with_the_same_turn_of_others():
    found = lengths(
        profile(
            {
                "CPU:0": [op("while", 0, 100), op("all-reduce", 0, 40), op("all-reduce", 50, 90)],
                "CPU:1": [op("while", 0, 100), op("all-reduce", 30, 40), op("all-reduce", 60, 90)],
            }
        )
    )
    assert found["CPU:0"]["imbalance"] == 30 + 10 and found["CPU:0"]["collectives"] == 10 + 30
    assert "imbalance" not in found["CPU:1"]


def test_communication_behind_computation_is_not_counted():
    found = lengths(profile({"GPU:0": [op("dot", 0, 60), op("all-reduce", 20, 80)]}))
    assert found["GPU:0"] == {"compute": 60, "collectives": 20, "host": 20}


def test_between_the_operations_of_one_run_a_device_computes():
    found = lengths(
        profile({"CPU:0": [op("a", 0, 10, run=7), op("b", 40, 50, run=7), op("c", 90, 100, 8)]})
    )
    assert found["CPU:0"] == {"compute": 60, "host": 40}


def test_short_gaps_are_the_devices_own_and_long_ones_the_hosts():
    operations = [op("a", 0, 10_000), op("b", 12_000, 20_000), op("c", 28_000, 30_000)]
    parts = device_parts(Profile((0, 30_000), [], [], [], {"GPU:0": operations}), KINDS)["GPU:0"]
    assert parts["compute"] == [(0, 20_000), (28_000, 30_000)]
    assert parts["host"] == [(20_000, 28_000)]


def test_mean():
    parts = device_parts(profile({"CPU:0": [op("a", 0, 50)], "CPU:1": [op("a", 0, 100)]}), KINDS)
    mean = mean_parts(parts.values(), num_steps=5)
    assert mean.compute == pytest.approx(15e-9) and mean.total == pytest.approx(20e-9)
    assert mean.share("compute") == pytest.approx(0.75)


some_intervals = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)).map(sorted).map(tuple))
names = st.sampled_from(["dot", "all-reduce", "while"])
some_operations = st.lists(
    st.builds(
        lambda name, span: op(name, *span),
        names,
        some_intervals.map(lambda found: found[0] if found else (3, 9)),
    ),
    max_size=6,
)


@given(st.lists(some_operations, min_size=1, max_size=3), some_intervals, some_intervals)
def test_parts_add_up(devices, reading, compiling):
    devices = {f"CPU:{i}": sorted(x, key=lambda op: op.start) for i, x in enumerate(devices)}
    found = device_parts(profile(devices, input=union(reading), compiling=union(compiling)), KINDS)
    for parts in found.values():
        assert sum(length(parts[part]) for part in PARTS) == 100
        assert length(union(x for part in PARTS for x in parts[part])) == 100


@given(some_intervals, some_intervals)
def test_sets_of_times(first, second):
    def points(intervals):
        return {t for start, end in intervals for t in range(start, end)}

    a, b = union(first), union(second)
    assert points(a) == points(first)
    assert points(intersection(a, b)) == points(a) & points(b)
    assert points(difference(a, b)) == points(a) - points(b)
    assert length(a) == len(points(a))


def test_a_step_that_waits_for_its_batch_to_be_copied_waits_for_input():
    """To the device, or into memory that it can copy from; the latter only while a step is called."""
    copied = profile({"GPU:0": []}, copying={"GPU:0": [(10, 40)]}, preparing=[(30, 80)], steps=[(50, 60)])
    assert device_parts(copied, KINDS)["GPU:0"]["input"] == [(10, 40), (50, 60)]
