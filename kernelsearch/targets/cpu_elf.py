"""Hash the machine code of an ELF object so that equal code gives equal hashes whatever its names.

Symbols that only this object knows are numbered in order of first use; symbols it takes from
outside (``expf``, the thread pool) keep their names, because calling another one is other code.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA = 1, 2, 4
_SHF_ALLOC, _SHF_EXEC = 2, 4


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    link: int
    info: int
    data: bytes


def code_digest(image: bytes) -> str:
    """Return a hash of executable and constant sections, with relocations by normalised symbol.

    Object formats other than 64-bit little-endian ELF are hashed whole: equal code may then go
    unnoticed, different code never passes for equal.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        return hashlib.sha256(image).hexdigest()
    sections = _sections(image)
    symbols = next((s for s in sections if s.kind == _SHT_SYMTAB), None)
    names = _symbols(sections, symbols) if symbols is not None else []
    numbers: dict[int, str] = {}
    state = hashlib.sha256()
    relocations = {s.info: s for s in sections if s.kind == _SHT_RELA}
    for index, section in enumerate(sections):
        if section.kind != _SHT_PROGBITS or not _matters(section):
            continue
        state.update(section.data + b"\0")
        if index in relocations:
            for offset, info, addend in struct.iter_unpack("<QQq", relocations[index].data):
                symbol, kind = info >> 32, info & 0xFFFFFFFF
                name, outside = names[symbol]
                label = name if outside else numbers.setdefault(symbol, f"#{len(numbers)}")
                state.update(f"{offset}:{kind}:{label}:{addend};".encode())
    return state.hexdigest()


def _matters(section: _Section) -> bool:
    return bool(section.flags & _SHF_EXEC) or section.name.startswith(".rodata.cst")


def _sections(image: bytes) -> list[_Section]:
    offset, size, count, strings = (
        *struct.unpack_from("<Q", image, 0x28), *struct.unpack_from("<HHH", image, 0x3A)
    )  # fmt: skip
    rows = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * size) for i in range(count)]
    start, length = rows[strings][4], rows[strings][5]
    names = image[start : start + length]
    result = []
    for row in rows:
        at, kind, flags = row[0], row[1], row[2]
        data = b"" if kind == 8 else image[row[4] : row[4] + row[5]]
        name = names[at : names.index(b"\0", at)].decode(errors="replace")
        result.append(_Section(name, kind, flags, row[6], row[7], data))
    return result


def _symbols(sections: list[_Section], table: _Section) -> list[tuple[str, bool]]:
    """Return (name, comes from outside) of every symbol."""
    text = sections[table.link].data
    result = []
    for at, _info, _other, home, _value, _size in struct.iter_unpack("<IBBHQQ", table.data):
        name = text[at : text.index(b"\0", at)].decode(errors="replace")
        result.append((name, home == 0))
    return result
