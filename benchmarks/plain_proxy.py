"""What a router costs that is written in the obvious way: FastAPI, httpx, one path function.

It parses the body, takes workers in turn and passes bytes on; no policy, metrics, retries or checks. The
yardstick of `benchmarks.peers` for what our own data path is worth.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import AsyncIterator, Iterator

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

_FORWARDED = ("content-type", "authorization")


def plain_app(urls: list[str], client: httpx.AsyncClient) -> FastAPI:
    """An application that forwards chat completions to `urls` in turn."""
    app = FastAPI()
    turns: Iterator[str] = itertools.cycle(urls)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.body()
        streamed = json.loads(body).get("stream", False)
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        url = f"{next(turns)}/v1/chat/completions"
        call = client.build_request("POST", url, content=body, headers=headers)
        answer = await client.send(call, stream=streamed)
        kind = answer.headers.get("content-type")
        if not streamed:
            return Response(answer.content, answer.status_code, media_type=kind)
        return StreamingResponse(_pieces(answer), answer.status_code, media_type=kind)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    return app


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--port", type=int, required=True)
    command.add_argument("--worker-urls", nargs="+", required=True)
    args = command.parse_args()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    app = plain_app(args.worker_urls, httpx.AsyncClient(limits=limits, timeout=None))
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
