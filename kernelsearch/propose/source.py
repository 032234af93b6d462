"""Reads CUDA C++ far enough to change it safely: tokens, brackets, functions, loops, pointers.

This is no compiler. It knows comments, strings, directives and nesting, and gives up (answers None,
or lists nothing) as soon as a piece of source is not of the plain form that a rewrite relies on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
      | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | [uUL]?'(?:\\.|[^'\\\n])*')
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<op><<=|>>=|->\*|\.\.\.|::|->|\+\+|--|[-+*/%&|^]=|<<|>>|[<>=!]=|&&|\|\||[^\s\w])
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#(?:\\\n|/\*.*?\*/|[^\n])*", re.DOTALL)
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_FLOW = frozenset({"for", "while", "if", "switch", "do", "else", "return", "case", "default"})
_ASSIGN = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})
SIGNED = frozenset({"int", "long", "long long", "int32_t", "int64_t", "ptrdiff_t", "signed"})


@dataclass(frozen=True, slots=True)
class Token:
    """One significant token (white space and comments are no tokens)."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function; ``pointee`` is empty unless it is a plain pointer."""

    name: str
    ctype: str
    pointee: str
    const: bool
    restrict: bool
    star: int
    name_at: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition; the numbers are token indices."""

    name: str
    first: int
    kernel: int
    name_at: int
    open_paren: int
    close_paren: int
    open_brace: int
    close_brace: int
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """A ``for`` loop; ``body`` is the token range of its statement, braces included.

    The canonical parts are filled for ``for (T v = start; v < bound; v += step)`` and stay empty
    for other forms.
    """

    at: int
    open_paren: int
    close_paren: int
    body: tuple[int, int]
    braced: bool
    pragma: int | None = None
    ctype: str = ""
    var: str = ""
    start: tuple[int, int] = (0, 0)
    bound: tuple[int, int] = (0, 0)
    step: str = ""

    @property
    def canonical(self) -> bool:
        return bool(self.step)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer variable: what it points to and the parameter that it was derived from."""

    name: str
    pointee: str
    root: str
    const: bool
    declared: int


