"""The CUDA runtime's calls and launches in host code: what each means for a launch plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy as sp

from kernelsearch.importing.symbols import CeilDivide, FloorDivide, number, symbol
from kernelsearch.importing.syntax import DTYPES, Function, Node, expression, parse, text_of
from kernelsearch.importing.values import (
    Address,
    Buffer,
    Dim3,
    FillBuffer,
    Frame,
    KernelName,
    LaunchStep,
    Number,
    Opaque,
    Pointer,
    Reader,
    Record,
    SymbolCopy,
    Value,
)
from kernelsearch.records import DTYPE_BYTES

Step = LaunchStep | FillBuffer | SymbolCopy
_ALLOCATES = (
    "cudaMalloc", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc", "cudaMallocAsync",
    "hipMalloc",
)  # fmt: skip
_COPIES = ("cudaMemcpy", "cudaMemcpyAsync")
_FILLS = ("cudaMemset", "cudaMemsetAsync")
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelEx")
_REFUSED = {
    "cudaMallocPitch": "pitched memory", "cudaMalloc3D": "pitched memory",
    "cudaMemcpy2D": "a copy of a pitched region", "cudaMemcpy3D": "a copy of a pitched region",
    "cudaMemcpyFromSymbol": "a result in a __device__ variable",
    "cudaMallocArray": "a CUDA array", "cudaMalloc3DArray": "a CUDA array",
    "cudaBindTexture": "a texture", "cudaCreateTextureObject": "a texture",
    "cudaBindTextureToArray": "a texture", "cudaCreateSurfaceObject": "a surface",
    "cudaGraphLaunch": "a CUDA graph", "cudaMemcpyPeer": "memory of another device",
    "cudaMemset2D": "pitched memory", "cudaGetSymbolAddress": "the address of a device variable",
}  # fmt: skip
_ATTRIBUTES = {
    "cudaDevAttrMultiProcessorCount": "sm_count",
    "cudaDevAttrMaxThreadsPerBlock": "max_threads_per_block",
    "cudaDevAttrMaxThreadsPerMultiProcessor": "max_threads_per_sm",
}
_COPY_KERNEL = """
template <typename T> __global__ void copy_elements(T* to, const T* from, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < n) to[i] = from[i];
}
"""
COPY_BLOCK = 256
_LIBRARY = re.compile(
    r"(cublas|cusparse|cufft|cudnn|curand|cusolver|nccl|nvshmem)\w*\Z|thrust::|cub::Device"
)
_C_TYPES = {
    "float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned int",
    "int64": "long long", "uint64": "unsigned long long", "int16": "short",
    "uint16": "unsigned short", "int8": "signed char", "uint8": "unsigned char",
    "float16": "__half", "bfloat16": "__nv_bfloat16",
}  # fmt: skip


def c_type(dtype: str | None) -> str | None:
    """Return the C type of a dtype."""
    return _C_TYPES.get(dtype) if dtype is not None else None


def is_runtime(name: str) -> bool:
    """Return whether a call is one of the CUDA runtime."""
    return name.startswith("cuda") and "::" not in name


def launches_elsewhere(name: str) -> bool:
    """Return whether a library computes on the device."""
    return bool(_LIBRARY.match(name))


def counts(name: str) -> bool:
    """Return whether a call changes what a plan says."""
    return name in (*_ALLOCATES, *_COPIES, *_FILLS, *_LAUNCHES, "cudaMemcpyToSymbol") or (
        name in _REFUSED or launches_elsewhere(name)
    )


def runtime(reader: Reader, name: str, node: Node, listed: Sequence[Node], frame: Frame) -> Value:
    """Follow one call of the CUDA runtime."""
    if name in _REFUSED:
        raise reader.fail(node, f"{name}: {_REFUSED[name]} has no place in a launch plan",
                          "import the kernel alone, with plain arrays")  # fmt: skip
    if name in _LAUNCHES:
        return _launch_call(reader, name, node, listed, frame)
    if name in _ALLOCATES:
        _allocate(reader, node, listed, frame)
    elif name in _COPIES:
        _copy(reader, node, listed, frame)
    elif name in _FILLS:
        _fill(reader, node, listed, frame)
    elif name == "cudaMemcpyToSymbol":
        _to_symbol(reader, node, listed, frame)
    elif name.startswith("cudaOccupancyMaxPotentialBlockSize") and len(listed) > 2:
        _occupancy(reader, listed, frame)
    else:
        for item in listed:
            value = reader.evaluate(item, frame)
            held = frame.values.get(value.name) if isinstance(value, Address) else None
            if isinstance(value, Address) and (
                isinstance(held, Number) or (isinstance(held, Opaque) and held.what == value.name)
            ):
                # cudaDeviceGetAttribute(&sms, ...): known where it runs only.
                reader.plan.defaults.pop(value.name, None)
                attribute = next((a for x in listed if (a := _ATTRIBUTES.get(text_of(x)))), None)
                frame.values[value.name] = Number(symbol(attribute or value.name))
    return Number(number(0))  # cudaSuccess


def _occupancy(reader: Reader, listed: Sequence[Node], frame: Frame) -> None:
    """The block that the runtime suggests is one to tune; the grid fills the device with it."""
    grid, block = (reader.evaluate(item, frame) for item in listed[:2])
    if not isinstance(grid, Address) or not isinstance(block, Address):
        return
    threads = symbol(block.name)
    reader.plan.defaults.pop(grid.name, None)
    reader.plan.defaults[block.name] = COPY_BLOCK
    frame.values[block.name] = Number(threads)
    resident = FloorDivide(symbol("max_threads_per_sm"), threads)
    frame.values[grid.name] = Number(symbol("sm_count") * resident)


def _allocate(reader: Reader, node: Node, listed: Sequence[Node], frame: Frame) -> None:
    if len(listed) < 2:
        raise reader.fail(node, "an allocation needs a pointer and a size")
    target = listed[0]
    while target.type in ("cast_expression", "parenthesized_expression"):
        target = target.child_by_field_name("value") or target.named_children[-1]
    size = reader.evaluate(listed[1], frame)
    if not isinstance(size, Number):
        raise reader.fail(node, f"the size {text_of(listed[1])!r} of this allocation is not known "
                          "here", "write it as an expression of sizes")  # fmt: skip
    address = reader.evaluate(target, frame)
    name = address.name if isinstance(address, Address) else text_of(target).lstrip("&")
    old = reader.evaluate(target.child_by_field_name("argument") or target, frame)
    if isinstance(old, Address) and old.frame is not None:
        # void allocate(float** p, int n): what the caller's pointer is called
        frame = old.frame
        old = reader.evaluate(expression(old.name), frame)
    dtype = old.buffer.dtype if isinstance(old, Pointer) else None
    if (
        isinstance(old, Pointer)
        and old.buffer in reader.plan.buffers
        and (old.buffer.extent is None and not old.buffer.outside)
    ):
        reader.plan.buffers.remove(old.buffer)
    short = re.sub(r"\[(\d+)\]", r"\1", re.split(r"\.|->", name)[-1])
    buffer = Buffer(short, dtype, device=True, line=node.start_point[0] + 1, size_bytes=size.expr)
    settle_dtype(buffer, dtype)
    reader.plan.buffers.append(buffer)
    reader.store(name, Pointer(buffer), frame)


def settle_dtype(buffer: Buffer, dtype: str | None) -> None:
    """Set a buffer's dtype, and its elements from its bytes."""
    if dtype is None:
        return
    buffer.dtype = dtype
    if buffer.size_bytes is not None and buffer.extent is None:
        buffer.extent = FloorDivide(sp.expand(buffer.size_bytes), number(DTYPE_BYTES[dtype]))


