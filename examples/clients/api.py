"""A client of the gateway that is made of its OpenAPI document alone, with nothing but Python's standard library.

    api = Api("http://127.0.0.1:8170")
    api.publishObjects(type="report", version="1.0", validate=False, objects=[(b"<report/>", b"payload")])
    for found in api.queryObjects(type="report", version="1.0", limit=10)["objects"]: ...

A method for each `operationId`; arguments are the parameters of the document (Last-Event-ID is last_event_id), `body`
is JSON, or bytes of what else the call takes (publishObjects: `application/xml`, the metadata of one object), `objects`
are pairs of metadata and payload. What the gateway refuses is raised as the class of its code, a
subclass of ApiError: `api.error("back_pressure")`.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

MULTIPART = "multipart/form-data"


class ApiError(Exception):
    """Error that the gateway tells: `problem` has code, detail, hint, status and facts."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(" ".join(filter(None, (problem["detail"] + ".", problem.get("hint", "")))))
        self.problem = problem


class Api:
    """Calls by name, as the document has them."""

    def __init__(self, base: str, *, token: str = "", document: dict[str, Any] | None = None, timeout: float = 60.0):
        self._base, self._token, self._timeout = base, token, timeout
        self._calls: dict[str, tuple[str, str, dict[str, Any]]] = {}
        self._errors: dict[str, type[ApiError]] = {}
        document = document or json.loads(self._open("GET", "/v1/openapi.json", None, {}).read())
        for path, methods in document["paths"].items():
            for method, call in methods.items():
                self._calls[call["operationId"]] = (method.upper(), path, call)
        for each in document["x-errors"]:
            self._errors[each["code"]] = type(_camel(each["code"]), (ApiError,), {"__doc__": each["title"]})

    def error(self, code: str) -> type[ApiError]:
        """The class of an error's code. Raises KeyError for one that the document does not have."""
        return self._errors[code]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._calls:
            raise AttributeError(f"the document has no call {name}")

        def call(
            *,
            body: dict[str, Any] | bytes | None = None,
            objects: Iterable[tuple[bytes, bytes]] | None = None,
            **given: Any,
        ) -> Any:
            return self._call(name, body, objects, given)

        return call

    def _call(
        self, called: str, body: Any, objects: Iterable[tuple[bytes, bytes]] | None, given: dict[str, Any]
    ) -> Any:
        method, path, call = self._calls[called]
        query: list[tuple[str, str]] = []
        headers: dict[str, str] = {}
        for parameter in call.get("parameters", ()):
            argument = parameter["name"].lower().replace("-", "_")
            if argument not in given:
                if parameter["required"]:
                    raise TypeError(f"{called} needs {argument}")
                continue
            value = given.pop(argument)
            for text in map(_text, value if parameter["schema"]["type"] == "array" else [value]):
                if parameter["in"] == "path":
                    path = path.replace("{" + parameter["name"] + "}", quote(text, safe=""))
                elif parameter["in"] == "query":
                    query.append((parameter["name"], text))
                else:
                    headers[parameter["name"]] = text
        if given:
            raise TypeError(f"{called} takes no {', '.join(given)}")
        data = None
        if objects is not None and MULTIPART in call["requestBody"]["content"]:
            boundary, data = multipart(objects)
            headers["Content-Type"] = f"{MULTIPART}; boundary={boundary}"
        elif isinstance(body, bytes):
            headers["Content-Type"] = next(kind for kind in call["requestBody"]["content"] if kind != MULTIPART)
            data = body
        elif "requestBody" in call:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        answer = self._open(method, path + ("?" + urlencode(query) if query else ""), data, headers)
        kind = answer.headers.get_content_type() if answer.headers.get("Content-Type") else ""
        if kind == "text/event-stream":
            return events(answer)
        with answer:
            said = answer.read()
        return json.loads(said) if kind == "application/json" else said or None

    def _open(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        if self._token:
            headers = {**headers, "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._base + path, data, headers, method=method)  # noqa: S310  # its user names the address
        try:
            return urllib.request.urlopen(request, timeout=self._timeout)  # noqa: S310
        except urllib.error.HTTPError as exc:
            with exc:
                said = exc.read()
            if exc.headers.get_content_type() != "application/problem+json":
                raise
            problem = json.loads(said)
            raise self._errors.get(problem["code"], ApiError)(problem) from None


def multipart(objects: Iterable[tuple[bytes, bytes]]) -> tuple[str, bytes]:
    """Boundary and body (RFC 7578) of pairs of metadata and payload."""
    pairs = list(objects)
    boundary, whole = "jbi", b"".join(part for pair in pairs for part in pair)
    while boundary.encode() in whole:
        boundary += "-"
    parts = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + data + b"\r\n"
        for pair in pairs
        for name, data in zip(("metadata", "payload"), pair, strict=True)
    )
    return boundary, b"".join(parts) + f"--{boundary}--\r\n".encode()


def events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any, str]]:
    """Kind, data and id of server-sent events, as they come."""
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name:
            found[name] = value.removeprefix(" ")
        elif "data" in found:
            yield found.get("event", "message"), json.loads(found["data"]), found.get("id", "")
            found = {}
        elif not value:
            found = {}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _camel(code: str) -> str:
    return re.sub(r"(?:^|_)([a-z])", lambda m: m[1].upper(), code) + "Error"
