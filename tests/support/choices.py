"""Which of many combinations `make test` runs, which come with `make test-all`, and which with LONG=1 only."""

from itertools import product

import pytest


def pairwise(*factors) -> list:
    """Every combination of the factors' values; half of them run with LONG=1 only: with three factors each pair
    of values still meets in one of the others.
    """
    numbered = product(*(list(enumerate(values)) for values in factors))
    return [
        pytest.param(
            *(value for _, value in chosen),
            marks=[pytest.mark.long] if sum(number for number, _ in chosen) % 2 else [],
        )
        for chosen in numbered
    ]


def first_of_all(kept: list, rest: list, later: list = ()) -> list:
    """Cases; those of the second list run with LONG=1 only, those of the third with `make test-all`."""
    marked = ((kept, []), (later, [pytest.mark.slow]), (rest, [pytest.mark.long]))
    return [pytest.param(*_words(case), marks=[*marks]) for cases, marks in marked for case in cases]


def _words(case) -> list:
    return list(case) if isinstance(case, tuple) else [case]
