"""Three kinds of keys on the whole router: of clients, of workers, of administrators."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shell.live import ADMIN, ASK, CHAT, Live, play
from tests.shell.puppet import WHOLE, Ask, Puppet, answering

SERVE = answering(200, WHOLE)
CLIENTS: dict[str, Any] = {
    "auth": {"client_api_keys": ["open", {"key": "inner", "trusted": True, "tenant": "ops"}]}
}


def sent(act: Live, name: str) -> str | None:
    return act.puppets["a"].asks[-1].header(name)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic open"},
        {"authorization": "open"},
        {"x-api-key": "wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong", "x-api-key": "open"},
    ],
    ids=str,
)
def test_without_a_known_key_nothing_is_served(headers: dict[str, str]) -> None:
    async def scene(act: Live) -> None:
        for path in (CHAT, "/v1/models"):
            reply = await act.ask(path, ASK if path == CHAT else None, headers)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert reply.header("www-authenticate") == "Bearer"
            assert b"wrong" not in reply.body
        assert act.puppets["a"].asks == []
        assert (await act.ask("/health")).status == 200  # probes of load balancers have no key

    play(scene, {"a": SERVE}, **CLIENTS)


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer open"}, {"authorization": "bearer open"}, {"x-api-key": "open"}],
    ids=str,
)
def test_a_known_key_opens_and_ends_at_the_router(headers: dict[str, str]) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, ASK, headers)).status == 200
        assert (sent(act, "authorization"), sent(act, "x-api-key")) == (None, None)

    play(scene, {"a": SERVE}, **CLIENTS)


def test_the_worker_key_replaces_the_one_of_the_client() -> None:
    async def scene(act: Live) -> None:
        for headers in ({"authorization": "Bearer open"}, {"x-api-key": "open"}):
            assert (await act.ask(CHAT, ASK, headers)).status == 200
            assert [
                value for name, value in act.puppets["a"].asks[-1].headers if name == "authorization"
            ] == ["Bearer w"]
            assert sent(act, "x-api-key") is None

    play(scene, {"a": SERVE}, auth={**CLIENTS["auth"], "api_key": "w"})


def test_the_worker_key_is_sent_when_the_client_had_none() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK)
        assert sent(act, "authorization") == "Bearer w"

    play(scene, {"a": SERVE}, auth={"api_key": "w"})


def test_the_key_of_one_worker_goes_to_that_one_only() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["b"] = Puppet(act.network, "b", SERVE)
        body = {"url": "http://b:8000", "name": "b", "pool": "default"}
        assert (await act.ask("/workers", body, origin=ADMIN)).status == 202
        await act.until(lambda: act.state("b") == "ready")
        for _ in range(4):
            await act.ask(CHAT, ASK, {"authorization": "Bearer mine"})
        assert {ask.header("authorization") for ask in act.puppets["a"].asks} == {"Bearer a-only"}
        assert {ask.header("authorization") for ask in puppet.asks} == {"Bearer mine"}

    workers = [{"url": "http://a:8000", "name": "a", "api_key": "a-only"}]
    play(scene, {"a": SERVE}, pool={"workers": workers})


def test_probes_and_scrapes_carry_the_worker_key() -> None:
    async def scene(act: Live) -> None:
        seen: list[str | None] = []
        puppet = act.puppets["a"]
        dispatch = puppet.dispatch

        async def look(ask: Ask) -> None:
            seen.append(ask.header("authorization"))
            await dispatch(ask)

        puppet.dispatch = look  # type: ignore[method-assign]
        await act.until(lambda: len(seen) > 8, 30)
        assert set(seen) == {"Bearer w"}

    play(scene, {"a": SERVE}, auth={"api_key": "w"})


def test_without_keys_of_ours_the_one_of_the_client_passes_through() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK, {"authorization": "Bearer mine", "x-api-key": "too"})
        assert (sent(act, "authorization"), sent(act, "x-api-key")) == ("Bearer mine", "too")

    play(scene, {"a": SERVE})


def test_routing_headers_are_for_trusted_keys() -> None:
    async def scene(act: Live) -> None:
        trusted = await act.ask(CHAT, ASK, {"authorization": "Bearer inner"})
        other = await act.ask(CHAT, ASK, {"authorization": "Bearer open"})
        assert trusted.header("x-pointsman-worker") == "a"
        assert trusted.header("x-pointsman-policy") == "round_robin"
        assert other.header("x-pointsman-worker") is None

    play(scene, {"a": SERVE}, **CLIENTS)


ADMIN_PATHS = [
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("DELETE", "/workers/a"),
    ("POST", "/workers/a/drain"),
    ("POST", "/workers/a/resume"),
    ("GET", "/debug/state"),
    ("GET", "/policies"),
    ("PUT", "/policies"),
    ("POST", "/policies"),
    ("POST", "/route/explain"),
]


def test_without_an_admin_key_the_data_port_has_no_admin_routes() -> None:
    async def scene(act: Live) -> None:
        for method, path in ADMIN_PATHS:
            assert (await act.ask(path, method=method)).status in (404, 405)
        assert act.state("a") == "ready"
        assert (await act.ask("/workers", origin=ADMIN)).status == 200

    play(scene, {"a": SERVE})


def test_with_an_admin_key_both_ports_ask_for_it() -> None:
    async def scene(act: Live) -> None:
        for method, path in ADMIN_PATHS:
            for headers in ({}, {"authorization": "Bearer open"}, {"authorization": "Bearer inner"}):
                reply = await act.ask(path, headers=headers, method=method)
                assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
                assert (await act.ask(path, headers=headers, method=method, origin=ADMIN)).status == 401
        assert act.state("a") == "ready"
        for key in ({"authorization": "Bearer root"}, {"x-api-key": "root"}):
            assert (await act.ask("/workers", headers=key)).status == 200
            assert (await act.ask("/debug/state", headers=key, origin=ADMIN)).status == 200

    play(scene, {"a": SERVE}, auth={**CLIENTS["auth"], "admin_api_key": "root"})


def test_a_web_page_that_an_operator_visits_cannot_administer() -> None:
    async def scene(act: Live) -> None:
        page = {"origin": "https://page.example"}
        for method, path in ADMIN_PATHS:
            reply = await act.ask(path, headers=page, method=method, origin=ADMIN)
            assert (reply.status, reply.error["code"]) == (403, "forbidden")
        assert act.state("a") == "ready"

    play(scene, {"a": SERVE})


def test_a_forwarded_address_buys_nothing() -> None:
    async def scene(act: Live) -> None:
        spoof = {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1"}
        assert (await act.ask("/workers", headers=spoof)).status == 404

    play(scene, {"a": SERVE})


def test_no_key_appears_in_state_metrics_or_names() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK, {"authorization": "Bearer inner"})
        key = {"authorization": "Bearer root"}
        for path in ("/workers", "/debug/state", "/metrics"):
            text = (await act.ask(path, headers=key, origin=ADMIN)).body
            for secret in (b"wkey", b"inner", b"root"):
                assert secret not in text
        assert "wkey" not in repr(act.router) + repr(list(act.router.fleet))

    play(scene, {"a": SERVE}, auth={**CLIENTS["auth"], "api_key": "wkey", "admin_api_key": "root"})
