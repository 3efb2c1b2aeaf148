"""Mutations of files: of bytes, of lines, of tokens, and of the values of a parsed tree."""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 10_000, 2**31, 2**63, 10**15, 10**30, 10**400, -(10**30), 1e308, -1e308, 1e-320, 0.5,
    1e15, 3.0, float("nan"), float("inf"), -float("inf"), "", "x", "0F0", "1e9", "1e999", "nan", "9" * 30, "9" * 5000, "\x00",
    "ü" * 300, "\ud800", "auto", "$X", "${X}", "../x", "/", "[1, 2]", "-" * 300, [], {}, [[]], [None], {"": None}, [1, 2, 3],
    ["0F0"] * 9, [[[[1]]]], {"a": {"b": {"c": 1}}}, "2024-01-01", "a" * 200_000, "(1,2)", "([0]*3+[1]*9)", "full", "1,2,3", 999_999, "999999F0", "0F999999", "None", 4.5, "1e15",
]  # fmt: skip
ODD_BYTES = [
    b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b",", b"\n", b"\n\n", b"\r\n", b"\r", b'"', b"'", b"`", b"(", b")", b"{", b"}",
    b"[" * 3000, b"{" * 3000, b'{"a":' * 3000, b"9" * 30, b"9" * 5000, b"-1", b"nan", b"Infinity", b"1e999", b"=", b": ", b"- ",
    b"\t", b"#", b"\\", b"\\\n", b"$", b"${", b"$((", b"$(", b"$A$A", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ",
    b"!!set ", b"---\n", b"%", b"\xed\xa0\x80", "\u2028\u00a0\u0661".encode(), b"\\ud800", b"..", b";", b"|", b"--x ", b"1.2.3",
    b"x" * 140_000, b"\n" * 5000, b" " * 5000, b"a." * 3000, b"-" * 3000, b"1:" * 300, b"0x" + b"f" * 400,
]  # fmt: skip
_TOKEN = re.compile(r"[\w.]+|[^\w\s]")

_Made = Callable[[bytes, random.Random], bytes]


def mutated(content: bytes, name: str, others: list[bytes], draw: random.Random) -> bytes:
    """Return a file with one to four things changed; its suffix says what it can be parsed as."""
    parsed = _parsed(content, name)
    if parsed is not None and draw.random() < 0.6:
        return _written(changed(parsed, draw), name, draw)
    if draw.random() < 0.02:
        return draw.choice(others)  # of another format
    for _ in range(draw.randint(1, 4)):
        content = draw.choice(_OF_BYTES)(content, draw)
    return content


def _parsed(content: bytes, name: str) -> Any:
    if name.endswith(".json"):
        return json.loads(content)
    return yaml.safe_load(content) if name.endswith(".yaml") else None


def _written(tree: Any, name: str, draw: random.Random) -> bytes:
    if name.endswith(".json"):
        return json.dumps(tree).encode()
    try:
        return str(yaml.safe_dump(tree, allow_unicode=True, sort_keys=draw.random() < 0.5)).encode(errors="replace")
    except ValueError:  # a whole number that Python does not print
        return json.dumps(tree, default=str).encode() if not _has_long(tree) else b"a: " + b"9" * 5000


def _has_long(tree: Any) -> bool:
    return any(isinstance(one, int) and abs(one) > 10**4000 for one in _values(tree))


def _values(tree: Any) -> Iterator[Any]:
    yield tree
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _values(one)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every key path of a tree."""
    yield path
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield from places(value, (*path, key))


def changed(tree: Any, draw: random.Random) -> Any:
    """Return a tree with one to three things in it changed: dropped, renamed, doubled, moved, or of another kind."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, 3)):
        *path, last = draw.choice(list(places(tree))) or [None]
        if last is None:
            if draw.random() < 0.1:
                return copy.deepcopy(draw.choice(ODD))
            continue
        parent = tree
        for key in path:
            parent = parent[key]
        _change(parent, last, draw)
    return tree


def _change(parent: Any, last: Any, draw: random.Random) -> None:
    what = draw.choice(["drop", "rename", "double", "odd", "odd", "odd", "odd", "scale", "wrap", "swap", "text"])
    value = parent[last]
    if what == "drop":
        del parent[last]
    elif what == "rename" and isinstance(parent, dict):
        parent[str(last) + "x"] = parent.pop(last)
    elif what == "double" and isinstance(parent, list):
        parent.insert(last, copy.deepcopy(value))
    elif what == "wrap":
        parent[last] = [value]
    elif what == "swap":
        other = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
        parent[last], parent[other] = parent[other], value
    elif what == "scale" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[last] = value * draw.choice([-1, 0, 2, 3, 1000, 0.5, 1e-9, 1e9]) if abs(value) < 1e100 else 1
    elif what == "text":
        parent[last] = str(value) if not isinstance(value, int) or abs(value) < 10**4000 else "9"
    else:
        parent[last] = copy.deepcopy(draw.choice(ODD))


def _torn(content: bytes, draw: random.Random) -> bytes:
    begin = draw.randrange(len(content) + 1)
    end = min(len(content), begin + draw.choice([0, 1, 5, 50, len(content)]))
    return content[:begin] + draw.choice([b"", content[begin:end] * 2, draw.choice(ODD_BYTES)]) + content[end:]


def _flipped(content: bytes, draw: random.Random) -> bytes:
    if not content:
        return b"\x00"
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]


def _truncated(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _lines_changed(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    what = draw.randrange(5)
    if what == 0:
        del lines[place]
    elif what == 1:
        lines.insert(place, lines[other])
    elif what == 2:
        lines[place], lines[other] = lines[other], lines[place]
    elif what == 3:
        lines[place] = lines[place] * draw.choice([2, 50])
    else:
        lines.insert(place, draw.choice(ODD_BYTES))
    return b"\n".join(lines)


def _with_other_ends(content: bytes, draw: random.Random) -> bytes:
    return content.replace(b"\n", draw.choice([b"\r\n", b"\r", b"\n\n", b"\n \n"]))


def _token_changed(content: bytes, draw: random.Random) -> bytes:
    text = content.decode("latin-1")
    found = list(_TOKEN.finditer(text))
    if not found:
        return content
    one, other = draw.choice(found), draw.choice(found)
    odd = draw.choice(
        [one for one in ODD if isinstance(one, str | float) or (isinstance(one, int) and abs(one) < 10**401)]
    )
    new = draw.choice([other[0], str(odd), "", f"{one[0]} {one[0]}", f'"{one[0]}"', f"-{one[0]}", f"{one[0]}0000"])
    return (text[: one.start()] + new + text[one.end() :]).encode("utf-8", "replace")


_OF_BYTES: list[_Made] = [
    _torn, _torn, _flipped, _truncated, _lines_changed, _lines_changed, _with_other_ends, _token_changed, _token_changed,
    _token_changed,
]  # fmt: skip
