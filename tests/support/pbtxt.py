"""A strict reader of Triton's `config.pbtxt`: protobuf's text format, against model_config.proto.

Of https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto the fields that a model of
the DALI backend has; another field, a second value of one that is not repeated, or a value of another type is an error.
"""

from __future__ import annotations

import re
from typing import Any, Final

_TOKEN: Final = re.compile(r'\s*(?:#[^\n]*\s*)*("(?:[^"\\\n]|\\.)*"|-?\d+|\w+|[\[\]{}:,;])')
_TYPES: Final = (
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
)
_DATA_TYPE: Final = tuple(f"TYPE_{name}" for name in (*_TYPES, "BOOL", "STRING"))
_KIND: Final = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
# A name with a star is of a repeated field.
MODEL_CONFIG: Final[dict[str, Any]] = {
    "name": str,
    "platform": str,
    "backend": str,
    "max_batch_size": int,
    "input*": {"name": str, "data_type": _DATA_TYPE, "dims*": int, "allow_ragged_batch": bool, "optional": bool},
    "output*": {"name": str, "data_type": _DATA_TYPE, "dims*": int, "label_filename": str},
    "instance_group*": {"name": str, "kind": _KIND, "count": int, "gpus*": int},
    "default_model_filename": str,
    "dynamic_batching": {"preferred_batch_size*": int, "max_queue_delay_microseconds": int},
    "parameters*": {"key": str, "value": {"string_value": str}},
}


def parse(text: str) -> dict[str, Any]:
    """The configuration: repeated fields are lists. Raises ValueError."""
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"no protobuf text: {text[at : at + 40]!r}")
        tokens.append(found[1])
        at = found.end()
    made = _message(tokens, MODEL_CONFIG, end=None)
    assert not tokens
    return made


def _message(tokens: list[str], fields: dict[str, Any], *, end: str | None) -> dict[str, Any]:
    made: dict[str, Any] = {}
    while tokens and tokens[0] != end:
        name = tokens.pop(0)
        repeated = f"{name}*" in fields
        kind = fields[f"{name}*" if repeated else name]
        if tokens[0] == ":":
            tokens.pop(0)
        elif not isinstance(kind, dict):
            raise ValueError(f"{name} has no colon")
        if repeated and tokens[0] == "[":
            made.setdefault(name, []).extend(_list(tokens, kind))
        elif repeated:
            made.setdefault(name, []).append(_value(tokens, kind))
        elif name in made:
            raise ValueError(f"{name} comes twice")
        else:
            made[name] = _value(tokens, kind)
        if tokens and tokens[0] in (",", ";"):
            tokens.pop(0)
    if end is not None and (not tokens or tokens.pop(0) != end):
        raise ValueError(f"{end} is missing")
    return made


def _list(tokens: list[str], kind: Any) -> list[Any]:
    values = []
    tokens.pop(0)
    while tokens[0] != "]":
        values.append(_value(tokens, kind))
        if tokens[0] == "," and tokens[1] != "]":
            tokens.pop(0)
        elif tokens[0] != "]":
            raise ValueError(f"a list goes on with {tokens[0]}")
    tokens.pop(0)
    return values


def _value(tokens: list[str], kind: Any) -> Any:
    token = tokens.pop(0)
    if isinstance(kind, dict) and token == "{":
        return _message(tokens, kind, end="}")
    if isinstance(kind, tuple) and token in kind:
        return token
    if kind is bool and token in ("true", "false"):
        return token == "true"
    if kind is int and re.fullmatch(r"-?\d+", token):
        return int(token)
    if kind is str and token.startswith('"'):
        return token[1:-1]
    raise ValueError(f"{token} is no {kind}")
