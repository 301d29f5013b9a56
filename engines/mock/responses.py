"""OpenAI's Responses API as vLLM serves it: body to request, events and bodies back.

Separate because its events are numbered and typed, its object is its own, and answers can be asked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from engines.mock.ask import Answer, Ask, Extras, Piece
from engines.mock.chat import tool_call_id
from engines.mock.errors import Refusal
from engines.mock.fields import Fields, Json
from engines.mock.openai_ask import Context, rendered
from engines.mock.sampling import cache_salt, check_prompt_length, max_tokens, sampling, streaming
from engines.mock.script import tool_call
from engines.model.text import encode

_encode = msgspec.json.encode

STORED_RESPONSES = 256
"""Answers kept for retrieval and `previous_response_id`; the oldest goes first."""

_ECHOED: tuple[tuple[str, object], ...] = (
    ("instructions", None), ("metadata", None), ("parallel_tool_calls", True), ("temperature", 1.0),
    ("tool_choice", None), ("tools", []), ("top_p", 1.0), ("background", False),
    ("max_output_tokens", None), ("max_tool_calls", None), ("previous_response_id", None),
    ("prompt", None), ("reasoning", None), ("service_tier", "auto"), ("text", None),
    ("top_logprobs", None), ("truncation", "disabled"), ("user", None), ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
)  # fmt: skip
"""Fields of the body that the answer repeats, with their defaults."""

_ORDER = (
    "id", "created_at", "incomplete_details", "instructions", "metadata", "model", "object", "output",
    "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background",
    "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier",
    "status", "text", "top_logprobs", "truncation", "usage", "user", "presence_penalty",
    "frequency_penalty", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages",
)  # fmt: skip


_STATUSES = {None: "in_progress", "length": "incomplete", "stop": "completed", "abort": "cancelled"}


class ResponseStore:
    """Finished answers by id, with the conversation they belong to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, list[Json]]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ResponseStore {len(self._kept)} of at most {STORED_RESPONSES}>"

    def keep(self, response_id: str, body: bytes, messages: list[Json]) -> None:
        self._kept[response_id] = (body, messages)
        if len(self._kept) > STORED_RESPONSES:
            self._kept.popitem(last=False)

    def body(self, response_id: str) -> bytes:
        """Return an answer's body.

        Raises:
            Refusal: 404 when it is not (or no longer) here.
        """
        return self._find(response_id)[0]

    def messages(self, response_id: str) -> list[Json]:
        """Return the conversation up to and with an answer.

        Raises:
            Refusal: 404 when it is not (or no longer) here.
        """
        return self._find(response_id)[1]

    def _find(self, response_id: str) -> tuple[bytes, list[Json]]:
        kept = self._kept.get(response_id)
        if kept is None:
            raise Refusal(404, "NotFoundError", f"Response with id '{response_id}' not found.", "response_id")
        return kept


class ResponsesApi:
    """The Responses API of one incarnation: it remembers its answers."""

    def __init__(self) -> None:
        self.store = ResponseStore()

    def ask(self, fields: Fields, context: Context) -> Ask:
        """Read a Responses body.

        Raises:
            Refusal: 400 or 404.
        """
        model = context.model_of(fields)
        messages = self._messages(fields)
        tool = tool_call(fields, auto_allowed=context.auto_tool_choice)
        prompts = (rendered(messages, fields),)
        check_prompt_length(prompts, context.limits)
        limit = max_tokens(fields.integer("max_output_tokens"), prompts, context.limits)
        script = tuple(encode(tool.arguments)) if tool is not None else None
        request_id = fields.text("request_id") or f"resp_{context.request_id}"
        echo = {name: default if fields.raw(name) is None else fields.raw(name) for name, default in _ECHOED}
        if echo["tool_choice"] is None:
            echo["tool_choice"] = "auto" if echo["tools"] else "none"
        echo["messages"] = messages if fields.flag("store", default=True) else None
        return Ask(
            request_id=request_id,
            model=model,
            prompts=prompts,
            sampling=sampling(fields, limit, None, script),
            streaming=streaming(fields),
            priority=fields.integer("priority") or 0,
            cache_salt=cache_salt(fields),
            tool=tool,
            echo=echo,
        )

    def stream(self, ask: Ask, created: int) -> ResponsesStream:
        return ResponsesStream(ask, created, self)

    def body(self, ask: Ask, answers: Sequence[Answer], created: int, extras: Extras) -> bytes:
        """Return a finished answer's body, and keep it."""
        answer = answers[0]
        output = (
            _message(ask, answer.text, status="completed") if ask.tool is None else _call(ask, answer.text)
        )
        usage = _usage(ask.prompt_tokens, extras, len(answer.token_ids))
        whole = response(ask, created, answer.finish_reason, [output], usage)
        whole["kv_transfer_params"] = extras.kv_transfer_params
        body = _encode(whole)
        self.keep(ask, body, answer.text)
        return body

    def keep(self, ask: Ask, body: bytes, text: str) -> None:
        """Remember an answer unless the request said not to."""
        messages = ask.echo["messages"]
        if isinstance(messages, list):
            self.store.keep(ask.request_id, body, [*messages, {"role": "assistant", "content": text}])

    def _messages(self, fields: Fields) -> list[Json]:
        messages: list[Json] = []
        earlier = fields.text("previous_response_id")
        if earlier is not None:
            messages += self.store.messages(earlier)
        instructions = fields.text("instructions")
        if instructions is not None:
            messages.insert(0, {"role": "system", "content": instructions})
        asked = fields.required("input")
        if isinstance(asked, str):
            return [*messages, {"role": "user", "content": asked}]
        return messages + [_input_message(item) for item in fields.objects("input")]


