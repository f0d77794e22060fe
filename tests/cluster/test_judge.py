"""Which worker is to blame, from the reports of all: exceptions, deaths, ends, differences and waiting."""

import pytest

from replicax.cluster._judge import Judge

STUCK = 60.0


class Cluster:
    """A judge with workers whose reports the test writes, and a clock that it moves."""

    def __init__(self, num_workers=3):
        self.now = 0.0
        self.judge = Judge([f"worker {i}" for i in range(num_workers)], STUCK, self.now)
        self.num_workers = num_workers
        self.silent = set()
        self.steps, self.collectives = [0] * num_workers, [[] for _ in range(num_workers)]
        self.waits, self.states = [None] * num_workers, ["running"] * num_workers
        self.pending = [None] * num_workers

    def report(self):
        for rank in set(range(self.num_workers)) - self.silent:
            message = {
                "kind": "progress",
                "step": self.steps[rank],
                "line": f"train.py:{rank}",
                "state": self.states[rank],
                "collectives": self.collectives[rank],
                "pending": self.pending[rank],
                "waits_for": self.waits[rank],
            }
            self.judge.hear(rank, message, self.now)

    def send(self, rank, kind, **message):
        self.judge.hear(rank, {"kind": kind, **message}, self.now)
        self.silent.add(rank)

    def fail(self, rank, by_another=False):
        self.send(
            rank, "failed", step=7, type="ValueError", message="bad", traceback="Tr", by_another=by_another
        )

    def die(self, rank):
        self.judge.lose(rank, self.now)
        self.silent.add(rank)

    def after(self, seconds):
        """The verdict, if there is one within `seconds`, and when."""
        end = self.now + seconds
        while True:
            self.report()
            if (verdict := self.judge.decide(self.now)) is not None or self.now >= end:
                return verdict
            self.now += 0.25


def test_nothing_fails_while_all_make_progress():
    cluster = Cluster()
    for step in range(100):
        cluster.steps = [step, step + 1, step]
        assert cluster.after(5) is None


def test_an_exception_is_told_at_once_with_its_traceback():
    cluster = Cluster()
    cluster.fail(1)
    verdict = cluster.after(0)
    assert (verdict.error, verdict.rank, verdict.step) == ("WorkerFailedError", 1, 7)
    assert verdict.traceback == "Tr" and "ValueError: bad" in verdict.message
    assert "rank 1 (worker 1)" in verdict.message


def test_a_worker_that_loses_its_connection_is_not_blamed():
    cluster = Cluster()
    cluster.fail(0, by_another=True)
    assert cluster.after(0.5) is None
    cluster.die(2)
    verdict = cluster.after(0)
    assert (verdict.error, verdict.rank) == ("WorkerLostError", 2)


def test_an_error_of_communication_is_told_if_there_is_no_other_cause():
    cluster = Cluster()
    cluster.fail(0, by_another=True)
    cluster.die(0)
    verdict = cluster.after(2)
    assert (verdict.error, verdict.rank) == ("WorkerFailedError", 0)


def test_a_worker_that_ends_is_fine_unless_another_one_waits_for_it():
    cluster = Cluster()
    cluster.steps = [9, 9, 9]
    cluster.report()
    cluster.send(1, "leaving", step=9)
    cluster.judge.lose(1, cluster.now)
    assert cluster.after(1000) is None
    cluster.steps[2] = 10
    verdict = cluster.after(2)
    assert (verdict.error, verdict.rank, verdict.step) == ("WorkerLeftError", 1, 9)
    assert "rank 2 (worker 2) waits for it in collective 10, train.py:2" in verdict.message


def test_a_worker_that_ends_while_another_waits_for_its_message_is_told():
    cluster = Cluster(2)
    cluster.waits[0] = {"rank": 1, "what": "message 0 about devices"}
    cluster.send(1, "leaving", step=0)
    verdict = cluster.after(2)
    assert (
        verdict.error == "WorkerLeftError" and "waits for it in message 0 about devices" in verdict.message
    )


def test_a_lost_connection_to_a_worker_that_has_ended_is_blamed_on_it():
    cluster = Cluster(2)
    cluster.send(1, "leaving", step=0)
    cluster.fail(0, by_another=True)
    verdict = cluster.after(2)
    assert (verdict.error, verdict.rank) == ("WorkerLeftError", 1)


def test_a_stopped_worker_is_stuck_also_while_it_saves():
    cluster = Cluster(2)
    cluster.steps, cluster.states[1] = [8, 7], "checkpoint"
    cluster.report()
    cluster.silent.add(1)
    assert cluster.after(STUCK + 10).rank == 1


def test_a_message_that_was_sent_before_the_end_is_not_missed():
    cluster = Cluster(2)
    cluster.waits[0] = {"rank": 1, "what": "message 0 about devices"}
    cluster.report()
    cluster.send(1, "leaving", step=0)
    assert cluster.judge.decide(cluster.now + 0.2) is None  # the last report is older than the end
    cluster.waits[0] = None
    assert cluster.after(100) is None


