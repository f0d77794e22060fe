"""The digest of a worker's collectives: equal for equal programs, whenever they report."""

from replicax.cluster import Collective, CollectiveLog
from replicax.cluster._progress import Progress

STEP, EVALUATE = Collective("step", "float32[2]", "a.py:1"), Collective("evaluate", "float32[2]", "a.py:2")


def run(collectives, *, report_every):
    """What a worker reports at the end if it reports now and then."""
    log, reported = CollectiveLog(), []
    progress = Progress(log)
    for number, collective in enumerate(collectives, 1):
        log.record(collective)
        if number % report_every == 0:
            reported = progress.report()
    return {seq: (fingerprint, digest) for seq, fingerprint, _, _, digest in reported}


def test_workers_that_report_at_different_moments_have_collectives_in_common():
    one, other = run([STEP] * 700, report_every=250), run([STEP] * 700, report_every=233)
    common = one.keys() & other.keys()
    assert len(common) >= 5
    assert all(one[seq] == other[seq] for seq in common)


def test_a_difference_long_ago_shows_in_the_digest():
    program = [STEP] * 600
    one, other = (run([*first, *program], report_every=100) for first in ([STEP], [EVALUATE]))
    common = one.keys() & other.keys()
    assert common and all(one[seq][0] == other[seq][0] and one[seq][1] != other[seq][1] for seq in common)


def test_collectives_that_the_log_has_forgotten_leave_no_digest():
    reported = run([STEP] * 4000, report_every=2000)
    assert reported and all(digest is None for _, digest in reported.values())