def _pointer(reader: Reader, node: Node, frame: Frame) -> Pointer | None:
    value = reader.evaluate(node, frame)
    if isinstance(value, Address):
        frame = value.frame or frame
        held = frame.values.get(value.name)
        if isinstance(held, Pointer):
            return held
        if isinstance(held, Number):
            # &result: one number on the host
            buffer = Buffer(value.name, "float32" if held.real else "int32", number(1))
            reader.plan.buffers.append(buffer)
            frame.values[value.name] = Number(symbol(value.name))
            return Pointer(buffer)
        buffer = Buffer(value.name, None, number(1))
        reader.plan.buffers.append(buffer)
        return Pointer(buffer)
    return value if isinstance(value, Pointer) else None


def _copy(reader: Reader, node: Node, listed: Sequence[Node], frame: Frame) -> None:
    if len(listed) < 4:
        raise reader.fail(node, "a copy needs a target, a source, a size and a direction")
    to, source = _pointer(reader, listed[0], frame), _pointer(reader, listed[1], frame)
    direction = text_of(listed[3])
    if direction.endswith("cudaMemcpyDefault"):
        direction = _direction(to, source)
    if direction.endswith("HostToDevice"):
        if to is not None:
            to.buffer.device = True
            host = source.buffer if source is not None else Buffer(text_of(listed[1]), None)
            to.buffer.uploaded = host
            _share(to.buffer, host)
    elif direction.endswith("DeviceToHost"):
        if source is not None:
            source.buffer.device = True
            host = to.buffer if to is not None else Buffer(text_of(listed[0]), None)
            source.buffer.downloaded = host
            _share(source.buffer, host)
    elif direction.endswith("DeviceToDevice"):
        _copy_on_device(reader, node, to, source, reader.evaluate(listed[2], frame))
    else:
        raise reader.fail(node, f"the direction {direction} of this copy is not known here",
                          "name it: cudaMemcpyHostToDevice or cudaMemcpyDeviceToHost")  # fmt: skip


