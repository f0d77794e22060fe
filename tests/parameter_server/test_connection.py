"""Which settings a cluster that Replicax starts gets. No test here starts Ray."""

import pytest

pytest.importorskip("ray")

from replicax.parameter_server import _connection


class RecordedRay:
    """Stands for the `ray` module; keeps the settings that it was started with."""

    def is_initialized(self):
        return False

    def init(self, address, *, _system_config, **options):
        assert address == "local"
        self.settings = _system_config


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = RecordedRay()
    monkeypatch.setattr(_connection, "library", lambda: ray)
    return ray


def test_tasks_run_at_normal_priority(ray, monkeypatch):
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    _connection.Connection(None, None, 1.0)
    assert ray.settings["worker_niceness"] == 0


def test_settings_in_the_environment_are_left_alone(ray, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "5")
    _connection.Connection(None, None, 1.0)
    assert "worker_niceness" not in ray.settings
    assert "max_direct_call_object_size" in ray.settings
