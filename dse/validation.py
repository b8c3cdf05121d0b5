"""Reads TOML, and turns what is wrong with it into sentences: where, what was got, what is allowed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from dse.errors import InputError, unknown_name

UNION_TAG = "as_"
"""Branches of a union are tagged with this; a user's path leaves them out."""


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, str) and part.startswith(UNION_TAG):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "file"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def faults_of(error: ValidationError, file: str, known_keys: dict[str, list[str]] | None = None) -> list[str]:
    """One sentence a fault, each with its path inside the file."""
    sentences = []
    for fault in error.errors(include_url=False):
        where = f"{file} [{_path(fault['loc'])}]"
        kind, message = fault["type"], fault["msg"]
        if kind == "missing":
            sentences.append(f"{where}: is missing")
        elif kind == "extra_forbidden":
            *parent, key = fault["loc"]
            near = (known_keys or {}).get(_generic(tuple(parent)), [])
            sentences.append(
                unknown_name(where, "key", str(key), near) if near else f"{where}: unknown key {key!r}; remove it"
            )
        elif isinstance(fault.get("ctx", {}).get("error"), InputError):
            sentences += [f"{file}: {text}" for text in fault["ctx"]["error"].faults]
        elif kind == "value_error":
            sentences.append(f"{where}: {message.removeprefix('Value error, ')}")
        else:
            sentences.append(f"{where}: got {_shown(fault['input'])}, {_lower(message)}")
    return sentences


def _lower(message: str) -> str:
    """The library's words as ours; the smallest number that is allowed for what must be above 0 reads as that."""
    text = message.replace("Input should be", "must be").replace("Value should", "it should")
    return text.replace("greater than or equal to 0.000000000001", "above 0").replace(
        "greater than or equal to 1e-12", "above 0"
    )


def _generic(location: tuple[int | str, ...]) -> str:
    """A path with list positions left out, as a key into the known keys of each table."""
    return ".".join(p for p in location if isinstance(p, str) and not p.startswith(UNION_TAG))


def read_toml(path: Path) -> dict[str, object]:
    """A TOML file as a table; one clear sentence for whatever is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory; give a TOML file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; give a TOML file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"{path}: the file is empty; start from experiments/quickstart.toml")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: not valid TOML: nested too deeply") from None
    except ValueError:
        raise InputError(f"{path}: not valid TOML: a number has too many digits") from None
