"""Arrays for compiled code by their addresses, so that a call hands over one array instead of a dozen.

Handing an array to a kernel costs about 0.1 us, and several cache misses in a router that was idle; a decision reads
some thirty. Whoever owns arrays writes their addresses and lengths into one int64 array and keeps that true whenever
it makes or grows one (`table.BlockTable`); the arrays live as long as their owner does.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


@intrinsic
def vector(_typing, address, length, dtype):
    """The C-contiguous array of `length` items at an address: `vector(where[0], where[1], np.int64)`."""
    array_type = types.Array(dtype.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        array = make_array(array_type)(context, builder)
        item = context.get_data_type(dtype.dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(item))
        populate_array(
            array,
            data=builder.inttoptr(arguments[0], item.as_pointer()),
            shape=cgutils.pack_array(builder, [arguments[1]]),
            strides=cgutils.pack_array(builder, [size]),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.int64, types.int64, dtype), generate
