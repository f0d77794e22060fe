"""How many examples to try: few in the ordinary run, many with `--hypothesis-profile=explore`."""

from hypothesis import HealthCheck, Phase, settings

_ORDINARY = 100
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(count: int) -> settings:
    """`count` examples, or as many as the profile asks for if that is more than the ordinary number.

    The ordinary run reports a failure without shrinking it, because every shrunk example compiles again.
    """
    wanted = settings().max_examples
    if wanted > _ORDINARY:
        return settings(max_examples=wanted, suppress_health_check=_SLOW_IS_FINE)
    return settings(
        max_examples=count,
        suppress_health_check=_SLOW_IS_FINE,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        report_multiple_bugs=False,
    )