def _direction(to: Pointer | None, source: Pointer | None) -> str:
    """Return the direction that the addresses themselves tell (cudaMemcpyDefault)."""
    at_target = to is not None and to.buffer.device
    at_source = source is not None and source.buffer.device
    if at_target and at_source:
        return "cudaMemcpyDeviceToDevice"
    if at_target:
        return "cudaMemcpyHostToDevice"
    return "cudaMemcpyDeviceToHost" if at_source else "cudaMemcpyDefault"


def _copy_on_device(
    reader: Reader, node: Node, to: Pointer | None, source: Pointer | None, size: Value
) -> None:
    """A plan has no copies: a kernel of ours makes them."""
    kind = c_type((source.buffer.dtype or to.buffer.dtype) if to and source else None)
    if to is None or source is None or kind is None or not isinstance(size, Number):
        raise reader.fail(node, "what this copy between device buffers moves is not known here",
                          "name two buffers of plain numbers")  # fmt: skip
    if "copy_elements" not in reader.module.functions:
        extra = parse(_COPY_KERNEL)
        reader.module.functions.update(extra.functions)
        reader.module.text += _COPY_KERNEL
    dtype = str(source.buffer.dtype or to.buffer.dtype)
    for buffer in (to.buffer, source.buffer):
        settle_dtype(buffer, buffer.dtype or dtype)
    count = FloorDivide(sp.expand(size.expr), number(DTYPE_BYTES[dtype]))
    reader.plan.steps.append(LaunchStep(
        reader.module.functions["copy_elements"][0], (kind,),
        Dim3(CeilDivide(count, number(COPY_BLOCK))), Dim3(number(COPY_BLOCK)), number(0),
        (to, source, Number(count)), False, reader.when, node.start_point[0] + 1,
    ))  # fmt: skip


def _share(device: Buffer, host: Buffer) -> None:
    if device.dtype is None:
        settle_dtype(device, host.dtype)
    if host.dtype is None:
        settle_dtype(host, device.dtype)
    if device.extent is None:
        device.extent = host.extent


def _fill(reader: Reader, node: Node, listed: Sequence[Node], frame: Frame) -> None:
    target = _pointer(reader, listed[0], frame) if listed else None
    value = reader.evaluate(listed[1], frame) if len(listed) > 1 else Opaque()
    if target is None or not isinstance(value, Number) or not value.expr.is_Integer:
        raise reader.fail(node, "what this fill sets is not known here",
                          "fill a whole buffer with a number")  # fmt: skip
    if target.offset != 0:
        raise reader.fail(node, "a fill of a part of a buffer is no step of a launch plan",
                          "fill the whole buffer")  # fmt: skip
    size = reader.evaluate(listed[2], frame) if len(listed) > 2 else Opaque()
    buffer = target.buffer
    if buffer.dtype is not None and isinstance(size, Number):
        count = FloorDivide(sp.expand(size.expr), number(DTYPE_BYTES[buffer.dtype]))
        if buffer.extent is None:
            buffer.extent = count
        elif sp.expand(buffer.extent - count) != 0:
            raise reader.fail(node, "a fill of a part of a buffer is no step of a launch plan",
                              "fill the whole buffer")  # fmt: skip
    buffer.device = True
    reader.plan.steps.append(
        FillBuffer(buffer, int(value.expr) & 0xFF, reader.when, node.start_point[0] + 1)
    )


