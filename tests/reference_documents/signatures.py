"""The signatures that the documents state, and where ours differ from them on purpose.

A signature of ours fits if it has the documented parameters in their order, with their defaults; more of
them may follow that need not be given. A parameter that must be given there may have a default here.
"""

import ast
import inspect

import replicax.tf as tf

V1 = tf.compat.v1.distribute

# A parameter whose place has another name in a later document: ours has that there, and takes both names.
RENAMED = {"experimental_hints": "options"}

# Signatures that ours do not have, and why.
LEFT_OUT = {
    (tf.distribute.Strategy, "__init__"): (
        "a strategy is made by its own class; `extended` is a view of it, not what it is made of"
    ),
}

# The blocks of document 001 that are nothing but a signature, and what they are the signature of.
BLOCKS = {
    f"001_{name.strip('_')}_1": (V1.StrategyExtended, name)
    for name in (
        "__init__",
        "batch_reduce_to",
        "broadcast_to",
        "call_for_each_replica",
        "colocate_vars_with",
        "experimental_make_numpy_dataset",
        "experimental_run_steps_on_iterator",
        "non_slot_devices",
        "read_var",
        "reduce_to",
        "update",
        "update_non_slot",
        "value_container",
        "variable_created_in_scope",
    )
}

_EXTENDED = """
    __init__(container_strategy)
    batch_reduce_to(reduce_op, value_destination_pairs, {options}=None)
    broadcast_to(tensor, destinations)
    call_for_each_replica(fn, args=(), kwargs=None)
    colocate_vars_with(colocate_with_variable)
    experimental_make_numpy_dataset(numpy_input, session=None)
    experimental_run_steps_on_iterator(fn, iterator, iterations=1, initial_loop_values=None)
    read_var(v)
    reduce_to(reduce_op, value, destinations, {options}=None)
    update(var, fn, args=(), kwargs=None, group=True)
    value_container(value)
    variable_created_in_scope(v)
"""

# Every signature that a document states outside of its blocks: document, class, signatures.
STATED = {
    "000": (
        V1.StrategyExtended,
        _EXTENDED.format(options="options")
        + """
    non_slot_devices(var_list)
    update_non_slot(colocate_with, fn, args=(), kwargs=None, group=True)
""",
    ),
    "001": (V1.StrategyExtended, ""),
    "002": (V1.StrategyExtended, _EXTENDED.format(options="experimental_hints")),
    "003": (
        tf.distribute.Strategy,
        """
    __init__(extended)
    experimental_assign_to_logical_device(tensor, logical_device_id)
    experimental_distribute_dataset(dataset, options=None)
    experimental_distribute_datasets_from_function(dataset_fn, options=None)
    experimental_distribute_values_from_function(value_fn)
    experimental_local_results(value)
    experimental_make_numpy_dataset(numpy_input)
    experimental_replicate_to_logical_devices(tensor)
    experimental_split_to_logical_devices(tensor, partition_dimensions)
    reduce(reduce_op, value, axis)
    run(fn, args=(), kwargs=None, options=None)
    scope()
""",
    ),
    "004": (
        V1.MirroredStrategy,
        """
    __init__(devices=None, cross_device_ops=None)
    experimental_distribute_dataset(dataset)
    experimental_distribute_datasets_from_function(dataset_fn)
    experimental_local_results(value)
    experimental_make_numpy_dataset(numpy_input, session=None)
    experimental_run(fn, input_iterator=None)
    make_dataset_iterator(dataset)
    make_input_fn_iterator(input_fn, replication_mode=tf.distribute.InputReplicationMode.PER_WORKER)
    reduce(reduce_op, value, axis=None)
    run(fn, args=(), kwargs=None, options=None)
    scope()
    update_config_proto(config_proto)
""",
    ),
}


def stated():
    """(document, class, signature) of everything in `STATED`."""
    return [
        (document, owner, line.strip())
        for document, (owner, lines) in STATED.items()
        for line in lines.splitlines()
        if line.strip()
    ]


def method_of(signature):
    """The name in a signature; that of a class is its `__init__`."""
    name = signature.strip().partition("(")[0]
    return "__init__" if "." in name else name


def normal(signature):
    """A signature as (method, parameters with the source of their defaults)."""
    name, _, rest = signature.strip().partition("(")
    arguments = ast.parse(f"def documented({rest}: pass").body[0].args
    names = [argument.arg for argument in arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + [
        ast.unparse(d) for d in arguments.defaults
    ]
    return "__init__" if "." in name else name, tuple(zip(names, defaults, strict=True))


def difference(owner_and_method, signature):
    """How our method differs from a documented signature, in words; None if it fits."""
    owner, method = owner_and_method
    if owner_and_method in LEFT_OUT:
        return None
    documented = normal(signature)[1]
    ours = list(inspect.signature(getattr(owner, method)).parameters.values())[1:]
    named = [parameter.name for parameter in ours]
    for i, (name, default) in enumerate(documented):
        if name not in named:
            return f"{owner.__name__}.{method} has no parameter {name!r}: {named}"
        if named[i] != RENAMED.get(name, name):
            return f"{owner.__name__}.{method} has {name!r} at another place: {named}"
        got = ours[i].default
        if default is not None and got != eval(default, {"tf": tf}):
            return f"{owner.__name__}.{method} has {name}={got!r}, documented: {default}"
    for parameter in ours[len(documented) :]:
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            return f"{owner.__name__}.{method} demands {parameter.name!r} as well"
    return None
