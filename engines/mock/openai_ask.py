"""From a chat or completions body to an `Ask`, with every refusal in vLLM's order.

Separate from the encoders: this side reads what clients send, that side writes what they get.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engines.mock.ask import Ask
from engines.mock.errors import Refusal, bad_request, unknown_model
from engines.mock.fields import Fields, is_token_ids
from engines.mock.sampling import (
    Limits,
    answers_per_prompt,
    cache_salt,
    check_prompt_length,
    check_token_ids,
    max_tokens,
    prompt_logprobs,
    sampling,
    streaming,
)
from engines.mock.script import structured_script, tool_call
from engines.model.text import Message, encode, render_chat

COMPLETIONS_MAX_TOKENS = 16
"""Output limit of a completions request that names none (OpenAI's and vLLM's default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the engine brings to the reading of a body.

    Attributes:
        model: the served name.
        any_model: serve whatever model is asked for, under the asked name (SGLang).
        request_id: of the header, or drawn.
        auto_tool_choice: whether `tool_choice: auto` is served.
        rank: the data-parallel rank that is to run it; None leaves that to the engine.
    """

    model: str
    request_id: str
    limits: Limits
    auto_tool_choice: bool = True
    any_model: bool = False
    rank: int | None = None

    def model_of(self, fields: Fields) -> str:
        """Return the model name of the answer.

        Raises:
            Refusal: 404 for a model that is not served.
        """
        if self.any_model:
            return fields.text("model") or self.model
        check_model(fields, self.model)
        return self.model


def check_model(fields: Fields, model: str) -> None:
    """Refuse a model that is not served; none at all means the served one.

    Raises:
        Refusal: 404.
    """
    asked = fields.text("model")
    if asked is not None and asked != model:
        raise unknown_model(asked, model)


def chat_ask(fields: Fields, context: Context) -> Ask:
    """Read a chat.completions body.

    Raises:
        Refusal: 400 or 404.
    """
    fields.required("messages")
    messages = fields.objects("messages")
    streaming_options = streaming(fields)
    model = context.model_of(fields)
    tool = tool_call(fields, auto_allowed=context.auto_tool_choice)
    prompts = (rendered(messages, fields),)
    check_prompt_length(prompts, context.limits)
    asked = fields.integer("max_completion_tokens")
    limit = max_tokens(fields.integer("max_tokens") if asked is None else asked, prompts, context.limits)
    script = tuple(encode(tool.arguments)) if tool is not None else structured_script(fields)
    return Ask(
        request_id=f"chatcmpl-{fields.text('request_id') or context.request_id}",
        model=model,
        prompts=prompts,
        sampling=sampling(fields, limit, _chat_logprobs(fields), script),
        streaming=streaming_options,
        n=answers_per_prompt(fields),
        priority=fields.integer("priority") or 0,
        cache_salt=cache_salt(fields),
        return_token_ids=fields.flag("return_token_ids"),
        tool=tool,
        prompt_logprobs=prompt_logprobs(fields, streaming_options),
    )


def completion_ask(fields: Fields, context: Context) -> Ask:
    """Read a completions body: a text, texts, token ids, or lists of token ids.

    Raises:
        Refusal: 400 or 404.
    """
    fields.required("prompt")
    streaming_options = streaming(fields)
    model = context.model_of(fields)
    prompts = prompts_of(fields, "prompt")
    limits = replace(context.limits, default_max_tokens=COMPLETIONS_MAX_TOKENS)
    check_prompt_length(prompts, limits)
    limit = max_tokens(fields.integer("max_tokens"), prompts, limits)
    logprobs, echo = fields.integer("logprobs"), fields.flag("echo")
    asked = prompt_logprobs(fields, streaming_options)
    return Ask(
        request_id=f"cmpl-{fields.text('request_id') or context.request_id}",
        model=model,
        prompts=prompts,
        sampling=sampling(fields, limit, logprobs, structured_script(fields)),
        streaming=streaming_options,
        n=answers_per_prompt(fields),
        priority=fields.integer("priority") or 0,
        cache_salt=cache_salt(fields),
        return_token_ids=fields.flag("return_token_ids"),
        echo_prompt=echo,
        prompt_logprobs=logprobs if echo and asked is None else asked,
    )


def rendered(messages: list[dict[str, object]], fields: Fields) -> tuple[int, ...]:
    """Return the token ids of a chat.

    Raises:
        Refusal: 400 for messages that no template can lay out.
    """
    if not messages:
        raise bad_request("An empty conversation cannot be rendered; at least one message is needed.")
    generation_prompt = fields.flag("add_generation_prompt", default=True)
    final = fields.flag("continue_final_message")
    chat: list[Message] = [dict(message) for message in messages]
    tools = fields.objects("tools") if fields.raw("tool_choice") != "none" else []
    try:
        ids = render_chat(
            chat,
            tools=tools,
            documents=fields.objects("documents"),
            add_generation_prompt=generation_prompt and not final,
            continue_final_message=final,
        )
    except (ValueError, TypeError) as error:
        raise bad_request(f"{error}.", "messages") from None
    return tuple(ids)


def kills_engine(fields: Fields) -> bool:
    """Whether a body carries the KV hand-over that a real engine was seen to die of.

    `do_remote_prefill` without the address of a prefill: the engine core fails an assertion and exits.
    """
    handle = fields.raw("kv_transfer_params")
    if not isinstance(handle, Mapping) or handle.get("do_remote_prefill") is not True:
        return False
    needed = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
    return not any(name in handle for name in needed)


def _chat_logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs")
    if not fields.flag("logprobs"):
        if top:
            raise bad_request("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        return None
    return top or 0


def prompts_of(fields: Fields, name: str) -> tuple[tuple[int, ...], ...]:
    """Read a text, texts, token ids, or lists of token ids.

    Raises:
        Refusal: 400 when the field is none of these, or empty.
    """
    prompt = fields.required(name)
    if isinstance(prompt, str):
        return (_encoded(prompt),)
    if prompt == []:
        raise bad_request("At least one prompt is needed.")
    if not isinstance(prompt, list):
        raise fields.wrong(name, "a string, a list of strings or token ids")
    if is_token_ids(prompt):
        return (_checked(prompt),)
    prompts = []
    for item in prompt:
        if isinstance(item, str):
            prompts.append(_encoded(item))
        elif is_token_ids(item):
            prompts.append(_checked(item))
        else:
            raise fields.wrong(name, "a string, a list of strings or token ids")
    return tuple(prompts)


def _encoded(text: str) -> tuple[int, ...]:
    ids = tuple(encode(text))
    if not ids:
        raise empty_prompt()
    return ids


def _checked(ids: list[int]) -> tuple[int, ...]:
    if not ids:
        raise empty_prompt()
    check_token_ids(ids)
    return tuple(ids)


def empty_prompt() -> Refusal:
    """A prompt without a single token."""
    return bad_request("The decoder prompt cannot be empty", "prompt")
