"""The three learned lengths together, and the one place that decides what a finished answer teaches them."""

from __future__ import annotations

from router.core.answer import Usage
from router.core.body_text import PromptSize
from router.core.request import Request
from router.core.tokens import OutputTokens, PromptTokens, StreamTokens


class TokenBook:
    """Prompt lengths, tokens of running streams, and output lengths, all learned from engines' usage."""

    __slots__ = ("outputs", "prompts", "streams")

    def __init__(self) -> None:
        self.prompts = PromptTokens()
        self.streams = StreamTokens()
        self.outputs = OutputTokens()

    def expected(self, request: Request) -> int:
        """Output tokens expected of all sequences of a request together, at least 1."""
        if not request.api.generates:
            return 1
        one = self.outputs.expected(
            request.model,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
        )
        return one * request.sequences

    def learn(self, request: Request, size: PromptSize, usage: Usage) -> None:
        """A whole answer of this request was had, with this usage."""
        if usage.prompt_tokens is not None:
            self.prompts.learn(request.model, size, usage.prompt_tokens)
        if usage.completion_tokens and request.api.generates:
            self._learn_output(request, usage.completion_tokens // request.sequences)

    def _learn_output(self, request: Request, tokens: int) -> None:
        # A length that the client dictated says nothing about what the model would have written. One that was
        # cut at the client's bound says that it would have been longer, which is news only beyond the mean.
        if request.ignore_eos:
            return
        cut = request.max_tokens is not None and tokens >= request.max_tokens
        if not cut or tokens > self.outputs.expected(request.model, max_tokens=None):
            self.outputs.learn(request.model, tokens)

    def __repr__(self) -> str:
        return f"<TokenBook {self.prompts!r} {self.streams!r} {self.outputs!r}>"
