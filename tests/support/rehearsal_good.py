"""Jobs that train well: a rehearsal must refuse none of them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Good:
    """A job that is fine."""

    name: str
    files: dict[str, str]
    what: str = "train.py"
    args: tuple[str, ...] = ()
    params: dict = field(default_factory=dict)


GOOD = ()
