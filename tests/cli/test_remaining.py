"""The remaining time, and the line that shows it."""

import io

from replicax.cli import _doctor
from replicax.cli._check import Finding, Result
from replicax.cli._progress import Progress
from replicax.cli._remaining import StatusLine, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_status_line_is_written_over_on_a_terminal_and_nowhere_else():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = StatusLine(stream)
        line.show("working")
        line.clear()
    assert terminal.getvalue() == "\r\033[Kworking\r\033[K"
    assert file.getvalue() == ""


def test_durations_have_a_unit_that_suits_them():
    assert [duration(seconds) for seconds in (0.2, 89, 91, 5399, 5401, 90_000)] == [
        "0 s",
        "89 s",
        "2 min",
        "1 h 30 min",
        "1 h 30 min",
        "25 h 0 min",
    ]


def test_the_doctor_shows_which_check_runs(monkeypatch):
    def examine(checks):
        for check in checks:
            yield Result(check.name, Finding("pass", "well"), 0.0)

    terminal = Terminal()
    monkeypatch.setattr(_doctor, "examine", examine)
    monkeypatch.setattr(_doctor.sys, "stderr", terminal)
    assert _doctor.run_doctor(only=["all-reduce"]) == 0
    shown = terminal.getvalue()
    assert "all-reduce float32 (check 1 of" in shown
    assert "(check 2 of" in shown and "left)" in shown
    assert shown.endswith("\r\033[K")


def test_the_demo_says_how_long_it_still_takes():
    progress = Progress(console=None, num_steps=10, batch_size=64)
    progress.history.losses, progress.history.accuracies = [1.0], [0.5]
    progress._rate = 64.0
    assert progress._describe(4, 0.0).endswith("6 s left")
    assert "left" not in progress._describe(10, 0.0)
