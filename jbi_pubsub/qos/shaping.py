"""Shapes: payloads made smaller on their way to one contract (QED, Table 1 and figure 7). The only Pillow.

Rules:
- A result that is not smaller is not used. What can't be shaped goes on as it is: no picture, an animation, bytes that
  only look like a picture, no Pillow.
- Payloads are others' bytes. A picture's size is known before it is decoded, and how often a decoder would go over it:
  a progressive JPEG of some kilobytes can ask for hours. Both together bound what a picture costs.
- What a picture says beside its pixels (EXIF, colour profiles, positions) does not come along; it stands as it stood.
"""

from __future__ import annotations

import codecs
import functools
import io
import logging
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from jbi_pubsub.core.info_object import Head, Part
from jbi_pubsub.core.quality import SHAPES, PayloadShape
from jbi_pubsub.core.xml import looks_like_xml
from jbi_pubsub.core.xpath import PayloadFilter
from jbi_pubsub.protocol.status.quality import ShapingStatus
from jbi_pubsub.qos.bins import Cost

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

log = logging.getLogger("jbi_pubsub.qos")

PIXELS_MOST: Final = 40_000_000
"""Pixels of a picture that is decoded: 160 MB at most."""
SIDE_MOST: Final = 30_000
"""Pixels of its width and height. Scaling a line of 40 million pixels takes 2 GB for what it multiplies them by."""
WORK_MOST: Final = 120_000_000
"""Pixels times passes over them: what a camera makes of 12 megapixels in ten passes, progressively."""
MODES: Final = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
"""Eight bits a channel; a measurement of sixteen would lose what it was made for."""
JPEG: Final = b"\xff\xd8\xff"
PNG: Final = b"\x89PNG\r\n\x1a\n"
START_OF_SCAN: Final = b"\xff\xda"
"""In a JPEG it can't stand inside of a scan (ITU-T T.81, B.1.1.5): 0xFF is followed by 0x00 or a restart there."""

PICTURE_SECONDS: Final = 50e-9
"""For each byte of a picture, as long as nothing is known: 3 ms for 60 KB."""
SHAPES_MOST: Final = 256
"""Ways to shape pictures of which it is known what they cost: clients may wish for any."""

_PICTURES: Final = frozenset(name for name, rule in SHAPES.items() if rule.picture)


class Shaper:
    """Shapes payloads, each once for an object, its filter and its shapes. Any thread."""

    def __init__(self) -> None:
        self.is_on = True
        """The switch of the whole information space ([space] shaping)."""
        self._lock = threading.Lock()
        self._last: tuple[Head | None, dict[tuple[PayloadFilter | None, tuple[PayloadShape, ...]], bytes | None]] = (
            None,
            {},
        )
        self._shaped = self._unshaped = self._saved = 0
        self._seconds = 0.0
        self._costs: dict[tuple[PayloadShape, ...], Cost] = {}
        """Costs of pictures, by their bytes."""

    def seconds(
        self, head: Head, wanted: PayloadFilter | None, payload: Part, shapes: tuple[PayloadShape, ...]
    ) -> float:
        """Seconds that `shape` is likely to take; 0.0 for what it has just made, and for what is no picture."""
        known, made = self._last
        if (known is head and (wanted, shapes) in made) or not _is_picture(payload, shapes):
            return 0.0
        cost = self._costs.get(shapes)
        return cost.of(len(payload)) if cost is not None else PICTURE_SECONDS * len(payload)

    def shape(
        self, head: Head, wanted: PayloadFilter | None, payload: Part, shapes: tuple[PayloadShape, ...]
    ) -> bytes | None:
        """Shape what the filter `wanted` has left of the object with that head; None: it stays as it is, although they
        are for such as it."""
        known, made = self._last
        if known is not head:
            made = {}
            self._last = head, made
        key = wanted, shapes
        if key not in made:
            began = time.thread_time()
            made[key] = shaped = shape(payload, shapes)
            spent = time.thread_time() - began
            with self._lock:
                self._seconds += spent
                if _is_picture(payload, shapes):
                    self._cost(shapes).learn(spent, 1, len(payload))
                self._shaped += shaped is not None
                self._unshaped += shaped is None
                self._saved += len(payload) - len(shaped) if shaped is not None else 0
        return made[key]

    def _cost(self, shapes: tuple[PayloadShape, ...]) -> Cost:
        if shapes not in self._costs and len(self._costs) >= SHAPES_MOST:
            self._costs = {}
        return self._costs.setdefault(shapes, Cost())

    def status(self) -> ShapingStatus:
        """Payloads, bytes saved of them, processor time."""
        with self._lock:
            return ShapingStatus(
                on=self.is_on,
                shaped=self._shaped,
                unshaped=self._unshaped,
                saved=self._saved,
                seconds=round(self._seconds, 3),
            )


