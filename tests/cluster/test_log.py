"""The log of collectives: numbers, the last entries, and what a process is doing."""

import timeit

import pytest

from replicax.cluster import Collective, CollectiveLog, collective_log


def make(kind="step", values="float32[2]", line="a.py:1"):
    return Collective(kind, values, line)


def test_fingerprints_depend_on_kind_and_values_but_not_on_the_line():
    assert make().fingerprint == make(line="b.py:9").fingerprint
    assert len({make().fingerprint, make(kind="x").fingerprint, make(values="float32[3]").fingerprint}) == 3


def test_the_log_has_the_last_entries_in_order():
    log, step = CollectiveLog(), make()
    for _ in range(3000):
        log.record(step)
    assert log.seq == 3000
    assert [entry.seq for entry in log.recent(3)] == [2998, 2999, 3000]
    assert len(log.recent(5000)) == 1024
    assert log.last is not None and log.last.collective is step


def test_an_entry_has_the_batch_that_the_collective_got():
    log, x, y = CollectiveLog(), object(), object()
    log.offer(7, x)
    assert log.batch_in([y, x]) == 7 and log.batch_in([y]) is None and log.batch_in([]) is None
    log.record(make(), log.batch_in([x]))
    assert log.recent(1)[0].batch == 7


def test_the_state_is_the_innermost_phase():
    log = CollectiveLog()
    assert log.state[:2] == ("running", 0)
    log.record(make())
    with log.phase("input"):
        with log.phase("checking"):
            assert log.state[:2] == ("checking", 1)
        assert log.state.what == "input"
    assert log.state.what == "running"


def test_each_group_of_processes_has_a_log():
    assert collective_log() is not collective_log((0, 1))
    assert collective_log((0, 1)) is collective_log([0, 1])


@pytest.mark.long
def test_recording_takes_about_a_microsecond():
    log, step = CollectiveLog(), make()
    assert min(timeit.repeat(lambda: log.record(step), number=10_000, repeat=20)) / 10_000 < 3e-6
