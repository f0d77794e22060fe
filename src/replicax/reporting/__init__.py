"""Why a step is not faster: where its time goes, from a profile of some steps."""

from replicax.reporting._advice import Tip
from replicax.reporting._parts import Parts
from replicax.reporting._recorder import Recorder
from replicax.reporting._report import Compilation, OperationTime, Report
from replicax.reporting._take import make_report, report

__all__ = ["Compilation", "OperationTime", "Parts", "Recorder", "Report", "Tip", "make_report", "report"]
