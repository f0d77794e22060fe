"""Calling functions in threads of their own."""

import threading

__all__ = ["in_threads"]


def in_threads(*functions):
    """Call each function in a thread of its own; return their results, or raise what one raised."""
    results, errors = {}, []

    def call(i, function):
        try:
            results[i] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=item) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(functions))]
