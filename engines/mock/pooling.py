"""Requests that compute a prompt and no output: embeddings, scores, rerank, pooling, classify.

Separate from generation because these answer with numbers: pure functions of the texts, so equal inputs
have equal vectors on every engine.
"""

from __future__ import annotations

import base64
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import sqrt

import msgspec

from engines.mock.ask import Ask, Sampling
from engines.mock.errors import ClientGone, Refusal, bad_request, body_vllm
from engines.mock.fields import Fields, Json
from engines.mock.openai_ask import Context, prompts_of, rendered
from engines.mock.process import EngineProcess
from engines.mock.serving import fields_of
from engines.mock.wire import ClientWatch, Request
from engines.model.text import encode

DIMENSIONS = 384
"""Length of a vector when the request names none (that of small sentence encoders)."""
MAX_DIMENSIONS = 4096
CLASSES = 2

_encode = msgspec.json.encode

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Pooled:
    """One pooling request: its prompts, and the body once they are computed.

    Attributes:
        prefix: of the answer's id.
        render: id, date and usage to body.
    """

    prompts: Prompts
    prefix: str
    render: Callable[[str, int, Json], Json]


PoolingApi = Callable[[Fields, Context], Pooled]


async def serve_pooling(request: Request, process: EngineProcess, api: PoolingApi) -> None:
    """Answer one pooling request.

    Raises:
        Severed: the connection was ended by a fault or a crash.
    """
    try:
        fields, context = fields_of(request, process)
        context = replace(context, model=context.model_of(fields))
        pooled = api(fields, context)
        ask = Ask(
            request_id=f"{pooled.prefix}-{context.request_id}",
            model=context.model,
            prompts=pooled.prompts,
            sampling=Sampling(max_tokens=1),
            priority=fields.integer("priority") or 0,
            rank=context.rank,
        )
        generation = process.submit(ask, request.arrived, pooling=True)
        with ClientWatch(request.receive, generation.leave):
            await generation.answers()
    except Refusal as refusal:
        await request.answer(refusal.status, body_vllm(refusal))
        return
    except ClientGone:
        return
    except ConnectionResetError:
        await request.sever(hard=True)
    tokens = ask.prompt_tokens
    usage: Json = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    await request.answer(200, _encode(pooled.render(ask.request_id, int(process.unix_now()), usage)))


