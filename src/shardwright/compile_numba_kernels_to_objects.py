"""Object files of kernels, compiled by numba and LLVM, each with an entry point for C.

An entry point takes and returns plain numbers (kernels.c). The module runs with
SHARDWRIGHT_KERNELS=parts, so that each function is translated once and optimized within its
kernels.
"""

from __future__ import annotations

import gc
import marshal
import sys
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import cgutils
from numba.core import types as numba_types
from numba.core.cgutils import ir
from numba.core.codegen import ll
from numba.np import numpy_support
from numba.np.arrayobj import populate_array

from shardwright.built_kernels import source_digest
from shardwright.numba_link_time_optimization import Whole
from shardwright.numba_tuples_by_reference import Reference, passed

types: Any = numba_types
RECIPE = 1
"""Number to raise when this module or the assembly of kernels changes, so that object files of
earlier builds are not reused.
"""
_SCALARS = {"int64": types.int64, "float64": types.float64, "bool": types.boolean}


def write_objects(signatures: dict[str, Any], names: list[str], folder: Path, path: Path) -> None:
    """Compile changed kernels of `names` to object files in `folder`; write their table to `path`.

    Object files that `folder` already has are reused. The table at `path` is name -> (digest of the
    source, [(object file, entry point, calling convention)]).
    """
    # Objects of numba live as long as the process: no garbage is worth collecting.
    gc.disable()
    ll.initialize_native_target()
    ll.initialize_native_asmprinter()
    machine = ll.Target.from_default_triple().create_target_machine(
        cpu="generic", opt=2, reloc="pic", codemodel="default"
    )
    table: dict[str, tuple[str, list[tuple[str, str, Any]]]] = {}
    for name in names:
        module, _, attribute = name.partition(":")
        kernel = getattr(import_module(module), attribute)
        source = source_digest(kernel)
        variants = []
        for at, described in enumerate(signatures[name]):
            symbol = f"kernel_{module.replace('.', '_')}_{attribute}_{at}"
            made_from = repr(
                (
                    source,
                    described,
                    numba.__version__,
                    ll.llvm_version_info,
                    sys.version_info[:2],
                    RECIPE,
                )
            )
            found = folder / f"{symbol}.{blake2b(made_from.encode(), digest_size=8).hexdigest()}.o"
            how = found.with_suffix(".call")
            if not how.exists():
                code, variant = _compile(kernel, described, symbol, machine)
                for other in folder.glob(f"{symbol}.*"):
                    other.unlink()
                found.write_bytes(code)
                how.write_bytes(marshal.dumps(variant))
            variants.append((str(found), symbol, marshal.loads(how.read_bytes())))
        table[name] = source, variants
    path.write_bytes(marshal.dumps(table))


def _compile(
    kernel: Any, described: list[Any], symbol: str, machine: Any
) -> tuple[bytes, tuple[Any, ...]]:
    """(object file content, calling convention) of a kernel for one list of argument types."""
    arguments = tuple(type_of(one) for one in described)
    kernel.compile(arguments)
    compiled = kernel.overloads[arguments]
    context = kernel.targetctx
    library = Whole(context.codegen(), symbol)
    library.add_linking_library(compiled.library)
    library.add_ir_module(_entry_point(library, context, compiled, symbol))
    module = library.linked()
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    for value in module.global_variables:
        if not value.is_declaration and value.linkage in (
            ll.Linkage.common,
            ll.Linkage.external,
            ll.Linkage.linkonce_odr,
        ):
            value.linkage = "internal"
    dtypes: list[np.dtype[Any]] = []
    classes: list[str] = []
    codes = b"".join(_value_code(one, dtypes, classes) for one in arguments)
    results = _value_code(compiled.signature.return_type, dtypes, classes, result=True)
    formats = tuple(np.lib.format.dtype_to_descr(one) for one in dtypes)
    return machine.emit_object(module), (len(arguments), codes, results, formats, tuple(classes))


def _entry_point(library: Any, context: Any, compiled: Any, symbol: str) -> Any:
    """LLVM module: read arguments from 64-bit numbers, call the kernel, write the result back."""
    module = library.create_ir_module(symbol)
    word = ir.IntType(64)
    entry = ir.Function(
        module, ir.FunctionType(ir.IntType(32), [word.as_pointer(), word.as_pointer()]), name=symbol
    )
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    reader = _Block(context, builder, entry.args[0])
    values = [reader.read(one) for one in compiled.signature.args]
    function = context.declare_function(module, compiled.fndesc)
    status, result = context.call_conv.call_function(
        builder, function, compiled.signature.return_type, compiled.signature.args, values
    )
    with builder.if_then(status.is_error):
        builder.ret(ir.Constant(ir.IntType(32), 1))
    _Block(context, builder, entry.args[1]).write(compiled.signature.return_type, result)
    builder.ret(ir.Constant(ir.IntType(32), 0))
    return module


