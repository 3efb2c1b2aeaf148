"""The ledger of a model's memory: each sum over the parts of a stage or rank.

A row is a part of the model under one plan (`ppsim.model.stage_rows`). Stages are a matrix with the number of each
row, [stages, rows]. Columns of rows are added, or the largest counts, or they count once; rules that are not linear
are in `ppsim.model.rank_rules`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.model.architecture import Model
from ppsim.model.memory_rows import LAYER_GRADIENT, RowBytes, bytes_of_row
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import RankParameters, Tables, exact_multiple, held_of_row, tables_of
from ppsim.model.pipeline_stages import Stage
from ppsim.model.rank_rules import (
    gradient_copies_beside_graphs,
    gradient_copy_bytes,
    state_of_whole_tensors,
    static_bytes,
    with_slack,
)
from ppsim.model.stage_rows import Row, rows_of

_OUTSIDE_LAYERS = ("stage", "embedding", "head", "encoder")
_NUMBERS = (
    "for_weight", "num_graphs", "mixed_again", "first_streams", "gathered", "reduced", "deferred",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class MemoryColumns:
    """Columns of the rows of a ledger as arrays [rows], or [rows, …]; `RowBytes` says what they are.

    `uses_of_table` has the rows of embedding, head and MTP layers; `outside` the parameters outside layers.
    """

    components: list[str]
    saved: Floats
    held: Floats
    outside: Floats
    uses_of_table: Floats
    of_rows: Mapping[str, Floats]
    moments: list[Mapping[str, int]]
    row_of_moment: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Row], sizes: Sequence[RowBytes], held: Sequence[RankParameters]) -> "MemoryColumns":
        components = list(dict.fromkeys(name for row in sizes for name in row.saved))
        parameters = np.array([one.numbers for one in held], dtype=float)
        kinds = ("embedding", "head", "mtp")
        moments = [(number, moment) for number, row in enumerate(sizes) for moment in row.moments]
        return cls(
            components,
            np.array([[row.saved.get(name, 0) for name in components] for row in sizes], dtype=float),
            parameters,
            parameters[:, 0] * [row.kind in _OUTSIDE_LAYERS for row in rows],
            np.array([[row.kind == kind for kind in kinds] for row in rows], dtype=float),
            {name: np.array([getattr(row, name) for row in sizes], dtype=float) for name in _NUMBERS},
            [moment for _, moment in moments],
            np.array([number for number, _ in moments], dtype=np.int64),
        )

    @cached_property
    def moment_bytes(self) -> Floats:
        return np.array([sum(moment.values()) for moment in self.moments], dtype=float)

    @cached_property
    def has_layer(self) -> NDArray[np.bool_]:
        """Which moments are of a layer's backward."""
        return np.array([LAYER_GRADIENT in moment for moment in self.moments], dtype=bool)


