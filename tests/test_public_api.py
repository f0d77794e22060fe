"""What users can import and call: complete, documented, each with an example that runs as a doctest."""

import inspect
import pkgutil
import subprocess
import sys

import pytest

import replicax as rx

# Methods whose name and one line say it all; everything else shows an example.
SELF_EXPLANATORY = {
    rx.Strategy: {
        "cluster_resolver",
        "communicator",
        "create_variable",
        "extended",
        "find_shards",
        "mesh",
        "parameter_device",
        "places_values",
        "replica_ids",
        "servers",
        "shard",
    },
    rx.StrategyExtended: {
        "experimental_between_graph",
        "experimental_require_static_shapes",
        "experimental_should_init",
        "parameter_devices",
        "should_checkpoint",
        "should_save_summary",
        "worker_devices",
    },
    rx.ReplicaContext: {
        "create",
        "devices",
        "local_index",
        "num_replicas_in_sync",
        "replica_id_in_sync_group",
        "strategy",
    },
    rx.Variable: {
        "aggregation",
        "constraint",
        "copies",
        "device",
        "distribute_strategy",
        "dtype",
        "held",
        "is_distributed",
        "is_initialized",
        "layout",
        "made_at",
        "mesh",
        "name",
        "ndim",
        "numpy",
        "partition",
        "ref",
        "scatter_div",
        "scatter_max",
        "scatter_nd_max",
        "scatter_nd_min",
        "scatter_nd_sub",
        "scatter_nd_update",
        "scatter_min",
        "scatter_mul",
        "scatter_sub",
        "scatter_update",
        "select",
        "shape",
        "size",
        "synchronization",
        "trainable",
        "value",
        "values",
    },
}


@pytest.mark.parametrize("name", rx.__all__)
def test_exported_names_are_documented_with_an_example(name):
    symbol = getattr(rx, name)
    documentation = inspect.getdoc(symbol) or ""
    assert documentation, f"rx.{name} has no docstring"
    assert ">>>" in documentation, f"rx.{name} has no example"


def test_exported_names_are_sorted_and_there():
    assert sorted(rx.__all__) == rx.__all__
    public = {
        name for name, value in vars(rx).items() if not (name.startswith("_") or inspect.ismodule(value))
    }
    assert public == set(rx.__all__)


def test_no_exported_name_hides_a_subpackage():
    # `import replicax.values as values` binds the attribute `values` of the package.
    subpackages = {module.name for module in pkgutil.iter_modules(rx.__path__)}
    assert subpackages & set(rx.__all__) == set()


@pytest.mark.parametrize("owner", SELF_EXPLANATORY, ids=lambda cls: cls.__name__)
def test_methods_are_documented_with_an_example(owner):
    for name, member in inspect.getmembers(owner):
        if name.startswith("_") or not (callable(member) or isinstance(member, property)):
            continue
        documentation = inspect.getdoc(member) or ""
        assert documentation, f"{owner.__name__}.{name} has no docstring"
        if name not in SELF_EXPLANATORY[owner]:
            assert ">>>" in documentation, f"{owner.__name__}.{name} has no example"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("experimental_run_v2", "run"),
        ("experimental_local_results", "local_results"),
        ("experimental_distribute_values_from_function", "distribute_values_from_function"),
    ],
)
def test_aliases_of_strategy(alias, name):
    assert getattr(rx.Strategy, alias) is getattr(rx.Strategy, name)


def test_importing_replicax_imports_jax_numpy_and_greenlet_only_and_starts_no_backend():
    program = """
import sys, jax, numpy, greenlet
before = set(sys.modules)
import replicax
from replicax._jax import backends_are_initialized
assert not backends_are_initialized()
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(name for name in new if name not in sys.stdlib_module_names))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[0] in ("['jax', 'replicax']", "['replicax']")
