"""Read what a cubin (an ELF file) says of its kernels and global variables, without a driver."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_STT_OBJECT = 1
_STT_FUNC = 2
# Where a module's variables lie: in global memory, zeroed or with a value, and in constant memory.
_HOMES = (".nv.global", ".nv.global.init", ".nv.constant3")
# Attributes of a .nv.info section: every record is a format byte, an attribute byte and either two
# bytes of value or a two-byte length and that many bytes.
_FORMAT_SIZED = 4
_ATTR_KPARAM_INFO = 0x17


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its name and its bytes (empty for a section without contents in the file)."""

    name: str
    kind: int
    data: bytes
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class GlobalVariable:
    """A variable of the module's: where it lies, and whether the file holds its value.

    Args:
        name: as in the symbol table (mangled).
        size: bytes.
        initialized: false where it begins as zeros.
        section: ``.nv.global``, ``.nv.global.init`` or ``.nv.constant3`` (``__constant__``).
        offset: from the start of its section, bytes.
    """

    name: str
    size: int
    initialized: bool
    section: str = ".nv.global"
    offset: int = 0

    @property
    def constant(self) -> bool:
        """Whether it lies in constant memory (which a kernel can write to all the same)."""
        return self.section == ".nv.constant3"


class Cubin:
    """The sections of one cubin.

    Raises:
        ValueError: the bytes are not a little-endian 64-bit ELF file.
    """

    def __init__(self, image: bytes) -> None:
        if len(image) < _HEADER.size or image[:6] != b"\x7fELF\x02\x01":
            raise ValueError("the image is not a 64-bit little-endian ELF file")
        try:
            self.sections = tuple(_sections(image))
        except (struct.error, IndexError, OverflowError, ValueError) as error:
            raise ValueError(f"the ELF section table is damaged ({error})") from error

    def section(self, name: str) -> Section | None:
        return next((s for s in self.sections if s.name == name), None)

    def _symbols(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield name, type, section index, value and size of every symbol."""
        table = next((s for s in self.sections if s.kind == _SHT_SYMTAB), None)
        if table is None:
            return
        names = self.sections[table.link].data
        for fields in _SYMBOL.iter_unpack(table.data[: len(table.data) // 24 * 24]):
            name_at, info, _, index, value, size = fields
            yield _text(names, name_at), info & 0xF, index, value, size

    def variables(self) -> list[GlobalVariable]:
        """Return the module's variables, ``__constant__`` ones too, as the symbol table has them.

        They outlive a launch, and a kernel can write to each of them, const or not.
        """
        found = []
        for name, kind, index, value, size in self._symbols():
            if kind != _STT_OBJECT or not 0 < index < len(self.sections):
                continue
            home = self.sections[index].name
            if home in _HOMES:
                found.append(GlobalVariable(name, size, home != ".nv.global", home, value))
        return found

    def global_variables(self) -> list[GlobalVariable]:
        """Return the variables in global memory, in the order of the symbol table."""
        return [v for v in self.variables() if not v.constant]

    def foreign_functions(self) -> list[str]:
        """Return the functions that the driver would have to supply (``malloc``, ``vprintf``)."""
        return [
            name
            for name, kind, index, _, _ in self._symbols()
            if kind == _STT_FUNC and index == 0 and name
        ]

    def parameter_sizes(self, symbol: str) -> tuple[int, ...] | None:
        """Return the size in bytes of each parameter of a kernel, or None if it is not said."""
        info = self.section(f".nv.info.{symbol}")
        if info is None:
            return None
        sizes: dict[int, int] = {}
        for attribute, value in _attributes(info.data):
            if attribute == _ATTR_KPARAM_INFO and len(value) == 12:
                _, ordinal, _, flags = struct.unpack("<IHHI", value)
                sizes[ordinal] = flags >> 18
        return tuple(sizes[i] for i in sorted(sizes)) if sizes else None

    def code_hash(self) -> str:
        """Return a hash of machine code and constants that no name and no comment changes."""
        parts = [
            _kind(s.name).encode() + s.size.to_bytes(8, "little") + s.data
            for s in self.sections
            if _kind(s.name) in _CODE_SECTIONS
        ]
        total = hashlib.sha256()
        for part in sorted(hashlib.sha256(p).digest() for p in parts):
            total.update(part)
        return total.hexdigest()[:16]


_CODE_SECTIONS = frozenset({
    ".text", ".nv.constant0", ".nv.constant2", ".nv.constant3", ".nv.global.init", ".nv.shared",
})  # fmt: skip


def _kind(name: str) -> str:
    """Return a section's name without the kernel it belongs to: ``.text.f`` gives ``.text``."""
    for kind in _CODE_SECTIONS:
        if name == kind or name.startswith(f"{kind}."):
            # .nv.global.init has no kernel of its own and is no kernel of .nv.global.
            return kind
    return name


def _sections(image: bytes) -> Iterator[Section]:
    header = _HEADER.unpack_from(image)
    offset, entry, count, names_index = header[6], header[11], header[12], header[13]
    rows = [_SECTION.unpack_from(image, offset + i * entry) for i in range(count)]
    names_row = rows[names_index]
    names = image[names_row[4] : names_row[4] + names_row[5]]
    for name_at, kind, _, _, at, size, link, _, _, _ in rows:
        data = b"" if kind == _SHT_NOBITS else image[at : at + size]
        yield Section(_text(names, name_at), kind, data, size, link)


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode(errors="replace")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _FORMAT_SIZED:
            yield attribute, data[at : at + length]
            at += length