class MemoryLedger:
    """Bytes and parameters of stages and ranks of a model under one set of settings.

    >>> from ppsim.model.pipeline_stages import stages_of
    >>> from ppsim.model.registry import find_model
    >>> model = find_model("gpt2")
    >>> ledger = MemoryLedger(model, MemorySettings(1, 1024))
    >>> contents = ledger.contents(stages_of(model, [6, 6]))
    >>> ledger.parameters(contents).dense == model.parameters
    True
    """

    def __init__(self, model: Model, settings: MemorySettings) -> None:
        self.model, self.settings = model, settings
        self.rows: list[Row] = []
        self._sizes: list[RowBytes] = []
        self._held: list[RankParameters] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._of_stage: dict[tuple[Any, ...], list[int]] = {}
        self._table_size = model.table(settings.vocabulary_of(model))
        self._columns: MemoryColumns | None = None

    def rows_of(self, stage: Stage) -> list[int]:
        """Return the numbers of a stage's rows, in the order of its parts."""
        if stage.key not in self._of_stage:
            rows = rows_of(self.model, stage, self.settings.execution.recompute)
            self._of_stage[stage.key] = [self._number(row) for row in rows]
        return self._of_stage[stage.key]

    def _number(self, row: Row) -> int:
        if row.key not in self._numbers:
            self._numbers[row.key] = len(self.rows)
            self.rows.append(row)
            self._sizes.append(bytes_of_row(self.model, row, self.settings))
            self._held.append(held_of_row(self.model, row, self.settings.cut))
            self._columns = None
        return self._numbers[row.key]

    def contents(self, stages: Sequence[Stage]) -> Floats:
        """Return how many times each stage has each row, [stages, rows]."""
        numbers = [self.rows_of(stage) for stage in stages]
        return np.array([np.bincount(of_stage, minlength=len(self.rows)) for of_stage in numbers], dtype=float)

    @property
    def columns(self) -> MemoryColumns:
        if self._columns is None:
            self._columns = MemoryColumns.of(self.rows, self._sizes, self._held)
        return self._columns

    def saved(self, contents: Floats) -> Floats:
        """Saved bytes per microbatch, [stages, `columns.components`], without the allocator's slack."""
        columns = self.columns
        num_bytes: Floats = contents @ columns.saved
        first = np.where(contents > 0, columns.of_rows["first_streams"], 0.0).max(axis=1)
        if first.any():
            at = columns.components.index("residual streams")
            num_bytes[:, at] += first * (num_bytes[:, at] > 0)
        return num_bytes

    def for_weight(self, contents: Floats) -> Floats:
        """Bytes per microbatch and stage from I to W, without the allocator's slack."""
        num_bytes: Floats = contents @ self.columns.of_rows["for_weight"]
        return num_bytes

    def parameters(self, contents: Floats) -> RankParameters:
        """Parameters of one rank that has all these stages."""
        return self._with_tables(contents.sum(axis=0) @ self.columns.held, self._tables(contents))

    def _with_tables(self, numbers: Floats, tables: Tables) -> RankParameters:
        return RankParameters(*map(int, numbers)) + tables.held(self.model, self._table_size)

    def _tables(self, contents: Floats, *, with_mtp: bool = True) -> Tables:
        uses = contents @ self.columns.uses_of_table > 0
        return tables_of(
            self.model, [(embedding, head, mtp and with_mtp) for embedding, head, mtp in uses.tolist()]
        )

    def transients(self, contents: Floats) -> dict[str, int]:
        """Return the moment of a backward of the rank that needs the most bytes, by component."""
        columns = self.columns
        if not len(columns.moments):
            return {}
        mixed = float((contents @ columns.of_rows["mixed_again"]).max())
        sizes: Floats = columns.moment_bytes + mixed * columns.has_layer
        is_held = contents.sum(axis=0)[columns.row_of_moment] > 0
        sizes[~is_held] = -1.0
        largest = int(sizes.argmax())
        if sizes[largest] < 0:
            return {}
        held = {**columns.moments[largest], "gradient between stages": self._hidden_bytes}
        return held | ({"residual streams again": int(mixed)} if mixed and columns.has_layer[largest] else {})

    @property
    def _hidden_bytes(self) -> int:
        return self.settings.hidden_bytes(self.model.residual_size)

    def peak(self, contents: Floats, in_flight: Sequence[float] | Floats) -> dict[str, int]:
        """Bytes of a rank in a backward with `in_flight` microbatches of each of its stages, by component."""
        return self._peak(contents, in_flight, *self._always_held(contents))

    def _peak(
        self, contents: Floats, in_flight: Sequence[float] | Floats, components: Counter[str], held: RankParameters
    ) -> dict[str, int]:
        saved = np.asarray(in_flight, dtype=float) @ self.saved(contents)
        for name, size in zip(self.columns.components, saved.tolist(), strict=True):
            components[name] += round(size)
        transients, buckets = self.transients(contents), self._buckets(contents)
        components.update(transients)
        components["deferred gradients of the head"] = self._largest("deferred", contents)
        components.update(buckets)
        copies = gradient_copy_bytes(held, self.settings)
        transient_bytes = sum(transients.values()) + sum(buckets.values())
        components["float32 gradients"] = gradient_copies_beside_graphs(copies, transient_bytes, self.settings)
        return with_slack(components, self.settings)

    def update(self, contents: Floats) -> dict[str, int]:
        """Bytes of a rank during the update, without activations, by component."""
        return self._update(*self._always_held(contents))

    def _update(self, components: Counter[str], held: RankParameters) -> dict[str, int]:
        components["float32 gradients"] = gradient_copy_bytes(held, self.settings)
        return with_slack(components, self.settings)

    def at_rest(self, contents: Floats) -> tuple[int, int]:
        """Return the bytes of a rank without microbatches in flight, and by how many the update exceeds them.

        The first include the transient bytes of a backward pass, which the update does not have.
        """
        always, held = self._always_held(contents)
        update = sum(self._update(always.copy(), held).values())
        idle = sum(self._peak(contents, np.zeros(len(contents)), always, held).values())
        return idle, max(0, update - idle)

    def _always_held(self, contents: Floats) -> tuple[Counter[str], RankParameters]:
        settings, total, tables = self.settings, contents.sum(axis=0), self._tables(contents)
        held = self._with_tables(total @ self.columns.held, tables)
        rows = ((row, int(number)) for row, number in zip(self.rows, total, strict=True) if number)
        whole_tensors = state_of_whole_tensors(
            rows, held, settings, tables=tables.trained(self.model), table_size=self._table_size
        )
        components = Counter(static_bytes(held, settings) | whole_tensors)
        if settings.execution.gradient_placeholders:
            sizes = {size for number in np.flatnonzero(total) for size in self._sizes[number].sizes}
            components["gradient placeholders"] = sum(sizes) * settings.optimizer.weight_bytes
        if (narrow := settings.narrow) and not narrow.is_primary and not settings.fully_shard:
            gemms = held.gemms + held.expert_gemms
            components["weights in fewer bits"] = exact_multiple(gemms, narrow.bytes_of_copies)
        num_graphs = int(total @ self.columns.of_rows["num_graphs"])
        components["graph buffers"] = settings.graph_buffers(num_graphs) * self._hidden_bytes
        components["library workspaces"] = settings.workspace_bytes
        return components, held

    def _buckets(self, contents: Floats) -> dict[str, int]:
        """Communication buffers besides the parameters and gradients themselves.

        ZeRO 2 and 3 reduce one layer's whole gradient at a time. ZeRO 3 gathers the weights of the current and the
        next layer; FSDP2 also holds embedding and head, which it does not free between forward and backward.
        """
        optimizer = self.settings.optimizer
        if optimizer.zero_stage < 2:
            return {}
        buckets = {"gradient buckets": self._largest("reduced", contents) * optimizer.bytes_of_gradient}
        if optimizer.zero_stage == 3:
            buckets["gathered parameters"] = 2 * self._largest("gathered", contents)
        if self.settings.fully_shard and optimizer.zero_stage == 3:
            tables = self._tables(contents, with_mtp=False)
            outside = int(contents.sum(axis=0) @ self.columns.outside) + sum(tables) * self._table_size
            buckets["gathered parameters"] += outside * optimizer.weight_bytes
        return buckets

    def _largest(self, name: str, contents: Floats) -> int:
        return int(np.where(contents.any(axis=0), self.columns.of_rows[name], 0.0).max(initial=0.0))
