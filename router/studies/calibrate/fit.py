"""Least squares for laws of two or three terms that cannot be negative, with standard errors.

Separate because it is arithmetic and nothing else. Three unknowns need no library of linear algebra.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Row = Sequence[float]

_SINGULAR = 1e-10
"""Smallest pivot of a normal matrix whose columns have length 1. The cube of a rounding error is far below,
and columns that differ in the fifth digit are still told apart."""


class FitError(ValueError):
    """The samples cannot tell the terms apart; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A law `y = sum of coefficient · term`, as it was found.

    Attributes:
        coefficients: none is negative.
        errors: one standard error of each coefficient; None for a term that was left out because it came out
            negative, and for all when there are no more samples than terms.
        r_squared: share of the variance of y that the law explains, at most 1; None when y does not vary.
        mean_error: mean of |predicted / measured − 1|.
        samples: how many there were.
    """

    coefficients: tuple[float, ...]
    errors: tuple[float | None, ...]
    r_squared: float | None
    mean_error: float
    samples: int

    def predict(self, row: Row) -> float:
        """What the law says for these terms."""
        return sum(c * x for c, x in zip(self.coefficients, row, strict=True))


def fit(rows: Sequence[Row], values: Sequence[float]) -> Fit:
    """The non-negative coefficients with the least sum of squared relative residuals.

    Relative, because times from a millisecond to seconds are fitted together, and what disturbs them grows
    with them. Of at most three terms, all subsets are tried: the best one with no negative coefficient is the
    solution of the bounded problem (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23: at
    the solution the terms that are not zero are an unbounded least squares fit).

    Args:
        rows: the terms of each sample; a constant term is a column of ones.
        values: what was measured (positive).

    Raises:
        FitError: fewer samples than terms, a value that is not positive and finite, or terms that do not vary
            independently.
    """
    terms = _checked(rows, values)
    scaled = [[x / y for x in row] for row, y in zip(rows, values, strict=True)]
    if _solve(scaled, tuple(range(terms))) is None:
        raise FitError("the samples do not vary enough to tell the terms of the law apart")
    best: tuple[float, tuple[int, ...], _Solved] | None = None
    for size in range(terms, 0, -1):
        for kept in combinations(range(terms), size):
            solved = _solve(scaled, kept)
            if solved is None or min(solved.coefficients) < 0:
                continue
            loss = _loss(scaled, kept, solved.coefficients)
            # A subset never fits better than the whole, so only a real gain replaces the larger law.
            if best is None or loss < best[0] * (1 - 1e-9):
                best = (loss, kept, solved)
    if best is None:
        raise FitError("no law without negative terms fits the samples")
    return _fit_of(best, terms, rows, values)


@dataclass(frozen=True, slots=True)
class _Solved:
    coefficients: list[float]
    variances: list[float]
    """Diagonal of the inverse of the normal matrix."""


def _checked(rows: Sequence[Row], values: Sequence[float]) -> int:
    if len(rows) != len(values) or not rows:
        raise FitError(f"{len(rows)} rows of terms and {len(values)} values: there must be as many, and some")
    terms = len(rows[0])
    if len(rows) < terms:
        raise FitError(f"{len(rows)} samples are too few for a law of {terms} terms")
    if any(not (math.isfinite(value) and value > 0) for value in values):
        raise FitError("a measured time is not above zero")
    return terms


def _solve(rows: Sequence[Row], kept: tuple[int, ...]) -> _Solved | None:
    """Ordinary least squares of `sum = 1` over some columns; None when they depend on each other."""
    columns = [[row[i] for row in rows] for i in kept]
    lengths = [math.sqrt(math.fsum(x * x for x in column)) for column in columns]
    if min(lengths) == 0:
        return None
    unit = [[x / length for x in column] for column, length in zip(columns, lengths, strict=True)]
    normal = [[math.fsum(map(_product, a, b)) for b in unit] for a in unit]
    right = [math.fsum(column) for column in unit]
    inverse = _inverse(normal)
    if inverse is None:
        return None
    solution = [math.fsum(map(_product, line, right)) for line in inverse]
    return _Solved(
        [x / length for x, length in zip(solution, lengths, strict=True)],
        [inverse[i][i] / length**2 for i, length in enumerate(lengths)],
    )


def _product(a: float, b: float) -> float:
    return a * b


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]] | None:
    """Gauss-Jordan with the largest pivot; None when one vanishes."""
    size = len(matrix)
    work = [[*line, *(float(i == j) for j in range(size))] for i, line in enumerate(matrix)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(work[k][i]))
        if abs(work[pivot][i]) < _SINGULAR:
            return None
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [x / work[i][i] for x in work[i]]
        for k in range(size):
            if k != i:
                factor = work[k][i]
                work[k] = [x - factor * y for x, y in zip(work[k], work[i], strict=True)]
    return [line[size:] for line in work]


def _loss(rows: Sequence[Row], kept: tuple[int, ...], coefficients: Sequence[float]) -> float:
    """Sum of squared relative residuals."""
    return math.fsum(
        (sum(c * row[i] for c, i in zip(coefficients, kept, strict=True)) - 1) ** 2 for row in rows
    )


def _fit_of(
    best: tuple[float, tuple[int, ...], _Solved], terms: int, rows: Sequence[Row], values: Sequence[float]
) -> Fit:
    loss, kept, solved = best
    coefficients = [0.0] * terms
    errors: list[float | None] = [None] * terms
    freedom = len(rows) - len(kept)
    for place, index in enumerate(kept):
        coefficients[index] = solved.coefficients[place]
        if freedom > 0:
            errors[index] = math.sqrt(max(solved.variances[place], 0.0) * loss / freedom)
    predicted = [sum(c * x for c, x in zip(coefficients, row, strict=True)) for row in rows]
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    left = math.fsum((value - guess) ** 2 for value, guess in zip(values, predicted, strict=True))
    return Fit(
        tuple(coefficients),
        tuple(errors),
        1 - left / spread if spread > 0 else None,
        math.fsum(abs(g / v - 1) for g, v in zip(predicted, values, strict=True)) / len(values),
        len(values),
    )
