"""A web service of FastAPI over the adapters for asyncio: whoever posts a reading publishes it, and whoever opens the
stream is sent those that come. Needs `jbi lookup` and `jbi pad alpha rome`, and fastapi and uvicorn, which are in the
extra `web`:

    uvicorn --app-dir examples/clients web_service:app
    curl -N localhost:8000/readings
    curl -d "<reading><station>A</station><value>21</value></reading>" localhost:8000/readings
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from jbi_pubsub.aio import AsyncPublisherAdapterLight, AsyncSubscriberAdapter
from jbi_pubsub.core.errors import BackPressureError, MetadataError

SCHEMA = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="reading"><xs:complexType><xs:sequence>
<xs:element name="station" type="xs:string"/>
<!-- variant --><xs:element name="value" type="xs:integer"/>
</xs:sequence></xs:complexType></xs:element></xs:schema>"""
READING = b"<reading><station>A</station><value>21</value></reading>"


@asynccontextmanager
async def adapters(app: FastAPI) -> AsyncIterator[None]:
    """Open while the service runs."""
    async with AsyncSubscriberAdapter() as app.state.subscriber, AsyncPublisherAdapterLight() as publisher:
        delegate = await publisher.connect_to_delegate("alpha", "rome")
        app.state.readings = await publisher.register_publisher(delegate, SCHEMA, READING)
        app.state.publisher = publisher
        yield


app = FastAPI(lifespan=adapters)


@app.post("/readings", status_code=202)
async def publish(request: Request) -> dict[str, str]:
    """Publish the body; the object's id."""
    try:
        return {"id": await app.state.publisher.publish(app.state.readings, await request.body())}
    except MetadataError as exc:
        raise HTTPException(422, str(exc)) from exc
    except BackPressureError as exc:
        raise HTTPException(503, str(exc)) from exc


@app.get("/readings")
async def stream() -> StreamingResponse:
    """Readings as they come, as server-sent events. The subscription ends when the client leaves."""
    subscription = await app.state.subscriber.register_subscriber(type_name="reading")
    await app.state.subscriber.wait_matched(subscription)

    async def events() -> AsyncIterator[str]:
        try:
            yield ": subscribed\n\n"
            async for obj in app.state.subscriber.objects(subscription):
                yield f"data: {obj.metadata.decode()}\n\n"
        finally:
            await app.state.subscriber.cancel_subscription(subscription)

    return StreamingResponse(events(), media_type="text/event-stream")
