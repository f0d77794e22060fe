"""The store of a strategy's variables, without a strategy."""

import threading

import pytest

from replicax.errors import ContextError
from replicax.variables import Places, Store, _store, exclusive


@pytest.mark.parametrize("indices", [[], [3], [2, 3, 4], [0, 2, 3, 7]])
def test_arrays_are_taken_from_their_places_and_put_back(indices):
    places, arrays = Places(indices), list("abcdefgh")
    assert places.take(arrays) == [arrays[i] for i in indices]
    places.put(arrays, [str(i) for i in indices])
    assert arrays == [str(i) if i in indices else letter for i, letter in enumerate("abcdefgh")]


def test_places_of_removed_arrays_are_used_again_from_the_lowest():
    store = Store()
    assert [store.add(name) for name in "abcd"] == [0, 1, 2, 3]
    store.remove(2)
    store.remove(0)
    assert store.arrays == [None, "b", None, "d"]
    assert [store.add(name) for name in "efg"] == [0, 2, 4]
    others = Store(reuse_places=False)
    others.add("a")
    others.remove(0)
    assert others.add("b") == 1


def test_an_interrupted_step_is_completed_before_the_block():
    stores, completed = [Store(), Store()], []
    stores[1].unfinished = lambda: completed.append("step")
    with exclusive(stores):
        assert completed == ["step"]


@pytest.mark.parametrize("slow", [False, True])
def test_a_store_that_may_take_long_is_waited_for(slow, monkeypatch):
    monkeypatch.setattr(_store, "_LOCK_SECONDS", 0.01)
    stores, held, may_end = [Store(), Store()], threading.Event(), threading.Event()

    def hold_one():
        with stores[1].exclusive():
            stores[1].may_take_long = slow
            held.set()
            may_end.wait(30)

    thread = threading.Thread(target=hold_one)
    thread.start()
    assert held.wait(30)
    try:
        if slow:
            threading.Timer(0.1, may_end.set).start()
            with exclusive(stores):
                assert may_end.is_set()
        else:
            with pytest.raises(ContextError, match=r"0\.01 seconds"), exclusive(stores):
                raise AssertionError("not reached")
    finally:
        may_end.set()
        thread.join()
