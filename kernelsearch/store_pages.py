"""Read the rows in the pages of a damaged SQLite file, whatever has become of the rest of it.

SQLite finds a row through the schema on the first page and the inner pages of its table; where one
of those is lost, so is everything below it. A leaf page, however, says by itself which rows it
holds, and so every leaf of the file and of its write-ahead log is looked at here. The format is
described at https://www.sqlite.org/fileformat2.html.

What comes out may be old or damaged: the caller must check it (``codec.unseal``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

Value = None | int | float | str | bytes
_MAGIC = b"SQLite format 3\0"
_LOG_MAGIC = (0x377F0682, 0x377F0683)
_LOG_HEADER, _FRAME_HEADER = 32, 24
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER = 13, 10, 2
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
# What reading a page that is none can raise.
_BROKEN = (IndexError, OverflowError, UnicodeDecodeError, ValueError, struct.error)


@dataclass(frozen=True, slots=True)
class PageRow:
    """A row of a table; ``id`` is SQLite's rowid, for which its column holds None."""

    id: int
    values: tuple[Value, ...]


@dataclass(slots=True)
class Pages:
    """All versions of all pages: those of the file, and those in its log.

    Args:
        size: bytes of a page.
        usable: bytes of it that SQLite uses.
        versions: of each page number, the newest first.
    """

    size: int
    usable: int
    versions: dict[int, list[bytes]] = field(default_factory=dict)

    @staticmethod
    def read(database: bytes, log: bytes = b"") -> Pages:
        """Cut a database and its write-ahead log ("" if there is none) into pages."""
        size = _page_size(database, log)
        reserved = database[20] if database[:16] == _MAGIC and len(database) > 20 else 0
        pages = Pages(size, max(480, size - reserved))
        frame = _FRAME_HEADER + size
        for start in range(_LOG_HEADER, len(log) - frame + 1, frame):
            number = int.from_bytes(log[start : start + 4], "big")
            page = log[start + _FRAME_HEADER : start + frame]
            pages.versions.setdefault(number, []).insert(0, page)
        for start in range(0, len(database), size):
            page = database[start : start + size].ljust(size, b"\0")
            pages.versions.setdefault(start // size + 1, []).append(page)
        return pages

    def table_rows(self) -> Iterator[PageRow]:
        """Yield the rows of all tables; of one row the newer versions first."""
        for _, page, pointer in self._cells({_TABLE_LEAF}):
            try:
                length, at = _varint(page, pointer)
                row, at = _varint(page, at)
                payload = self._payload(page, at, length, self.usable - 35)
                yield PageRow(row, _record(payload))
            except _BROKEN:
                continue

    def index_rows(self) -> Iterator[tuple[Value, ...]]:
        """Yield the entries of all indexes: the indexed values, then the rowid."""
        most = (self.usable - 12) * 64 // 255 - 23
        for kind, page, pointer in self._cells({_INDEX_LEAF, _INDEX_INNER}):
            try:
                length, at = _varint(page, pointer + (4 if kind == _INDEX_INNER else 0))
                yield _record(self._payload(page, at, length, most))
            except _BROKEN:
                continue

    def _cells(self, kinds: set[int]) -> Iterator[tuple[int, bytes, int]]:
        """Yield kind, page and offset of each cell of the pages of these kinds."""
        for number, versions in self.versions.items():
            head = 100 if number == 1 else 0
            for page in versions:
                kind = page[head]
                if kind not in kinds:
                    continue
                count = int.from_bytes(page[head + 3 : head + 5], "big")
                first = head + (12 if kind == _INDEX_INNER else 8)
                for place in range(first, min(first + 2 * count, self.size - 1), 2):
                    pointer = int.from_bytes(page[place : place + 2], "big")
                    if first + 2 * count <= pointer < self.size:
                        yield kind, page, pointer

    def _payload(self, page: bytes, at: int, length: int, most: int) -> bytes:
        """Return a cell's content, of which the part beyond ``most`` bytes lies on other pages."""
        if length > self.size * len(self.versions):
            raise ValueError("longer than the file")
        if length <= most:
            local = length
        else:
            least = (self.usable - 12) * 32 // 255 - 23
            local = least + (length - least) % (self.usable - 4)
            local = local if local <= most else least
        if at + local > self.size:
            raise ValueError("longer than the page")
        parts = [page[at : at + local]]
        left, following = length - local, at + local
        number = int.from_bytes(page[following : following + 4], "big") if left else 0
        while left > 0:
            if number not in self.versions:
                raise ValueError("the page with the rest is missing")
            rest = self.versions[number][0]
            parts.append(rest[4 : 4 + min(left, self.usable - 4)])
            left -= self.usable - 4
            number = int.from_bytes(rest[:4], "big")
        return b"".join(parts)


def _page_size(database: bytes, log: bytes) -> int:
    found = []
    if database[:16] == _MAGIC:
        size = int.from_bytes(database[16:18], "big")
        found.append(65536 if size == 1 else size)
    if len(log) >= _LOG_HEADER and int.from_bytes(log[:4], "big") in _LOG_MAGIC:
        found.append(int.from_bytes(log[8:12], "big"))
    good = [s for s in found if 512 <= s <= 65536 and math.log2(s).is_integer()]
    return good[0] if good else 4096


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >= 1 << 63 else value, at + 9


def _record(payload: bytes) -> tuple[Value, ...]:
    """Return the values in SQLite's record format."""
    header, at = _varint(payload, 0)
    values: list[Value] = []
    body = header
    while at < header:
        kind, at = _varint(payload, at)
        value, body = _value(payload, kind, body)
        values.append(value)
    return tuple(values)


def _value(payload: bytes, kind: int, at: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind == 7:
        (number,) = struct.unpack_from(">d", payload, at)
        return float(number), at + 8
    if kind in _INTEGER_BYTES:
        end = at + _INTEGER_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind < 12:
        raise ValueError("a kind of value that SQLite does not have")
    end = at + (kind - 12) // 2
    if end > len(payload):
        raise ValueError("longer than its record")
    data = payload[at:end]
    return (data.decode() if kind % 2 else data), end
