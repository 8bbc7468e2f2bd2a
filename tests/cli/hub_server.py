"""A Hugging Face hub of its own, on this machine: the two addresses that a pull asks, and how they fail."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """What the hub has and how it behaves; tests change it while it runs.

    Attributes:
        repos: Files by name, of each repository.
        large: Files of this many bytes and more are large ones (LFS): SHA-256, served by a redirect.
        errors: Path prefix to status and `X-Error-Code` of what is refused.
        cut: The connection ends after this many bytes of an answer.
        slow: Seconds to wait after each 1,000 bytes.
        ranges: Whether it can begin in the middle of a file.
        lies: Content that is sent instead, by file name.
        extra: Further entries of the listing.
        asked: What was asked of it: path and range.
        tokens: Path and authorisation of each request that had one.
        elsewhere: Whether content comes from another host, as it does from the real hub.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    large: int = 1000
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    cut: int | None = None
    slow: float = 0
    ranges: bool = True
    lies: dict[str, bytes] = field(default_factory=dict)
    extra: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    page: bytes | None = None
    tokens: list[tuple[str, str]] = field(default_factory=list)
    elsewhere: bool = False

    def commit(self, repo: str) -> str:
        """The newest commit: it changes with the files."""
        content = b"".join(name.encode() + data for name, data in sorted(self.repos[repo].items()))
        return hashlib.sha1(content).hexdigest()

    def listing(self, repo: str) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, data in self.repos[repo].items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_id(data)}
            if len(data) >= self.large:
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": repo, "modelId": repo, "sha": self.commit(repo), "siblings": siblings + self.extra}

    def downloads(self) -> list[tuple[str, str]]:
        """The file names that were asked for, with the range of each."""
        return [(path.split("/")[-1], span) for path, span in self.asked if path.startswith("/cdn/")]


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((path, self.headers.get("Range", "")))
            if token := self.headers.get("Authorization"):
                hub.tokens.append((path, token))
            for prefix, (status, code) in hub.errors.items():
                if path.startswith(prefix):
                    return self.answer(status, b"", {"X-Error-Code": code} if code else {})
            if hub.page is not None:
                return self.answer(200, hub.page, {"Content-Type": "text/html"})
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                return self.listing("/".join(parts[2:4]), parts[4:])
            if parts[0] == "cdn":
                return self.content("/".join(parts[1:3]), "/".join(parts[3:]))
            # A file: owner/name/resolve/revision/path, which the real hub redirects as well.
            host = hub.url.replace("127.0.0.1", "localhost") if hub.elsewhere else hub.url
            target = "/".join(["", "cdn", *parts[:2], *parts[4:]])
            return self.answer(302, b"", {"Location": host + target})

        def listing(self, repo: str, rest: list[str]) -> None:
            if repo not in hub.repos:
                return self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
            if rest and rest[-1] not in ("main", hub.commit(repo), "v1"):
                return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return self.answer(200, json.dumps(hub.listing(repo)).encode(), {})

        def content(self, repo: str, name: str) -> None:
            data = hub.lies.get(name, hub.repos[repo][name])
            span = self.headers.get("Range", "")
            start = int(span.removeprefix("bytes=").removesuffix("-")) if span and hub.ranges else 0
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            self.answer(206 if span and hub.ranges else 200, data[start:], headers if start else {})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            if status == 206:
                headers.setdefault("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = hub.cut if status in (200, 206) and "/cdn/" in self.path else None
            with suppress(OSError):  # the other side may be gone
                for start in range(0, len(body[:cut]), 1000):
                    self.wfile.write(body[:cut][start : start + 1000])
                    if hub.slow and status in (200, 206):
                        self.wfile.flush()
                        time.sleep(hub.slow)
            if cut is not None and cut < len(body):
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
