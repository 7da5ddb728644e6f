"""The first minutes of a new user, step by step, here and with NATS and RabbitMQ: deliver only documents with lat > 50.

    python benchmarks/newcomer.py

Each system gets a folder and a virtual environment of its own. A server of the distribution has to be installed before,
which is not measured; without it the system is skipped, and the output says what to install. Packages come from the
mirror of this machine: their times say little about other networks. Each step runs once.
RabbitMQ leaves the port mapper of Erlang (epmd) running.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "examples" / "data" / "intel_imagery"
MOST: Final = 420
"""Seconds of a step."""
OURS: Final = {
    "subscriber.py": """\
from jbi_pubsub import SubscriberAdapter
with SubscriberAdapter() as subscriber:
    north = subscriber.register_subscriber("template.xml", schema="schema.xsd", predicate="//lat > 50")
    print("ready", flush=True)
    print(next(subscriber.objects(north, timeout=30)).payload)
""",
    "publisher.py": """\
from jbi_pubsub import PublisherAdapterLight
with PublisherAdapterLight() as publisher:
    delegate = publisher.connect_to_delegate("alpha", "rome")
    imagery = publisher.register_publisher(delegate, "schema.xsd", invariants="south.xml")
    publisher.publish(imagery, "south.xml", b"south")
    publisher.publish(imagery, "north.xml", b"north")
""",
}
NATS: Final = {
    "subscriber.py": """\
import asyncio, nats
from lxml import etree
async def main():
    connection = await nats.connect("nats://127.0.0.1:PORT")
    documents = await connection.subscribe("imagery")
    await connection.flush()
    print("ready", flush=True)
    async for message in documents.messages:
        if etree.fromstring(message.data).xpath("//lat > 50"):
            print(b"north")
            break
    await connection.close()
asyncio.run(main())
""",
    "publisher.py": """\
import asyncio, nats
from pathlib import Path
async def main():
    connection = await nats.connect("nats://127.0.0.1:PORT")
    for name in ("south.xml", "north.xml"):
        await connection.publish("imagery", Path(name).read_bytes())
    await connection.drain()
asyncio.run(main())
""",
}
RABBIT_SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's; the script of that name in the path changes to a user that can't write to our folder."""
RABBIT: Final = {
    "subscriber.py": """\
import pika
from lxml import etree
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1"))
channel = connection.channel()
channel.exchange_declare("imagery", "fanout")
queue = channel.queue_declare("", exclusive=True).method.queue
channel.queue_bind(queue, "imagery")
print("ready", flush=True)
for _, _, body in channel.consume(queue, auto_ack=True):
    if etree.fromstring(body).xpath("//lat > 50"):
        print(b"north")
        break
connection.close()
""",
    "publisher.py": """\
import pika
from pathlib import Path
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1"))
channel = connection.channel()
channel.exchange_declare("imagery", "fanout")
for name in ("south.xml", "north.xml"):
    channel.basic_publish("imagery", "", Path(name).read_bytes())
connection.close()
""",
}


def timed(step: str, *words: str, folder: Path) -> None:
    """Run a command that a user types, and print its row."""
    began = time.monotonic()
    subprocess.run(words, cwd=folder, check=True, timeout=MOST, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"| {step} | {time.monotonic() - began:.1f} |", flush=True)


def listening(port: int) -> None:
    """Wait until a server accepts connections at `port` of this host."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no server listens on port {port}")


def programs(python: Path, texts: dict[str, str], folder: Path, commands: int) -> None:
    """Run subscriber and publisher; two more commands than `commands` were typed then."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    document = (DATA / "fig1.xml").read_text()
    for name, lat in (("south", "33.5"), ("north", "55.5")):
        (folder / f"{name}.xml").write_text(_with_lat(document, lat))
    shutil.copy(DATA / "Intel_Imagery.xsd", folder / "schema.xsd")
    shutil.copy(DATA / "fig3-template.xml", folder / "template.xml")
    began = time.monotonic()
    with subprocess.Popen([python, "subscriber.py"], cwd=folder, stdout=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == "ready\n"
        subprocess.run([python, "publisher.py"], cwd=folder, check=True, timeout=60)
        got = subscriber.communicate(timeout=60)[0].strip()
    assert got == "b'north'", got
    lines = sum(len(text.splitlines()) for text in texts.values())
    print(f"| the two programs, until the document is there | {time.monotonic() - began:.1f} |")
    print(f"| commands typed; lines of code | {commands + 2}; {lines} |", flush=True)


def _with_lat(document: str, lat: str) -> str:
    before, _, rest = document.partition("<lat>")
    return f"{before}<lat>{lat}</lat>{rest.partition('</lat>')[2]}"


def ours(folder: Path) -> None:
    """README's way: clone, `make demo`, two servers, two programs."""
    timed("git clone", "git", "clone", "-q", str(ROOT), "clone", folder=folder)
    clone = folder / "clone"
    timed("make demo: installation, and the demo", "make", "demo", f"PYTHON={sys.executable}", folder=clone)
    began = time.monotonic()
    jbi = clone / ".venv" / "bin" / "jbi"
    with Server(jbi, "lookup", folder=clone), Server(jbi, "pad", "alpha", "rome", folder=clone):
        listening(4160)
        print(f"| start of the servers | {time.monotonic() - began:.1f} |")
        programs(jbi.with_name("python"), OURS, clone, commands=4)


def theirs(folder: Path, package: str, client: str, texts: dict[str, str], port: int, *command: str) -> None:
    """A broker of the distribution, a client of PyPI, and a subscriber that evaluates the condition by itself."""
    if shutil.which(command[0]) is None:
        print(f"SKIPPED: no {command[0]}: sudo apt-get install {package}", flush=True)
        return
    print("| installation of the server: is there already, not measured | - |")
    timed("virtual environment", sys.executable, "-m", "venv", "venv", folder=folder)
    timed(f"pip install {client} lxml", "venv/bin/pip", "install", "-q", client, "lxml", folder=folder)
    began = time.monotonic()
    with Server(*command, folder=folder):
        listening(port)
        print(f"| start of the server | {time.monotonic() - began:.1f} |")
        texts = {name: text.replace("PORT", str(port)) for name, text in texts.items()}
        programs(folder / "venv" / "bin" / "python", texts, folder, commands=4)


class Server(subprocess.Popen[bytes]):
    """A server in `folder`, ended when the block ends."""

    def __init__(self, *words: str | Path, folder: Path) -> None:
        places = {f"RABBITMQ_{each}_BASE": str(folder) for each in ("MNESIA", "LOG")} | {"HOME": str(folder)}
        super().__init__(
            words, cwd=folder, env={**os.environ, **places}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __exit__(self, *failure: object) -> None:
        self.terminate()
        self.wait(60)


def main() -> None:
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; time in seconds\n\n| step | s |\n|---|---|")
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / name for name in ("jbi", "nats", "rabbit")]
        for folder in folders:
            folder.mkdir()
        print("| **jbi-pubsub** | |")
        ours(folders[0])
        print("| **NATS** | |")
        theirs(folders[1], "nats-server", "nats-py", NATS, 4222, "nats-server", "-a", "127.0.0.1", "-p", "4222")
        print("| **RabbitMQ** | |")
        theirs(folders[2], "rabbitmq-server", "pika", RABBIT, 5672, RABBIT_SERVER)


if __name__ == "__main__":
    main()
