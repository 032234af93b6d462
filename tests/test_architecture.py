"""Which module may import which: an explicit, acyclic table, and the house rules a parser can see.

A module that is not in ``TABLE`` fails the test, and so does an import that its row does not name;
imports inside functions count. To add a module, put a row into the lowest layer that can hold it.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "kernelsearch"

# Layer by layer, lowest first: module = the modules of this package that it may import. "*" at the
# end of a name stands for all modules of that beginning.
TABLE: dict[str, dict[str, str]] = {
    "0 values": {
        "errors": "records",
        "expressions": "errors",
        "records": "",
    },
    "1 contracts, formats and places": {
        "codec": "errors records",
        "diagnosis": "",
        "events": "records",
        "home": "errors",
        "locks": "errors",
        "handover": "errors records shm",
        "loops": "",
        "operator": "errors expressions records",
        "resources": "",
        "sandbox": "sandbox_calls sandbox_files",
        "sandbox_calls": "",
        "sandbox_files": "home",
        "result": "errors records",
        "settings": "errors operator records",
        "shm": "errors records",
        "variant": "errors expressions operator records resources",
        "versions": "",
        "wire": "errors records",
    },
    "2 extension points": {
        "protocols": "operator records variant",
    },
    "3 parts": {
        "archive": "errors protocols records",
        "cases": "errors operator records shm verify_bound",
        "ceilings": "errors records",
        "classify": "diagnosis errors expressions",
        "diagnose": (
            "classify diagnosis operator profile.counters profile.mix profile.occupancy records "
            "sol variant"
        ),
        "draw": "errors shm",
        "from_python": "errors operator shm targets.cpu_reference",
        "measure": "records",
        "moves": "profile.occupancy",
        "operators_io": "errors operator records resources",
        "columns": "expressions",
        "space": "columns errors expressions records",
        "surrogate": "records space",
        "guide": "space surrogate",
        "methods": "errors guide space",
        "params": "errors expressions guide methods records space surrogate variant",
        "optuna_sampler": "errors params space",
        "profile": "",
        "profile.counters": "",
        "profile.ktt": "errors",
        "profile.mix": "",
        "profile.occupancy": "",
        "profile.sass": "loops profile.mix profile.strides records",
        "profile.strides": "profile.mix",
        "propose": "",
        "propose.crossover": "errors propose.draft protocols records variant",
        "propose.draft": "expressions operator propose.source protocols records variant",
        "propose.agent": (
            "errors propose.answer propose.context propose.exchange propose.fence propose.purse "
            "propose.sections propose.texts protocols records variant"
        ),
        "propose.answer": "errors",
        "propose.context": "propose.exchange propose.sections propose.texts protocols",
        "propose.exchange": "errors records",
        "propose.fence": "",
        "propose.fold": "errors resources variant",
        "propose.inbox": (
            "errors operator propose.context propose.texts protocols records variant"
        ),
        "propose.llm": "errors propose.exchange",
        "propose.purse": "errors propose.exchange",
        "propose.rules": (
            "errors propose.draft propose.rules_cpu propose.rules_cuda propose.rules_cuda_loops "
            "protocols records variant"
        ),
        "propose.rules_cpu": "propose.draft",
        "propose.rules_cuda": "propose.draft propose.source records",
        "propose.rules_cuda_loops": "propose.draft propose.rules_cuda propose.source",
        "propose.sections": (
            "diagnosis operator propose.fence propose.fold propose.symptoms propose.texts "
            "protocols records resources variant"
        ),
        "propose.source": "",
        "repair": "codec errors records store store_base store_journal store_pages",
        "propose.symptoms": "operator propose.fence records",
        "propose.texts": "resources",
        "search": "protocols search.selectors",
        "search.budget": "errors",
        "search.schedule": "",
        "search.selectors": "protocols",
        "sol": "operator records",
        "store": "store_base store_journal store_rdb",
        "store_base": "codec errors records",
        "store_dashboard": "errors store_base store_optuna",
        "store_journal": "codec errors records store_base",
        "store_optuna": "errors records store_base store_journal store_tables",
        "store_pages": "",
        "store_rdb": "codec errors records store_base store_tables",
        "store_tables": "errors store_base",
        "targets": "",
        "targets.choose": "errors protocols targets.cpu targets.cuda",
        "targets.cpu": (
            "errors records targets.cpu_compile targets.cpu_device targets.cpu_guard "
            "targets.cpu_load targets.cpu_run targets.cpu_time"
        ),
        "targets.cpu_asm": "loops",
        "targets.cpu_call": "records shm targets.cpu_load targets.cpu_run",
        "targets.cpu_check": "errors records",
        "targets.cpu_compile": "errors records targets.cpu_asm targets.cpu_check targets.cpu_elf",
        "targets.cpu_device": "records",
        "targets.cpu_elf": "",
        "targets.cpu_flush": "",
        "targets.cpu_guard": "sandbox sandbox_calls sandbox_files",
        "targets.cpu_load": "records targets.cpu_compile",
        "targets.cpu_memory": "errors records shm",
        "targets.cpu_noise": "",
        "targets.cpu_reference": "",
        "targets.cpu_run": "errors records targets.cpu_guard targets.cpu_load targets.cpu_memory",
        "targets.cpu_time": (
            "errors measure records targets.cpu_flush targets.cpu_guard targets.cpu_load "
            "targets.cpu_memory targets.cpu_noise targets.cpu_run"
        ),
        "targets.cuda": (
            "errors records targets.cuda_ceilings targets.cuda_compile targets.cuda_context "
            "targets.cuda_device targets.cuda_inputs targets.cuda_load targets.cuda_nvml "
            "targets.cuda_replicas targets.cuda_run targets.cuda_time sandbox protocols "
            "targets.cuda_crowd targets.cuda_sanitize"
        ),
        "targets.cuda_call": "errors records shm targets.cuda_context targets.cuda_load",
        "targets.cuda_ceilings": "targets.cuda_context",
        "targets.cuda_compile": "errors records targets.cuda_elf targets.cuda_source",
        "targets.cuda_context": (
            "errors records shm targets.cuda_compile targets.cuda_layout targets.cuda_transfer"
        ),
        "targets.cuda_crowd": "errors targets.cuda_context targets.cuda_load",
        "targets.cuda_device": "errors records targets.cuda_compile targets.cuda_nvml",
        "targets.cuda_elf": "",
        "targets.cuda_inputs": "records shm targets.cuda_context targets.cuda_layout",
        "targets.cuda_layout": "",
        "targets.cuda_load": "errors records shm targets.cuda_context targets.cuda_state",
        "targets.cuda_nvml": "",
        "targets.cuda_ptx": "errors records targets.cuda_compile targets.cuda_source",
        "targets.cuda_replicas": (
            "errors records targets.cuda_context targets.cuda_inputs targets.cuda_layout "
            "targets.cuda_load"
        ),
        "targets.cuda_run": (
            "errors records targets.cuda_context targets.cuda_inputs targets.cuda_layout "
            "targets.cuda_crowd targets.cuda_load"
        ),
        "targets.cuda_sanitize": "errors protocols records",
        "targets.cuda_source": "errors records targets.cuda_elf",
        "targets.cuda_state": "errors targets.cuda_context targets.cuda_elf targets.cuda_source",
        "targets.cuda_time": (
            "errors measure records targets.cuda_context targets.cuda_layout targets.cuda_load "
            "targets.cuda_nvml targets.cuda_replicas"
        ),
        "targets.cuda_transfer": "",
        "capture": "errors operator operators_io",
        "user_data": "errors expressions operator shm",
        "vendor": "cases errors home locks operator operators_io records verify",
        "verify": "cases errors operator protocols records variant verify_bound",
        "verify_bound": "operator shm",
    },
    "4 what becomes of a candidate": {
        "elite": "cases elite_tools errors evaluate protocols records",
        "elite_tools": "cases errors evaluate protocols records verify",
        "evaluate": "cases errors measure operator protocols records sol variant verify",
    },
    "5 processes": {
        "dispatch": "errors locks protocols records worker",
        "worker": "errors handover locks protocols records sandbox wire",
        "worker_child": "errors handover protocols wire",
    },
    "6 studies": {
        "diagnoser": "archive diagnose diagnosis profile.sass records store study",
        "session": (
            "cases ceilings diagnoser dispatch elite errors evaluate events home locks measure "
            "operator protocols records result search.budget search.schedule study variant verify "
            "worker"
        ),
        "study": (
            "archive errors home operator params protocols records resources result settings "
            "store store_optuna variant"
        ),
    },
    "7 ways out and in": {
        "": "api errors export.loading operator operators_io result runtime study",
        "api": (
            "archive errors events home operator operators_io propose.agent propose.crossover "
            "propose.exchange propose.inbox propose.llm propose.purse propose.rules protocols "
            "records result runtime search search.budget session settings sol study "
            "targets.choose user_data versions"
        ),
        "audit": "cases elite errors evaluate measure operator records session study worker",
        "bench": "cases errors evaluate measure operator records session sol variant vendor",
        "export": "",
        "export.build": (
            "errors export.kernel operator records targets.cuda_compile targets.cuda_ptx variant"
        ),
        "export.build_files": "",
        "export.bundle": "codec errors operator records variant",
        "export.c_api": "export.cpp operator",
        "export.cpp": (
            "errors export.cpp_expressions export.kernel expressions operator records variant"
        ),
        "export.cpp_expressions": "errors expressions",
        "export.cuda_bundle": (
            "errors export.build_files export.c_api export.cpp export.kernel operator records "
            "variant"
        ),
        "export.kernel": "errors records variant",
        "export.loading": (
            "errors export.kernel operator records runtime targets.cuda_device variant"
        ),
        "importing": "errors",
        "importing.arithmetic": "importing.symbols",
        "importing.bounds": "importing.symbols",
        "importing.calls": "importing.symbols importing.syntax importing.values records",
        "importing.choose": "importing.host importing.syntax",
        "importing.contract": "records",
        "importing.derive": (
            "expressions importing.contract importing.steps importing.symbols importing.uses "
            "importing.values records"
        ),
        "importing.describe": "importing.contract",
        "importing.device_text": (
            "importing.calls importing.contract importing.syntax targets.cuda_source"
        ),
        "importing.evaluate": (
            "importing.arithmetic importing.calls importing.problem importing.symbols "
            "importing.syntax importing.values records"
        ),
        "importing.host": (
            "importing.arithmetic importing.calls importing.evaluate importing.symbols "
            "importing.syntax importing.values"
        ),
        "importing.kernel": (
            "errors importing.bounds importing.kernel_facts importing.kernel_values "
            "importing.symbols importing.syntax importing.values"
        ),
        "importing.kernel_facts": "importing.symbols importing.values",
        "importing.kernel_only": (
            "errors importing.host importing.kernel importing.symbols importing.syntax "
            "importing.values"
        ),
        "importing.kernel_scope": (
            "importing.bounds importing.kernel_facts importing.symbols importing.syntax "
            "importing.values"
        ),
        "importing.kernel_values": (
            "importing.arithmetic importing.bounds importing.kernel_facts "
            "importing.kernel_scope importing.symbols importing.syntax importing.values"
        ),
        "importing.problem": "errors",
        "importing.run": (
            "errors home importing.choose importing.contract importing.derive "
            "importing.device_text importing.host importing.kernel_only importing.problem "
            "importing.sizes importing.syntax importing.write operator operators_io "
            "targets.cuda_compile variant"
        ),
        "importing.sizes": "errors expressions importing.contract records",
        "importing.steps": (
            "importing.calls importing.contract importing.symbols importing.syntax "
            "importing.uses importing.values"
        ),
        "importing.symbols": "errors expressions",
        "importing.syntax": "importing.problem",
        "importing.uses": (
            "errors importing.bounds importing.host importing.kernel importing.kernel_facts "
            "importing.symbols importing.syntax importing.values records"
        ),
        "importing.values": "importing.problem importing.symbols importing.syntax",
        "importing.write": "importing.contract records",
        "original": (
            "draw errors expressions home locks operator original_double protocols records shm "
            "targets.choose variant verify_bound worker"
        ),
        "original_double": "",
        "replay": "",
        "replay.plot": "errors replay.recording replay.simulate",
        "replay.recording": "errors records space",
        "replay.simulate": "params replay.recording",
        "replay.write": "errors replay.recording",
        "report": "",
        "report.charts": ("report.collect report.importance report.svg report.words"),
        "report.collect": (
            "archive diagnoser diagnosis records report.exchanges result store study"
        ),
        "report.exchanges": "errors propose.answer records store",
        "report.figures": ("errors report.charts report.collect report.importance report.words"),
        "report.importance": "records report.collect",
        "report.notebook": ("report.charts report.collect report.svg report.words result study"),
        "report.page": (
            "errors report.charts report.collect report.exchanges report.importance "
            "report.reproduce report.tree report.words resources"
        ),
        "report.reproduce": "report.collect",
        "report.svg": "report.words",
        "report.text": "report.collect report.reproduce report.words wire",
        "report.tree": "report.charts report.collect report.svg report.words",
        "report.words": "",
        "runtime": (
            "errors expressions operator records result shm targets.cpu_call targets.cuda_call "
            "variant"
        ),
        "testing": "",
        "testing.contracts": "errors protocols records shm variant wire worker",
        "testing.fakes": "errors measure records shm",
    },
    "8 front ends": {
        "__main__": "cli",
        "cli": "cli.entry",
        "cli.agent_tools": (
            "api cli.proposals cli.studies diagnoser errors home propose.inbox records "
            "search.budget session study targets.choose"
        ),
        "cli.app": "versions",
        "cli.auditing": (
            "audit cli.app cli.console cli.studies errors home session study targets.choose"
        ),
        "cli.bundles": (
            "api cli.app cli.console cli.parsing cli.studies cli.trust errors export.build "
            "export.bundle export.cuda_bundle export.kernel home operator operators_io resources "
            "result settings study variant versions"
        ),
        "cli.checking": (
            "api bench cli.app cli.console cli.parsing cli.progress cli.trust errors home "
            "operator operators_io records resources session settings targets.choose variant"
        ),
        "cli.comparing": (
            "cli.app cli.console errors replay.plot replay.recording replay.simulate"
        ),
        "cli.console": "report.words wire",
        "cli.dashboard": (
            "cli.app cli.console cli.studies report.collect report.text store_dashboard study"
        ),
        "cli.differing": ("cli.app cli.console cli.studies errors records report.words study"),
        "cli.doctor": (
            "ceilings cli.app cli.console errors home locks records sandbox targets.choose "
            "versions worker"
        ),
        "cli.entry": (
            "cli.app cli.auditing cli.bundles cli.checking cli.comparing cli.console cli.dashboard "
            "cli.differing cli.doctor cli.explaining cli.following cli.importing "
            "cli.housekeeping cli.listing cli.mcp cli.proposals cli.repairing cli.reporting "
            "cli.scaffold cli.showing cli.tuning errors"
        ),
        "cli.explaining": (
            "classify cli.app cli.console cli.parsing cli.studies cli.trust diagnose diagnoser "
            "diagnosis errors home operators_io profile.sass records session study targets.choose "
            "targets.cuda variant"
        ),
        "cli.following": (
            "cli.app cli.console cli.progress cli.results cli.studies errors events records "
            "report.collect report.words study"
        ),
        "cli.housekeeping": "cli.app cli.console cli.studies errors home",
        "cli.importing": (
            "cli.app cli.console cli.trust errors home importing.describe importing.run"
        ),
        "cli.listing": "cli.app cli.console cli.studies errors operators_io resources result study",
        "cli.mcp": "cli.agent_tools cli.app errors versions",
        "cli.parsing": "errors operator records user_data variant",
        "cli.progress": "cli.console events records",
        "cli.proposals": (
            "cli.app cli.console cli.studies diagnoser errors propose.agent propose.answer "
            "propose.inbox propose.sections protocols records study"
        ),
        "cli.repairing": "cli.app cli.console cli.studies repair",
        "cli.reporting": (
            "cli.app cli.console cli.studies errors report.collect report.figures report.page "
            "report.text study"
        ),
        "cli.results": "cli.console result",
        "cli.scaffold": "cli.app cli.console cli.trust errors resources",
        "cli.showing": (
            "archive cli.app cli.console cli.results cli.studies codec errors records study"
        ),
        "cli.studies": (
            "cli.trust errors home operator operators_io protocols settings study targets.choose "
            "user_data"
        ),
        "cli.trust": "errors home operators_io",
        "cli.tuning": (
            "api cli.app cli.console cli.importing cli.parsing cli.progress cli.results "
            "cli.studies cli.trust errors home operators_io propose.agent resources search.budget "
            "session settings targets.choose"
        ),
    },
}

# The one kind of step upwards: a method that exists for a user's convenience and only hands on to a
# higher module, which it imports when it is called. Not counted in the graph; keep this short.
DOORS: dict[str, str] = {
    "operator": "from_python importing.run",
    "result": "report.notebook",
    "study": "report.notebook",
}

# Third-party packages that cost time or may be absent: the modules that may import them.
HOMES: dict[str, str] = {
    "anthropic": "propose.llm",
    "cuda": "targets.cuda*",
    "cupy": "",
    "jinja2": "report.page",
    "llvmlite": "targets.cpu*",
    "matplotlib": "replay.plot report.figures",
    "mcp": "cli.mcp",
    "networkx": "archive",
    "numba": "targets.cpu*",
    "optuna": "methods optuna_sampler report.importance store*",
    "optuna_dashboard": "store_dashboard",
    "pynvml": "targets.cuda*",
    "pcpp": "importing.syntax",
    "rich": "cli*",
    "scipy": "user_data",
    "sqlalchemy": "store*",
    "sympy": "importing*",
    "torch": "targets.cuda* vendor",
    "tree_sitter": "importing*",
    "tree_sitter_cuda": "importing*",
    "typer": "cli*",
}


def modules() -> dict[str, Path]:
    """Return every module of the package by its name inside it ("" is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in ("operators", "templates", "studies"):
            continue
        found[".".join(p for p in parts if p != "__init__")] = path
    return found


MODULES = modules()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imported(name: str) -> frozenset[str]:
    """Return the absolute names that a module imports anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: line {node.lineno}: imports are absolute here"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".removeprefix("kernelsearch.")
                found.add(f"kernelsearch.{inner}" if inner in MODULES else node.module)
    return frozenset(found)


def all_imports(name: str) -> set[str]:
    """Return the modules of this package that a module imports."""
    inside = {i for i in imported(name) if i.split(".")[0] == "kernelsearch"}
    return {i.removeprefix("kernelsearch").removeprefix(".") for i in inside}


def own_imports(name: str) -> set[str]:
    """Return those imports that the table must allow: all but doors."""
    return {n for n in all_imports(name) if not matches(n, DOORS.get(name, ""))}


def matches(name: str, patterns: str) -> bool:
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns.split())


ROWS = {name: allowed for layer in TABLE.values() for name, allowed in layer.items()}
LAYER = {name: number for number, layer in enumerate(TABLE.values()) for name in layer}


def test_every_module_has_a_row_and_every_row_a_module() -> None:
    missing = sorted(set(MODULES) - set(ROWS))
    rows = [f'"{name}": "{" ".join(sorted(own_imports(name)))}",' for name in missing]
    assert not missing, "add to TABLE, in the right layer:\n" + "\n".join(rows)
    assert not sorted(set(ROWS) - set(MODULES)), "rows without a module"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_what_its_row_says(name: str) -> None:
    surplus = sorted(i for i in own_imports(name) if not matches(i, ROWS.get(name, "")))
    assert not surplus, f"{name} must not import {surplus}: move the code, or argue for the row"


def test_doors_are_opened_only_when_they_are_used() -> None:
    for name, doors in DOORS.items():
        top = {node.module for node in tree(name).body if isinstance(node, ast.ImportFrom)}
        assert all(any(matches(i, d) for i in all_imports(name)) for d in doors.split())
        assert not {m for m in top if m and matches(m.removeprefix("kernelsearch."), doors)}


def test_the_rows_are_acyclic_and_point_down() -> None:
    graph = {
        name: {other for other in ROWS if matches(other, allowed) and other != name}
        for name, allowed in ROWS.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())
    upward = [
        f"{name} -> {other}"
        for name, others in graph.items()
        for other in others
        if LAYER[other] > LAYER[name]
    ]
    assert not upward


def test_no_row_allows_what_nobody_uses() -> None:
    unused = [
        f"{name}: {pattern}"
        for name, allowed in ROWS.items()
        if name in MODULES
        for pattern in allowed.split()
        if not any(matches(i, pattern) for i in own_imports(name))
    ]
    assert not unused


@pytest.mark.parametrize("name", sorted(MODULES))
def test_heavy_packages_have_one_home(name: str) -> None:
    for package in {i.split(".")[0] for i in imported(name)} & set(HOMES):
        assert matches(name, HOMES[package]), f"{package} must only be imported in {HOMES[package]}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_first_line_says_what_the_module_is_for(name: str) -> None:
    doc = tree(name).body[0] if tree(name).body else None
    assert isinstance(doc, ast.Expr)
    assert isinstance(doc.value, ast.Constant)
    assert isinstance(doc.value.value, str)
    assert doc.lineno == 1
    first = doc.value.value.split("\n")[0]
    assert len(first) > 15
    assert first == first.strip()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_house_rules(name: str) -> None:
    for node in ast.walk(tree(name)):
        line = f"{name}: line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Name):
            assert node.id not in ("eval", "exec") or matches(name, "targets.cpu* operators_io"), (
                f"{line}: {node.id} has no place here"
            )
        if isinstance(node, ast.If) and name and "TYPE_CHECKING" in ast.unparse(node.test):
            # Types of a slow third-party package may be named; our own cycles are not hidden so.
            # The package itself names what it loads on first use.
            guarded = " ".join(ast.unparse(part) for part in node.body)
            assert "kernelsearch" not in guarded, f"{line}: a cycle is to be broken, not hidden"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print" or matches(name, "cli*"), f"{line}: print is for cli"
        if isinstance(node, ast.ExceptHandler):
            kinds = ast.walk(node.type) if node.type else ()
            caught = {n.id for n in kinds if isinstance(n, ast.Name)} or {""}
            assert not caught & {"", "Exception"}, f"{line}: name what may fail"
            raises = any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node))
            assert "BaseException" not in caught or raises, f"{line}: pass on what is not yours"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{n.split('.')[0] for n in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_is_light() -> None:
    heavy = {"numba", "llvmlite", "optuna", "sqlalchemy", "cuda", "anthropic", "networkx", "scipy",
             "torch", "rich", "typer"}  # fmt: skip
    assert not loaded_by("import kernelsearch") & heavy
    assert not loaded_by("import kernelsearch.protocols, kernelsearch.variant") & heavy


def test_a_worker_does_not_load_the_parents_packages() -> None:
    heavy = {"numba", "optuna", "sqlalchemy", "cuda", "anthropic", "networkx", "rich", "typer"}
    assert not loaded_by("import kernelsearch.worker_child") & heavy