def test_the_others_may_compute_for_long_after_one_has_ended():
    cluster = Cluster(2)
    cluster.steps = [9, 10]
    cluster.report()
    cluster.send(1, "leaving", step=10)
    assert cluster.after(1000) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["aa", "step (a.py:1)", None, 1], ["bb", "evaluate (a.py:9)", None, 2]),
        (["aa", "step (a.py:1)", 7, 1], ["aa", "step (a.py:1)", 8, 2]),
        (["aa", "step (a.py:1)", None, 1], ["aa", "step (a.py:1)", None, 2]),
    ],
    ids=["program", "batch", "an earlier one"],
)
def test_different_collectives_are_told(first, second):
    cluster = Cluster(2)
    cluster.collectives = [[[64, *first]], [[64, *second]]]
    verdict = cluster.after(0)
    assert verdict.error == "CollectiveMismatchError"
    assert first[1] in verdict.message and second[1] in verdict.message


def test_equal_collectives_are_fine():
    cluster = Cluster(2)
    cluster.collectives = [[[64, "aa", "step", 1, 5]], [[64, "aa", "step", None, None]]]
    assert cluster.after(0) is None


def test_a_worker_about_to_start_another_collective_than_one_that_was_started_is_told():
    cluster = Cluster(2)
    cluster.collectives[1] = [[5, "a", "step (a.py:1)", None, 7]]
    cluster.pending[0] = [5, "b", "evaluate (a.py:9)", None, None, 1.5]
    verdict = cluster.after(2)
    assert verdict is not None and verdict.error == "CollectiveMismatchError"
    assert "rank 0 (worker 0) started evaluate (a.py:9) and rank 1" in verdict.message
    assert 0.5 <= cluster.now < 1.5


def test_workers_about_to_start_different_collectives_tell_each_other():
    cluster = Cluster(2)
    cluster.pending = [[5, "a", "step", None, None, 1.0], [5, "b", "evaluate", None, None, 1.1]]
    assert cluster.after(5) is None


def test_an_old_report_of_what_is_about_to_start_is_not_a_difference():
    """The collectives were different, which was told; then they were equal, under the same number."""
    cluster = Cluster(2)
    cluster.pending[0] = [5, "a", "step", None, None, 1.0]
    cluster.report()
    cluster.collectives[1] = [[5, "b", "evaluate", None, 7]]
    cluster.now += 0.25
    cluster.silent.add(0)
    assert cluster.after(5) is None


@pytest.mark.parametrize("silent", [False, True], ids=["sleeping", "stopped"])
def test_a_worker_that_others_wait_for_is_stuck_after_the_timeout(silent):
    cluster = Cluster()
    cluster.steps = [8, 7, 8]
    cluster.report()
    if silent:
        cluster.silent.add(1)
    assert cluster.after(STUCK - 1) is None
    assert not cluster.judge.wants_stacks
    assert cluster.after(2) is None  # not all stacks have come yet
    assert cluster.judge.wants_stacks
    for rank in {0, 1, 2} - cluster.silent:
        cluster.judge.hear(rank, {"kind": "stacks", "text": f"stack {rank}"}, cluster.now)
    verdict = cluster.after(3)
    assert (verdict.error, verdict.rank, verdict.step) == ("WorkerStuckError", 1, 7)
    assert "stack 0" in verdict.message and "stack 2" in verdict.message
    assert ("did not answer" if silent else "stack 1") in verdict.message
    assert ("is stopped" if silent else "process is alive") in verdict.message


def test_a_worker_that_nobody_waits_for_is_not_stuck():
    cluster = Cluster()
    cluster.silent.add(1)
    assert cluster.after(1000) is None


def test_a_slow_worker_that_makes_progress_is_not_stuck():
    cluster = Cluster()
    for step in range(5):
        cluster.steps = [step + 2, step, step + 2]
        assert cluster.after(STUCK - 5) is None


def test_a_worker_that_catches_up_while_stacks_are_collected_is_not_stuck():
    cluster = Cluster()
    cluster.steps = [8, 7, 8]
    assert cluster.after(STUCK) is None and cluster.judge.wants_stacks
    cluster.steps = [8, 8, 8]
    assert cluster.after(1000) is None and not cluster.judge.wants_stacks


def test_a_message_that_does_not_come_is_stuck_after_the_timeout():
    cluster = Cluster(2)
    cluster.waits[0] = {"rank": 1, "what": "message 3 about checkpoints"}
    assert cluster.after(STUCK - 1) is None
    verdict = cluster.after(5)
    assert (verdict.error, verdict.rank) == ("WorkerStuckError", 1)
    assert "rank 0 (worker 0) in message 3 about checkpoints" in verdict.message


def test_messages_that_come_one_after_the_other_are_not_stuck():
    cluster = Cluster(2)
    for number in range(5):
        cluster.waits[0] = {"rank": 1, "what": f"checkpoint {number}"}
        assert cluster.after(STUCK - 5) is None


@pytest.mark.parametrize("state", ["compiling", "checkpoint"])
def test_a_worker_that_compiles_or_saves_is_not_stuck(state):
    cluster = Cluster(2)
    cluster.steps, cluster.states[1] = [8, 7], state
    assert cluster.after(1000) is None
    cluster.states[1] = "running"
    assert cluster.after(STUCK + 5).rank == 1
