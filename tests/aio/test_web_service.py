"""The service of FastAPI in examples/clients/web_service.py, served by uvicorn over a real delegate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import module_of

pytestmark = pytest.mark.processes
SERVICE = Path(__file__).parents[2] / "examples" / "clients" / "web_service.py"


@pytest.fixture
def service(federation: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's module, in a federation with a delegate that its adapters find."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("httpx")
    federation.pad()
    module = module_of(SERVICE)
    for name in ("AsyncSubscriberAdapter", "AsyncPublisherAdapterLight"):
        monkeypatch.setattr(module, name, partial(getattr(module, name), federation.config))
    return module


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Any]:
    """A client of the service, which runs in this loop."""
    import httpx
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            assert not task.done(), await task
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        await task


async def first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    """That many lines which are not empty."""
    while count:
        if line := await anext(lines):
            count -= 1
            yield line


def test_a_stream_brings_what_is_posted_and_ends_its_subscription_when_the_client_leaves(service: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60.0), served(service.app) as client:
            # Given a client with an open stream
            async with client.stream("GET", "/readings") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == ": subscribed"
                # When others post two readings and one that is none
                posted = [
                    await client.post(
                        "/readings", content=f"<reading><station>A</station><value>{value}</value></reading>"
                    )
                    for value in ("21", "warm", "22")
                ]
                # Expect both at the stream, and the third refused
                assert [each.status_code for each in posted] == [202, 422, 202]
                events = [line async for line in first(lines, 2)]
                assert events == [
                    f"data: <reading><station>A</station><value>{value}</value></reading>" for value in (21, 22)
                ]
            # When the client has left, expect no subscription any more
            while service.app.state.subscriber.status()["subscriptions"]:
                await asyncio.sleep(0.01)

    asyncio.run(run())
