import pytest

import replicax as rx
from replicax.errors import ReplicaxError


@pytest.mark.parametrize("value", ["SUM", "sum", "Sum", rx.ReduceOp.SUM])
def test_reduce_op_is_parsed_in_any_case(value):
    assert rx.ReduceOp.parse(value) is rx.ReduceOp.SUM


def test_reduce_op_has_tensorflows_values():
    assert {op.name: op.value for op in rx.ReduceOp} == {"SUM": "SUM", "MEAN": "MEAN"}
    assert rx.ReduceOp("MEAN") is rx.ReduceOp.MEAN


@pytest.mark.parametrize("name", ["MAX", "", "sums", "ReduceOp.SUM"])
def test_unknown_reduction_names_the_choices(name):
    with pytest.raises(ValueError, match=r'is not a valid ReduceOp.*"SUM" or "MEAN"') as caught:
        rx.ReduceOp.parse(name)
    assert repr(name) in str(caught.value)
    assert isinstance(caught.value, ReplicaxError)


@pytest.mark.parametrize("value", [rx.VariableAggregation.SUM, None, 1, b"SUM", rx.ReduceOp])
@pytest.mark.parametrize("caught_as", [TypeError, AssertionError, ReplicaxError])
def test_what_is_no_reduction_at_all_is_a_type_error(value, caught_as):
    with pytest.raises(caught_as, match='"SUM" or "MEAN"; got '):
        rx.ReduceOp.parse(value)


def test_variable_policies_have_tensorflows_values():
    assert {policy.name: policy.value for policy in rx.VariableSynchronization} == {
        "AUTO": 0,
        "NONE": 1,
        "ON_WRITE": 2,
        "ON_READ": 3,
    }
    assert {policy.name: policy.value for policy in rx.VariableAggregation} == {
        "NONE": 0,
        "SUM": 1,
        "MEAN": 2,
        "ONLY_FIRST_REPLICA": 3,
    }
