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


def first_of_all(kept: list, rest: list) -> list:
    """Cases; those after the first list are slow."""
    return [_case(_words(case), True) for case in kept] + [_case(_words(case), False) for case in rest]


def _words(case) -> list:
    return list(case) if isinstance(case, tuple) else [case]


def _case(values: list, quick: bool):
    return pytest.param(*values, marks=[] if quick else [pytest.mark.slow])
