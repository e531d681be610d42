"""Conditions on columns, written as text: ``label in (0, 3) and seconds >= 2.5 and "dog" in caption``.

The text is parsed with Python's grammar but never run: every allowed node of the syntax tree becomes calls of
pyarrow.compute on whole columns. Conditions are true or false, never null: a comparison with a missing value is false,
and only ``is None`` is true of it. docs/selecting.md describes the language.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Bool
from streamvid.dataset.columns import Columns, is_list, is_number
from streamvid.errors import InputError
from streamvid.text import is_utf8

MAX_LENGTH: Final = 20_000
"""Characters of a condition; lists of keys have an argument of their own."""
_MAX_DEPTH: Final = 100
_SHOWN: Final = 80
_ALLOWED: Final = (
    "allowed are column names, numbers, texts in quotes, True, False, comparisons, `in` and `not in`, `is None` and "
    "`is not None`, and, or, not, + - * / and len()"
)
_LONE_EQUALS: Final = re.compile(r"(?<![=!<>:])=(?!=)")
_INT64: Final = range(-(1 << 63), 1 << 63)
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], pa.Array]]] = {
    ast.Eq: pc.equal, ast.NotEq: pc.not_equal, ast.Lt: pc.less,
    ast.LtE: pc.less_equal, ast.Gt: pc.greater, ast.GtE: pc.greater_equal,
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]]] = {
    ast.Add: (operator.add, pc.add), ast.Sub: (operator.sub, pc.subtract),
    ast.Mult: (operator.mul, pc.multiply), ast.Div: (operator.truediv, pc.divide),
}  # fmt: skip
"""Each operator for two constants, and for columns."""

_Value = Any
"""A column (pa.Array), or a constant: int, float, str or bool."""


def evaluate(text: str, columns: Columns) -> Bool:
    """bool [clips]: the clips for which a condition is true.

    Args:
        text: the condition.
        columns: the clips' columns.

    Raises:
        InputError: the text is no condition, names a column that does not exist, or compares values of incompatible
            types; the message quotes that part.
        DatasetError: a column's types contradict each other between shards or datasets.
    """
    compiler = _Compiler(text, columns)
    mask = compiler.condition(compiler.tree)
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)


class _Compiler:
    """Parses a condition, and turns the nodes of its syntax tree into Arrow arrays.

    `class` is a column but a keyword of Python, so the parsed text has an identifier in its place that occurs nowhere
    in the condition.
    """

    def __init__(self, text: str, columns: Columns) -> None:
        self._columns = columns
        if len(text) > MAX_LENGTH:
            raise InputError(f"the condition has {len(text)} characters, more than {MAX_LENGTH}: give keys= a list")
        if not text.strip():
            raise InputError(f"the condition is empty: leave it out, or write one; {_ALLOWED}")
        self._class = "class_"
        while self._class in text:
            self._class += "_"
        code = re.sub(r"\bclass\b", self._class, text.strip())
        # Python allows line breaks inside parentheses only.
        self._code = f"({code}\n)" if "\n" in code else code
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the parser warns on stderr of text such as `1if`
                self.tree = ast.parse(self._code, mode="eval").body
        except SyntaxError as error:
            line = (self._code.split("\n")[(error.lineno or 1) - 1 :] or [""])[0]
            at = f" near `{self._shorten(line[max(0, error.offset - 10) :])}`" if error.offset else ""
            hint = "write == for equal; " if _LONE_EQUALS.search(text) else ""
            raise InputError(
                f"cannot read the condition `{self._shorten(text)}`{at}: {error.msg}; {hint}{_ALLOWED}"
            ) from error
        except (ValueError, RecursionError, MemoryError) as error:
            reason = str(error) or "it is nested too deep"
            raise InputError(f"cannot read the condition `{self._shorten(text)}`: {reason}") from error
        level: list[ast.AST] = [self.tree]
        for _ in range(_MAX_DEPTH):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        if level:
            raise InputError(f"the condition `{self._shorten(text)}` is nested too deep: write it with fewer parts")

    def _original(self, text: str) -> str:
        """An identifier or string of the parsed text, as it was in the condition."""
        return text.replace(self._class, "class")

    def _wrong(self, node: ast.expr, why: str, before: str = " ") -> InputError:
        """An error that quotes the node's part of the condition."""
        part = self._shorten(ast.get_source_segment(self._code, node) or "")
        return InputError(f"`{part}` in the condition{before}{why}")

    def _shorten(self, text: str) -> str:
        text = " ".join(self._original(text).split())
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

    def condition(self, node: ast.expr) -> pa.Array:
        """bool [clips], without nulls: the clips for which a node is true."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                combine = pc.and_ if isinstance(op, ast.And) else pc.or_
                return reduce(combine, map(self.condition, parts))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self.condition(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = zip([left, *others[:-1]], ops, others, strict=True)
                return reduce(pc.and_, [self._compare(node, *pair) for pair in pairs])
            case ast.Constant(value=bool() as value):
                return self._all(value)
        value = self.value(node)
        if not isinstance(value, pa.Array) or _kind(value) not in ("true or false", "missing"):
            raise self._wrong(node, f"is no condition but {_kind(value)}: compare it with something")
        return pc.fill_null(value.cast(pa.bool_()), False)

    def value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=str() as text):
                if not is_utf8(text):
                    raise self._wrong(node, "is no text: it has a surrogate, which UTF-8 cannot encode")
                return self._original(text)
            case ast.Constant(value=bool() | int() | float() as value):
                if abs(value) > sys.float_info.max:
                    raise self._wrong(node, "is too large")
                return value
            case ast.Constant(value=None):
                raise self._wrong(node, "can only come after `is` or `is not`")
            case ast.Name(id=name):
                return self._column(node, self._columns.get, name)
            case (
                ast.Attribute(value=ast.Name(id="meta"), attr=name)
                | ast.Subscript(value=ast.Name(id="meta"), slice=ast.Constant(value=str() as name))
            ):
                return self._column(node, self._columns.meta_column, name)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return self._arithmetic(node, 0, ast.Sub if isinstance(sign, ast.USub) else ast.Add, operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(node, self._number(left), type(op), right)
            case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
                return self._length(argument)
            case ast.Tuple() | ast.List() | ast.Set():
                raise self._wrong(node, "is a list, which can only come after `in` or `not in`")
        raise self._wrong(node, f"is not allowed; {_ALLOWED}")

    def _column(self, node: ast.expr, get: Callable[[str], pa.Array], name: str) -> pa.Array:
        try:
            found = get(self._original(name))
        except InputError as error:
            raise self._wrong(node, str(error), ": ") from error
        # NaN counts as a missing value: all comparisons with it are false, except !=.
        return pc.if_else(pc.is_nan(found), None, found) if pa.types.is_floating(found.type) else found

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if _kind(value) not in ("a number", "missing"):
            raise self._wrong(node, f"is {_kind(value)}, not a number")
        return value

    def _arithmetic(self, node: ast.expr, left: Any, how: type[ast.operator], right_node: ast.expr) -> Any:
        right = self._number(right_node)
        on_constants, on_columns = _ARITHMETIC[how]
        try:
            if not isinstance(left, pa.Array) and not isinstance(right, pa.Array):
                number = on_constants(left, right)
                float(number)
                return number
            result = on_columns(_floats(left), _floats(right))
        except (OverflowError, ZeroDivisionError) as error:
            raise self._wrong(node, f"cannot be computed ({error})") from error
        return pc.if_else(pc.is_finite(result), result, pa.scalar(None, pa.float64()))

    def _length(self, node: ast.expr) -> pa.Array:
        value = self.value(node)
        if isinstance(value, pa.Array):
            match _kind(value):
                case "text":
                    return pc.utf8_length(value).cast(pa.int64())
                case "a list":
                    return pc.list_value_length(value).cast(pa.int64())
                case "missing":
                    return value
        raise self._wrong(node, "has no len(): texts and lists have")

    def _compare(self, node: ast.Compare, left: ast.expr, how: ast.cmpop, right: ast.expr) -> pa.Array:
        match how:
            case ast.Is() | ast.IsNot():
                value = self.value(left)
                if not isinstance(right, ast.Constant) or right.value is not None or not isinstance(value, pa.Array):
                    raise self._wrong(node, "is not allowed: `is` and `is not` come between a column and None")
                return pc.is_null(value) if isinstance(how, ast.Is) else pc.is_valid(value)
            case ast.In() | ast.NotIn():
                searched, found = self._contained(node, left, right)
                return found if isinstance(how, ast.In) else pc.and_not(pc.is_valid(searched), found)
        if any(isinstance(side, ast.Constant) and side.value is None for side in (left, right)):
            raise self._wrong(node, "is never true: write `is None` or `is not None`")
        a, b = self.value(left), self.value(right)
        self._check_comparable(node, a, b)
        kinds = {_kind(a), _kind(b)}
        if "missing" in kinds:
            return self._all(False)
        if "a list" in kinds:
            raise self._wrong(node, "compares lists: ask for `value in list`, or for len(list)")
        if "true or false" in kinds and not isinstance(how, ast.Eq | ast.NotEq):
            raise self._wrong(node, "compares truth values: only == and != do that")
        if kinds == {"a number"} and not (_is_int64(a) and _is_int64(b)):
            a, b = _floats(a), _floats(b)
        return pc.fill_null(_COMPARE[type(how)](a, b), False)

    def _contained(self, node: ast.Compare, left: ast.expr, right: ast.expr) -> tuple[pa.Array, pa.Array]:
        """The column that `in` searches, and the condition that the value is found in it."""
        inner = self.value(left)
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            values = [self._member(part) for part in right.elts]
            if not isinstance(inner, pa.Array):
                raise self._wrong(node, "names no column")
            for value in values:
                self._check_comparable(node, inner, value)
            return inner, _is_in(inner, values)
        outer = self.value(right)
        if isinstance(inner, pa.Array) or not isinstance(outer, pa.Array):
            raise self._wrong(node, "is not allowed: before `in` a text and behind it a column, or a column and a list")
        match _kind(outer):
            case "text" if isinstance(inner, str):
                return outer, pc.fill_null(pc.match_substring(outer, inner), False)
            case "a list":
                values = pc.list_flatten(outer)
                self._check_comparable(node, values, inner)
                rows = pc.list_parent_indices(outer).filter(_is_in(values, [inner]))
                found = np.zeros(len(outer), dtype=bool)
                found[rows.to_numpy(zero_copy_only=False)] = True
                return outer, pa.array(found)
            case "missing":
                return outer, self._all(False)
        raise self._wrong(node, f"looks for {_kind(inner)} in {_kind(outer)}, which cannot be")

    def _member(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, pa.Array):
            raise self._wrong(node, "is a column, but in a list only numbers and texts may be")
        return value

    def _check_comparable(self, node: ast.Compare, a: _Value, b: _Value) -> None:
        if not isinstance(a, pa.Array) and not isinstance(b, pa.Array):
            raise self._wrong(node, "names no column")
        kinds = sorted({_kind(a), _kind(b)} - {"missing"})
        if len(kinds) > 1:
            named = any(isinstance(part, ast.Name) and part.id == "label" for part in (node.left, *node.comparators))
            if named and kinds == ["a number", "text"] and "class" in self._columns.names:
                meant = (ast.get_source_segment(self._code, node) or "").replace("label", "class", 1)
                raise self._wrong(
                    node, f"compares text with the number of a class; names are in `class`: `{self._shorten(meant)}`"
                )
            raise self._wrong(node, f"compares {kinds[0]} with {kinds[1]}, which cannot be")

    def _all(self, value: bool) -> pa.Array:
        return pa.array(np.full(len(self._columns), value))


def _kind(value: _Value) -> str:
    """The type of a value, as messages call it."""
    if not isinstance(value, pa.Array):
        return {bool: "true or false", str: "text"}.get(type(value), "a number")
    if is_number(value):
        return "a number"
    if pa.types.is_boolean(value.type):
        return "true or false"
    if is_list(value):
        return "a list"
    return "missing" if pa.types.is_null(value.type) else "text"


def _floats(value: Any) -> Any:
    return value.cast(pa.float64(), safe=False) if isinstance(value, pa.Array) else float(value)


def _is_int64(value: Any) -> bool:
    """Whether Arrow compares these numbers as integers, exactly."""
    if isinstance(value, pa.Array):
        return bool(pa.types.is_integer(value.type))
    return type(value) is int and value in _INT64


def _is_in(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    """The condition that a column's value is in a list."""
    if _kind(column) != "a number" or not values:
        known = [] if _kind(column) == "missing" else values
        return pc.is_in(column, value_set=pa.array(known, type=column.type))
    # As float64, large integers would be rounded, so integers are compared separately.
    exact = [pa.types.is_integer(column.type) and _is_int64(value) for value in values]
    integers = pa.array([value for value, is_exact in zip(values, exact, strict=True) if is_exact], type=pa.int64())
    # Arrow distinguishes -0.0 and 0.0 in a set; adding 0.0 makes both 0.0.
    floats = [float(value) + 0.0 for value, is_exact in zip(values, exact, strict=True) if not is_exact]
    found = pc.is_in(pc.add(_floats(column), 0.0), value_set=pa.array(floats, type=pa.float64()))
    return pc.or_(found, pc.is_in(column.cast(pa.int64()), value_set=integers)) if len(integers) else found
