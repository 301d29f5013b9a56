"""What a predictor has learned, as plain data: saved by a shell when it stops, given back when it starts.

Separate because the form is a promise to files on disk, which the predictor itself need not know.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from router.core.predict import LengthPredictor
from router.core.predict_error import Errors
from router.core.predict_match import MatchedLengths
from router.core.predict_mean import Mean
from router.core.predict_survival import RecentLengths

VERSION = 1

_OF_A_MATCH = 64
"""Newest lengths of a prompt or template that are saved. All of them would be a second of work."""


class SavedLengths(msgspec.Struct, frozen=True):
    """Lengths of one kind, oldest first: tokens, negative for one that was cut, and age (s) of each."""

    tokens: list[int]
    ages_s: list[float]


class SavedPredictor(msgspec.Struct, frozen=True):
    """Everything that a predictor has learned. Hashes are hexadecimal: not every JSON reader has 64 bits."""

    version: int
    horizon_steps: int
    prompts: dict[str, SavedLengths]
    templates: dict[str, SavedLengths]
    models: dict[str, SavedLengths]
    tenants: list[tuple[str, str, float, int]]
    errors: dict[str, Errors]


def export(predictor: LengthPredictor, now: float) -> dict[str, object]:
    """The state in types that JSON knows, in the order of last use."""
    saved = SavedPredictor(
        version=VERSION,
        horizon_steps=predictor.settings.horizon_steps,
        prompts=_save_matches(predictor.prompts, now),
        templates=_save_matches(predictor.templates, now),
        models={model: _save(lengths, now) for model, lengths in predictor.models.items()},
        tenants=[
            (tenant, model, mean.tokens, mean.samples) for tenant, model, mean in predictor.tenants.items()
        ],
        errors=predictor.errors(),
    )
    plain: dict[str, object] = msgspec.to_builtins(saved)
    return plain


def restore(predictor: LengthPredictor, data: Mapping[str, object], now: float, away_s: float = 0.0) -> None:
    """Adds a saved state to a predictor that is new.

    Hashes under another salt match nothing and fall out in time. Errors of another horizon are left out.

    Args:
        away_s: time since it was exported; lengths have aged by it.

    Raises:
        ValueError: the data is not what `export` makes; nothing was added then.
    """
    try:
        saved = msgspec.convert(data, SavedPredictor)
    except msgspec.ValidationError as error:
        raise ValueError(f"this is no saved predictor: {error}") from error
    if saved.version != VERSION:
        raise ValueError(f"the saved predictor has version {saved.version}, this router reads {VERSION}")
    then = now - away_s
    prompts, templates = _by_hash(saved.prompts), _by_hash(saved.templates)
    for matches, known in ((prompts, predictor.prompts), (templates, predictor.templates)):
        for key, lengths in matches.items():
            _fill(known.of(key), lengths, then)
    for model, lengths in saved.models.items():
        _fill(predictor.lengths_of(model), lengths, then)
    for tenant, model, mean_tokens, samples in saved.tenants:
        predictor.tenants.put(tenant, model, Mean(mean_tokens, samples))
    if saved.horizon_steps == predictor.settings.horizon_steps:
        _restore_errors(predictor, saved.errors, now)


def _by_hash(matches: Mapping[str, SavedLengths]) -> dict[int, SavedLengths]:
    return {int(key, 16): lengths for key, lengths in matches.items()}


def _fill(into: RecentLengths, saved: SavedLengths, then: float) -> None:
    """Adds saved lengths; what was damaged on the disk is left out."""
    for tokens, age_s in zip(saved.tokens, saved.ages_s, strict=False):
        if tokens:
            into.add(abs(tokens), then - max(age_s, 0.0), ended=tokens > 0)


def _restore_errors(predictor: LengthPredictor, errors: Mapping[str, Errors], now: float) -> None:
    by_name = {source.value: record for source, record in predictor.records.items()}
    by_name["overall"] = predictor.overall
    for name, record in by_name.items():
        if name in errors:
            record.restore(errors[name], now)


def _save_matches(matches: MatchedLengths, now: float) -> dict[str, SavedLengths]:
    return {f"{key:016x}": _save(lengths, now, _OF_A_MATCH) for key, lengths in matches.items()}


def _save(lengths: RecentLengths, now: float, most: int | None = None) -> SavedLengths:
    entries = lengths.lengths(now, most)
    return SavedLengths([tokens for tokens, _ in entries], [round(age_s, 1) for _, age_s in entries])
