"""Load an image of machine code into this process and hand out its kernels as callables.

Every kernel gets an LLVM engine of its own: symbols of two candidates can never be taken for each
other, and dropping a binary drops all state it may have kept.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kernelsearch.records import Binary, CompileJob
from kernelsearch.targets.cpu_compile import KernelImage, compile_images, unpack_images

Kernel = Callable[..., None]


class LoadedBinary:
    """The kernels of one binary, ready to be called."""

    def __init__(self, binary: Binary) -> None:
        self.job: CompileJob = binary.job
        images = unpack_images(binary.image)
        if images is None:
            # Made by another toolchain or for another CPU: the source is still the truth.
            images = compile_images(binary.job, bounds=False)
        self.kernels: dict[str, Kernel] = {i.name: link_kernel(i) for i in images}
        self._checked: dict[str, Kernel] | None = None

    def checked_kernels(self) -> dict[str, Kernel]:
        """Return the same kernels compiled serially with bounds checks (compiled on first use)."""
        if self._checked is None:
            images = compile_images(self.job, bounds=True)
            self._checked = {i.name: link_kernel(i) for i in images}
        return self._checked


def link_kernel(image: KernelImage) -> Kernel:
    """Link one kernel and return a callable that takes its arguments in order."""
    # Numba's own way to reload cached code, minus the pickles; its modules have no type hints.
    dynfunc: Any = import_module("numba._dynfunc")
    make_codegen: Any = import_module("numba.core.codegen").JITCPUCodegen
    make_environment: Any = import_module("numba.core.lowering").Environment
    context: Any = import_module("numba.core.registry").cpu_target.target_context
    parallel: Any = import_module("numba.np.ufunc.parallel")
    # The runtime's symbols have to be known to LLVM before code that uses them is linked.
    import_module("numba.core.runtime").rtsys.initialize(context)
    if image.parallel:
        parallel._launch_threads()
    codegen = make_codegen(f"kernelsearch.{image.name}")
    library = codegen.unserialize_library((image.library, "object", (image.code, image.bitcode)))
    pointer = library.get_pointer_to_function(image.symbol)
    environments: list[Any] = []
    for name in image.environments:
        environment = make_environment({})
        environment.env_name = name
        codegen.set_env(name, environment)
        environments.append(environment)
    function: Kernel = dynfunc.make_function(
        types.ModuleType("kernelsearch_kernel"), image.name, "", pointer, environments[0],
        (library, tuple(environments)),
    )  # fmt: skip
    return function