def _input_message(item: Mapping[str, object]) -> Json:
    """One input item as a chat message; calls and their outputs keep their text."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": item.get("role"), "content": item.get("content")}


class ResponsesStream:
    """Encodes one Responses stream; every event carries its number."""

    def __init__(self, ask: Ask, created: int, api: ResponsesApi) -> None:
        self._ask = ask
        self._created = created
        self._api = api
        self._number = 0
        self._opened = False
        self._text = ""
        self._reason = "abort"

    def opening(self) -> Iterator[bytes]:
        """Yield created and in_progress: they do not wait for the engine."""
        snapshot = response(self._ask, self._created, None, [], None)
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": snapshot})

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the delta of one piece, after the item's beginning when it is the first."""
        if not self._opened:
            self._opened = True
            yield from self._begin()
        self._text += piece.text
        if piece.finish_reason is not None:
            self._reason = piece.finish_reason
        if not piece.text:
            return
        if self._ask.tool is None:
            yield self._event(
                "response.output_text.delta", {**self._place(), "delta": piece.text, "logprobs": []}
            )
        else:
            yield self._event("response.function_call_arguments.delta", {**self._item(), "delta": piece.text})

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield the ends of part, item and response."""
        ask = self._ask
        if ask.tool is None:
            item = _message(ask, self._text, status="completed")
            yield self._event(
                "response.output_text.done", {**self._place(), "logprobs": [], "text": self._text}
            )
            yield self._event(
                "response.content_part.done", {**self._place(), "part": _part(self._text, None)}
            )
        else:
            item = _call(ask, self._text)
            yield self._event(
                "response.function_call_arguments.done",
                {**self._item(), "arguments": self._text, "name": ask.tool.name},
            )
        yield self._event("response.output_item.done", {"item": item, "output_index": 0})
        usage = _usage(ask.prompt_tokens, extras, completion_tokens)
        whole = response(ask, self._created, self._reason, [item], usage)
        self._api.keep(ask, _encode(whole), self._text)
        yield self._event("response.completed", {"response": whole})

    def _begin(self) -> Iterator[bytes]:
        ask = self._ask
        if ask.tool is not None:
            item = {**_call(ask, ""), "status": "in_progress"}
            yield self._event("response.output_item.added", {"item": item, "output_index": 0})
            return
        item = _message(ask, None, status="in_progress")
        yield self._event("response.output_item.added", {"item": item, "output_index": 0})
        yield self._event("response.content_part.added", {**self._place(), "part": _part("", [])})

    def _item(self) -> Json:
        return {"item_id": f"fc_{_suffix(self._ask)}", "output_index": 0}

    def _place(self) -> Json:
        return {"content_index": 0, "item_id": f"msg_{_suffix(self._ask)}", "output_index": 0}

    def _event(self, kind: str, fields: Json) -> bytes:
        """vLLM prints the keys of an event in alphabetical order."""
        numbered = {**fields, "sequence_number": self._number, "type": kind}
        self._number += 1
        data = _encode({key: numbered[key] for key in sorted(numbered)})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def response(
    ask: Ask, created: int, finish_reason: str | None, output: list[Json], usage: Json | None
) -> Json:
    """Return the response object, its keys in the recorded order."""
    cut = finish_reason == "length"
    values = {
        **ask.echo,
        "id": ask.request_id,
        "created_at": created,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": ask.model,
        "object": "response",
        "output": output,
        "status": _STATUSES[finish_reason],
        "max_output_tokens": ask.sampling.max_tokens,
        "usage": usage,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }
    return {name: values[name] for name in _ORDER}


def _suffix(ask: Ask) -> str:
    return ask.request_id.removeprefix("resp_")


def _part(text: str, logprobs: list[object] | None) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _message(ask: Ask, text: str | None, *, status: str) -> Json:
    return {
        "id": f"msg_{_suffix(ask)}",
        "content": [] if text is None else [_part(text, None)],
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def _call(ask: Ask, arguments: str) -> Json:
    name = ask.tool.name if ask.tool is not None else ""
    return {
        "arguments": arguments,
        "call_id": tool_call_id(ask, 0),
        "name": name,
        "type": "function_call",
        "id": f"fc_{_suffix(ask)}",
        "status": "completed",
    }


def _usage(input_tokens: int, extras: Extras, output_tokens: int) -> Json:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": extras.cached_tokens or 0,
            "cache_write_tokens": extras.created_cache_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": input_tokens + output_tokens,
    }
