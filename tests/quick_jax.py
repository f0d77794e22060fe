"""Shortcuts in JAX that make the tests faster and change no result.

The tests compile thousands of small programs, for which JAX's fixed costs are most of the time:

- A new MLIR context for every program takes as long as everything else in lowering it. Here the programs of
  a thread share one, which is replaced now and then because a context never frees its constants.
- The persistent compilation cache has an entry for each device that runs a program. Here a program is
  compiled once for all sets of CPU devices, as JAX does on GPUs.
- Every exception that leaves JAX has the file of each frame of the stack compared with JAX's own. Here the
  comparisons are remembered.

`pytest --plain-jax` leaves JAX as it is. So does a version of JAX that no longer has these functions.
"""

import functools
import threading

from jax._src import cache_key, traceback_util
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

__all__ = ["install"]

PROGRAMS_PER_CONTEXT = 200


def install():
    for module, name, faster in (
        (mlir, "make_ir_context", _share_contexts),
        (cache_key, "_hash_serialized_compile_options", _ignore_devices),
        (traceback_util, "_path_starts_with", functools.cache),
    ):
        if hasattr(module, name):
            setattr(module, name, faster(getattr(module, name)))


def _share_contexts(make_context):
    class Shared(threading.local):
        context = None
        num_programs = 0

    shared = Shared()

    def make_shared_context():
        if _is_current(shared.context):
            # A program that is compiled while another is lowered would become part of it.
            return make_context()
        if shared.num_programs % PROGRAMS_PER_CONTEXT == 0:
            shared.context = make_context()
        shared.num_programs += 1
        return shared.context

    return make_shared_context


def _is_current(context):
    try:
        return context is not None and ir.Context.current == context
    except ValueError:  # there is none
        return False


def _ignore_devices(hash_options):
    def hash_without_devices(hash_object, options, strip_device_assignment=True):
        hash_options(hash_object, options, strip_device_assignment=True)

    return hash_without_devices
