"""`rx.report`: where the time of a step goes, from a profile of a few steps.

A `Recorder` profiles a running program; `_parts.py` splits each device's time into computation, collectives
and several kinds of waiting; `_advice.py` turns the largest parts into tips.
"""

from replicax.reporting._advice import Tip
from replicax.reporting._parts import Parts
from replicax.reporting._recorder import Recorder
from replicax.reporting._report import Compilation, OperationTime, Report
from replicax.reporting._take import make_report, report

__all__ = ["Compilation", "OperationTime", "Parts", "Recorder", "Report", "Tip", "make_report", "report"]
