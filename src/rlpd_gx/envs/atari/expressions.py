"""Small expressions over RAM, as the tables write them: `ram[49+i] + 17`, `ram[42+i] > 0 and ram[0] == 0`.

A table is data: an expression may read `ram`, `was` (RAM a step before), `i` (which of several things) and names of the
table, calculate, compare and choose (`a if c else b`). It cannot reach an attribute, call what is not in FUNCTIONS,
or loop.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlpd_gx import rules
from rlpd_gx.errors import GxError

CODE = rules.code_of(__file__)  # part of fingerprints


def signed(byte: int) -> int:
    """Two's complement."""
    return byte - 256 if byte > 127 else byte


def bcd(byte: int) -> int:
    """Two decimal digits, one in each half of the byte."""
    return 10 * (byte >> 4) + (byte & 15)


def fine(byte: int) -> int:
    """The signed upper half of a byte, -8 to 7: the TIA's fine motion to the left."""
    return ((byte >> 4) ^ 8) - 8


def bit(byte: int, number: int) -> int:
    """0 or 1."""
    return (byte >> number) & 1


def ones(byte: int) -> int:
    """How many bits are set."""
    return byte.bit_count()


UNROLLED = 12  # things that are written out one by one, which is faster to read and slower to make
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (min, max, abs, len, signed, bcd, fine, bit, ones)
}
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Tuple, ast.List,
    ast.Constant, ast.Name, ast.Load, ast.Call, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd,
    ast.BitOr, ast.BitXor, ast.RShift, ast.USub, ast.Not, ast.And, ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt,
    ast.GtE, ast.In, ast.NotIn,
)  # fmt: skip


def parse(text: str | float, names: Mapping[str, str], where: str) -> ast.expr:
    """The tree of an expression, with the table's names replaced by what they stand for."""
    return _Checked(names, where).expression(text)


def reads_ram(tree: ast.expr) -> bool:
    """Whether the value may change."""
    return any(isinstance(node, ast.Name) and node.id in ("ram", "was") for node in ast.walk(tree))


def for_one(tree: ast.expr, i: int) -> str:
    """The source of an expression for thing number i."""
    return ast.unparse(_Numbered(i).visit(ast.parse(ast.unparse(tree), mode="eval")).body)


def for_each(tree: ast.expr, count: int) -> list[str]:
    """The sources of an expression for things 0 to count - 1, to be listed: many of them as one loop."""
    if count <= UNROLLED:
        return [for_one(tree, i) for i in range(count)]
    return [f"*[{ast.unparse(tree)} for i in range({count})]"]


def function(sources: Sequence[str], where: str) -> Callable[[bytes, bytes], list[Any]]:
    """One function of RAM for many checked expressions: a call each would cost more than what they calculate."""
    text = f"lambda ram, was: [{', '.join(sources)}]"
    return eval(compile(text, f"<{where}>", "eval"), {"__builtins__": {"range": range}, **FUNCTIONS})


class _Checked:
    """Parsing with a sentence for whatever an expression may not hold."""

    def __init__(self, names: Mapping[str, str], where: str) -> None:
        self.names, self.where = names, where

    def expression(self, text: str | float, above: tuple[str, ...] = ()) -> ast.expr:
        try:
            tree = ast.parse(str(text).strip(), mode="eval")
        except SyntaxError as error:
            raise GxError(
                f"{self.where}: {text!r} is no expression ({error.msg}); write it like ram[49+i]+17"
            ) from None
        for node in ast.walk(tree):
            if not isinstance(node, _NODES):
                raise GxError(f"{self.where}: {text!r} uses {type(node).__name__}, which tables do not allow")
            if isinstance(node, ast.Call) and not (
                isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
            ):
                raise GxError(f"{self.where}: {text!r} calls what is none of {', '.join(FUNCTIONS)}")
            if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float, bool)):
                raise GxError(f"{self.where}: {text!r} holds {node.value!r}, but only numbers are allowed")
        return _Named(self, above).visit(tree).body

    def named(self, name: str, above: tuple[str, ...]) -> ast.expr:
        if name not in self.names or name in above:
            problem = "is defined by itself" if name in above else "is not defined"
            raise GxError(
                f"{self.where}: {name!r} {problem}; known are ram, was, i, {', '.join((*FUNCTIONS, *self.names))}"
            )
        return self.expression(self.names[name], (*above, name))


class _Named(ast.NodeTransformer):
    def __init__(self, checked: _Checked, above: tuple[str, ...]) -> None:
        self.checked, self.above = checked, above

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("ram", "was", "i") or node.id in FUNCTIONS:
            return node
        return self.checked.named(node.id, self.above)


class _Numbered(ast.NodeTransformer):
    def __init__(self, i: int) -> None:
        self.i = i

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.i) if node.id == "i" else node
