"""Three coefficients through samples that never stop coming, with error bars.

Separate from what is fitted (steps, prefills, transfers), which only says what the coefficients mean.

Recursive least squares in information form, with forgetting only in the direction of each sample: Cao and
Schwartz, "A directional forgetting algorithm based on the decomposition of the information matrix",
Automatica 36, 2000. What the traffic does not vary for an hour is hardly forgotten, while plain exponential
forgetting would blow its error bars up. A paused loop must not move a coefficient: residuals beyond three
standard deviations count as three (Huber, "Robust estimation of a location parameter", 1964), and beyond six
as nothing. When several come in a row it is not they that are wrong, and the fit begins anew.
"""

from __future__ import annotations

import math

from router.core.symmetric import Vector, diagonal, dot, inverse, mix, plus, product, quadratic

_CLIP = 3.0
_REFUSE = 6.0
_JUMP = 0.3  # what is off by less is not worth beginning anew
_MAX_REFUSED = 4  # in a row
_WEAK = 3.0  # standard errors over coefficients when all that was learned is given up
_PRIOR_FREEDOM = 8.0  # samples that the assumed noise is worth until the true one is known
_NOISE_MEMORY = 400.0  # samples over which the noise is averaged
_LEAST_NOISE = 0.01  # no engine is a straight line to the last percent
_UNSEEN = 0.1
"""What samples say nothing of is forgotten too, but so many times slower: a change is seen only in the
directions that traffic varies, and the errors of the others have to own up to it."""


class LinearFit:
    """y = coefficients · x, with coefficients that are not negative.

    Noise is taken to be proportional to y, as jitter of a step is. Coefficients are estimated without the
    sign constraint and projected afterwards: a constraint inside the recursion would hold on to a zero that
    later samples contradict. A fit of two coefficients leaves the third of every sample 0.

    Args:
        prior: the coefficients before any sample.
        errors: one standard error of each, above 0. None ever gets larger.
        floor: a smaller y is as noisy as one of this size.
        noise: relative noise that is assumed until the samples show their own. Better too large: the first
            samples are believed by it.

    State: `_information`, the inverse of the covariance, that of the prior, and the covariance itself;
    `_estimate` before projection; `_variance` and `_freedom` of the relative noise; `_refused` samples in a
    row.

    Attributes:
        coefficients: the best estimate, none below 0.
        samples: how many were taken in since it began, or began anew.
    """

    __slots__ = (
        "_covariance", "_estimate", "_floor", "_freedom", "_information", "_prior", "_refused", "_variance",
        "coefficients", "samples",
    )  # fmt: skip

    def __init__(self, prior: Vector, errors: Vector, *, floor: float = 1e-6, noise: float = 0.2) -> None:
        self._estimate = self.coefficients = prior
        a, b, c = errors
        self._prior = self._information = diagonal(a**-2, b**-2, c**-2)
        self._covariance = inverse(self._information)
        self._variance = noise * noise
        self._freedom = _PRIOR_FREEDOM
        self._floor = floor
        self._refused = 0
        self.samples = 0

    def predict(self, x: Vector) -> float:
        """What y should be for such a sample."""
        return dot(self.coefficients, x)

    def add(self, x: Vector, y: float, keep: float = 1.0) -> None:
        """Takes in one sample.

        Args:
            keep: weight that is left to earlier samples in this one's direction, in (0, 1].
        """
        variance = self._variance
        spread = quadratic(self._covariance, x)
        scale = max(dot(self.coefficients, x), self._floor)
        # Until a prediction is better than a sample, the sample says more about its own noise.
        if spread > variance * scale * scale:
            scale = max(scale, y)
        own = variance * scale * scale
        if not own:
            return
        deviation = math.sqrt(own + spread)
        score = (y - dot(self._estimate, x)) / deviation
        clipped = min(max(score, -_CLIP), _CLIP)
        self._freedom = min(self._freedom + 1.0, _NOISE_MEMORY)
        self._variance = max(variance * (1.0 + (clipped * clipped - 1.0) / self._freedom), _LEAST_NOISE**2)
        if abs(score) <= _REFUSE or abs(score) * deviation <= _JUMP * scale:
            self._refused = 0
        elif self._refused < _MAX_REFUSED:
            self._refused += 1
            return
        else:
            self.begin_anew()
            self.add(x, y)
            return
        self.samples += 1
        self._forget(x, keep)
        self._take(x, clipped * deviation, 1.0 / own)

    def begin_anew(self) -> None:
        """What was learned holds no longer: it is where the search begins, and no more."""
        xx, _, _, yy, _, zz = self._prior
        a, b, c = (
            min(known, (_WEAK * value) ** -2) if value else known
            for known, value in zip((xx, yy, zz), self.coefficients, strict=True)
        )
        self._prior = self._information = diagonal(a, b, c)
        self._covariance = inverse(self._information)
        self._estimate = self.coefficients
        self._freedom = _PRIOR_FREEDOM
        self._refused = self.samples = 0

    def _forget(self, x: Vector, keep: float) -> None:
        """Takes away some of what is known along `x`, and a little of everything, down to the prior."""
        along = product(self._information, x)
        whole = dot(along, x)
        if keep >= 1.0 or whole <= 0.0:
            return
        left = plus(self._information, along, (keep - 1.0) / whole)
        self._information = mix(left, self._prior, _UNSEEN * (1.0 - keep))

    def _take(self, x: Vector, residual: float, weight: float) -> None:
        """Moves the estimate by the residual of a sample of so much weight."""
        self._information = plus(self._information, x, weight)
        self._covariance = inverse(self._information)
        reach = product(self._covariance, x)
        a, b, c = self._estimate
        by = weight * residual
        self._estimate = a, b, c = a + by * reach[0], b + by * reach[1], c + by * reach[2]
        self.coefficients = self._estimate if a >= 0.0 and b >= 0.0 and c >= 0.0 else self._projected()

    def _projected(self) -> Vector:
        """The estimate given that what comes out negative is 0, over and over until nothing does."""
        values, known = self._estimate, self._covariance
        units: tuple[Vector, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
        held: set[int] = set()
        while True:
            worst = min((i for i in range(3) if i not in held), key=values.__getitem__, default=None)
            if worst is None or values[worst] >= 0.0:
                break
            held.add(worst)
            column = product(known, units[worst])
            by = values[worst] / column[worst]
            known = plus(known, column, -1.0 / column[worst])
            values = (values[0] - by * column[0], values[1] - by * column[1], values[2] - by * column[2])
        a, b, c = (0.0 if i in held else value for i, value in enumerate(values))
        return (a, b, c)

    @property
    def errors(self) -> Vector:
        """One standard error of each coefficient."""
        xx, _, _, yy, _, zz = self._covariance
        return (math.sqrt(xx), math.sqrt(yy), math.sqrt(zz))

    @property
    def noise(self) -> float:
        """Standard deviation of a sample over its prediction."""
        return math.sqrt(self._variance)

    def __repr__(self) -> str:
        terms = ", ".join(f"{c:.3g} ± {e:.1g}" for c, e in zip(self.coefficients, self.errors, strict=True))
        return f"<LinearFit {terms} [{self.samples} samples | noise {self.noise:.1%}]>"
