"""Conditions on columns, written as text: ``label in (0, 3) and seconds >= 2.5 and "dog" in caption``.

The text is parsed as Python, but never run: the few kinds of nodes that are allowed are evaluated here, over whole
columns. Conditions have two values. A comparison, or any other question, about a missing value is false; only
``is None`` is true of it.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Bool
from streamvid.dataset.columns import Columns, is_number
from streamvid.errors import InputError

MAX_LENGTH: Final = 20_000
"""Characters of a condition; lists of keys have a place of their own."""
_MAX_DEPTH: Final = 100
_SHOWN: Final = 80
_ALLOWED: Final = (
    "allowed are column names, numbers, texts in quotes, True, False, comparisons, `in` and `not in`, `is None` and "
    "`is not None`, and, or, not, + - * / and len()"
)
_LONE_EQUALS: Final = re.compile(r"(?<![=!<>:])=(?!=)")
_INT64: Final = range(-(1 << 63), 1 << 63)
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_ARITHMETIC: Final[dict[type[ast.operator], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]]] = {
    ast.Add: (operator.add, pc.add),
    ast.Sub: (operator.sub, pc.subtract),
    ast.Mult: (operator.mul, pc.multiply),
    ast.Div: (operator.truediv, pc.divide),
}


def evaluate(text: str, columns: Columns) -> Bool:
    """bool [clips]: of which clips the condition is true.

    Args:
        text: the condition; docs/selecting.md describes what it may consist of.
        columns: the clips' columns.

    Raises:
        InputError: the text is not such a condition, names a column that is not there, or compares what cannot be
            compared. Quotes the part.
        DatasetError: the metadata of a clip are damaged.
    """
    source = _Source(text)
    return _Evaluator(source, columns).condition(source.tree)


class _Source:
    """The text, and its syntax tree.

    `class` is a column but a keyword of Python, so a name that the text does not hold stands in for it.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise InputError(f"the condition has {len(text)} characters, more than {MAX_LENGTH}: give keys= a list")
        if not text.strip():
            raise InputError(f"the condition is empty: leave it out, or write one; {_ALLOWED}")
        self._class = "class_"
        while self._class in text:
            self._class += "_"
        code = re.sub(r"\bclass\b", self._class, text.strip())
        # Line breaks are allowed inside parentheses alone.
        self._code = f"({code}\n)" if "\n" in code else code
        try:
            with warnings.catch_warnings():
                # Text such as `1if` is refused or taken, but not talked about on stderr.
                warnings.simplefilter("ignore")
                self.tree = ast.parse(self._code, mode="eval").body
        except SyntaxError as error:
            line = (self._code.split("\n")[(error.lineno or 1) - 1 :] or [""])[0]
            at = f" near `{self._cut(line[max(0, error.offset - 10) :])}`" if error.offset else ""
            hint = "write == for equal; " if _LONE_EQUALS.search(text) else ""
            raise InputError(
                f"cannot read the condition `{self._cut(text)}`{at}: {error.msg}; {hint}{_ALLOWED}"
            ) from error
        except (ValueError, RecursionError, MemoryError) as error:
            reason = str(error) or "it is nested too deep"
            raise InputError(f"cannot read the condition `{self._cut(text)}`: {reason}") from error
        level: list[ast.AST] = [self.tree]
        for _ in range(_MAX_DEPTH):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        if level:
            raise InputError(f"the condition `{self._cut(text)}` is nested too deep: write it with fewer parts")

    def name(self, name: str) -> str:
        """A name as the text has it."""
        return "class" if name == self._class else name

    def text(self, value: str) -> str:
        """The value of a quoted text."""
        return value.replace(self._class, "class")

    def part(self, node: ast.AST) -> str:
        """The part of the text that a node stands for, quoted and shortened."""
        return f"`{self._cut(ast.get_source_segment(self._code, node) or '')}`"

    def _cut(self, text: str) -> str:
        text = " ".join(self.text(text).split())
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class _Evaluator:
    """Evaluates a tree over columns.

    A value is a column (a `pa.Array`), or one int, float, str or bool for all clips. A condition is bool [clips].
    """

    def __init__(self, source: _Source, columns: Columns) -> None:
        self._source = source
        self._columns = columns

    def condition(self, node: ast.expr) -> Bool:
        match node:
            case ast.BoolOp(op=op, values=parts):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                result = self.condition(parts[0])
                for part in parts[1:]:
                    result = combine(result, self.condition(part))
                return result
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.condition(operand)
            case ast.Compare(left=left, ops=ops, comparators=others):
                result = np.ones(len(self._columns), dtype=bool)
                for before, how, after in zip([left, *others[:-1]], ops, others, strict=True):
                    result &= self._compared(node, before, how, after)
                return result
            case ast.Constant(value=bool() as value):
                return np.full(len(self._columns), value)
        value = self.value(node)
        kind = _kind(value)
        if not isinstance(value, pa.Array) or kind not in ("true or false", "missing"):
            raise self._wrong(node, f"is no condition but {kind}: compare it with something")
        return _bools(value.cast(pa.bool_()))

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=str() as text):
                return self._source.text(text)
            case ast.Constant(value=bool() | int() | float() as value):
                if abs(value) > sys.float_info.max:
                    raise self._wrong(node, "is too large")
                return value
            case ast.Constant(value=None):
                raise self._wrong(node, "can only come after `is` or `is not`")
            case ast.Name(id=name):
                return self._column(node, self._source.name(name))
            case ast.Attribute(value=ast.Name(id="meta"), attr=name):
                return self._column(node, self._source.name(name), field=True)
            case ast.Subscript(value=ast.Name(id="meta"), slice=ast.Constant(value=str() as name)):
                return self._column(node, self._source.text(name), field=True)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return self._arithmetic(node, ast.Sub if isinstance(sign, ast.USub) else ast.Add, 0, operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(node, type(op), self._number(left), right)
            case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
                return self._length(argument)
            case ast.Tuple() | ast.List() | ast.Set():
                raise self._wrong(node, "is a list, which can only come after `in` or `not in`")
        raise self._wrong(node, f"is not allowed; {_ALLOWED}")

    def _column(self, node: ast.expr, name: str, *, field: bool = False) -> pa.Array:
        try:
            return self._columns.meta_column(name) if field else self._columns.get(name)
        except InputError as error:
            raise InputError(f"{self._source.part(node)} in the condition: {error}") from error

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if _kind(value) not in ("a number", "missing"):
            raise self._wrong(node, f"is {_kind(value)}, not a number")
        return value

    def _arithmetic(self, node: ast.expr, how: type[ast.operator], left: Any, right_node: ast.expr) -> Any:
        right = self._number(right_node)
        on_numbers, on_columns = _ARITHMETIC[how]
        try:
            if not isinstance(left, pa.Array) and not isinstance(right, pa.Array):
                number = on_numbers(left, right)
                float(number)
                return number
            result = on_columns(_floats(left), _floats(right))
        except (OverflowError, ZeroDivisionError) as error:
            raise self._wrong(node, f"cannot be computed ({error})") from error
        return pc.if_else(pc.is_finite(result), result, pa.scalar(None, pa.float64()))

    def _length(self, node: ast.expr) -> pa.Array:
        value = self.value(node)
        if isinstance(value, pa.Array):
            if _kind(value) == "text":
                return pc.utf8_length(value).cast(pa.int64())
            if _kind(value) == "a list":
                return pc.list_value_length(value).cast(pa.int64())
            if _kind(value) == "missing":
                return value
        raise self._wrong(node, "has no len(): texts and lists have")

    def _compared(self, node: ast.Compare, left: ast.expr, how: ast.cmpop, right: ast.expr) -> Bool:
        match how:
            case ast.Is() | ast.IsNot():
                value = self.value(left)
                if not isinstance(right, ast.Constant) or right.value is not None or not isinstance(value, pa.Array):
                    raise self._wrong(node, "is not allowed: `is` and `is not` come between a column and None")
                missing = _bools(pc.is_null(value))
                return missing if isinstance(how, ast.Is) else ~missing
            case ast.In() | ast.NotIn():
                known, found = self._contained(node, left, right)
                return found if isinstance(how, ast.In) else known & ~found
        for side in (left, right):
            if isinstance(side, ast.Constant) and side.value is None:
                raise self._wrong(node, "is never true: write `is None` or `is not None`")
        a, b = self.value(left), self.value(right)
        self._check_alike(node, a, b)
        kinds = {_kind(a), _kind(b)}
        if "missing" in kinds:
            return np.zeros(len(self._columns), dtype=bool)
        if "a list" in kinds:
            raise self._wrong(node, "compares lists: ask for `value in list`, or for len(list)")
        if "true or false" in kinds and not isinstance(how, ast.Eq | ast.NotEq):
            raise self._wrong(node, "compares truth values: only == and != do that")
        if kinds == {"a number"} and not (_is_whole(a) and _is_whole(b)):
            a, b = _floats(a), _floats(b)
        return _bools(_COMPARISONS[type(how)](a, b))

    def _contained(self, node: ast.Compare, left: ast.expr, right: ast.expr) -> tuple[Bool, Bool]:
        """bool [clips] twice: whether there is a value to ask about, and whether it is in there."""
        inner = self.value(left)
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            values = [self._listed(part) for part in right.elts]
            if not isinstance(inner, pa.Array):
                raise self._wrong(node, "names no column")
            for value in values:
                self._check_alike(node, inner, value)
            return _bools(pc.is_valid(inner)), _is_in(inner, values)
        outer = self.value(right)
        if isinstance(inner, pa.Array) or not isinstance(outer, pa.Array):
            raise self._wrong(node, "is not allowed: before `in` a text and behind it a column, or a column and a list")
        known = _bools(pc.is_valid(outer))
        match _kind(outer):
            case "text" if isinstance(inner, str):
                return known, _bools(pc.match_substring(outer, inner))
            case "a list":
                values = pc.list_flatten(outer)
                self._check_alike(node, values, inner)
                rows = pc.list_parent_indices(outer).to_numpy(zero_copy_only=False)
                found = np.zeros(len(outer), dtype=bool)
                found[rows[_is_in(values, [inner])]] = True
                return known, found
            case "missing":
                return known, known
        raise self._wrong(node, f"looks for {_kind(inner)} in {_kind(outer)}, which cannot be")

    def _listed(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, pa.Array):
            raise self._wrong(node, "is a column, but in a list only numbers and texts may be")
        return value

    def _check_alike(self, node: ast.Compare, a: Any, b: Any) -> None:
        if not isinstance(a, pa.Array) and not isinstance(b, pa.Array):
            raise self._wrong(node, "names no column")
        kinds = sorted({_kind(a), _kind(b)} - {"missing"})
        if len(kinds) > 1:
            raise self._wrong(node, f"compares {kinds[0]} with {kinds[1]}, which cannot be")

    def _wrong(self, node: ast.expr, why: str) -> InputError:
        return InputError(f"{self._source.part(node)} in the condition {why}")


def _kind(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, pa.Array):
        kind = value.type
        if pa.types.is_boolean(kind):
            return "true or false"
        if is_number(value):
            return "a number"
        if pa.types.is_list(kind):
            return "a list"
        return "missing" if pa.types.is_null(kind) else "text"
    if isinstance(value, bool):
        return "true or false"
    return "text" if isinstance(value, str) else "a number"


def _floats(value: Any) -> Any:
    return value.cast(pa.float64(), safe=False) if isinstance(value, pa.Array) else float(value)


def _is_whole(value: Any) -> bool:
    """Whether numbers are whole ones that Arrow compares as such."""
    if isinstance(value, pa.Array):
        return bool(pa.types.is_integer(value.type))
    return isinstance(value, int) and value in _INT64


def _is_in(column: pa.Array, values: Sequence[Any]) -> Bool:
    """bool [n]: which of the column's values are among these."""
    if _kind(column) == "missing" or not values:
        return np.zeros(len(column), dtype=bool)
    if _kind(column) != "a number":
        return _bools(pc.is_in(column, value_set=pa.array(values, type=column.type)))
    whole = [value for value in values if _is_whole(value)]
    # As floats, large whole numbers would be rounded, so those are looked for apart.
    floats = [float(value) for value in values if not _is_whole(value)]
    found = np.zeros(len(column), dtype=bool)
    if pa.types.is_integer(column.type):
        found |= _bools(pc.is_in(column.cast(pa.int64()), value_set=pa.array(whole, type=pa.int64())))
    else:
        floats += [float(value) for value in whole]
    if floats:
        # To Arrow -0.0 and 0.0 are two members of a set; adding 0.0 makes them one.
        wanted = pa.array([value + 0.0 for value in floats], type=pa.float64())
        found |= _bools(pc.is_in(pc.add(_floats(column), 0.0), value_set=wanted))
    return found


def _bools(values: Any) -> Bool:
    """A column of truth values as NumPy has it, missing ones as False."""
    filled = values.fill_null(False) if values.null_count else values
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=bool)
