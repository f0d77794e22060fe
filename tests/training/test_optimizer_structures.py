"""`apply_gradients(gradients, variables)`: two structures, paired by path, which optax sees as they are."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import VariableError

from .helpers import close, each, mirrored, parts, rid


class Point(collections.namedtuple("Point", ["y", "x"])):
    """Fields that are not in alphabetical order."""


def shapes():
    """Keys in an order that JAX changes, and two leaves of one shape."""
    return {"w": (2, 3), "b": (3,), "a": (3,)}


def arrays():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes().items()}


def loss_of(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) * params["a"]) / 8


X = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)


def with_optax(transformation, steps=3):
    params = jax.tree.map(jnp.asarray, arrays())
    state = transformation.init(params)
    for _ in range(steps):
        updates, state = transformation.update(jax.grad(loss_of)(params, X), state, params)
        params = optax.apply_updates(params, updates)
    return params


def trained(strategy, mode, transformation, steps=3, build=False):
    with strategy.scope():
        params = {name: rx.Variable(value, name=name) for name, value in arrays().items()}
        optimizer = rx.Optimizer(transformation)
    if build:
        optimizer.build(params)

    def replica_step(x):
        _, gradients = jax.value_and_grad(loss_of)(rx.read_values(params), x)  # whose keys are sorted
        optimizer.apply_gradients(gradients, params)

    step = mode(lambda x: strategy.run(replica_step, args=(x,)))
    (batch,) = strategy.distribute_dataset([X])
    for _ in range(steps):
        step(batch)
    return params, optimizer


def by_name(path, _):
    return "frozen" if path[-1].key == "b" else "trained"


BY_NAME = {
    "adam": lambda: optax.adam(0.05),
    "mask": lambda: optax.chain(
        optax.masked(optax.add_decayed_weights(0.3), {"w": True, "b": False, "a": True}), optax.sgd(0.1)
    ),
    "labels": lambda: optax.multi_transform(
        {"fast": optax.sgd(0.1), "slow": optax.adam(0.01)}, {"w": "fast", "b": "slow", "a": "slow"}
    ),
    "labels_by_path": lambda: optax.multi_transform(
        {"frozen": optax.set_to_zero(), "trained": optax.sgd(0.1, momentum=0.9)},
        lambda params: jax.tree_util.tree_map_with_path(by_name, params),
    ),
    "copies": lambda: optax.contrib.schedule_free_sgd(0.1),
}


@pytest.mark.parametrize("build", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_transformations_by_name_do_what_plain_optax_does(name, build, two, mode):
    params, optimizer = trained(two, mode, BY_NAME[name](), build=build)
    expected = with_optax(BY_NAME[name]())
    for key, variable in params.items():
        close(variable.value, expected[key], 2e-5)
    assert optimizer.iterations.value == 3


def test_gradients_of_a_dict_reach_the_variables_of_their_keys(strategy, mode):
    """`zip(gradients.values(), params.values())` would give `b` the gradient of `a`."""
    params, _ = trained(strategy, mode, optax.sgd(0.1))
    expected = with_optax(optax.sgd(0.1))
    for key, variable in params.items():
        close(variable.value, expected[key])


STRUCTURES = {
    "nested": lambda v: {"z": {"k": v(2.0), "b": v(1.0)}, "a": [v(3.0), (v(4.0), {"q": v(5.0)})]},
    "named": lambda v: Point(y=v(1.0), x={"w": v(2.0)}),
    "ordered": lambda v: collections.OrderedDict([("w", v(1.0)), ("b", v(2.0))]),
    "list": lambda v: [v(1.0), v(2.0)],
    "one": lambda v: v(1.0),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_of_any_depth(name, two, mode):
    seen = []

    def look(updates, state, params=None):
        seen.append((jax.tree.structure(updates), jax.tree.structure(params)))
        return jax.tree.map(lambda g: -g, updates), state

    with two.scope():
        variables = STRUCTURES[name](rx.Variable)
        optimizer = rx.Optimizer(optax.GradientTransformation(lambda params: optax.EmptyState(), look))
    mode(lambda: two.run(lambda: optimizer.apply_gradients(rx.read_values(variables), variables)))()
    plain = jax.tree.structure(STRUCTURES[name](lambda x: x))
    assert set(seen) == {(plain, plain)}
    for variable, value in zip(
        jax.tree.leaves(rx.read_values(variables)),
        jax.tree.leaves(STRUCTURES[name](lambda x: x)),
        strict=True,
    ):
        close(variable, np.float32(value) - 2 * np.float32(value))


def test_lists_and_tuples_pair_by_position():
    a, b = rx.Variable(1.0), rx.Variable(2.0)
    rx.Optimizer(optax.sgd(1.0)).apply_gradients((np.float32(10.0), np.float32(20.0)), [a, b])
    close(rx.read_values([a, b]), [-9.0, -18.0])


def test_rows_of_a_table_in_a_structure(two, mode):
    with two.scope():
        params = {"table": rx.Variable(jnp.zeros((3, 2))), "b": rx.Variable(0.0)}
        optimizer = rx.Optimizer(optax.sgd(1.0))

    def replica_fn():
        rows = rx.IndexedSlices(-jnp.ones((1, 2)), rid()[None], (3, 2))
        optimizer.apply_gradients({"b": jnp.float32(1.0), "table": rows}, params)

    mode(lambda: two.run(replica_fn))()
    close(params["table"].value, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    close(params["b"].value, -2.0)


def test_per_replica_gradients_in_a_structure(two, mode):
    with two.scope():
        params = {"w": rx.Variable(0.0), "b": rx.Variable(0.0)}
        optimizer = rx.Optimizer(optax.sgd(1.0))

    @mode
    def step():
        gradients = two.run(lambda: {"b": rid() + 1.0, "w": rid() * 10.0})
        optimizer.apply_gradients(gradients, params)

    step()
    close(params["w"].value, -10.0)
    close(params["b"].value, -3.0)


def test_pairs_after_building_from_a_structure(two, mode):
    """The optimizer knows each variable's place; the order of the pairs means nothing."""
    with two.scope():
        params = {"w": rx.Variable(1.0), "b": rx.Variable(1.0)}
        optimizer = rx.Optimizer(
            optax.multi_transform(
                {"on": optax.sgd(1.0), "off": optax.set_to_zero()}, {"w": "on", "b": "off"}
            )
        )
    optimizer.build(params)
    step = mode(lambda: two.run(lambda: optimizer.apply_gradients([(v.value, v) for v in params.values()])))
    step()
    close(params["w"].value, -1.0)
    close(params["b"].value, 1.0)


