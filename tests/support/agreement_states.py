"""The states of data/agreement_states.yaml, which says what each table has.

A state is (exported cells, steps, the expression that a job computes), with the verdict where a table has several.
A step is the text of a scratch cell, or ("edit", cell, its new text, which does not run), ("editrun", ...),
("run", cell), ("del", cell), ("insert", before which cell, its text) or ("move", cell, to where).
"""

from pathlib import Path

import yaml

WORDS = ("edit", "editrun", "run", "del", "insert", "move")
_TABLES = yaml.safe_load(
    Path(__file__).with_name("data").joinpath("agreement_states.yaml").read_text(encoding="utf-8")
)


def _step(step: str | dict) -> str | tuple:
    """One step, as the tests take it."""
    if isinstance(step, str):
        return step
    word, *more = step
    assert word in WORDS and set(more) <= {"text", "to"}, step
    return word, *step.values()


def _state(state: dict) -> tuple:
    """One state, as the tests take it."""
    assert set(state) <= {"cells", "then", "job", "verdict"}, state
    steps = [_step(step) for step in state.get("then", ())]
    return state["cells"], steps, state["job"], *filter(None, [state.get("verdict")])


def _table(name: str) -> dict[str, tuple]:
    """A table of states by their names."""
    return {key: _state(state) for key, state in _TABLES[name].items()}


DRIFT, SAME, WARN, PUBLIC, VOLATILE = map(_table, ("drift", "same", "warn", "public", "volatile"))
COURSE: dict[str, list[str]] = _TABLES["course"]
