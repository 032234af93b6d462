"""Child of the bundle tests: calls a bundle's shared library on a fake driver, as it is told.

Reads one JSON document from standard input: the library, its function, and calls; answers with a
line of JSON a call. Needs LD_LIBRARY_PATH to lead to the fake libcuda.so.1.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

KINDS = {
    "pointer": ctypes.c_void_p, "int64_t": ctypes.c_int64, "float": ctypes.c_float,
    "double": ctypes.c_double,
}  # fmt: skip


def main() -> None:
    request = json.load(sys.stdin)
    fake = ctypes.CDLL("libcuda.so.1")
    library = ctypes.CDLL(request["library"])
    message = getattr(library, f"{request['operator']}_message")
    message.restype = ctypes.c_char_p
    for number, call in enumerate(request["calls"]):
        # os.environ reaches the C library's environment too.
        os.environ.update(call.get("environment", {}))
        fake.fake_note(str(number).encode())
        function = getattr(library, f"{request['operator']}_{call['dtype']}")
        function.argtypes = [KINDS[k] for k, _ in call["arguments"]] + [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
        ]  # fmt: skip
        code = function(*(v for _, v in call["arguments"]), 0x77, *call.get("workspace", (None, 0)))
        print(json.dumps([code, message().decode() if code else ""]), flush=True)


main()