def test_minimize_takes_a_structure(two, mode):
    with two.scope():
        params = {"w": rx.Variable(4.0), "b": rx.Variable([2.0])}
        optimizer = rx.Optimizer(optax.sgd(0.5), reduce="MEAN")
    mode(
        lambda: two.run(
            lambda: optimizer.minimize(lambda: 0.5 * params["w"] ** 2 + jnp.sum(params["b"]), params)
        )
    )()
    close(params["w"].value, 2.0)
    close(params["b"].value, [1.5])


# Names of slots.


def names(transformation, variables):
    optimizer = rx.Optimizer(transformation)
    optimizer.build(variables)
    return [slot.name for slot in optimizer.slots]


def test_slots_of_a_structure_are_called_as_those_of_a_list():
    """So a checkpoint of one fits the other, and those of older versions both."""
    params = rx.create_variables(
        {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}, "scale": 1.0}
    )
    listed = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, rx.Variable))
    for transformation in (
        optax.adam(0.1),
        optax.chain(optax.clip(1.0), optax.sgd(optax.constant_schedule(0.1), momentum=0.9)),
        optax.inject_hyperparams(optax.adam)(0.1),
        optax.MultiSteps(optax.adam(0.1), 2),
    ):
        assert names(transformation, params) == names(transformation, listed)
    assert names(optax.adam(0.1), params)[:3] == [
        "optimizer/0/count:0",
        "optimizer/0/mu/dense/bias:0",
        "optimizer/0/mu/dense/kernel:0",
    ]


def test_slots_of_a_list_are_called_as_ever():
    w, b = rx.Variable(1.0, name="w"), rx.Variable(2.0, name="b")
    labels = optax.multi_transform({"x": optax.trace(0.9), "y": optax.adam(0.1)}, ["x", "y"])
    assert names(labels, [w, b]) == [
        "optimizer/inner_states/x/inner_state/trace/w:0",
        "optimizer/inner_states/y/inner_state/0/count:0",
        "optimizer/inner_states/y/inner_state/0/mu/b:0",
        "optimizer/inner_states/y/inner_state/0/nu/b:0",
    ]


def test_every_slot_has_a_place_of_its_own_in_a_checkpoint():
    """A variable called like another's path."""

    def init(params):
        return {"s": {"x": {"w": jnp.zeros(())}, "w": jnp.zeros(())}}

    transformation = optax.GradientTransformation(init, lambda g, s, p=None: (g, s))
    optimizer = rx.Optimizer(transformation)
    optimizer.build({"x": {"w": rx.Variable(0.0, name="w")}})
    assert len(optimizer.checkpoint_items()["slots"]) == len(optimizer.slots) == 2