def _is_picture(payload: Part, shapes: Sequence[PayloadShape]) -> bool:
    """Whether it is one to be decoded."""
    return bytes(payload[: len(PNG)]).startswith((JPEG, PNG)) and any(each.name in _PICTURES for each in shapes)


def shape(payload: Part, shapes: Sequence[PayloadShape]) -> bytes | None:
    """The payload, smaller, or as small as it may be already; None: it can't be shaped so, or gets no smaller."""
    named = {each.name: each for each in shapes}
    data = bytes(payload)
    if not data or "drop_payload" in named:
        return b""
    if data.startswith((JPEG, PNG)):
        asked = [each for each in shapes if each.name in _PICTURES]
        result = _picture(data, asked) if asked else None
    elif "truncate" in named:
        result = _truncated(data, int(named["truncate"].arguments[0]))
        if result == data:
            return data
    else:
        result = None
    return result if result is not None and len(result) < len(data) else None


def _truncated(data: bytes, most: int) -> bytes | None:
    """The beginning of a text (UTF-8), whole characters. XML would be none any more."""
    if looks_like_xml(data) or 0 in data[:most]:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data[:most]).encode()
    except UnicodeDecodeError:
        return None


@functools.cache
def _pillow() -> tuple[ModuleType, ModuleType] | None:
    """Its modules, imported when the first picture comes; None, which is said once, where it is not installed."""
    try:
        from PIL import Image, ImageOps  # an extra, and takes 30 ms
    except ImportError as exc:
        log.error("pictures are not shaped: %s. Install Pillow: pip install 'jbi-pubsub[qos]'", exc)
        return None
    # what it finds strange in a picture is for nobody: strangers would fill the log with it
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image, ImageOps


def _picture(data: bytes, shapes: Sequence[PayloadShape]) -> bytes | None:
    """A JPEG or PNG, shaped; None if that can't be."""
    modules = _pillow()
    if modules is None:
        return None
    image_module, operations = modules
    try:
        with image_module.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            pixels = picture.width * picture.height
            scans = data.count(START_OF_SCAN) if picture.format == "JPEG" else 1
            is_animated = getattr(picture, "n_frames", 1) > 1
            is_large = pixels > PIXELS_MOST or pixels * scans > WORK_MOST or max(picture.size) > SIDE_MOST
            if is_large or is_animated or picture.mode not in MODES:
                return None
            quality = next((int(each.arguments[0]) for each in shapes if each.name == "quality"), None)
            # with none asked for, as fine as it came: its own tables (ITU-T T.81, B.2.4.1)
            fineness = {"qtables": getattr(picture, "quantization", None)} if quality is None else {"quality": quality}
            return _encoded(_changed(picture, shapes, operations), picture.format, fineness)
    except Exception as exc:  # noqa: BLE001  # hostile bytes: decoders raise whatever there is, bombs and MemoryError too
        log.debug("a picture is not shaped: %s", exc)
        return None


def _changed(picture: Picture, shapes: Sequence[PayloadShape], operations: ModuleType) -> Picture:
    """Decoded no larger than needed, then scaled, upright."""
    size = picture.size
    is_grey = any(each.name == "grey" for each in shapes)
    for each in shapes:
        size = _size(size, each)
    picture.draft("L" if is_grey else picture.mode, size)  # a JPEG is decoded at 1/2, 1/4, 1/8 of its size
    has_alpha = "A" in picture.mode or "transparency" in picture.info
    grey, colour = ("LA", "RGBA") if has_alpha else ("L", "RGB")
    is_grey = is_grey or picture.mode in ("1", "L", "LA")
    changed = picture.convert(grey if is_grey else colour)
    if changed.size != size:
        changed = changed.resize(size, reducing_gap=2.0)
    return operations.exif_transpose(changed)  # type: ignore[no-any-return]


def _size(size: tuple[int, int], shape: PayloadShape) -> tuple[int, int]:
    """Width and height after a shape; neither grows, nor becomes nothing."""
    width, height = size
    if shape.name == "scale":
        factor = min(1.0, shape.arguments[0])
    elif shape.name == "thumbnail":
        factor = min(1.0, shape.arguments[0] / width, shape.arguments[1] / height)
    else:
        return size
    return max(1, round(width * factor)), max(1, round(height * factor))


def _encoded(picture: Picture, kind: str | None, fineness: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    if kind == "PNG":
        picture.save(out, "PNG", exif=b"", icc_profile=None)
    else:
        picture.save(out, "JPEG", comment=b"", **fineness)
    return out.getvalue()
