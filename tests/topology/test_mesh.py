"""Meshes: one object for each arrangement of devices."""

import copy
import pickle

import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.topology import ReplicaMesh, find_device


def test_there_is_one_mesh_for_each_arrangement():
    devices = [find_device("CPU:0"), find_device("CPU:1")]
    mesh = ReplicaMesh(devices)
    assert ReplicaMesh(devices) is mesh is copy.copy(mesh) is copy.deepcopy(mesh)
    assert ReplicaMesh(devices[::-1]) is not mesh


@pytest.mark.parametrize("what", ["mesh", "per replica", "mirrored", "communicator"])
def test_what_is_placed_on_devices_can_not_be_pickled(what):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    values = strategy.run(lambda: jnp.ones(2) + rx.get_replica_context().replica_id_in_sync_group)
    thing = {
        "mesh": strategy.mesh,
        "per replica": values,
        "mirrored": strategy.extended.reduce_to("SUM", values, values),
        "communicator": strategy.communicator,
    }[what]
    with pytest.raises(TypeError, match=r"on CPU:0, CPU:1 can't be pickled.*np\.asarray.*local_results"):
        pickle.dumps(thing)
