"""Admit Numba source by an allow-list of syntax and names, before anything is compiled or executed.

What is not listed here is refused, with file, line and column. What is left can compute on the
arrays it is given and nothing else; writing outside of them is the business of the guard pages.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelsearch.errors import RejectedError
from kernelsearch.records import ParamValue

MAX_NODES = 20_000
MAX_EXPANDED_NODES = 200_000
MAX_DEPTH = 60
MAX_LOOP_DEPTH = 12
MAX_FUNCTIONS = 40
MAX_CONSTANTS = 100
MAX_CONSTANT_NODES = 40
MAX_TUPLE = 64
MAX_MAGNITUDE = 1 << 63

DTYPES = frozenset({
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "intp",
    "uintp", "float32", "float64",
})  # fmt: skip
NUMPY = DTYPES | frozenset({
    "abs", "absolute", "arctan", "arctan2", "ceil", "copysign", "cos", "cosh", "cumsum", "e",
    "empty", "empty_like", "exp", "exp2", "expm1", "fabs", "float_power", "floor", "fmax", "fmin",
    "full", "hypot", "inf", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "max",
    "maximum", "mean", "min", "minimum", "nan", "ones", "pi", "power", "prod", "rint", "sign",
    "sin", "sinh", "sqrt", "square", "sum", "tan", "tanh", "trunc", "where", "zeros", "zeros_like",
})  # fmt: skip
MATH = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
    "e", "erf", "erfc", "exp", "expm1", "fabs", "floor", "fmod", "frexp", "gamma", "hypot", "inf",
    "isfinite", "isinf", "isnan", "ldexp", "lgamma", "log", "log10", "log1p", "log2", "nan", "pi",
    "pow", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
})  # fmt: skip
ARRAY_FIELDS = frozenset({"shape", "size", "ndim", "T"})
ARRAY_METHODS = frozenset({"view", "sum", "max", "min", "mean", "copy", "reshape", "fill"})
BUILTINS = frozenset({"range", "min", "max", "abs", "int", "float", "bool", "len", "round"})
RESERVED = BUILTINS | {"np", "math", "prange", "ELEM"}
_NAMESPACES: dict[str, tuple[str, frozenset[str]]] = {
    "np": ("numpy", NUMPY), "math": ("math", MATH)
}  # fmt: skip
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift,
    ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_CONSTANT_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """Source that passed: constants in order and functions, helpers before their callers.

    The nodes keep the positions they have in the file; imports and the leading string are gone and
    tunables are replaced by their values.
    """

    path: str
    constants: tuple[ast.Assign, ...]
    functions: tuple[ast.FunctionDef, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions, helpers first."""
        return tuple(f.name for f in self.functions)


def check_source(source: str, path: str, tunables: Mapping[str, ParamValue]) -> CheckedSource:
    """Check a Numba source against the allow-list and bind its tunables.

    Args:
        source: the whole variant file.
        path: its name, for messages.
        tunables: name = value, substituted as literals.

    Raises:
        RejectedError: with file, line, column and construct of the first thing not allowed.
    """
    checker = _Checker(path, tunables)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise checker.refusal(
            f"is not Python ({getattr(error, 'msg', None) or error})", "syntax", line,
            getattr(error, "offset", None) or 1,
        ) from None  # fmt: skip
    checker.module(tree)
    bind = _Binder(tunables)
    constants = tuple(bind.visit(node) for node in checker.constants)
    functions = tuple(bind.visit(checker.functions[name]) for name in checker.order())
    return CheckedSource(path, constants, functions)


