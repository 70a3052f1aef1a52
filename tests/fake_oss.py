"""A small OSS in memory: `python -m tests.fake_oss PORT`. Path style; signatures are not checked.

It knows objects, ranges, pages of listings, multipart uploads and `x-oss-forbid-overwrite`, with
which a name is created once. As OSS it refuses `If-None-Match` on writes.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "lake"
_XML = {"Content-Type": "application/xml"}
_META = "x-oss-meta-"


@dataclass(frozen=True)
class Stored:
    data: bytes
    meta: Mapping[str, str]
    changed_s: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest().upper()}"'


@dataclass
class Upload:
    key: str
    meta: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class Bucket:
    """Objects and unfinished uploads; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.upload_ids = map(str, itertools.count(1))

    def put(self, key: str, stored: Stored, *, is_new: bool) -> bool:
        with self._lock:
            if is_new and key in self.objects:
                return False
            self.objects[key] = stored
            return True

    def page(self, prefix: str, delimiter: str, after: str, limit: int) -> tuple[list[str], bool]:
        """Keys and, ending with the delimiter, what keys have in common; whether more follow."""
        found: list[str] = []
        for name in _unique(self._names(prefix, delimiter)):
            if name <= after:
                continue
            if len(found) == limit:
                return found, True
            found.append(name)
        return found, False

    def _names(self, prefix: str, delimiter: str) -> Iterator[str]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                head, mark, _ = key[len(prefix) :].partition(delimiter or "\0")
                yield prefix + head + mark


def _unique(names: Iterator[str]) -> Iterator[str]:
    yield from (name for name, _ in itertools.groupby(names))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket = Bucket()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do_PUT(self) -> None:
        data = self._body()
        key, query = self._asked()
        if not self._is_known():
            return self._refuse(404, "NoSuchBucket")
        if self.headers.get("If-None-Match"):
            return self._refuse(400, "NotImplemented")
        etag = {"ETag": f'"{hashlib.md5(data).hexdigest().upper()}"'}
        if "uploadId" in query:
            upload = self.bucket.uploads.get(query["uploadId"])
            if upload is None:
                return self._refuse(404, "NoSuchUpload")
            upload.parts[int(query["partNumber"])] = data
            return self._answer(200, headers=etag)
        if not self.bucket.put(key, Stored(data, self._meta()), is_new=self._is_new()):
            return self._refuse(409, "FileAlreadyExists")
        return self._answer(200, headers=etag)

    def do_POST(self) -> None:
        key, query = self._asked()
        body = self._body()
        if "uploads" in query:
            if self._is_new() and key in self.bucket.objects:
                return self._refuse(409, "FileAlreadyExists")
            upload_id = next(self.bucket.upload_ids)
            self.bucket.uploads[upload_id] = Upload(key, self._meta())
            return self._xml("InitiateMultipartUploadResult", Key=key, UploadId=upload_id)
        if "uploadId" in query:
            upload = self.bucket.uploads.get(query["uploadId"])
            if upload is None:
                return self._refuse(404, "NoSuchUpload")
            data = b"".join(part for _, part in sorted(upload.parts.items()))
            if not self.bucket.put(key, Stored(data, upload.meta), is_new=self._is_new()):
                return self._refuse(409, "FileAlreadyExists")
            del self.bucket.uploads[query["uploadId"]]
            return self._xml("CompleteMultipartUploadResult", Key=key, ETag='"whole"')
        if "delete" in query:
            for piece in body.decode().split("<Key>")[1:]:
                self.bucket.objects.pop(piece.split("</Key>")[0], None)
            return self._xml("DeleteResult")
        return self._refuse(405, "MethodNotAllowed")

    def do_DELETE(self) -> None:
        key, query = self._asked()
        if "uploadId" in query:
            self.bucket.uploads.pop(query["uploadId"], None)
        else:
            self.bucket.objects.pop(key, None)
        self._answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query = self._asked()
        if not self._is_known():
            return self._refuse(404, "NoSuchBucket")
        if not key:
            return self._list(query)
        stored = self.bucket.objects.get(key)
        if stored is None:
            return self._refuse(404, "NoSuchKey")
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.changed_s, usegmt=True),
            "x-oss-object-type": "Normal",
            **{_META + name: value for name, value in stored.meta.items()},
        }
        asked = self.headers.get("Range")
        if asked is None:
            return self._answer(200, stored.data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, size = int(first), len(stored.data)
        if start >= size:
            return self._refuse(416, "InvalidRange")
        end = min(int(last) if last else size - 1, size - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        return self._answer(206, stored.data[start : end + 1], headers)

    def _list(self, query: Mapping[str, str]) -> None:
        after = query.get("continuation-token") or query.get("start-after", "")
        names, is_truncated = self.bucket.page(
            query.get("prefix", ""),
            query.get("delimiter", ""),
            after,
            int(query.get("max-keys", 100)),
        )
        parts = [f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>"]
        if is_truncated:
            parts.append(f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>")
        for name in names:
            stored = self.bucket.objects.get(name)
            shown = quote(name) if query.get("encoding-type") == "url" else escape(name)
            if stored is None:
                parts.append(f"<CommonPrefixes><Prefix>{shown}</Prefix></CommonPrefixes>")
                continue
            changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.changed_s))
            parts.append(
                f"<Contents><Key>{shown}</Key><LastModified>{changed}</LastModified>"
                f"<ETag>{stored.etag}</ETag><Size>{len(stored.data)}</Size>"
                "<Type>Normal</Type><StorageClass>Standard</StorageClass></Contents>"
            )
        self._answer(200, f"<ListBucketResult>{''.join(parts)}</ListBucketResult>".encode(), _XML)

    def _asked(self) -> tuple[str, dict[str, str]]:
        """The object's key behind the bucket's name, and the query."""
        url = urlsplit(self.path)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        return key, dict(parse_qsl(url.query, keep_blank_values=True))

    def _is_known(self) -> bool:
        return urlsplit(self.path).path.split("/")[1] == BUCKET

    def _is_new(self) -> bool:
        return self.headers.get("x-oss-forbid-overwrite", "").lower() == "true"

    def _meta(self) -> dict[str, str]:
        named = ((name.lower(), value) for name, value in self.headers.items())
        return {name.removeprefix(_META): value for name, value in named if name.startswith(_META)}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _xml(self, name: str, **values: str) -> None:
        inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in values.items())
        self._answer(200, f"<{name}><Bucket>lake</Bucket>{inner}</{name}>".encode(), _XML)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._answer(status, body.encode(), _XML)

    def _answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
