"""Choose what to import: the wrapper that launches, else main, else the only kernel."""

from __future__ import annotations

from kernelsearch.importing.host import HostReader
from kernelsearch.importing.syntax import Function, Module, text_of, walk


def choose_entry(module: Module, name: str | None) -> Function:
    """Return the function to import.

    Raises:
        CannotImportError: there is none, or more than one and none was named.
    """
    reader = HostReader(module, {})
    hosts = [
        f for group in module.functions.values() for f in group
        if not f.kernel and not f.device and reader.matters(f.body)
    ]  # fmt: skip
    kernels = module.kernels()
    if name is not None:
        named = [f for f in (*hosts, *kernels) if f.name == name]
        if not named:
            known = [f.name for f in (*hosts, *kernels)]
            raise module.fail(None, f"there is no function {name!r} that launches, nor a kernel of "
                              f"that name (there are: {', '.join(known) or 'none'})")  # fmt: skip
        return named[0]
    if not kernels:
        raise module.fail(None, "there is no __global__ function in it",
                          "give the file that holds the kernel")  # fmt: skip
    hosts = [f for f in hosts if _launches(reader, f)]
    called = {
        text_of(n.child_by_field_name("function")).split("<")[0].split("::")[-1]
        for f in hosts if f.name != "main" for n in walk(f.body)
        if n.type == "call_expression" and n.child_by_field_name("function") is not None
    }  # fmt: skip
    wrappers = [f for f in hosts if f.name != "main" and f.name not in called]
    exported = [f for f in wrappers if f.extern_c]
    for group in (exported, wrappers, [f for f in hosts if f.name == "main"]):
        if len(group) == 1:
            return group[0]
        if group:
            raise module.fail(
                None, f"{len(group)} functions launch kernels ({', '.join(f.name for f in group)})",
                f"choose one: --entry {group[0].name}",
            )  # fmt: skip
    if len(kernels) == 1:
        return kernels[0]
    raise module.fail(
        None, f"there are {len(kernels)} kernels ({', '.join(k.name for k in kernels)}) and no "
        "host function that launches them", f"choose one: --entry {kernels[0].name}",
    )  # fmt: skip


def _launches(reader: HostReader, function: Function) -> bool:
    seen: set[str] = set()

    def look(f: Function) -> bool:
        if f.name in seen:
            return False
        seen.add(f.name)
        for node in walk(f.body):
            if node.type == "kernel_call_syntax":
                return True
            if node.type == "call_expression":
                name = reader.called(node)
                if name.startswith("cudaLaunch"):
                    return True
                inner = reader.module.functions.get(name.split("::")[-1], ())
                if any(look(g) for g in inner if not g.kernel and not g.device):
                    return True
        return False

    return look(function)