def test_a_checkpoint_of_a_list_is_restored_into_a_structure(tmp_path):
    def training(as_list):
        params = {"w": rx.Variable([1.0, 2.0], name="w"), "b": rx.Variable(3.0, name="b")}
        optimizer = rx.Optimizer(optax.adam(0.1))

        def step():
            gradients = rx.read_values(params)
            if as_list:
                pairs = [(gradients[key], params[key]) for key in params]
                optimizer.apply_gradients(pairs)
            else:
                optimizer.apply_gradients(gradients, params)

        return params, optimizer, step

    params, optimizer, step = training(as_list=True)
    step()
    path = rx.Checkpoint(params=params, optimizer=optimizer).save(tmp_path)
    step()
    new_params, new_optimizer, new_step = training(as_list=False)
    rx.Checkpoint(params=new_params, optimizer=new_optimizer).restore(path)
    new_step()
    for key, variable in params.items():
        np.testing.assert_array_equal(new_params[key].value, variable.value)


# The norm of the reduced gradients.


def test_the_norm_of_the_reduced_gradients(strategy, mode):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        params = {"w": rx.Variable([0.0, 0.0]), "b": rx.Variable(0.0)}
        optimizer = rx.Optimizer(optax.sgd(1.0))

    def replica_fn():
        gradients = {"w": jnp.array([3.0, 0.0]) * (rid() + 1.0), "b": 4.0 * (rid() + 1.0)}
        return optimizer.apply_gradients(gradients, params, return_norm=True)

    norm = mode(lambda: strategy.run(replica_fn))()
    for part in parts(strategy, norm):
        close(part, np.float32(5.0) * n * (n + 1) / 2)


def test_the_norm_is_that_of_the_gradients_before_they_are_clipped_and_scaled(two, mode):
    with two.scope():
        w = rx.Variable(jnp.ones(4, jnp.float16))
        optimizer = rx.Optimizer(
            optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
            reduce="MEAN",
            loss_scale=rx.DynamicLossScale(2.0**12),
        )

    def replica_fn():
        # The square of a scaled gradient would not fit into float16.
        return optimizer.minimize(lambda: 3.0 * jnp.sum(w.value), [w], return_norm=True)

    loss, norm = mode(lambda: two.run(replica_fn))()
    close(parts(two, loss)[0], np.asarray(12.0, parts(two, loss)[0].dtype))
    close(parts(two, norm)[1], np.float32(6.0))


def test_the_norm_in_the_cross_replica_context_is_a_plain_array(two, mode):
    with two.scope():
        w = rx.Variable([0.0, 0.0])
        optimizer = rx.Optimizer(optax.sgd(1.0))
    gradient = each(two, lambda i: np.float32([3.0, 4.0]))
    norm = mode(lambda g: optimizer.apply_gradients(g, w, return_norm=True))(gradient)
    assert isinstance(norm, jax.Array)
    close(norm, np.float32(10.0))


def test_the_norm_of_an_update_that_is_left_out_is_not_finite():
    w = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.sgd(1.0), loss_scale=rx.DynamicLossScale(4.0))
    assert np.isinf(optimizer.apply_gradients([(np.float32(np.inf), w)], return_norm=True))
    close(w.value, 1.0)


def test_nothing_is_returned_unless_asked_for(two, mode):
    with two.scope():
        w = rx.Variable(1.0)
        optimizer = rx.Optimizer(optax.sgd(1.0))
    assert mode(lambda: two.run(lambda: optimizer.apply_gradients([(w.value, w)])))() is None


# Realistic sizes.


def test_two_hundred_variables_some_of_a_megabyte(mode):
    """One place in the structure per variable, none exchanged with another of its shape."""
    strategy = mirrored(2)
    rng = np.random.default_rng(0)
    layers = {
        f"layer_{i}": {"kernel": rng.normal(size=(512, 512) if i < 8 else (8, 8)).astype(np.float32)}
        | {"bias": rng.normal(size=(8,)).astype(np.float32)}
        for i in range(100)
    }
    with strategy.scope():
        params = rx.create_variables(layers)
        optimizer = rx.Optimizer(
            optax.multi_transform(
                {"kernel": optax.sgd(0.5), "bias": optax.sgd(0.25)},
                lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key, tree),
            )
        )

    def replica_fn():
        return optimizer.apply_gradients(rx.read_values(params), params, return_norm=True)

    norm = mode(lambda: strategy.run(replica_fn))()
    for name, layer in params.items():
        close(layer["kernel"].value, np.zeros_like(layers[name]["kernel"]))
        close(layer["bias"].value, 0.5 * layers[name]["bias"])
    squares = sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(layers))
    close(parts(strategy, norm)[0], np.float32(2 * np.sqrt(squares)))


