"""Symmetric 3 × 3 matrices as six numbers, without a loop: what a fit of three coefficients needs.

Separate from the fit because it is algebra and nothing else. Unrolled, since a fit is updated for every
worker several times a second and a general routine takes ten times as long.
"""

from __future__ import annotations

import math

_LEAST = 1e-14

Vector = tuple[float, float, float]
Matrix = tuple[float, float, float, float, float, float]
"""(xx, xy, xz, yy, yz, zz)"""


def diagonal(x: float, y: float, z: float) -> Matrix:
    return (x, 0.0, 0.0, y, 0.0, z)


def dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def product(matrix: Matrix, vector: Vector) -> Vector:
    """Matrix times vector."""
    xx, xy, xz, yy, yz, zz = matrix
    x, y, z = vector
    return (xx * x + xy * y + xz * z, xy * x + yy * y + yz * z, xz * x + yz * y + zz * z)


def quadratic(matrix: Matrix, vector: Vector) -> float:
    """vectorᵀ · matrix · vector, not below 0 whatever the rounding."""
    return max(dot(product(matrix, vector), vector), 0.0)


def plus(matrix: Matrix, vector: Vector, factor: float) -> Matrix:
    """matrix + factor · vector · vectorᵀ."""
    xx, xy, xz, yy, yz, zz = matrix
    x, y, z = vector
    by = factor * x
    too = factor * y
    return (xx + by * x, xy + by * y, xz + by * z, yy + too * y, yz + too * z, zz + factor * z * z)


def mix(matrix: Matrix, other: Matrix, share: float) -> Matrix:
    """(1 - share) · matrix + share · other."""
    a, b, c, d, e, f = matrix
    p, q, r, s, t, u = other
    rest = 1.0 - share
    return (
        rest * a + share * p,
        rest * b + share * q,
        rest * c + share * r,
        rest * d + share * s,
        rest * e + share * t,
        rest * f + share * u,
    )


def inverse(matrix: Matrix) -> Matrix:
    """Of a positive definite matrix, whatever the scales of its rows.

    Rows and columns are scaled to a diagonal of ones first. Two directions that are all but the same leave a
    determinant of rounding errors; it is then taken for the smallest that is none.
    """
    xx, xy, xz, yy, yz, zz = matrix
    p, q, r = 1.0 / math.sqrt(xx), 1.0 / math.sqrt(yy), 1.0 / math.sqrt(zz)
    a, b, c = xy * p * q, xz * p * r, yz * q * r
    whole = max(1.0 + 2.0 * a * b * c - a * a - b * b - c * c, _LEAST)
    return (
        max(1.0 - c * c, _LEAST) / whole * p * p,
        (b * c - a) / whole * p * q,
        (a * c - b) / whole * p * r,
        max(1.0 - b * b, _LEAST) / whole * q * q,
        (a * b - c) / whole * q * r,
        max(1.0 - a * a, _LEAST) / whole * r * r,
    )
