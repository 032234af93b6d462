"""Watch a loaded module's own variables: nothing may be kept in them from one call to the next.

A kernel can write to ``__device__`` and ``__constant__`` variables alike, and to constant ones
through a cast. Their contents are hashed when the module is loaded, and compared after every
verified run, after the first calls of a timing and after each of its samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelsearch.errors import CheatedError, LaunchError
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_elf import Cubin, GlobalVariable
from kernelsearch.targets.cuda_source import is_library_name


class ModuleState:
    """The variables of one loaded module, as they were when it was loaded.

    Args:
        context: the device.
        image: the cubin.
        library: the driver's handle of the loaded module.

    Raises:
        LaunchError: the driver does not say where a variable lies, so that it cannot be watched.
    """

    def __init__(self, context: CudaContext, image: bytes, library: Any) -> None:
        self._context = context
        self._names: list[str] = []
        self._regions: list[tuple[int, int]] = []
        variables = Cubin(image).variables() if image else []
        for section in sorted({v.section for v in variables}):
            self._add(section, [v for v in variables if v.section == section and v.size], library)
        self._before = context.hashes(self._regions)

    def _add(self, section: str, variables: list[GlobalVariable], library: Any) -> None:
        driver = self._context.driver
        found: list[tuple[GlobalVariable, int]] = []
        for variable in variables:
            status, pointer, nbytes = driver.cuLibraryGetGlobal(library, variable.name.encode())
            if int(status) == 0 and int(nbytes):
                found.append((variable, int(pointer)))
        if not found:
            # Constants of libraries that no kernel uses need not be loaded at all.
            names = [v.name for v in variables if not is_library_name(v.name)]
            if not names:
                return
            raise LaunchError(
                f"the driver does not say where the module's variables lie ({', '.join(names[:5])} "
                f"in {section}), so nobody can see whether they are written to; declare tables "
                "__constant__ at namespace scope",
                {"rule": "module state", "variables": names},
            )
        bases = {pointer - variable.offset for variable, pointer in found}
        if len(bases) == 1:
            # As one piece: what lies between the variables is watched too.
            end = max(v.offset + v.size for v in variables)
            self._names.append(section)
            self._regions.append((bases.pop(), end))
            return
        for variable, pointer in found:
            self._names.append(variable.name)
            self._regions.append((pointer, variable.size))

    def check(self, when: str) -> None:
        """Raise if a variable has changed since the module was loaded.

        Raises:
            CheatedError: evidence holds ``module_state``, the variables or their sections.
        """
        if not self._regions:
            return
        changed = np.not_equal(self._context.hashes(self._regions), self._before)
        if changed.any():
            names = [n for n, bad in zip(self._names, changed, strict=True) if bad]
            raise CheatedError(
                f"wrote to variables of its module ({', '.join(names)}) {when}: nothing may be "
                "kept from one call to the next",
                {"module_state": names, "when": when},
            )