def unit_vector(token_ids: Sequence[int], dimensions: int) -> list[float]:
    """Return a vector of length 1 that is a pure function of the tokens."""
    seed = blake2b(array("Q", token_ids).tobytes(), digest_size=32).digest()
    needed = -(-dimensions * 2 // 64)
    drawn = b"".join(blake2b(seed, salt=index.to_bytes(8, "big")).digest() for index in range(needed))
    values = [draw / 32768 - 1 + 2**-16 for draw in struct.unpack(f">{dimensions}H", drawn[: 2 * dimensions])]
    length = sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def relevance(query: str, document: str) -> float:
    """Return a score in (0, 1): the share of the query's words that the document has, and a little noise."""
    words = set(query.lower().split())
    shared = len(words & set(document.lower().split())) / len(words) if words else 0.0
    digest = blake2b(f"{query}\0{document}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
    noise = (int.from_bytes(digest, "big") + 0.5) / 2**32
    return 0.9 * shared + 0.1 * noise


def embeddings(fields: Fields, context: Context) -> Pooled:
    """Read an embeddings body."""
    prompts = _inputs(fields, context)
    dimensions = fields.integer("dimensions") or DIMENSIONS
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise bad_request(f"dimensions must be 1 to {MAX_DIMENSIONS}, got {dimensions}.", "dimensions")
    form = fields.text("encoding_format") or "float"
    if form not in {"float", "base64"}:
        raise bad_request(f"encoding_format must be float or base64, got {form}.", "encoding_format")

    def render(answer_id: str, created: int, usage: Json) -> Json:
        data = []
        for index, prompt in enumerate(prompts):
            vector: object = unit_vector(prompt, dimensions)
            if form == "base64":
                vector = base64.b64encode(
                    struct.pack(f"<{dimensions}f", *unit_vector(prompt, dimensions))
                ).decode()
            data.append({"index": index, "object": "embedding", "embedding": vector})
        return _list(answer_id, created, context.model, data, usage)

    return Pooled(prompts, "embd", render)


def pooling(fields: Fields, context: Context) -> Pooled:
    """Read a pooling body: the vector without a name for it."""
    prompts = _inputs(fields, context)

    def render(answer_id: str, created: int, usage: Json) -> Json:
        data = [
            {"index": index, "object": "pooling", "data": unit_vector(prompt, DIMENSIONS)}
            for index, prompt in enumerate(prompts)
        ]
        return _list(answer_id, created, context.model, data, usage)

    return Pooled(prompts, "pool", render)


def classify(fields: Fields, context: Context) -> Pooled:
    """Read a classify body; there are two classes."""
    prompts = _inputs(fields, context)

    def render(answer_id: str, created: int, usage: Json) -> Json:
        data = []
        for index, prompt in enumerate(prompts):
            draw = (1 + unit_vector(prompt, 8)[0]) / 2
            label = "LABEL_0" if draw >= 0.5 else "LABEL_1"
            data.append({"index": index, "label": label, "probs": [draw, 1 - draw], "num_classes": CLASSES})
        return _list(answer_id, created, context.model, data, usage)

    return Pooled(prompts, "classify", render)


def score(fields: Fields, context: Context) -> Pooled:
    """Read a score body: one text against one or many, or pairs."""
    queries = fields.texts("text_1") or fields.texts("queries")
    documents = fields.texts("text_2") or fields.texts("documents")
    if not queries or not documents:
        raise bad_request("score needs text_1 and text_2, or queries and documents.", "text_1")
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise bad_request("text_1 must be one text, or as many as text_2.", "text_1")
    pairs = list(zip(queries, documents, strict=True))

    def render(answer_id: str, created: int, usage: Json) -> Json:
        data = [
            {"index": index, "object": "score", "score": relevance(query, document)}
            for index, (query, document) in enumerate(pairs)
        ]
        return _list(answer_id, created, context.model, data, usage)

    return Pooled(_pairs(pairs), "score", render)


def rerank(fields: Fields, context: Context) -> Pooled:
    """Read a rerank body; documents are texts or objects with a text."""
    fields.required("documents")
    query = str(fields.required("query"))
    documents = _documents(fields)
    top = fields.integer("top_n")
    scored = [(relevance(query, document), index) for index, document in enumerate(documents)]
    best = sorted(scored, key=lambda entry: (-entry[0], entry[1]))[: top or None]

    def render(answer_id: str, _: int, usage: Json) -> Json:
        return {
            "id": answer_id,
            "model": context.model,
            "usage": {"prompt_tokens": usage["prompt_tokens"], "total_tokens": usage["total_tokens"]},
            "results": [
                {
                    "index": index,
                    "document": {"text": documents[index], "multi_modal": None},
                    "relevance_score": relevance_score,
                }
                for relevance_score, index in best
            ],
        }

    return Pooled(_pairs([(query, document) for document in documents]), "rerank", render)


POOLING_APIS: Mapping[str, PoolingApi] = {
    "/v1/embeddings": embeddings,
    "/pooling": pooling,
    "/classify": classify,
    "/score": score,
    "/v1/score": score,
    "/rerank": rerank,
    "/v1/rerank": rerank,
    "/v2/rerank": rerank,
}


def _inputs(fields: Fields, context: Context) -> Prompts:
    """`input` as texts or token ids, or a chat under `messages`."""
    if fields.has("messages"):
        prompts: Prompts = (rendered(fields.objects("messages"), fields),)
    else:
        prompts = prompts_of(fields, "input")
    longest = max(len(prompt) for prompt in prompts)
    if longest > context.limits.max_model_len:
        raise bad_request(
            f"This model's maximum context length is {context.limits.max_model_len} tokens. However, your "
            f"request has {longest} input tokens. (parameter=input_tokens, value={longest})",
            "input_tokens",
        )
    return prompts


def _pairs(pairs: Sequence[tuple[str, str]]) -> Prompts:
    return tuple(tuple(encode(f"{query}\n{document}")) for query, document in pairs)


def _documents(fields: Fields) -> list[str]:
    documents = fields.raw("documents")
    if not isinstance(documents, list) or not documents:
        raise fields.wrong("documents", "a list of texts or of objects with a text")
    texts = []
    for document in documents:
        text = document.get("text") if isinstance(document, Mapping) else document
        if not isinstance(text, str):
            raise fields.wrong("documents", "a list of texts or of objects with a text")
        texts.append(text)
    return texts


def _list(answer_id: str, created: int, model: str, data: Sequence[Json], usage: Json) -> Json:
    return {
        "id": answer_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": data,
        "usage": usage,
    }
