"""The order of shuffled examples: another one in every epoch, chosen by its number or counted."""

import logging

import numpy as np
import pytest

import replicax as rx
from replicax.errors import InputError
from replicax.input import _hints


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(_hints.RepeatedOrder, "_warned", False)
    monkeypatch.setattr(_hints.RepeatedOrder, "_known", {})


def shuffled(rows=12, seed=1):
    return rx.from_arrays(np.arange(rows)).shuffle(seed=seed).batch(4)


def order(strategy, batches):
    return [int(x) for batch in batches for part in strategy.local_results(batch) for x in part]


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if "distributed again" in r.getMessage()]


def test_an_epoch_chosen_by_number_has_the_order_of_a_loop_that_counts(two):
    dataset = two.distribute_dataset(shuffled())
    counted = [order(two, dataset) for _ in range(4)]
    assert len(set(map(tuple, counted))) == 4
    again = two.distribute_dataset(shuffled())
    assert [order(two, again.epoch(n)) for n in (2, 0, 3)] == [counted[2], counted[0], counted[3]]


def test_loops_after_a_chosen_epoch_are_counted_on_from_it(two):
    dataset = two.distribute_dataset(shuffled())
    counted = [order(two, dataset) for _ in range(5)]
    resumed = two.distribute_dataset(shuffled())
    assert [order(two, resumed.epoch(2)), order(two, resumed), order(two, resumed)] == counted[2:]


def test_an_epoch_with_repeat_is_a_whole_pass(two):
    def repeated():
        return rx.from_arrays(np.arange(6)).shuffle(seed=1).batch(3).repeat(2)

    dataset = two.distribute_dataset(repeated())
    counted = [order(two, dataset) for _ in range(3)]
    assert order(two, two.distribute_dataset(repeated()).epoch(2)) == counted[2]


def test_the_position_in_a_chosen_epoch_is_restored(two):
    dataset = two.distribute_dataset(shuffled())
    with dataset.epoch(3) as batches:
        seen = order(two, [next(batches)])
        state = batches.state()
    other = two.distribute_dataset(shuffled())
    with iter(other) as batches:
        batches.restore(state)
        rest = order(two, batches)
    assert seen + rest == order(two, dataset.epoch(3))
    assert order(two, other) == order(two, dataset.epoch(4))


def test_files_have_the_same_order_in_every_epoch(two, tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n3\n4\n")
    dataset = two.distribute_dataset(rx.from_files(tmp_path / "*.txt", np.loadtxt).batch(2))
    assert order(two, dataset.epoch(5)) == [1, 2, 3, 4]


@pytest.mark.parametrize("number", [-1, 1.5, True, None, "2"])
def test_the_number_of_an_epoch_is_checked(two, number):
    with pytest.raises(InputError, match=r"dataset\.epoch\(.*0, 1, 2"):
        two.distribute_dataset(shuffled()).epoch(number)


@pytest.mark.parametrize("dataset", [[np.zeros(2)], lambda: iter([np.zeros(2)])])
def test_datasets_with_an_order_of_their_own_do_not_take_a_number(two, dataset):
    with pytest.raises(InputError, match="defines its own order"):
        two.distribute_dataset(dataset).epoch(1)


# Distributing in the loop.


def test_distributing_in_the_loop_over_epochs_warns_once(two, caplog):
    rows = np.arange(12)
    orders = []
    with caplog.at_level(logging.WARNING, "replicax"):
        for _ in range(4):
            dataset = rx.from_arrays(rows).shuffle(seed=1).batch(4)
            orders.append(order(two, two.distribute_dataset(dataset)))
    assert len(set(map(tuple, orders))) == 1  # the same in all: what the warning is about
    (message,) = warnings(caplog)
    assert "before the loop" in message and ".epoch(epoch)" in message


def test_leaving_each_epoch_early_warns_too(two, caplog):
    dataset = rx.from_arrays(np.arange(12)).shuffle(seed=1).repeat().batch(4)
    for _ in range(4):
        with iter(two.distribute_dataset(dataset)) as batches:
            next(batches)
    assert len(warnings(caplog)) == 1


def test_distributing_in_the_loop_with_a_number_has_another_order_in_every_epoch(two, caplog):
    dataset = shuffled()
    orders = [order(two, two.distribute_dataset(dataset).epoch(epoch)) for epoch in range(4)]
    assert len(set(map(tuple, orders))) == 4
    assert not warnings(caplog)


def test_other_uses_do_not_warn(two, caplog):
    dataset = shuffled()
    distributed = two.distribute_dataset(dataset)
    for _ in range(3):
        order(two, distributed)
    one = rx.OneDeviceStrategy("CPU:0")  # the same data in another strategy
    order(one, one.distribute_dataset(dataset))
    order(two, two.distribute_dataset(shuffled()))  # other data
    order(two, two.distribute_dataset(shuffled(seed=2)))
    plain = rx.from_arrays(np.arange(12)).batch(4)
    for _ in range(3):
        order(two, two.distribute_dataset(plain))
    assert not warnings(caplog)


def test_a_look_at_the_first_batch_does_not_warn(two, caplog):
    dataset = shuffled()
    with iter(two.distribute_dataset(dataset)) as batches:
        next(batches)
    order(two, two.distribute_dataset(dataset))
    assert not warnings(caplog)


def test_continuing_at_a_position_does_not_warn(two, caplog):
    dataset = shuffled()
    with iter(two.distribute_dataset(dataset)) as batches:
        next(batches)
        state = batches.state()
        order(two, batches)
    for _ in range(3):
        with iter(two.distribute_dataset(dataset)) as batches:
            batches.restore(state)
            order(two, batches)
    assert not warnings(caplog)
