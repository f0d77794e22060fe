"""Starting a node of the Ray cluster: what happens if it can't start. No test here starts Ray."""

import logging
import shutil
import socket

import pytest

pytest.importorskip("ray")

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterTimeoutError
from replicax.launch import Guard, free_ports
from replicax.parameter_server import _nodes

TASKS = [("chief", 0)]


@pytest.fixture
def spec():
    (port,) = free_ports(1)
    return ClusterSpec({"chief": [f"localhost:{port}"], "ps": ["localhost:1"], "worker": ["localhost:2"]})


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where nodes keep their files."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path


def play_ray(monkeypatch, program):
    monkeypatch.setattr(_nodes, "START_NODE", program)


def test_a_node_that_fails_is_started_again(folder, spec, monkeypatch, caplog):
    """The second time, it writes the file that Ray writes when it runs."""
    count = folder / "count"
    play_ray(
        monkeypatch,
        f"""
import pathlib, sys, time
count = pathlib.Path({str(count)!r})
if not count.exists():
    count.touch()
    raise SystemExit("the first time is always hard")
(temp_dir,) = (x.removeprefix("--temp-dir=") for x in sys.argv if x.startswith("--temp-dir="))
(pathlib.Path(temp_dir) / "ray_current_cluster").touch()
time.sleep(60)
""",
    )
    with Guard() as guard, caplog.at_level(logging.WARNING, "replicax"):
        node = _nodes.start_node(spec, TASKS, guard, seconds=30)
        assert node.has_started and not node.has_ended
        node.end()
    (message,) = caplog.messages
    assert message.startswith("The Ray node of chief 0 did not start: the first time is always hard (see")


def test_a_node_that_keeps_failing_is_an_error_with_its_reason(folder, spec, monkeypatch):
    play_ray(monkeypatch, "raise SystemExit('no such luck')")
    with Guard() as guard, pytest.raises(ClusterTimeoutError, match=r"no such luck .*Gave up after 0\.5 s"):
        _nodes.start_node(spec, TASKS, guard, seconds=0.5)
    assert any("no such luck" in log.read_text() for log in folder.glob("replicax_chief0_*/node.log"))


def test_an_address_that_is_in_use(spec, monkeypatch, caplog):
    play_ray(monkeypatch, "raise SystemExit('started in spite of that')")
    port = int(spec.task_address("chief", 0).rpartition(":")[2])
    refusal = pytest.raises(ClusterTimeoutError, match=r"another program has listened at localhost:\d+, ")
    with Guard() as guard, socket.create_server(("127.0.0.1", port)), refusal:
        _nodes.start_node(spec, TASKS, guard, seconds=0.5)
    (message,) = caplog.messages
    assert message == f"Another program listens at localhost:{port}. Waiting until it has ended."


def test_nodes_have_folders_of_their_own(folder, spec, monkeypatch):
    play_ray(monkeypatch, "raise SystemExit")
    with Guard() as guard:
        nodes = [_nodes.Node(spec, [("worker", 0)], guard) for _ in range(2)]
        for node in nodes:
            node.wait()
            node.end()
    assert len({node.log.parent for node in nodes}) == 2
    for node in nodes:
        assert node.last_words() == "it printed nothing"
        shutil.rmtree(node.log.parent)
