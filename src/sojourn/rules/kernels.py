"""Arithmetic on long vectors in one pass over the memory, compiled; the same bits as NumPy's in two."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from sojourn._support.compiling import njit
from sojourn.types import Vector

LINE = 64
"""Bytes of a line of the cache, which are written at once."""
CodeGenerator = Callable[[Any, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]
"""What writes the code of an intrinsic function for Numba, in a context whose methods have no types."""


@njit(cache=True, nogil=True)
def scaled_sum(weights: Vector, step: float, direction: Vector, result: Vector) -> None:
    """``result`` becomes ``step * direction + weights``, each rounded, all of one precision."""
    for place in range(weights.size):
        result[place] = step * direction[place] + weights[place]


@njit(cache=True, nogil=True)
def streamed_sum(weights: Vector, step: float, direction: Vector, result: Vector) -> None:
    """The same to the bit, written past the cache: ``result`` must begin at a line of the cache.

    A version of the weights is for tasks that read it long after it was made. In the cache it would take
    the place of what the next gradient needs, and the old contents of its memory would be read first.
    A million weights: a task takes 5 % less with 10 tasks in flight or 1,000, 3 % more with one alone.
    """
    length = LINE // weights.itemsize
    whole = weights.size // length * length
    for place in range(0, whole, length):
        _stream_line(weights, step, direction, result, place)
    _finish_streaming()
    for place in range(whole, weights.size):
        result[place] = step * direction[place] + weights[place]


def _line_of_sum(
    typing: object,
    weights: types.Type,
    step: types.Type,
    direction: types.Type,
    result: types.Type,
    place: types.Type,
) -> tuple[Signature, CodeGenerator]:
    """One line of the sum. Neither NumPy nor Numba has stores past the cache; LLVM does."""

    def generate(
        context: Any,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        number = context.get_value_type(signature.args[1])
        bytes_each = 4 if signature.args[1] == types.float32 else 8
        line = ir.VectorType(number, LINE // bytes_each)

        def at(place_of: int) -> ir.Value:
            array = context.make_array(signature.args[place_of])(
                context, builder, arguments[place_of]
            )
            return builder.bitcast(builder.gep(array.data, [arguments[4]]), ir.PointerType(line))

        factor = ir.Constant(line, ir.Undefined)
        for lane in range(line.count):
            index = ir.Constant(ir.IntType(32), lane)
            factor = builder.insert_element(factor, arguments[1], index)
        moved = builder.fmul(factor, builder.load(at(2), align=bytes_each))
        moved = builder.fadd(moved, builder.load(at(0), align=bytes_each))
        store = builder.store(moved, at(3), align=LINE)
        once = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", once)
        return context.get_dummy_value()

    return types.void(weights, step, direction, result, place), generate


_stream_line: Callable[..., None] = intrinsic(_line_of_sum)


def _fence(typing: object) -> tuple[Signature, CodeGenerator]:
    """Other threads see what was written past the cache."""

    def generate(
        context: Any,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_finish_streaming: Callable[..., None] = intrinsic(_fence)