class _Checker:
    """Walks a module once; the first construct that is not allowed raises."""

    def __init__(self, path: str, tunables: Mapping[str, ParamValue]) -> None:
        self.path = path
        self.tunables = dict(tunables)
        self.constants: list[ast.Assign] = []
        self.constant_names: set[str] = set()
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imported: set[str] = set()
        self.calls: dict[str, list[str]] = {}
        self.local: set[str] = set()
        self.current = ""

    # --- reporting --------------------------------------------------------------------------

    def refusal(self, rule: str, construct: str, line: int, column: int) -> RejectedError:
        return RejectedError(
            f"{self.path}:{line}:{column}: {rule}",
            {"file": self.path, "line": line, "column": column, "construct": construct},
        )

    def refuse(self, node: ast.AST, rule: str, construct: str = "") -> RejectedError:
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0) + 1
        return self.refusal(rule, construct or type(node).__name__, line, column)

    # --- module -----------------------------------------------------------------------------

    def module(self, tree: ast.Module) -> None:
        self.limits(tree)
        body = list(tree.body)
        if body and _is_text(body[0]):
            body = body[1:]
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.check_new_name(node, node.name)
                self.functions[node.name] = node
        if len(self.functions) > MAX_FUNCTIONS:
            raise self.refuse(
                body[0], f"has {len(self.functions)} functions; at most {MAX_FUNCTIONS}", "size"
            )
        for node in body:
            match node:
                case ast.Import() | ast.ImportFrom():
                    self.check_import(node)
                case ast.Assign():
                    self.check_constant(node)
                case ast.FunctionDef():
                    self.check_function(node)
                case _:
                    raise self.refuse(
                        node,
                        f"{type(node).__name__} is not allowed at module level; only imports of "
                        "math, numpy as np and numba.prange, constants and functions are",
                    )
        self.check_expansion()

    def limits(self, tree: ast.Module) -> None:
        count = 0
        stack: list[tuple[ast.AST, int]] = [(tree, 0)]
        while stack:
            node, depth = stack.pop()
            count += 1
            if count > MAX_NODES:
                raise self.refuse(tree, f"has more than {MAX_NODES} syntax nodes", "size")
            if depth > MAX_DEPTH:
                raise self.refuse(node, f"is nested deeper than {MAX_DEPTH} levels", "nesting")
            stack.extend((child, depth + 1) for child in ast.iter_child_nodes(node))

    def check_import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = [(a.name, a.asname) for a in node.names]
        if isinstance(node, ast.Import):
            if names == [("math", None)]:
                self.imported.add("math")
                return
            if names == [("numpy", "np")]:
                self.imported.add("np")
                return
        elif node.module == "numba" and node.level == 0 and names == [("prange", None)]:
            self.imported.add("prange")
            return
        raise self.refuse(
            node,
            "import is not allowed; only 'import math', 'import numpy as np' and "
            "'from numba import prange' are",
            "import",
        )

    def check_new_name(self, node: ast.AST, name: str) -> None:
        if name.startswith("__"):
            raise self.refuse(node, f"name {name!r} begins with two underscores", "dunder name")
        if name in RESERVED or name in self.tunables:
            raise self.refuse(node, f"name {name!r} is taken and must not be rebound", "rebinding")
        if name in self.functions or name in self.constant_names:
            raise self.refuse(node, f"name {name!r} is defined twice", "rebinding")

    def check_constant(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(target, ast.Name):
            raise self.refuse(node, "a module-level assignment must bind one name", "assignment")
        self.check_new_name(target, target.id)
        parts = list(ast.walk(node.value))
        if len(parts) > MAX_CONSTANT_NODES or len(self.constants) >= MAX_CONSTANTS:
            raise self.refuse(
                node, f"at most {MAX_CONSTANTS} constants of {MAX_CONSTANT_NODES} parts", "size"
            )
        self.constant_value(node.value)
        self.constants.append(node)
        self.constant_names.add(target.id)

    def constant_value(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() | int() | float()):
                self.check_number(node)
            case ast.Name(id=name):
                if name not in self.constant_names and name not in self.tunables:
                    raise self.refuse(
                        node, f"name {name!r} is no tunable or earlier constant", "name"
                    )
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _CONSTANT_OPERATORS):
                self.constant_value(left)
                self.constant_value(right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                self.constant_value(operand)
            case ast.Attribute():
                self.check_attribute(node)
            case ast.Call(func=func, args=args, keywords=[]):
                if isinstance(func, ast.Attribute):
                    self.check_attribute(func)
                    if not (isinstance(func.value, ast.Name) and func.attr in DTYPES | MATH):
                        raise self.refuse(node, "this call is not allowed in a constant", "call")
                elif not (
                    isinstance(func, ast.Name) and func.id in {"ELEM", "int", "float", "min", "max"}
                ):
                    raise self.refuse(node, "this call is not allowed in a constant", "call")
                for arg in args:
                    self.constant_value(arg)
            case _:
                raise self.refuse(
                    node, f"{type(node).__name__} is not allowed in a module-level constant"
                )

    # --- functions --------------------------------------------------------------------------

    def check_function(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        if node.decorator_list:
            raise self.refuse(node.decorator_list[0], "decorators are not allowed", "decorator")
        if arguments.defaults or arguments.kw_defaults or arguments.kwonlyargs:
            raise self.refuse(
                node, "default and keyword-only arguments are not allowed", "default argument"
            )
        if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
            raise self.refuse(node, "only plain arguments are allowed", "argument")
        if node.returns or any(a.annotation for a in arguments.args):
            raise self.refuse(node, "annotations are not allowed", "annotation")
        if getattr(node, "type_params", None):
            raise self.refuse(node, "type parameters are not allowed", "type parameter")
        self.current = node.name
        self.calls[node.name] = []
        self.local = set()
        for arg in arguments.args:
            self.check_local(arg, arg.arg)
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self.check_local(child, child.id)
        body = node.body[1:] if _is_text(node.body[0]) else node.body
        self.block(body, 0)

    def check_local(self, node: ast.AST, name: str) -> None:
        if name.startswith("__"):
            raise self.refuse(node, f"name {name!r} begins with two underscores", "dunder name")
        if name in RESERVED or name in self.functions or name in self.tunables:
            raise self.refuse(node, f"name {name!r} is taken and must not be rebound", "rebinding")
        self.local.add(name)

    def block(self, body: list[ast.stmt], loops: int) -> None:
        for node in body:
            self.statement(node, loops)

    def statement(self, node: ast.stmt, loops: int) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.target(target)
                self.value(value)
            case ast.AugAssign(target=target, op=op, value=value):
                self.target(target)
                self.operator(node, op)
                self.value(value)
            case ast.For(target=ast.Name(), iter=iterable, body=body, orelse=[]):
                if loops >= MAX_LOOP_DEPTH:
                    raise self.refuse(
                        node, f"loops are nested deeper than {MAX_LOOP_DEPTH}", "nesting"
                    )
                if not (
                    isinstance(iterable, ast.Call)
                    and isinstance(iterable.func, ast.Name)
                    and iterable.func.id in ("range", "prange")
                ):
                    raise self.refuse(iterable, "a for loop must go over range or prange", "for")
                self.value(iterable)
                self.block(body, loops + 1)
            case ast.While(test=test, body=body, orelse=[]):
                self.value(test)
                self.block(body, loops + 1)
            case ast.If(test=test, body=body, orelse=orelse):
                self.value(test)
                self.block(body, loops)
                self.block(orelse, loops)
            case ast.Return(value=value):
                if value is not None:
                    self.value(value)
            case ast.Expr(value=ast.Call() as call):
                self.value(call)
            case ast.Pass() | ast.Break() | ast.Continue():
                pass
            case _:
                raise self.refuse(
                    node,
                    f"{_WORDS.get(type(node).__name__, type(node).__name__)} is not allowed in "
                    "a kernel",
                )

    def target(self, node: ast.expr) -> None:
        match node:
            case ast.Name():
                pass
            case ast.Subscript():
                self.value(node)
            case ast.Tuple(elts=elements) if len(elements) <= MAX_TUPLE:
                for element in elements:
                    self.target(element)
            case _:
                raise self.refuse(
                    node, f"assignment to {type(node).__name__} is not allowed", "assignment"
                )

    def operator(self, node: ast.AST, op: ast.operator) -> None:
        if not isinstance(op, _OPERATORS):
            raise self.refuse(node, f"operator {type(op).__name__} is not allowed", "operator")

    def check_number(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, int) and not -MAX_MAGNITUDE <= value <= 2 * MAX_MAGNITUDE:
            raise self.refuse(node, "integer does not fit 64 bits", "number")

    def value(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() | int() | float()):
                self.check_number(node)
            case ast.Name(id=name):
                self.check_load(node, name)
            case ast.BinOp(left=left, op=op, right=right):
                self.operator(node, op)
                if isinstance(left, ast.Tuple) or isinstance(right, ast.Tuple):
                    raise self.refuse(node, "arithmetic on tuples is not allowed", "tuple")
                self.value(left)
                self.value(right)
            case ast.UnaryOp(operand=operand):
                self.value(operand)
            case ast.BoolOp(values=values):
                for part in values:
                    self.value(part)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                if not all(isinstance(op, _COMPARISONS) for op in ops):
                    raise self.refuse(node, "'in' and 'is' are not allowed", "comparison")
                for part in (left, *comparators):
                    self.comparand(part)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.value(test)
                self.value(body)
                self.value(orelse)
            case ast.Subscript(value=base, slice=index):
                self.value(base)
                self.index(index)
            case ast.Tuple(elts=elements):
                if len(elements) > MAX_TUPLE:
                    raise self.refuse(node, f"a tuple has more than {MAX_TUPLE} parts", "size")
                for part in elements:
                    self.value(part)
            case ast.Attribute():
                self.check_attribute(node)
            case ast.Call():
                self.call(node)
            case _:
                raise self.refuse(
                    node, f"{_WORDS.get(type(node).__name__, type(node).__name__)} is not allowed"
                )

    def comparand(self, node: ast.expr) -> None:
        """A tunable that is a word may be compared with a literal word."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return
        self.value(node)

    def index(self, node: ast.expr) -> None:
        match node:
            case ast.Slice(lower=lower, upper=upper, step=step):
                for part in (lower, upper, step):
                    if part is not None:
                        self.value(part)
            case ast.Tuple(elts=elements):
                for part in elements:
                    self.index(part)
            case _:
                self.value(node)

    def check_load(self, node: ast.AST, name: str) -> None:
        if name in ("np", "math", "prange") or name in BUILTINS or name in self.functions:
            raise self.refuse(node, f"{name!r} may be called, not passed around", "name")
        known = (
            name in self.local
            or name in self.constant_names
            or name in self.tunables
            or name == "ELEM"
        )
        if not known:
            raise self.refuse(node, f"name {name!r} is not defined or not allowed", "name")

    def check_attribute(self, node: ast.Attribute) -> None:
        base, name = node.value, node.attr
        if isinstance(base, ast.Name) and base.id in _NAMESPACES and base.id not in self.local:
            module, allowed = _NAMESPACES[base.id]
            if base.id not in self.imported:
                raise self.refuse(node, f"{base.id!r} is used but not imported", "name")
            if name not in allowed:
                raise self.refuse(node, f"{module}.{name} is not allowed", f"{module}.{name}")
            return
        if name not in ARRAY_FIELDS:
            raise self.refuse(node, f"attribute {name!r} is not allowed", f"attribute {name}")
        self.value(base)

    def call(self, node: ast.Call) -> None:
        if node.keywords:
            raise self.refuse(node, "keyword arguments are not allowed", "keyword argument")
        for arg in node.args:
            self.value(arg)
        match node.func:
            case ast.Name(id=name) if name not in self.local:
                if name in self.functions:
                    self.calls[self.current].append(name)
                elif name == "prange":
                    if name not in self.imported:
                        raise self.refuse(node, "'prange' is used but not imported", "name")
                elif name not in BUILTINS and name != "ELEM":
                    raise self.refuse(node, f"call of {name!r} is not allowed", f"call {name}")
            case ast.Attribute(value=ast.Name(id=base)) if base in _NAMESPACES:
                self.check_attribute(node.func)
            case ast.Attribute(value=value, attr=method) if method in ARRAY_METHODS:
                self.value(value)
            case ast.Attribute(attr=method):
                raise self.refuse(node, f"method {method!r} is not allowed", f"method {method}")
            case _:
                raise self.refuse(node, "this call is not allowed", "call")

    # --- call graph -------------------------------------------------------------------------

    def order(self) -> list[str]:
        """Return the functions' names, callees first."""
        done: list[str] = []

        def visit(name: str) -> None:
            if name not in done:
                for callee in self.calls[name]:
                    visit(callee)
                done.append(name)

        for name in self.functions:
            visit(name)
        return done

    def check_expansion(self) -> None:
        """Refuse recursion, and helpers that would be inlined into something huge."""
        sizes: dict[str, int] = {}
        active: list[str] = []

        def size(name: str) -> int:
            if name in active:
                raise self.refuse(
                    self.functions[name], f"function {name!r} calls itself", "recursion"
                )
            if name not in sizes:
                active.append(name)
                own = sum(1 for _ in ast.walk(self.functions[name]))
                sizes[name] = own + sum(size(callee) for callee in self.calls[name])
                active.pop()
                if sizes[name] > MAX_EXPANDED_NODES:
                    raise self.refuse(
                        self.functions[name],
                        f"function {name!r} expands to more than {MAX_EXPANDED_NODES} nodes",
                        "size",
                    )
            return sizes[name]

        for name in self.functions:
            size(name)


_WORDS = {
    "Try": "try", "TryStar": "try", "With": "with", "Global": "global", "Nonlocal": "nonlocal",
    "Lambda": "lambda", "JoinedStr": "an f-string", "ClassDef": "a class", "FunctionDef":
    "a nested function", "Import": "import", "ImportFrom": "import", "Raise": "raise",
    "Assert": "assert", "Delete": "del", "Constant": "this literal", "Await": "await",
    "ListComp": "a comprehension", "List": "a list", "Dict": "a dictionary", "Set": "a set",
    "GeneratorExp": "a generator", "Yield": "yield", "NamedExpr": "':='", "Starred": "'*'",
}  # fmt: skip


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


_CLEARED = {"empty": "zeros", "empty_like": "zeros_like"}

_FOLD: dict[type[ast.cmpop], Callable[[ParamValue, ParamValue], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,  # type: ignore[operator]
    ast.LtE: lambda a, b: a <= b,  # type: ignore[operator]
    ast.Gt: lambda a, b: a > b,  # type: ignore[operator]
    ast.GtE: lambda a, b: a >= b,  # type: ignore[operator]
}


class _Binder(ast.NodeTransformer):
    """Replaces tunables by their values and drops the branches that can then never be taken.

    Numba types both sides of a branch, and words are slow to compare at run time: a choice between
    structures has to be made before it sees the source.
    """

    def __init__(self, tunables: Mapping[str, ParamValue]) -> None:
        self.tunables = tunables

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if _is_text(node.body[0]):
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), node)]
        self.generic_visit(node)
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        # Memory fresh from the heap may hold the results of an earlier call: it is cleared.
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "np":
            node.attr = _CLEARED.get(node.attr, node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.tunables:
            return ast.copy_location(ast.Constant(self.tunables[node.id]), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        parts = [node.left, *node.comparators]
        values = [p.value for p in parts if isinstance(p, ast.Constant)]
        if len(values) != len(parts):
            return node
        ordered = {isinstance(v, str) for v in values}
        if len(ordered) != 1:
            return ast.copy_location(
                ast.Constant(any(isinstance(o, ast.NotEq) for o in node.ops)), node
            )
        result = all(
            _FOLD[type(op)](a, b)  # type: ignore[arg-type]
            for op, a, b in zip(node.ops, values, values[1:], strict=False)
        )
        return ast.copy_location(ast.Constant(result), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if all(isinstance(v, ast.Constant) for v in node.values):
            values = [bool(v.value) for v in node.values if isinstance(v, ast.Constant)]
            result = all(values) if isinstance(node.op, ast.And) else any(values)
            return ast.copy_location(ast.Constant(result), node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return (
                node.body
                if node.test.value
                else (node.orelse or [ast.copy_location(ast.Pass(), node)])
            )
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node
