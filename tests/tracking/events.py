"""Reading the files that are written for TensorBoard."""

from tensorboardX.proto.event_pb2 import Event


def values_in(file):
    """The values of a file with their steps. A record is a length, a checksum, an event, a checksum."""
    content = file.read_bytes()
    while content:
        length = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            yield event.step, value


def points(file):
    """The scalars of a file."""
    return [(value.tag, step, value.simple_value) for step, value in values_in(file)]
