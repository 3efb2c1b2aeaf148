"""Description of a deadlock."""

from ppsim.base.arrays import Ints32
from ppsim.schedule.table import Schedule

_AROUND = 3  # actions shown on either side of a waiting action


def explain_cycle(compute: Schedule, source: Ints32, target: Ints32, cycle: list[int]) -> str:
    """Each node of `cycle` waits for the next one, the last for the first; nodes are numbered as in the event
    graph.
    """
    waits = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    sentences = [_sentence(compute, source, target, node, cause) for node, cause in waits]
    waiting = {
        node if node < len(compute) else int(source[node - len(compute)])
        for (node, _), sentence in zip(waits, sentences, strict=True)
        if sentence
    }
    said = "; ".join(sentence for sentence in sentences if sentence)
    return f"deadlock: {said}\n{lines_around(compute, sorted(waiting))}"


def _sentence(table: Schedule, sources: Ints32, targets: Ints32, node: int, cause: int) -> str | None:
    num_actions = len(table)

    def rank(action: int) -> int:
        return int(table.rank[action])

    def transfer(node: int) -> tuple[int, int]:
        return int(sources[node - num_actions]), int(targets[node - num_actions])

    if node < num_actions:
        if cause < num_actions:
            return None  # both on one rank, in table order
        source, target = transfer(cause)
        if target == node:
            return f"rank {rank(node)} waits at {table[node]} for {table[source]} (rank {rank(source)})"
        return (
            f"rank {rank(node)} blocks before {table[node]} until the output of {table[source]} "
            f"(rank {rank(source)}) has arrived at {table[target]} (rank {rank(target)})"
        )
    source, target = transfer(node)
    route = f"{table[source]} (rank {rank(source)} → {rank(target)})"
    if cause >= num_actions:
        first, last = transfer(cause)
        earlier = f"{table[first]} (rank {rank(first)} → {rank(last)})"
        return f"the transfer of {route} is queued after the transfer of {earlier}"
    if rank(cause) == rank(target):
        return f"rank {rank(target)} posts the receive of {table[source]} only after {table[cause]}"
    if cause != source:
        return f"rank {rank(source)} sends {table[source]} only after {table[cause]}"
    return None


def lines_around(table: Schedule, entries: list[int]) -> str:
    """Return the part of each rank's row around `entries`, which are in brackets."""
    lines = []
    marked = set(entries)
    for rank in sorted({int(table.rank[entry]) for entry in entries}):
        row = table.entries_of(rank)
        shown = {near for entry in marked & {*row} for near in range(entry - _AROUND, entry + _AROUND + 1)}
        cells, last = [], row.start - 1
        for entry in sorted(shown & {*row}):
            if entry != last + 1:
                cells.append("…")
            cells.append(f"[{table[entry]}]" if entry in marked else str(table[entry]) or "·")
            last = entry
        if last != row.stop - 1:
            cells.append("…")
        lines.append(f"  rank {rank}: " + " ".join(cells))
    return "\n".join(lines)
