"""What a search has found is read from disk by the next process that asks the same, and by no other."""

import io
from pathlib import Path

import numpy as np
import pytest

from ppsim import StageCosts, build
from ppsim.catalog import search_cache as answers
from ppsim.catalog.search_cache import FOLDER, cached_result, packed, unpacked

COSTS = StageCosts(
    forward_s=[1.0, 2.0, 1.0, 1.5], backward_input_s=1.0, backward_weight_s=0.5, activation_bytes=1.0
)
OTHERS = [
    {"forward_s": [1.0, 2.0, 1.0, np.nextafter(1.5, 2.0)]},
    {"activation_bytes": 2.0},
    {"channel": "pair"},
    {"transfer_s": 0.125},
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def fitted(**changes):
    shape = {"pp": 2, "vpp": 2, "microbatches": 4} | {
        key: changes.pop(key) for key in ("microbatches",) & changes.keys()
    }
    return build("zbv", **shape, costs=COSTS.replace(**changes))


def never():
    raise AssertionError("searched for what is kept")


def test_a_table_is_searched_for_once(place, monkeypatch):
    found = fitted()
    monkeypatch.setattr("ppsim.catalog.build._made", lambda *_, **__: never())
    again = fitted()
    assert again == found
    assert (again.name, again.op.dtype, again.stage.dtype) == (found.name, found.op.dtype, found.stage.dtype)
    for other in (*OTHERS, {"microbatches": 5}):
        with pytest.raises(AssertionError):
            fitted(**other)
    monkeypatch.setenv(FOLDER, "")
    with pytest.raises(AssertionError):
        fitted()


def test_an_array_is_told_from_another_of_the_same_bytes_and_from_a_list(place):
    first, second = build("1f1b", pp=2, microbatches=2), build("gpipe", pp=2, microbatches=2)
    assert cached_result(np.zeros(2), lambda: first) == first
    assert cached_result(np.zeros((2, 1)), lambda: second) == second
    assert cached_result([0.0, 0.0], lambda: second) == second
    assert cached_result(np.zeros(2), never) == first


def test_other_code_answers_anew(place, monkeypatch):
    first, second = build("1f1b", pp=2, microbatches=2), build("gpipe", pp=2, microbatches=2)
    assert cached_result("which?", lambda: first) == first
    monkeypatch.setattr(answers, "_state_of_code", lambda: ["later"])
    assert cached_result("which?", lambda: second) == second


def other_numbers(content):
    columns = dict(np.load(io.BytesIO(content[20:])))
    written = io.BytesIO()
    np.savez_compressed(written, **columns | {"num_microbatches": 3})
    return content[:20] + written.getvalue()


@pytest.mark.parametrize(
    "changed", [lambda content: b"", lambda content: content[:-1], lambda content: content[20:], other_numbers]
)
def test_a_file_that_is_no_answer_is_deleted_and_replaced(place, changed):
    table = build("1f1b", pp=2, microbatches=2)
    cached_result("which?", lambda: table)
    (path,) = place.iterdir()
    path.write_bytes(changed(path.read_bytes()))
    with pytest.raises(AssertionError):
        cached_result("which?", never)
    assert not path.exists()
    assert cached_result("which?", lambda: table) == table
    assert cached_result("which?", never) == table


def test_an_answer_to_another_request_is_not_used(place):
    first, second = (build(name, pp=2, microbatches=2) for name in ("1f1b", "gpipe"))
    cached_result(1, lambda: first)
    (answer,) = place.iterdir()
    cached_result(2, lambda: second)
    (other,) = set(place.iterdir()) - {answer}
    other.write_bytes(answer.read_bytes())
    assert cached_result(2, lambda: second) == second


def test_every_flipped_bit_is_noticed():
    content = packed(build("1f1b", pp=2, microbatches=2), b"which?")
    assert unpacked(content, b"which?") is not None
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unpacked(bytes(flipped), b"which?") is None


def test_where_nothing_can_be_written_nothing_is_kept(place):
    place.write_text("a file where the folder would be")
    table = build("1f1b", pp=2, microbatches=2)
    assert cached_result("which?", lambda: table) is table
    assert cached_result("which?", lambda: table) is table


def test_the_answers_asked_for_longest_ago_go_first(place, monkeypatch):
    table = build("1f1b", pp=2, microbatches=2)
    cached_result(0, lambda: table)
    size = next(place.iterdir()).stat().st_size
    monkeypatch.setattr(answers, "_MOST_BYTES", 3 * size + size // 2)
    for number in range(1, 4):
        cached_result(0, never)
        cached_result(number, lambda: table)
    for kept in (0, 2, 3):
        assert cached_result(kept, never) == table
    with pytest.raises(AssertionError):
        cached_result(1, never)


def test_the_folder_is_the_named_one_or_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert answers.folder() == tmp_path
    monkeypatch.setenv(FOLDER, "")
    assert answers.folder() is None
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert answers.folder() == Path("/caches/ppsim")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(answers.Path, "home", lambda: Path("/home/someone"))
    assert answers.folder() == Path("/home/someone/.cache/ppsim")

    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(answers.Path, "home", homeless)
    assert answers.folder() is None


def test_the_state_of_the_code_is_numpys_version_and_the_files_of_the_searches():
    version, *files = answers._state_of_code()
    assert version == np.__version__
    names = [name for name, _, _ in files]
    assert {"catalog/search/anneal.py", "base/numba_jit.py", "schedule/table.py", "simulation/simulate.py"} <= {
        *names
    }
    assert not [name for name in names if name.startswith(("api/", "model/"))]
    package = Path(answers.__file__).parents[1]
    for name, size, modified_ns in files[:3]:
        state = (package / name).stat()
        assert (size, modified_ns) == (state.st_size, state.st_mtime_ns)
