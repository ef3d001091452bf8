"""What a request of ClickHouse's HTTP interface asks for, without the HTTP server around it."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
import sys
from email.parser import BytesParser
from email.policy import HTTP
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

READER = "reader"
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Parameters of the HTTP interface that are no settings of the engine.
_TRANSPORT = frozenset({
    "query", "database", "default_format", "buffer_size", "session_id", "session_timeout", "session_check", "query_id",
    "quota_key", "compress", "decompress", "wait_end_of_query", "client_protocol_version", "role", "user", "password",
    "stacktrace", "send_progress_in_http_headers", "http_headers_progress_interval_ms", "enable_http_compression",
    "cancel_http_readonly_queries_on_client_close",
})  # fmt: skip
# INSERT INTO table (columns) SETTINGS … FORMAT name, then the rows: the only statement with data behind it.
_INSERT = re.compile(
    rb"""(?P<head>\s*INSERT\s+INTO\s+(?:TABLE\s+)?(?:`[^`]*`|"[^"]*"|[\w.])+
    (?:\s*\((?:`[^`]*`|"[^"]*"|[^()`"])*\))?
    (?:\s+SETTINGS\s+(?:'(?:[^'\\]|\\.)*'|[^'])*?)?)
    \s+FORMAT\s+(?P<format>\w+)[ \t]*(?:\r?\n)?""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_VALUES = b"VALUES"
# Module, its incremental decompressor (with `eof` and `unused_data`), the arguments.
_CODECS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "gzip": ("zlib", "decompressobj", (31,)),
    "deflate": ("zlib", "decompressobj", ()),
    "lz4": ("lz4.frame", "LZ4FrameDecompressor", ()),
    "zstd": ("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd", "ZstdDecompressor", ()),
}


class RequestError(Exception):
    """The request makes no sense to us; the message goes back with status 400."""


class Insert(NamedTuple):
    """An insert with its rows as bytes in an input format."""

    statement: str
    format: str
    rows: memoryview


class Request(NamedTuple):
    """One statement to run.

    Attributes:
        text: query parameter and body joined as ClickHouse joins them (a newline between).
        database: the current database, "" for the default one.
        settings: settings of the engine for this statement alone.
        parameters: values of ``{name:Type}`` in the engine's escaped text.
        query_id: echoed back.
        reader: whether the engine shall refuse everything that writes.
        default_format: output format of a statement without a FORMAT clause, "" for TabSeparated.
    """

    text: bytes
    database: str
    settings: Mapping[str, str]
    parameters: Mapping[str, str]
    query_id: str
    reader: bool
    default_format: str

    def insert(self) -> Insert | None:
        """The insert with rows that this is, or None for every other statement."""
        found = _INSERT.match(self.text)
        if found is None or found["format"].upper() == _VALUES:
            return None
        return Insert(found["head"].decode(), found["format"].decode(), memoryview(self.text)[found.end() :])


def read_request(method: str, query_string: str, headers: Mapping[str, str], body: bytes) -> Request:
    """A request as it came: GET is read-only, as in ClickHouse, and so is the user `reader`.

    `headers` have lower-case names.

    Raises:
        RequestError: an unknown encoding, a broken form, a setting's name that is no name.
    """
    values = dict(parse_qsl(query_string, keep_blank_values=True))
    body = _decoded(body, headers.get("content-encoding", ""))
    content_type = headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        values |= _form(body, content_type)
        body = b""
    statement = values.get("query", "").encode()
    text = b"\n".join(part for part in (statement, body) if part)
    settings = {}
    for name, value in values.items():
        if name in _TRANSPORT or name.startswith("param_"):
            continue
        if not _SETTING.match(name):
            raise RequestError(f"The URL parameter {name!r} is neither known nor a setting's name.")
        settings[name] = value
    return Request(
        text=text,
        database=values.get("database") or headers.get("x-clickhouse-database", ""),
        settings=settings,
        parameters={name[6:]: value for name, value in values.items() if name.startswith("param_")},
        query_id=values.get("query_id") or headers.get("x-clickhouse-query-id", ""),
        reader=method == "GET" or _user(values, headers) == READER,
        default_format=values.get("default_format") or headers.get("x-clickhouse-format", ""),
    )


def _user(values: Mapping[str, str], headers: Mapping[str, str]) -> str:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError) as error:
            raise RequestError("The Authorization header is not valid Basic authentication.") from error
    return headers.get("x-clickhouse-user", "") or values.get("user", "")


def _form(body: bytes, content_type: str) -> dict[str, str]:
    """The text fields of a multipart form (how the client sends long statements and parameters)."""
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    fields = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="Content-Disposition")
        content = part.get_payload(decode=True)
        if part.get_filename() is not None or not isinstance(name, str) or not isinstance(content, bytes):
            raise RequestError("External data is not supported by the embedded ClickHouse endpoint; insert it first.")
        fields[name] = content.decode()
    return fields


def _decoded(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    codec = _CODECS.get(name)
    if codec is None:
        raise RequestError(f"Content-Encoding {encoding!r} is not supported; send lz4, zstd, gzip, deflate or none.")
    module, factory, arguments = codec
    try:
        return _all_frames(body, partial(getattr(importlib.import_module(module), factory), *arguments))
    except ImportError as error:
        raise RequestError(f"The body's encoding needs the module {module}, which is not installed.") from error
    except Exception as error:  # each codec has error types of its own; all of them mean the same
        raise RequestError(f"The body is not valid {encoding}: {error}") from error


def _all_frames(body: bytes, decompressor: Callable[[], Any]) -> bytes:
    """Every frame of the body: the client compresses each block of rows by itself and sends one after the other."""
    parts = []
    while body:
        frame = decompressor()
        parts.append(frame.decompress(body))
        if not frame.eof:
            raise EOFError("it ends in the middle of a frame")
        body = frame.unused_data or b""
    return b"".join(parts)
