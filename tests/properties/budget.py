"""How many examples to try: few in the ordinary run, many with `--hypothesis-profile=explore`."""

from hypothesis import HealthCheck, settings

_ORDINARY = 100


def examples(count: int) -> settings:
    """`count` examples, or as many as the profile asks for if it asks for more than the ordinary one."""
    wanted = settings().max_examples
    return settings(
        max_examples=count if wanted <= _ORDINARY else wanted,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