class _Block:
    """Emitter of LLVM code that reads or writes a block of 64-bit numbers from its start."""

    def __init__(self, context: Any, builder: Any, pointer: Any) -> None:
        self._context, self._builder, self._pointer, self._at = context, builder, pointer, 0

    def _emit_slot_address(self) -> Any:
        """Emit the address of the block's next slot."""
        slot = self._builder.gep(self._pointer, [ir.Constant(ir.IntType(64), self._at)])
        self._at += 1
        return slot

    def _emit_load(self) -> Any:
        """Emit the load of the 64-bit number in the block's next slot."""
        return self._builder.load(self._emit_slot_address())

    def read(self, kind: Any) -> Any:
        """Emit the code that reads a value of a numba type from the block's next slots."""
        context, builder = self._context, self._builder
        if isinstance(kind, Reference):
            return cgutils.alloca_once_value(builder, self.read(kind.held))
        if isinstance(kind, types.BaseTuple):
            return context.make_tuple(builder, kind, [self.read(one) for one in kind])
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder)
            address, _ = self._emit_load(), self._emit_load()
            shape, strides = (
                [self._emit_load() for _ in range(kind.ndim)],
                [self._emit_load() for _ in range(kind.ndim)],
            )
            size = context.get_constant(types.intp, numpy_support.as_dtype(kind.dtype).itemsize)
            populate_array(
                array,
                data=builder.inttoptr(address, array.data.type),
                shape=shape,
                strides=strides,
                itemsize=size,
                meminfo=None,
            )
            return array._getvalue()
        number = self._emit_load()
        if kind == types.float64:
            return builder.bitcast(number, ir.DoubleType())
        return (
            builder.icmp_signed("!=", number, number.type(0)) if kind == types.boolean else number
        )

    def write(self, kind: Any, value: Any) -> None:
        """Emit the code that writes a value of a numba type to the block's next slots."""
        context, builder = self._context, self._builder
        if kind == types.none:
            return
        if isinstance(kind, types.BaseTuple):
            for at, one in enumerate(kind):
                self.write(one, builder.extract_value(value, at))
        elif isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            self._emit_store(builder.ptrtoint(array.data, ir.IntType(64)))
            self._emit_store(builder.ptrtoint(array.meminfo, ir.IntType(64)))
            for numbers in (array.shape, array.strides):
                for number in cgutils.unpack_tuple(builder, numbers, kind.ndim):
                    self._emit_store(number)
        elif kind == types.float64:
            self._emit_store(builder.bitcast(value, ir.IntType(64)))
        elif value.type.width < 64:
            signed = isinstance(kind, types.Integer) and kind.signed
            self._emit_store(
                builder.sext(value, ir.IntType(64))
                if signed
                else builder.zext(value, ir.IntType(64))
            )
        else:
            self._emit_store(value)

    def _emit_store(self, number: Any) -> None:
        """Emit the store of a 64-bit value in the block's next slot."""
        self._builder.store(number, self._emit_slot_address())


def _value_code(
    kind: Any, dtypes: list[np.dtype[Any]], classes: list[str], *, result: bool = False
) -> bytes:
    """Type code for kernels.c (``i``, ``f``, ``b``, ``a..``, ``(..``, ``t..``) of a numba type."""
    if isinstance(kind, Reference):
        kind = kind.held
    if kind == types.none:
        return b"n"
    if isinstance(kind, types.BaseTuple):
        items = b"".join(_value_code(one, dtypes, classes, result=result) for one in kind)
        if not result or not isinstance(kind, types.BaseNamedTuple):
            return b"(" + bytes([len(kind)]) + items
        of = kind.instance_class
        classes.append(f"{of.__module__}:{of.__qualname__}")
        return b"t" + bytes([len(kind), len(classes) - 1]) + items
    if isinstance(kind, types.Array):
        dtype = numpy_support.as_dtype(kind.dtype)
        if dtype not in dtypes:
            dtypes.append(dtype)
        return b"a" + bytes(
            [dtypes.index(dtype), kind.ndim, (kind.layout == "C") + 2 * kind.mutable]
        )
    if isinstance(kind, types.Integer):
        return b"i"
    return {types.float64: b"f", types.boolean: b"b"}[kind]


def type_of(described: Any) -> Any:
    """Convert a type as written in kernel_signatures.json to the numba type.

    The types are "int64", "float64" or "bool"; {"array": dtype, "dimensions": n, ..}; {"tuple":
    items}, with its class if it is a NamedTuple.
    """
    if isinstance(described, str):
        return _SCALARS[described]
    if "array" in described:
        form = described["array"]
        descr_to_dtype: Any = np.lib.format.descr_to_dtype
        dtype = descr_to_dtype(
            form if isinstance(form, str) else [tuple(map(_tuple_of_list, field)) for field in form]
        )
        layout = "C" if described["contiguous"] else "A"
        element = numpy_support.from_dtype(dtype)
        return types.Array(
            element,
            described["dimensions"],
            layout,
            readonly=not described["writable"],
            aligned=dtype.names is None,
        )
    items = tuple(type_of(one) for one in described["tuple"])
    if "class" not in described:
        return types.Tuple(items)
    module, _, attribute = described["class"].partition(":")
    of = getattr(import_module(module), attribute)
    held = (
        types.NamedUniTuple(items[0], len(items), of)
        if len(set(items)) == 1
        else types.NamedTuple(items, of)
    )
    return Reference(held) if of in passed else held


def _tuple_of_list(value: Any) -> Any:
    """Convert a list to a tuple; other values stay unchanged."""
    return tuple(value) if isinstance(value, list) else value