def _to_symbol(reader: Reader, node: Node, listed: Sequence[Node], frame: Frame) -> None:
    name = text_of(listed[0]).lstrip("&") if listed else ""
    value = reader.evaluate(listed[1], frame) if len(listed) > 1 else Opaque()
    held = (value.frame or frame).values.get(value.name) if isinstance(value, Address) else value
    if isinstance(held, Record):
        raise reader.fail(node, f"{name} is a structure in __constant__ memory",
                          "pass it to the kernel as an argument")  # fmt: skip
    source = _pointer(reader, listed[1], frame) if len(listed) > 1 else None
    if name not in reader.module.symbols or source is None:
        raise reader.fail(node, "which __constant__ variable is set from what is not known here",
                          "pass it as a kernel argument")  # fmt: skip
    reader.plan.steps.append(SymbolCopy(name, source.buffer, node.start_point[0] + 1))


# --- launches -------------------------------------------------------------------------------------


def launch(reader: Reader, node: Node, frame: Frame) -> Value:
    """Follow ``kernel<<<grid, block, shared, stream>>>(arguments)``."""
    function = node.child_by_field_name("function")
    target = reader.evaluate(function, frame) if function is not None else Opaque()
    if not isinstance(target, KernelName):
        text = text_of(function) if function is not None else "?"
        raise reader.fail(node, f"which kernel {text!r} is cannot be told here",
                          "launch a kernel of this file by its name")  # fmt: skip
    syntax = next(c for c in node.children if c.type == "kernel_call_syntax")
    given = [c for c in syntax.named_children if c.type != "comment"]
    if len(given) < 2:
        raise reader.fail(node, "a launch needs a grid and a block")
    listed = node.child_by_field_name("arguments")
    arguments = [
        reader.evaluate(c, frame) for c in (listed.named_children if listed else ())
        if c.type != "comment"
    ]  # fmt: skip
    _add(reader, node, target, given[0], given[1], given[2] if len(given) > 2 else None, arguments,
         frame, cooperative=False)  # fmt: skip
    return Opaque()


def _launch_call(
    reader: Reader, name: str, node: Node, listed: Sequence[Node], frame: Frame
) -> Value:
    if name == "cudaLaunchKernelEx" or len(listed) < 4:
        raise reader.fail(node, f"{name} with a configuration cannot be followed",
                          "launch it with <<<grid, block>>>")  # fmt: skip
    target = reader.evaluate(_unwrapped(listed[0]), frame)
    packed = reader.evaluate(_unwrapped(listed[3]), frame)
    if not isinstance(target, KernelName):
        raise reader.fail(node, f"which kernel {text_of(listed[0])!r} is cannot be told here",
                          "name a kernel of this file")  # fmt: skip
    arguments = _packed(reader, node, packed, text_of(_unwrapped(listed[3])), frame)
    _add(reader, node, target, listed[1], listed[2], listed[4] if len(listed) > 4 else None,
         arguments, frame, cooperative="Cooperative" in name)  # fmt: skip
    return Number(number(0))


def _unwrapped(node: Node) -> Node:
    while node.type in ("cast_expression", "parenthesized_expression"):
        node = node.child_by_field_name("value") or node.named_children[-1]
    if node.type == "pointer_expression" and text_of(node).startswith("&"):
        return node.child_by_field_name("argument") or node
    return node


def _packed(reader: Reader, node: Node, packed: Value, name: str, frame: Frame) -> list[Value]:
    """Return the arguments in ``void* args[] = {&a, &b}``."""
    del packed
    at = node
    while at is not None and at.type != "function_definition":
        at = at.parent
    found = re.search(rf"\b{re.escape(name)}\s*\[\s*\d*\s*\]\s*=\s*\{{([^}}]*)\}}",
                      at.text.decode() if at is not None else "")  # fmt: skip
    if found is None:
        raise reader.fail(node, f"the arguments in {name!r} cannot be told here",
                          "write void* args[] = {&a, &b, ...}")  # fmt: skip
    values: list[Value] = []
    for item in found[1].split(","):
        text = re.sub(r"\(\s*void\s*\*+\s*\)", "", item).strip().lstrip("&").strip()
        if text:
            values.append(frame.values.get(text, reader.name(text, frame)))
    return values