# Errors.


def two_variables():
    return {"w": rx.Variable([1.0, 2.0, 3.0], name="w"), "b": rx.Variable(1.0, name="b")}


def sgd():
    return rx.Optimizer(optax.sgd(0.1))


def test_structures_that_do_not_match_are_refused_by_path():
    params = {"dense": two_variables()}
    one = jnp.ones(3)
    with pytest.raises(VariableError, match=r"no gradient for dense/b.*no variable for dense/c"):
        sgd().apply_gradients({"dense": {"w": one, "c": one}}, params)
    with pytest.raises(VariableError, match=r"no gradient for dense/b, dense/w.*no variable for 0, 1"):
        sgd().apply_gradients([one, one], params)


def test_a_gradient_of_another_shape_is_refused_with_path_and_advice(two, mode):
    with two.scope():
        params = {"dense": two_variables()}
    gradients = {"dense": {"w": jnp.ones(()), "b": jnp.ones(3)}}
    step = mode(lambda: two.run(lambda: sgd().apply_gradients(gradients, params)))
    with pytest.raises(VariableError) as caught:
        step()
    assert str(caught.value).splitlines()[:2] == [
        "The gradient of 'b:0' (at dense/b) has shape (3,), not ().",
        "The gradient of 'w:0' (at dense/w) has shape (), not (3,).",
    ]
    assert "rx.value_and_grad" in str(caught.value)


def test_pairs_of_disagreeing_shapes_say_how_to_pair_by_name():
    params = two_variables()
    gradients = jax.grad(lambda p: jnp.sum(p["w"]) * p["b"])(rx.read_values(params))
    with pytest.raises(VariableError, match=r"apply_gradients\(gradients, variables\)"):
        sgd().apply_gradients(zip(gradients.values(), params.values(), strict=True))


def test_swapped_structures_are_noticed():
    params = two_variables()
    with pytest.raises(VariableError, match=r"gradients first and the variables second"):
        sgd().apply_gradients(params, rx.read_values(params))


def test_gradients_without_variables_are_noticed():
    params = two_variables()
    with pytest.raises(VariableError, match=r"apply_gradients\(gradients, variables\)"):
        sgd().apply_gradients(rx.read_values(params))


def test_a_gradient_that_is_none_is_named_in_a_structure():
    params = two_variables()
    with pytest.raises(VariableError, match="gradients of b:0 are None"):
        sgd().apply_gradients({"w": jnp.ones(3), "b": None}, params)


def test_a_shared_variable_is_named_in_a_structure():
    w = rx.Variable(1.0, name="tied")
    with pytest.raises(VariableError, match="tied:0 more than once"):
        sgd().apply_gradients({"a": jnp.float32(1), "b": jnp.float32(1)}, {"a": w, "b": w})


@pytest.mark.parametrize("method", ["init", "update"])
def test_the_methods_of_optax_say_what_to_write(method):
    optimizer = sgd()
    assert not hasattr(optimizer, method)
    with pytest.raises(AttributeError, match=r"optimizer\.build\(variables\).*apply_gradients"):
        getattr(optimizer, method)
    with pytest.raises(AttributeError, match="no attribute 'learning_rate'"):
        _ = optimizer.learning_rate


@pytest.mark.parametrize("name", ["mask", "labels"])
def test_names_with_pairs_say_what_to_write(name, mode):
    params = {key: rx.Variable(value) for key, value in arrays().items()}
    optimizer = rx.Optimizer(BY_NAME[name]())
    with pytest.raises(ValueError) as caught:
        mode(lambda: optimizer.apply_gradients([(v.value, v) for v in params.values()]))()
    assert "apply_gradients(gradients, variables)" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError) as caught:
        optimizer.build(list(params.values()))
    assert "optimizer.build(variables)" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("make", [list, dict, lambda: 1.0, lambda: {"w": jnp.ones(2)}])
def test_anything_but_variables_is_refused(make):
    for call in (lambda v: sgd().build(v), lambda v: sgd().minimize(lambda: 0.0, v)):
        with pytest.raises(VariableError, match="takes variables"):
            call(make())
