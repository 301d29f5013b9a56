"""From a call to a job: the body read once, the model found, and all that placement needs to know.

What reaches the engine is the client's own bytes. They change only where they must: control fields that an
untrusted client sent, and the request for usage that lets the router count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import Struct, structs

from router.api.errors import model_not_found
from router.api.form import Form, is_multipart
from router.api.intake import HeldBody, read_body
from router.api.routes import Shape
from router.call import Call
from router.choosing import Choosing
from router.core.body import Body, edit_body, parse_body
from router.core.body_text import PromptSize
from router.core.errors import BadRequest, InternalError, shown
from router.core.request import Request
from router.core.split_rule import Unsplit
from router.core.token_book import TokenBook
from router.dispatch import Dispatcher
from router.early import EarlyKeepAlive
from router.fleet import Fleet
from router.responses import ResponseOwners
from router.settings.configuration import Settings
from router.tokenizer.tokenizers import Tokenizers
from router.topology import Topology

_USAGE = b',"stream_options":{"include_usage":true}}'
_UNMEASURED = PromptSize()
_POLICY = b"x-pointsman-policy"
_CLAUDE_CODE_SESSION = b"x-claude-code-session-id"


class Job(Struct, eq=False):
    """A call that was understood.

    Attributes:
        request: for the next placement; a retry replaces it.
        held: the bytes of the body, counted until `release`.
        stream_body: instead of them, a body too large to hold; it can be sent once.
        size: length of the prompt, as far as it was measured.
        hide_usage: the usage event was the router's wish; the client must not see it.
        choices: sequences that the client will see.
        log_salt: of the request log, which wants the hashes of the prompt; None without one.
        topology: the prefill and decode workers of its model; None when one worker serves all of a request.
        traits: why its body is not for two engines.
        early: speaks for the router while there is no engine's stream; None: nobody asked for that.
        answer_by: absolute time (s): the first data event of a stream, the whole answer otherwise.
    """

    call: Call
    request: Request
    dispatcher: Dispatcher
    held: HeldBody
    answer_by: float
    stream_body: AsyncIterator[bytes] | None = None
    content_length: int | None = None
    size: PromptSize = _UNMEASURED
    hide_usage: bool = False
    choices: int = 1
    log_salt: bytes | None = None
    topology: Topology | None = None
    traits: frozenset[Unsplit] = frozenset()
    early: EarlyKeepAlive | None = None

    @property
    def payload(self) -> bytes | AsyncIterator[bytes]:
        return self.held.data if self.stream_body is None else self.stream_body

    @property
    def repeatable(self) -> bool:
        return self.stream_body is None

    def release(self) -> None:
        """The answer is committed: nobody will need the body again."""
        self.held.release()
        if self.request.key is not None:
            self.request.key.forget(self.log_salt)


class Admission:
    """Makes jobs. State: the arrival number of the next request."""

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings,
        tokens: TokenBook,
        owners: ResponseOwners,
        now: Callable[[], float],
        choosing: Choosing,
    ) -> None:
        self._choosing = choosing
        self._fleet = fleet
        self._limits = settings.limits
        self._default_class = settings.slo.default_class
        self._timeouts = settings.timeouts
        self._inject_usage = settings.usage.inject
        named = (name.encode() for name in settings.server.affinity_headers)
        self._affinity_headers = (*named, _CLAUDE_CODE_SESSION)
        self._tokens = tokens
        self._owners = owners
        self._now = now
        self._sequence = 0
        self.log_salt: bytes | None = None
        """Of the request log, None without one: what is kept of a prompt once its answer has begun."""
        self.tokenizers: Tokenizers | None = None
        """Of the pools that have one; None without any."""

    async def admit(self, call: Call, held: HeldBody) -> Job:
        """Reads and understands a call, as its route is shaped. Raises as the three ways below do."""
        if call.route.shape is Shape.STORED:
            return self._stored(call, held)
        if call.route.shape is Shape.FORM and is_multipart(call.by_name):
            return await self._form(call, held)
        return await self._json(call, held)

    async def _json(self, call: Call, held: HeldBody) -> Job:
        """A JSON body that names a model.

        Raises:
            BadRequest, BodyTooLarge, ClientGone, Overloaded: see `read_body` and `parse_body`.
            ModelNotFound: no worker serves the model.
            NotFound: a stored response that it continues is gone.
        """
        await read_body(
            call.receive,
            held,
            encoding=call.by_name.get(b"content-encoding", b""),
            length=call.by_name.get(b"content-length"),
            max_bytes=self._limits.body_bytes,
        )
        call.received = self._now()
        job = self._understood(call, held)
        if self.tokenizers is not None:
            await self.tokenize(job, self.tokenizers)
        return job

    @staticmethod
    async def tokenize(job: Job, tokenizers: Tokenizers) -> None:
        """Learns the token ids of its prompt, where a pool of its model can make use of them."""
        request, topology = job.request, job.topology
        if request.key is None:
            return
        sides = (job.dispatcher,) if topology is None else (topology.prefill, topology.decode)
        ids = await tokenizers.ids(request.key, job.call.route.api, job.size, sides)
        request.key.tokens = ids
        if ids is not None and job.size.prompts == 1:
            job.request = structs.replace(request, prompt_tokens=max(len(ids), 1))

    async def rehearse(self, call: Call, held: HeldBody) -> Job:
        """The job that this call would be if it came now, its body being in `held`. Leaves no trace.

        Raises BadRequest, ModelNotFound and NotFound as `admit` does, and BadRequest for a call without a
        JSON body.
        """
        if call.route.shape is not Shape.JSON:
            raise BadRequest("Only calls with a JSON body can be explained.")
        sequence = self._sequence
        try:
            job = self._understood(call, held)
        finally:
            self._sequence = sequence
        if self.tokenizers is not None:
            await self.tokenize(job, self.tokenizers)
        return job

    def _understood(self, call: Call, held: HeldBody) -> Job:
        body = parse_body(held.data, call.route.api)
        dispatcher, topology = self._where(body, trusted=call.client.trusted)
        data, hide_usage = self._for_engine(body, trusted=call.client.trusted)
        if data is not held.data:
            held.keep(data)
        request = self._for_policy(call, self._request(call, body), dispatcher, topology)
        by = self._now() + self._patience_s(call, streamed=body.stream)
        return Job(
            call,
            request,
            dispatcher,
            held,
            by,
            size=body.size,
            hide_usage=hide_usage,
            choices=body.choices,
            log_salt=self.log_salt,
            topology=topology,
            traits=body.split_traits,
        )

    async def _form(self, call: Call, held: HeldBody) -> Job:
        """A multipart body: its model is read from its first bytes, the rest goes through as it comes.

        Raises:
            BadRequest: no model, and not only one that can be meant.
            BodyTooLarge: over the limit, as soon as that is known.
        """
        form = Form(call, self._limits.multipart_bytes)
        await form.read_head()
        model = form.model or self._fleet.sole_model()
        if model is None:
            raise BadRequest("The form has no field `model` before its files.", param="model")
        dispatcher = self.dispatcher_for(model)
        request = self._for_policy(call, self._plain_request(call, model), dispatcher, None)
        by = self._now() + self._timeouts.total_s
        return Job(call, request, dispatcher, held, by, form.pieces(), form.content_length)

    def _for_policy(
        self, call: Call, request: Request, dispatcher: Dispatcher, topology: Topology | None
    ) -> Request:
        """The request with the policy that a trusted client asks for. Raises BadRequest for one that no pool
        of the model can use."""
        name = call.by_name.get(_POLICY, b"").decode("latin-1") if call.client.trusted else ""
        if not name:
            return request
        sides = (dispatcher,) if topology is None else (topology.prefill, topology.decode)
        allowed = self._choosing.allowed([side.pool for side in sides])
        if name not in allowed:
            raise BadRequest(
                f"x-pointsman-policy names {shown(name)!r}; allowed here: {', '.join(allowed)}.",
                param=_POLICY.decode(),
            )
        return structs.replace(request, policy=name)

    def _where(self, body: Body, *, trusted: bool) -> tuple[Dispatcher, Topology | None]:
        """The pool for a request, and how its model is served. Raises as `dispatcher_for` does.

        Whoever may hand KV over by hand, and does, is not helped doing so: each leg goes to its own side.
        """
        dispatcher = self.dispatcher_for(body.model)
        topology = self._fleet.topology_for(dispatcher)
        if topology is not None and trusted and "kv_transfer_params" in body.control_fields:
            return topology.prefill if body.keeps_kv else topology.decode, None
        return dispatcher, topology

    def _stored(self, call: Call, held: HeldBody) -> Job:
        """An object that one worker holds. Raises NotFound when nobody does."""
        owner = self._owners.owner(call.route.stored_id or "")
        member = self._fleet.member(owner)
        if member is None:
            raise InternalError("A stored response is owned by nobody.")
        request = structs.replace(self._plain_request(call, member.worker.model), pinned=owner)
        return Job(call, request, member.dispatcher, held, self._now() + self._timeouts.total_s)

    def _plain_request(self, call: Call, model: str) -> Request:
        """A request of which no more is known than where it may go."""
        self._sequence += 1
        return Request(
            id=self._unique(call),
            sequence=self._sequence,
            model=model,
            arrived=call.arrived,
            tenant=call.client.tenant,
            slo=call.client.slo or self._default_class,
            trusted=call.client.trusted,
        )

    def _unique(self, call: Call) -> str:
        """The id of a request in the accounts: clients may send one id of theirs many times at once."""
        return f"{call.id}#{self._sequence}"

    def dispatcher_for(self, model: str) -> Dispatcher:
        """The pool for a model. Raises ModelNotFound, naming the known ones, or NoWorker when there is no
        worker at all."""
        dispatcher = self._fleet.dispatcher_for(model)
        if dispatcher is None:
            self._fleet.require_any()
            raise model_not_found(model, self._fleet.models())
        return dispatcher

    def _for_engine(self, body: Body, *, trusted: bool) -> tuple[bytes, bool]:
        data = body.data
        if not trusted:
            data = body.without_control()
            # Lower goes first in the engines: an untrusted client may step back, not ahead.
            if body.priority is not None and body.priority < 0:
                data = edit_body(data, remove=("priority",))
        options = body.usage_options if self._inject_usage else None
        if options is None:
            return data, False
        return _with_usage(data, options), True

    def _request(self, call: Call, body: Body) -> Request:
        size = body.size
        self._sequence += 1
        exact = size.tokens is not None
        previous = body.previous_response_id
        return Request(
            id=self._unique(call),
            sequence=self._sequence,
            model=body.model,
            arrived=call.arrived,
            api=call.route.api,
            stream=body.stream,
            prompt_tokens=self._tokens.prompts.estimate(body.model, size),
            prompt_tokens_exact=exact,
            max_tokens=body.max_tokens,
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            sequences=body.sequences,
            body_bytes=len(body.data),
            pinned=self._owners.owner(previous) if previous is not None else None,
            affinity=self._affinity(call, body),
            tenant=call.client.tenant,
            slo=call.client.slo or self._default_class,
            priority=body.priority or 0,
            trusted=call.client.trusted,
            key=body.key,
        )

    def _affinity(self, call: Call, body: Body) -> str | None:
        """What keeps a conversation together. Not `user`: that names a person, who may have many."""
        for name in self._affinity_headers:
            value = call.by_name.get(name)
            if value:
                return value.decode("latin-1")
        return next(iter(body.affinity_fields), None)

    def _patience_s(self, call: Call, *, streamed: bool) -> float:
        if not streamed:
            return self._timeouts.total_s
        told = call.by_name.get(b"x-stainless-read-timeout", b"")
        try:
            client_s = float(told)
        except ValueError:
            return self._timeouts.first_event_s
        return min(client_s, self._timeouts.first_event_s) if client_s > 0 else self._timeouts.first_event_s


def _with_usage(data: bytes, options: dict[str, Any]) -> bytes:
    """The body with `include_usage` asked for. Where nothing was asked, it is added before the last brace and
    not a byte before it changes."""
    trimmed = data.rstrip()
    if b'"stream_options"' in data or not trimmed.endswith(b"}"):
        return edit_body(data, replace={"stream_options": options})
    return trimmed[:-1] + _USAGE