def _add(
    reader: Reader, node: Node, target: KernelName, grid: Node, block: Node,
    shared: Node | None, arguments: list[Value], frame: Frame, *, cooperative: bool,
) -> None:  # fmt: skip
    kernel = _overload(reader, target.function, arguments)
    size = reader.evaluate(shared, frame) if shared is not None else Number(number(0))
    if not isinstance(size, Number):
        raise reader.fail(node, "the bytes of shared memory of this launch are not known here",
                          "write them as an expression of sizes")  # fmt: skip
    for argument, parameter in zip(arguments, kernel.parameters, strict=False):
        if isinstance(argument, Pointer) and argument.buffer.dtype is None:
            settle_dtype(argument.buffer, reader.dtype_of(parameter.type))
    _distinct(arguments, kernel)
    missing = len(kernel.parameters) - len(arguments)
    if missing:
        raise reader.fail(node, f"{kernel.name} takes {len(kernel.parameters)} arguments "
                          f"(got {len(arguments)})")  # fmt: skip
    reader.plan.steps.append(LaunchStep(
        kernel, _deduced(reader, kernel, target.arguments, arguments, node),
        _dimensions(reader, grid, frame), _dimensions(reader, block, frame), size.expr,
        tuple(_copied(a) for a in arguments), cooperative, reader.when, node.start_point[0] + 1,
    ))  # fmt: skip


def _distinct(arguments: Sequence[Value], kernel: Function) -> None:
    """Two buffers of one launch never share a name: a helper's ``p`` may be both."""
    seen: dict[str, Buffer] = {}
    for argument, parameter in zip(arguments, kernel.parameters, strict=False):
        if not isinstance(argument, Pointer):
            continue
        buffer = argument.buffer
        buffer.name = buffer.name or parameter.name
        while seen.get(buffer.name, buffer) is not buffer:
            buffer.name += "_"
        seen[buffer.name] = buffer


def _copied(value: Value) -> Value:
    return Record(value.type, dict(value.fields)) if isinstance(value, Record) else value


def _overload(reader: Reader, function: Function, arguments: Sequence[Value]) -> Function:
    same = [f for f in reader.module.functions[function.name] if f.kernel]
    fitting = [f for f in same if len(f.parameters) == len(arguments)]
    typed = [f for f in fitting if _fits(reader, f, arguments)]
    return (typed or fitting or [function])[0]


def _fits(reader: Reader, function: Function, arguments: Sequence[Value]) -> bool:
    """Return whether an overload's parameters have the arguments' own types."""
    for parameter, value in zip(function.parameters, arguments, strict=True):
        dtype = reader.dtype_of(parameter.type)
        if isinstance(value, Pointer) and value.buffer.dtype not in (None, dtype):
            return False
        if isinstance(value, Number) and value.real != bool(dtype and "float" in dtype):
            return False
    return True


def _dimensions(reader: Reader, node: Node, frame: Frame) -> Dim3:
    value = reader.evaluate(node, frame)
    if isinstance(value, Number):
        return Dim3(reader.truncated(value.expr) if value.real else value.expr)
    if isinstance(value, Dim3):
        return value
    raise reader.fail(node, f"the dimensions {text_of(node)!r} of this launch are not known here",
                      "write them as expressions of sizes")  # fmt: skip


def _deduced(
    reader: Reader, kernel: Function, explicit: tuple[str, ...], arguments: Sequence[Value],
    node: Node,
) -> tuple[str, ...]:  # fmt: skip
    """Return all template arguments: those given, then those that the arguments tell."""
    result = list(explicit)
    for name, (kind, default) in list(kernel.templates.items())[len(explicit) :]:
        found = None
        for parameter, argument in zip(kernel.parameters, arguments, strict=False):
            if parameter.type == name and kind in ("typename", "class"):
                if isinstance(argument, Pointer):
                    found = c_type(argument.buffer.dtype)
                elif isinstance(argument, Number) and argument.real:
                    found = "float"
                elif isinstance(argument, Number):
                    found = "int"
            if found:
                break
        value = found or default
        if value in reader.module.constants:
            value = str(reader.module.constants[value])
        if not value:
            raise reader.fail(node, f"the template parameter {name} of {kernel.name} cannot be "
                              "told from this launch", "give it in the launch")  # fmt: skip
        result.append(value)
    return tuple(result)


def expression_type(kind: str) -> str:
    """Return a plan's scalar type for a C type of a parameter."""
    dtype = DTYPES.get(kind, "")
    return {
        "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64", "float32": "f32",
        "float64": "f64",
    }.get(dtype, "")  # fmt: skip