class Rewrite:
    """Edits of one text, collected first and applied together. Overlaps are refused."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.edits: list[tuple[int, int, str]] = []

    def replace(self, start: int, end: int, new: str) -> None:
        """Put ``new`` in the place of ``text[start:end]``."""
        self.edits.append((start, end, new))

    def insert(self, at: int, new: str) -> None:
        """Insert ``new``; several insertions at one place keep their order."""
        self.edits.append((at, at, new))

    def result(self) -> str:
        """Return the changed text."""
        parts: list[str] = []
        at = 0
        for start, end, new in sorted(self.edits, key=lambda e: (e[0], e[1])):
            if start < at:
                raise ValueError(f"edits overlap at character {start}")
            parts += [self.text[at:start], new]
            at = end
        return "".join([*parts, self.text[at:]])


class CudaSource:
    """The token view of one CUDA source text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = list(_tokens(text))
        self.pair: dict[int, int] = {}
        self.balanced = self._match()
        self.functions: list[Function] = list(self._functions()) if self.balanced else []

    def _match(self) -> bool:
        stack: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.kind != "op":
                continue
            if token.text in _CLOSER:
                stack.append(index)
            elif token.text in _CLOSER.values():
                if not stack or _CLOSER[self.tokens[stack[-1]].text] != token.text:
                    return False
                opener = stack.pop()
                self.pair[opener], self.pair[index] = index, opener
        return not stack

    # --- small readers ------------------------------------------------------------------------

    def at(self, index: int) -> str:
        """Return a token's text, or "" past either end."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def words(self, lo: int, hi: int) -> list[str]:
        """Return the texts of tokens ``lo`` to ``hi`` (exclusive)."""
        return [t.text for t in self.tokens[lo:hi]]

    def slice(self, lo: int, hi: int) -> str:
        """Return the source text of a token range, comments between the tokens included."""
        return self.text[self.tokens[lo].start : self.tokens[hi - 1].end] if lo < hi else ""

    def names(self, lo: int, hi: int) -> set[str]:
        """Return the identifiers in a token range that are not members (after ``.``, ``->``)."""
        return {
            t.text
            for i, t in enumerate(self.tokens[lo:hi], lo)
            if t.kind == "name" and self.at(i - 1) not in (".", "->")
        }

    def identifiers(self) -> set[str]:
        """Return every identifier of the text, those in directives included."""
        found = {t.text for t in self.tokens if t.kind == "name"}
        for token in self.tokens:
            if token.kind == "directive":
                found.update(re.findall(r"[A-Za-z_]\w*", token.text))
        return found

    def has_conditionals(self, lo: int, hi: int) -> bool:
        """Return whether a range holds directives other than ``#pragma`` and ``#line``."""
        return any(
            t.kind == "directive" and not re.match(r"#\s*(pragma|line)\b", t.text)
            for t in self.tokens[lo:hi]
        )

    def substitute(self, lo: int, hi: int, at: Mapping[int, str]) -> str:
        """Return a range's text with single tokens replaced by index."""
        if lo >= hi:
            return ""
        base = self.tokens[lo].start
        rewrite = Rewrite(self.slice(lo, hi))
        for index, new in at.items():
            token = self.tokens[index]
            rewrite.replace(token.start - base, token.end - base, new)
        return rewrite.result()

    # --- structure ----------------------------------------------------------------------------

    def kernel(self, name: str) -> Function | None:
        """Return the only ``__global__`` definition with this name, or None."""
        found = [f for f in self.functions if f.kernel >= 0 and f.name == name]
        return found[0] if len(found) == 1 else None

    def reachable(self, function: Function) -> list[Function]:
        """Return the functions of this text that ``function`` may call, itself first."""
        by_name: dict[str, list[Function]] = {}
        for other in self.functions:
            by_name.setdefault(other.name, []).append(other)
        seen = [function]
        for current in seen:
            for name in sorted(set(self.words(current.open_brace, current.close_brace))):
                seen += [f for f in by_name.get(name, []) if f not in seen]
        return seen

    def uses(self, functions: Iterable[Function], names: Iterable[str]) -> bool:
        """Return whether any of the functions mentions one of ``names``."""
        wanted = set(names)
        return any(wanted & set(self.words(f.first, f.close_brace)) for f in functions)

    def statement_end(self, index: int) -> int | None:
        """Return the index after the statement that begins at ``index``."""
        while index < len(self.tokens) and self.tokens[index].kind == "directive":
            index += 1
        word = self.at(index)
        if word == "{":
            return self.pair[index] + 1
        if word in ("for", "while", "if", "switch"):
            header = index + 2 if self.at(index + 1) == "constexpr" else index + 1
            if self.at(header) != "(":
                return None
            end = self.statement_end(self.pair[header] + 1)
            if word == "if" and end is not None and self.at(end) == "else":
                return self.statement_end(end + 1)
            return end
        if word in ("do", "case", "default", "else", ""):
            return None
        while index < len(self.tokens):
            word = self.at(index)
            if word == ";":
                return index + 1
            if word in _CLOSER:
                index = self.pair[index]
            elif word in _CLOSER.values() or self.tokens[index].kind == "directive":
                return None
            index += 1
        return None

    def loops(self, lo: int, hi: int) -> list[Loop]:
        """Return the ``for`` loops of a token range, outer before inner."""
        found = []
        for index in range(lo, hi):
            if self.at(index) == "for" and self.at(index + 1) == "(":
                loop = self._loop(index)
                if loop is not None:
                    found.append(loop)
        return found

    def _loop(self, index: int) -> Loop | None:
        close = self.pair[index + 1]
        end = self.statement_end(close + 1)
        if end is None:
            return None
        before = self.tokens[index - 1]
        pragma = index - 1 if re.match(r"#\s*pragma\s+unroll", before.text) else None
        body = (close + 1, end)
        braced = self.at(close + 1) == "{"
        parts = self._canonical(index + 2, close)
        if parts is None:
            return Loop(index, index + 1, close, body, braced, pragma)
        ctype, var, start, bound, step = parts
        return Loop(index, index + 1, close, body, braced, pragma, ctype, var, start, bound, step)

    def _canonical(
        self, lo: int, hi: int
    ) -> tuple[str, str, tuple[int, int], tuple[int, int], str] | None:
        cuts = [i for i in self.level(lo, hi) if self.at(i) == ";"]
        if len(cuts) != 2:
            return None
        first, second = cuts
        equals = [i for i in self.level(lo, first) if self.at(i) == "="]
        if len(equals) != 1 or any(self.at(i) == "," for i in self.level(lo, first)):
            return None
        equal = equals[0]
        var = self.at(equal - 1)
        ctype = " ".join(w for w in self.words(lo, equal - 1))
        if not ctype or not all(re.fullmatch(r"\w+|::", w) for w in self.words(lo, equal - 1)):
            return None
        if self.at(first + 1) != var or self.at(first + 2) != "<":
            return None
        if {"&&", "||", "?"} & set(self.words(first + 3, second)):
            return None
        step = self._step(var, second + 1, hi)
        if step is None:
            return None
        return ctype, var, (equal + 1, first), (first + 3, second), step

    def _step(self, var: str, lo: int, hi: int) -> str | None:
        words = self.words(lo, hi)
        if words in (["++", var], [var, "++"]):
            return "1"
        if len(words) > 2 and words[:2] == [var, "+="] and "," not in words:
            return self.slice(lo + 2, hi)
        return None

    def level(self, lo: int, hi: int) -> Iterator[int]:
        """Yield the tokens of a range outside its brackets (opening ones are yielded)."""
        index = lo
        while index < hi:
            yield index
            index = self.pair[index] + 1 if self.at(index) in _CLOSER else index + 1

    def in_block(self, index: int) -> bool:
        """Return whether a statement beginning at ``index`` stands in a block of its own right.

        Where it is the only statement under an ``if`` or ``for``, nothing can be put before it.
        """
        return self.at(index - 1) in (";", "{", "}") or self.tokens[index - 1].kind == "directive"

    def begin(self, loop: Loop) -> int:
        """Return a loop's first token, its ``#pragma`` included."""
        return loop.at if loop.pragma is None else loop.pragma

    def inside(self, loop: Loop) -> tuple[int, int]:
        """Return a loop body's token range without its braces."""
        lo, hi = loop.body
        return (lo + 1, hi - 1) if loop.braced else (lo, hi)

    def statements(self, lo: int, hi: int) -> list[tuple[int, int]] | None:
        """Return the token ranges of the statements in a range, or None where that is unclear."""
        found = []
        while lo < hi:
            end = self.statement_end(lo)
            if end is None or end > hi:
                return None
            found.append((lo, end))
            lo = end
        return found

    def pointers(self, function: Function) -> dict[str, Pointer]:
        """Return the pointer parameters and the plain local pointers derived from them."""
        found = {
            p.name: Pointer(p.name, p.pointee, p.name, p.const, p.name_at)
            for p in function.parameters
            if p.pointee
        }
        twice: set[str] = set()
        for star in range(function.open_brace, function.close_brace):
            if self.at(star) != "*":
                continue
            name_at = star + 1
            while self.at(name_at) in ("const", "__restrict__", "__restrict"):
                name_at += 1
            if self.tokens[name_at].kind != "name" or self.at(name_at + 1) != "=":
                continue
            begin = star - 1
            while re.fullmatch(r"\w+|::", self.at(begin)) and self.at(begin) not in _FLOW:
                begin -= 1
            words = self.words(begin + 1, star)
            end = self.statement_end(name_at)
            if not words or end is None:
                continue
            name = self.at(name_at)
            if name in found:
                twice.add(name)
            roots = self.names(name_at + 2, end) & set(found)
            cast = "reinterpret_cast" in self.words(name_at + 2, end)
            root = found[next(iter(roots))].root if len(roots) == 1 and not cast else ""
            pointee = " ".join(w for w in words if w != "const")
            found[name] = Pointer(name, pointee, root, "const" in words, name_at)
        return {n: p for n, p in found.items() if n not in twice}

    def written(self, lo: int, hi: int) -> set[str] | None:
        """Return the variables and arrays that a range assigns to, or None where that is unclear.

        Variables declared with an initialiser in the range count as written too.
        """
        result: set[str] = set()
        for index in range(lo, hi):
            word = self.at(index)
            if word in _ASSIGN:
                target = index - 1
                while self.at(target) == "]":
                    target = self.pair[target] - 1
                if self.tokens[target].kind != "name" or self.at(target - 1) in (".", "->"):
                    return None
                result.add(self.at(target))
            elif word in ("++", "--"):
                near = index + 1 if self.tokens[index + 1].kind == "name" else index - 1
                if self.tokens[near].kind != "name" or self.at(near + 1) in ("[", "."):
                    return None
                result.add(self.at(near))
        return result

    def declared(self, lo: int, hi: int) -> set[str]:
        """Return the names that plain declarations with an initialiser introduce in a range."""
        return {
            self.at(i - 1)
            for i in range(lo, hi)
            if self.at(i) == "=" and self.tokens[i - 1].kind == "name" and self._typed(i - 2, lo)
        }

    def _typed(self, index: int, lo: int) -> bool:
        return index >= lo and (
            (self.tokens[index].kind == "name" and self.at(index) not in _FLOW)
            or (self.at(index) in ("*", "&", ">") and index - 1 >= lo)
        )

    def declaration(self, name: str, lo: int, hi: int) -> tuple[str, int, int] | None:
        """Return (type, index of the value's first token, index after it) of a local scalar.

        None unless the range declares ``name`` exactly once, in a declaration of its own.
        """
        found: list[tuple[str, int, int]] = []
        for index in range(lo, hi):
            if self.at(index) != name or self.at(index + 1) != "=":
                continue
            begin = index - 1
            while re.fullmatch(r"\w+|::", self.at(begin)) and self.at(begin) not in _FLOW:
                begin -= 1
            words = self.words(begin + 1, index)
            if not words:
                continue
            end = self.statement_end(index)
            commas = end is not None and any(self.at(i) == "," for i in self.level(index, end - 1))
            if end is None or commas:
                return None
            ctype = " ".join(w for w in words if w not in ("const", "constexpr"))
            found.append((ctype, index + 2, end - 1))
        return found[0] if len(found) == 1 else None

    def _functions(self) -> Iterator[Function]:
        index = 0
        while index < len(self.tokens):
            function = self._function(index)
            if function is None:
                index += 1
                continue
            yield function
            index = function.open_brace + 1 if function.kernel < 0 else function.close_brace

    def _function(self, index: int) -> Function | None:
        if self.tokens[index].kind != "name" or self.at(index + 1) != "(":
            return None
        name = self.at(index)
        if name in _FLOW or name in ("__launch_bounds__", "alignas", "decltype", "__align__"):
            return None
        close = self.pair[index + 1]
        brace = close + 1
        while self.at(brace) in ("const", "noexcept", "override"):
            brace += 1
        if self.at(brace) != "{":
            return None
        first = index
        while first > 0 and not self._boundary(first - 1):
            first -= 1
        heads = self.words(first, index)
        kernel = first + heads.index("__global__") if "__global__" in heads else -1
        return Function(
            name, first, kernel, index, index + 1, close, brace, self.pair[brace],
            tuple(self._parameters(index + 2, close)),
        )  # fmt: skip

    def _boundary(self, index: int) -> bool:
        return self.at(index) in (";", "{", "}") or self.tokens[index].kind == "directive"

    def _parameters(self, lo: int, hi: int) -> Iterator[Parameter]:
        cuts = [i for i in self.level(lo, hi) if self.at(i) == ","] + [hi]
        for cut in cuts:
            words = self.words(lo, cut)
            at = cut - 1
            if len(words) > 1 and self.tokens[at].kind == "name":
                stars = [i for i in range(lo, cut) if self.at(i) == "*"]
                plain = len(stars) == 1 and not {"&", "[", "<"} & set(words)
                kind = [w for w in self.words(lo, stars[0] if plain else at) if w != "const"]
                yield Parameter(
                    self.at(at), " ".join(kind), " ".join(kind) if plain else "",
                    plain and "const" in self.words(lo, stars[0]),
                    bool({"__restrict__", "__restrict"} & set(words)),
                    stars[0] if plain else -1, at,
                )  # fmt: skip
            elif words:
                yield Parameter("", " ".join(words), "", False, False, -1, at)
            lo = cut + 1

    # --- patterns -----------------------------------------------------------------------------

    def match(self, index: int, pattern: str) -> tuple[dict[str, str], int] | None:
        """Match tokens from ``index`` against ``pattern``; return its bindings and the end.

        In a pattern ``$name`` stands for one identifier, ``$name?`` for an identifier or
        ``threadIdx.x``, and ``$name*`` for any tokens up to the pattern's next token outside
        brackets; the same placeholder must stand for the same text again.
        """
        bound: dict[str, str] = {}
        parts = pattern.split()
        for number, part in enumerate(parts):
            if not part.startswith("$"):
                if self.at(index) != part:
                    return None
                index += 1
                continue
            key = part[1:].rstrip("?*")
            end = self._placeholder(index, part, parts[number + 1 :])
            if end is None:
                return None
            text = " ".join(self.words(index, end))
            if bound.setdefault(key, text) != text:
                return None
            index = end
        return bound, index

    def _placeholder(self, index: int, part: str, rest: list[str]) -> int | None:
        if part.endswith("*"):
            for end in self.level(index, len(self.tokens)):
                if self.at(end) == rest[0]:
                    return end if end > index else None
                if self.at(end) in (";", "{", "}", ")", "]"):
                    return None
            return None
        if part.endswith("?") and self.words(index, index + 3) == ["threadIdx", ".", "x"]:
            return index + 3
        if index < len(self.tokens) and self.tokens[index].kind == "name":
            return index + 1
        return None


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    line_start = True
    while at < len(text):
        match = _DIRECTIVE.match(text, at) if line_start and text[at] == "#" else None
        if match is not None:
            yield Token("directive", match[0], at, match.end())
            at = match.end()
            continue
        match = _TOKEN.match(text, at)
        if match is None:  # pragma: no cover - the last alternative takes any character
            return
        kind = match.lastgroup or "op"
        kind = "string" if kind == "mark" else kind
        if kind not in ("space", "comment"):
            yield Token(kind, match[0], at, match.end())
        line_start = "\n" in match[0] if kind == "space" else line_start and kind == "comment"
        line_start = line_start or (at == 0 and kind == "space")
        at = match.end()
