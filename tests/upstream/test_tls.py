"""TLS to workers, over real sockets of the loopback device."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from router.core.errors import ConnectFailed
from router.upstream.connect import TcpConnect, TcpSettings
from router.upstream.origin import Origin
from tests.upstream.loopback import Run, get, hello, served, upstream


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of our own for 127.0.0.1, in one file."""
    place = tmp_path_factory.mktemp("tls")
    pem = place / "worker.pem"
    made = subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *("-keyout", str(place / "key"), "-out", str(place / "cert"), "-days", "2"),
            *("-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    pem.write_text((place / "key").read_text() + (place / "cert").read_text())
    return pem


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def test_tls_works_with_the_authority_that_is_given(run: Run, certificate: Path) -> None:
    async def main() -> None:
        async with served(hello, server_tls(certificate)) as origin:
            up = upstream(TcpConnect(tls=ssl.create_default_context(cafile=certificate)))
            assert [await get(up, origin) for _ in range(3)] == [b"hello"] * 3
            assert repr(up) == "<Upstream [0 busy | 1 idle | 1 origins]>"
            await up.aclose()
            assert repr(up) == "<Upstream [0 busy | 0 idle | 0 origins]>"

    run(main())


def test_a_certificate_of_nobody_we_trust_is_refused(run: Run, certificate: Path) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the server's side
        async with served(hello, server_tls(certificate)) as origin:
            with pytest.raises(ConnectFailed, match="not trusted") as caught:
                await get(upstream(), origin)
            assert not caught.value.sent
            assert "127.0.0.1" not in str(caught.value)

    run(main())


def test_a_worker_that_speaks_no_tls_is_explained(run: Run) -> None:
    async def main() -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with served(plain) as origin:
            with pytest.raises(ConnectFailed, match="TLS handshake"):
                await get(upstream(), Origin("https", "127.0.0.1", origin.port, ""))

    run(main())


def test_a_worker_that_never_finishes_the_handshake_is_given_up(
    run: Run,
) -> None:
    async def main() -> None:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with served(mute) as origin:
            up = upstream(TcpConnect(TcpSettings(tls_s=0.05)))
            with pytest.raises(ConnectFailed, match=r"TLS handshake within 0\.05 s"):
                await get(up, Origin("https", "127.0.0.1", origin.port, ""))

    run(main())
