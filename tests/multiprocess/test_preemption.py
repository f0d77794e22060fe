"""SIGTERM to one worker leads to one checkpoint of all workers and exit status 0, whatever they do."""

import signal

import jax.numpy as jnp
import pytest
from tests.multiprocess import preemptions

import replicax as rx
from replicax import testing


def test_a_preempted_training_gives_the_losses_of_an_undisturbed_one(tmp_path):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    undisturbed.mkdir()
    disturbed.mkdir()
    expected = preemptions.train_undisturbed(undisturbed, num_workers=2)
    for moment, rank in [("compiling", 0), ("saving", 1)]:  # the program itself has more moments
        preempted, seconds = preemptions.run_until(disturbed, moment, rank, num_workers=2)
        assert preempted and seconds < preemptions.GRACE_SECONDS + 60  # a loaded machine is slow
    preempted, _ = preemptions.run_until(disturbed, "never", 0, num_workers=2)
    assert not preempted
    assert preemptions.difference(expected, disturbed) == 0


def ignore_the_signal():
    """Sum up for ever, without a handler for preemptions."""
    strategy = rx.MultiWorkerMirroredStrategy()
    while True:
        strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)
        testing.point("training")


def test_without_a_handler_the_signal_ends_the_process():
    with testing.start(ignore_the_signal, num_workers=2) as workers:
        workers.wait_for("training", rank=1)
        workers.send(1, signal.SIGTERM)
        outcomes = workers.wait(timeout_seconds=120)
    assert outcomes[1].status == -signal.SIGTERM
    assert outcomes[0].status not in (0, None)


@pytest.mark.long
def test_many_preemptions(capsys):
    preemptions.main(20, num_workers=3)
    assert "largest difference to a loss of the undisturbed run: 0\n" in capsys.readouterr().out
