"""Which of many combinations `make test` runs; the others are slow, for `make test-all`."""

from itertools import product

import pytest


def pairwise(*factors) -> list:
    """Every combination of the factors' values; half of them is slow, so that with three factors each pair of
    values still meets in one that is not.
    """
    numbered = product(*(list(enumerate(values)) for values in factors))
    return [
        _case([value for _, value in chosen], sum(number for number, _ in chosen) % 2 == 0)
        for chosen in numbered
    ]


def first_of_all(kept: list, rest: list) -> list:
    """Cases; those after the first list are slow."""
    return [_case(_words(case), True) for case in kept] + [_case(_words(case), False) for case in rest]


def _words(case) -> list:
    return list(case) if isinstance(case, tuple) else [case]


def _case(values: list, quick: bool):
    return pytest.param(*values, marks=[] if quick else [pytest.mark.slow])
