"""What a process keeps: the last that was asked for, as much as may be kept, at the same price however much is."""

import sys
from concurrent.futures import ThreadPoolExecutor

from ppsim.base.lru_cache import LRUCache


def lines_of(call):
    """How many lines of kept.py a call runs."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.endswith("kept.py"):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_last_that_was_asked_for_stays_and_the_sizes_stay_below_the_most():
    kept = LRUCache(most=100)
    for number in range(40):
        kept.get(number, size=5, make=lambda: None)
        kept.get("asked for", size=10, make=lambda: None)
    assert [number for number in range(40) if number in kept] == list(range(22, 40))
    assert "asked for" in kept


def test_what_is_forgotten_makes_room():
    kept = LRUCache(most=100)
    for key in "abcd":
        kept.get(key, size=25, make=lambda: None)
    kept.forget("b")
    kept.forget("no such key")
    kept.get("e", size=25, make=lambda: None)
    assert [key for key in "abcde" if key in kept] == ["a", "c", "d", "e"]


def test_one_thing_that_takes_over_a_quarter_is_made_and_not_kept():
    kept = LRUCache(most=100)
    assert kept.get("large", size=26, make=lambda: "made") == "made"
    assert "large" not in kept
    kept.get("quarter", size=25, make=lambda: None)
    assert "quarter" in kept


def test_keeping_one_more_costs_the_same_however_much_is_kept():
    """The sum of what is kept was once taken anew each time, which made long processes crawl."""
    few, many = LRUCache(most=100), LRUCache(most=100_000)
    for kept, number in ((few, 100), (many, 100_000)):
        for key in range(number):
            kept.get(key, size=1, make=lambda: None)
    assert lines_of(lambda: many.get("more", size=1, make=lambda: None)) == lines_of(
        lambda: few.get("more", size=1, make=lambda: None)
    )


def test_what_threads_keep_at_once_is_counted_once():
    kept = LRUCache(most=1000)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: kept.get(number % 50, size=20, make=lambda: number), range(4000)))
    assert all(number in kept for number in range(50))
