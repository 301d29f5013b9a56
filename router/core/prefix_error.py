"""How far a prediction of cached tokens is from what the engine reports.

Separate because two predictions are judged alike, one from our own beliefs and one from the engine's events,
and because the same figures are exported and decide how far a worker is trusted.
"""

from __future__ import annotations

_WEIGHT = 0.05  # of a new sample once there are enough; the mean looks back over about twenty


class PrefixError:
    """Running means of (predicted - reported) / prompt, per worker.

    The first samples are averaged evenly, later ones exponentially.

    Attributes:
        samples: how many there were.
        bias: mean of the signed difference: above 0 too much is predicted, below 0 too little.
        error: mean of the absolute difference.
    """

    __slots__ = ("bias", "error", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.bias = 0.0
        self.error = 0.0

    def see(self, predicted_tokens: float, reported_tokens: int, prompt_tokens: int) -> None:
        """One finished request. Where nothing was predicted and nothing reported, nothing is learned."""
        if prompt_tokens <= 0 or (not reported_tokens and predicted_tokens <= 0):
            return
        self.samples += 1
        weight = max(_WEIGHT, 1.0 / self.samples)
        share = (predicted_tokens - reported_tokens) / prompt_tokens
        self.bias += (share - self.bias) * weight
        self.error += (abs(share) - self.error) * weight

    @property
    def overclaim(self) -> float:
        """Mean share of the prompt that was predicted and not there: max(x, 0) = (|x| + x) / 2, so the means
        give it too."""
        return (self.error + self.bias) / 2

    def __repr__(self) -> str:
        return f"<PrefixError [{self.samples} samples | bias {self.bias:+.3f} | error {self.error:.3f}]>"
