"""A hub on 127.0.0.1 that speaks as much of the Hugging Face hub's API as a download needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Repositories by name, each with its files; and what goes wrong, which a test may change at any time."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    endpoint: str = ""
    gated: tuple[str, ...] = ()  # repositories whose files nobody may have without the token
    token: str = "hf_secret"
    cuts: list[int] = field(default_factory=list)  # the next answers with a file break off after so many bytes
    flipped: bool = False  # files are sent with one wrong bit
    serves_ranges: bool = True
    page: bytes = b""  # the answer to every question about a repository, if not empty
    status: int = 0  # of every answer with a file, if not 0
    ranges: list[str] = field(default_factory=list)  # the Range of each request for a file, "" for none

    def digest(self, repo: str, name: str) -> str:
        return hashlib.sha256(self.repos[repo][name]).hexdigest()


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            self._describe(match[1], "blobs=true" in query.lower())
        elif match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{REVISION}/(.+)", path):
            self._resolve(match[1], match[2])
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._send_file(self.hub.repos[match[1]][match[2]])
        else:
            self._send(404)

    def _describe(self, repo: str, with_files: bool) -> None:
        if self.hub.page:
            return self._send(200, {"Content-Type": "text/html"}, self.hub.page)
        if repo not in self.hub.repos:
            return self._send(401, {"X-Error-Code": "RepoNotFound"})  # as the hub says it to strangers
        siblings: list[dict[str, Any]] = []
        for name, content in self.hub.repos[repo].items():
            lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            is_large = name.endswith(".gguf")
            siblings.append({"rfilename": name, "size": len(content)} | ({"lfs": lfs} if is_large else {}))
        assert with_files
        body = json.dumps({"_id": "1", "id": repo, "sha": REVISION, "siblings": siblings, "tags": []})
        self._send(200, {"Content-Type": "application/json"}, body.encode())

    def _resolve(self, repo: str, name: str) -> None:
        if repo in self.hub.gated and self.headers["Authorization"] != f"Bearer {self.hub.token}":
            status = 403 if self.headers["Authorization"] else 401
            return self._send(status, {"X-Error-Code": "GatedRepo"})
        self._send(302, {"Location": f"/cdn/{repo}/{name}"})

    def _send_file(self, content: bytes) -> None:
        hub = self.hub
        wanted = self.headers["Range"] or ""
        hub.ranges.append(wanted)
        if hub.status:
            return self._send(hub.status)
        if hub.flipped:
            content = bytes([content[0] ^ 1]) + content[1:]
        begin = int(wanted[6:-1]) if wanted and hub.serves_ranges else 0
        headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        self._send(206 if begin else 200, headers, content[begin:], hub.cuts.pop(0) if hub.cuts else None)

    def _send(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass
