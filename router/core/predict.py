"""How long answers will be: learned online from finished requests, in bounded memory.

Separate from the three running means of `tokens.py`, which price a request before anything of it is known:
here is the rest of one that already runs, from the most telling source that has seen enough. Which sources
there are: the same prompt, the same template, the model (all by `SurvivalCurve`), the tenant's mean, and what
the client demanded, which bounds every one of them.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from dataclasses import dataclass, replace

from router.core.predict_error import ErrorRecord, Errors, Trust
from router.core.predict_match import MatchedLengths, prompt_hash, template_hash
from router.core.predict_mean import TenantMeans, geometric_steps
from router.core.predict_outlook import Outlook, Source, Traits, bounded
from router.core.predict_survival import RecentLengths
from router.core.request import Request

__all__ = ["Grouping", "LengthPredictor", "Outlook", "PredictorSettings", "Source", "Traits"]

_JUDGED_WINDOWS = 3
"""At most so many windows of a request are compared with what was predicted for them."""


class Grouping(enum.Enum):
    """What lengths are grouped by, beside the model."""

    SURVIVAL = "survival"
    """Nothing: Survival of the paper."""
    EXACT_MATCH = "exact_match"
    """Prompt, else template, else nothing: ExactMatch of the paper."""


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """What a predictor remembers and when it has seen enough.

    Attributes:
        horizon_steps: steps ahead that are asked about, 1 to `MAX_HORIZON`.
        min_matches: lengths of a prompt or template before it is believed, and answers of a tenant.
        min_lengths: lengths of a model before it is believed.
        max_matches: prompts, and as many templates; matched_lengths: of each.
        max_models, model_lengths: the same of models.
        max_tenants: pairs of tenant and model; tenant_memory: samples that a mean remembers.
        half_life_s: after which a length counts half.
    """

    horizon_steps: int = 80
    grouping: Grouping = Grouping.EXACT_MATCH
    min_matches: int = 8
    min_lengths: int = 32
    max_matches: int = 1024
    matched_lengths: int = 256
    max_models: int = 64
    model_lengths: int = 1024
    max_tenants: int = 4096
    tenant_memory: int = 20
    half_life_s: float = 6 * 3600.0


class LengthPredictor:
    """Learns from `learn`; `outlook` changes nothing but caches.

    State: `prompts` and `templates` (lengths by hash), `models` (lengths by name), `tenants` (means), and the
    errors of each source with those of all together.
    """

    __slots__ = ("models", "overall", "prompts", "records", "salt", "settings", "templates", "tenants")

    def __init__(self, settings: PredictorSettings, salt: bytes = b"") -> None:
        self.settings = settings
        self.salt = salt
        self.prompts = self._matches()
        self.templates = self._matches()
        self.models: OrderedDict[str, RecentLengths] = OrderedDict()
        self.tenants = TenantMeans(settings.max_tenants, settings.tenant_memory)
        self.records = {source: ErrorRecord() for source in Source if source.learned}
        self.overall = ErrorRecord()

    def _matches(self) -> MatchedLengths:
        settings = self.settings
        return MatchedLengths(settings.max_matches, settings.matched_lengths, settings.half_life_s)

    def regroup(self, horizon_steps: int, grouping: Grouping) -> None:
        """Looks so far ahead from now on, and tells requests apart like that. What was learned stays; errors
        of another horizon say nothing of this one, and begin anew."""
        if horizon_steps != self.settings.horizon_steps:
            self.records = {source: ErrorRecord() for source in self.records}
            self.overall = ErrorRecord()
        self.settings = replace(self.settings, horizon_steps=horizon_steps, grouping=grouping)

    @property
    def trust(self) -> Trust:
        """How far what it says now can be relied on, over all sources."""
        return self.overall.trust

    def errors(self) -> dict[str, Errors]:
        """By source, and of all under `overall`."""
        return {"overall": self.overall.errors()} | {
            source.value: record.errors() for source, record in self.records.items()
        }

    def traits(self, request: Request) -> Traits:
        """What of a request it goes by. Hashes the prompt, so ask while the prompt is still there."""
        key = request.key if self.settings.grouping is Grouping.EXACT_MATCH else None
        return Traits(
            model=request.model,
            tenant=request.tenant,
            prompt=None if key is None else prompt_hash(key, self.salt),
            template=None if key is None else template_hash(key, self.salt),
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
        )

    def outlook(self, traits: Traits, now: float, *, tables: bool = True) -> Outlook:
        """What is to be expected of one sequence of such a request.

        Args:
            tables: False saves the table, which only who looks ahead reads.
        """
        if traits.ignore_eos:
            known = traits.max_tokens is not None
            learned = Outlook(
                Source.CLIENT if known else Source.UNKNOWN, b"", self.settings.horizon_steps + 1
            )
        else:
            learned = self._learned(traits, now, tables=tables)
        return bounded(learned, traits, self.settings.horizon_steps, tables=tables)

    def _learned(self, traits: Traits, now: float, *, tables: bool) -> Outlook:
        """From the most telling source that has seen enough."""
        settings = self.settings
        horizon = settings.horizon_steps
        for source, lengths, enough in self._sources(traits):
            # Rounded, since even those of a minute ago weigh a little less than 1.
            if lengths is not None and round(lengths.weight(now)) >= enough:
                curve = lengths.curve()
                mean = curve.mean_length()
                if mean is not None:
                    table = lengths.table(horizon) if tables else b""
                    return Outlook(source, table, horizon + 1, curve, self._mean(source, traits, mean))
        tenant = self.tenants.get(traits.tenant, traits.model)
        if tenant is None or tenant.samples < settings.min_matches:
            return Outlook(Source.UNKNOWN, b"", horizon + 1)
        steps = math.ceil(geometric_steps(tenant.tokens, horizon))
        return Outlook(
            Source.TENANT, b"", horizon + 1 if steps >= horizon else max(steps, 1), None, tenant.tokens
        )

    def _sources(self, traits: Traits) -> tuple[tuple[Source, RecentLengths | None, int], ...]:
        """(source, what it has seen, how much is enough), the most telling one first."""
        settings = self.settings
        model = (Source.MODEL, self.models.get(traits.model), settings.min_lengths)
        if traits.prompt is None and traits.template is None:
            return (model,)
        return (
            (Source.PROMPT, self.prompts.get(traits.prompt), settings.min_matches),
            (Source.TEMPLATE, self.templates.get(traits.template), settings.min_matches),
            model,
        )

    def _mean(self, source: Source, traits: Traits, mean: float) -> float:
        """The tenant's own mean says more than the curve of a model that all tenants use."""
        tenant = self.tenants.get(traits.tenant, traits.model)
        if source is not Source.MODEL or tenant is None or tenant.samples < self.settings.min_matches:
            return mean
        return tenant.tokens

    def learn(self, traits: Traits, outlook: Outlook | None, tokens: int, now: float, *, ended: bool) -> None:
        """One sequence of a request is over.

        Args:
            outlook: what was expected when it was placed; None judges nothing.
            tokens: that it wrote, at least 1; fewer are ignored.
            ended: the model ended it; False: its length was cut, by the client's bound or its leaving.
        """
        if tokens < 1 or traits.ignore_eos:
            return  # a length that the client dictated says nothing of what the model would have written
        if outlook is not None and outlook.source.learned:
            self._judge(outlook, tokens, now, ended=ended)
        if traits.prompt is not None:
            self.prompts.of(traits.prompt).add(tokens, now, ended=ended)
        if traits.template is not None:
            self.templates.of(traits.template).add(tokens, now, ended=ended)
        self.lengths_of(traits.model).add(tokens, now, ended=ended)
        self.tenants.learn(traits.tenant, traits.model, tokens, ended=ended)

    def copy(self) -> LengthPredictor:
        """The same, with a future of its own: for somebody else to look at while this one learns."""
        twin = LengthPredictor(self.settings, self.salt)
        twin.prompts, twin.templates = self.prompts.copy(), self.templates.copy()
        twin.models = OrderedDict((model, lengths.copy()) for model, lengths in self.models.items())
        twin.tenants = self.tenants.copy()
        twin.records = {source: record.copy() for source, record in self.records.items()}
        twin.overall = self.overall.copy()
        return twin

    def lengths_of(self, model: str) -> RecentLengths:
        """The lengths of a model, new ones if it has none; the model used longest ago makes room."""
        settings = self.settings
        lengths = self.models.get(model)
        if lengths is None:
            lengths = self.models[model] = RecentLengths(settings.model_lengths, settings.half_life_s)
            if len(self.models) > settings.max_models:
                self.models.popitem(last=False)
        self.models.move_to_end(model)
        return lengths

    def _judge(self, outlook: Outlook, tokens: int, now: float, *, ended: bool) -> None:
        """Compares it with what was predicted at the beginning of each window of the horizon. The last window
        of a cut length is left out, since nobody knows how it would have gone on."""
        horizon = self.settings.horizon_steps
        windows = range(0, tokens if ended else tokens - horizon + 1, horizon)
        windows = windows[:: -(-len(windows) // _JUDGED_WINDOWS) or 1]
        if not windows:
            return
        squared = bias = 0.0
        for written in windows:
            chance, steps = outlook.forecast(written, horizon)
            squared += (chance - (ended and tokens <= written + horizon)) ** 2
            bias += steps - min(tokens - written, horizon)
        mean = outlook.expected_tokens
        lengths = (mean, tokens) if ended and mean is not None else None
        for record in (self.records[outlook.source], self.overall):
            record.add(squared / len(windows), bias / len(windows), lengths, now)

    def __repr__(self) -> str:
        return (
            f"<LengthPredictor {self.trust.name.lower()} [{len(self.prompts)} prompts | "
            f"{len(self.templates)} templates | {len(self.models)} models | {len(self.tenants)} tenants]>"
        )
