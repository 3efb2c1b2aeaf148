"""What diffusion transformers have beside other models: conditions that modulate layers, patches, text.

h: the hidden size. A modulation is a matrix from the condition, one vector a sequence, to vectors of h: shift and
scale behind a norm, and a gate before a residual (Peebles & Xie 2023, arXiv 2212.09748, §3.2, adaLN-Zero).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ppsim.model.linears import Linear
from ppsim.model.operators import Operator

_KEYS_AND_VALUES = "queries, keys, values"


@dataclass(frozen=True)
class Conditioning:
    """How a layer is conditioned.

    `modulations`: vectors that each stream gets: three for each of its norms. `text`: the part of the tokens that
    have matrices of their own, their stream (Esser et al. 2024, arXiv 2403.03206, §4, MM-DiT); 0: one stream.
    `text_ends`: of the last layer, from which the text goes nowhere: it has queries, keys and values alone.
    """

    modulations: int
    text: float = 0.0
    text_ends: bool = False

    @property
    def num_modulated(self) -> int:
        """Norms whose result is scaled and shifted, each with a gate behind."""
        return self.modulations // 3

    def linears(self, h: int, tp: int, of_layer: Sequence[Linear]) -> list[Linear]:
        """Return the matrices of a layer, each once a stream, and behind those of a stream what modulates it."""
        found = [replace(one, rows=1 - self.text) for one in of_layer] + [
            self._modulation(h, tp, "", self.modulations)
        ]
        of_text = [one for one in of_layer if not self.text_ends or one.name == _KEYS_AND_VALUES]
        found += [replace(one, reads=f"{one.reads} of text", rows=self.text) for one in of_text if self.text]
        return [*found, *self._of_text(h, tp)]

    def conditioned(self, operators: Iterable[Operator], h: int, tp: int) -> Iterator[Operator]:
        """Yield what modulates each stream, and the operators of a layer with the GEMMs of each.

        Both streams share the tensors. Those of the text end at queries, keys and values if `text_ends`.
        """
        modulations = [self._modulation(h, tp, "", self.modulations), *self._of_text(h, tp)]
        for linear in modulations:
            yield Operator(linear.name, "", (), (), weight=linear)
        for one in operators:
            ends = self.text_ends and one.name != "qkv"
            found = replace(one, share=1 - self.text) if ends else one
            if one.weight is None:
                yield found
                continue
            yield replace(found, weight=replace(one.weight, rows=1 - self.text))
            if self.text and not ends:
                name, reads = f"{one.name} of text", f"{one.weight.reads} of text"
                yield Operator(name, one.module, (), (), weight=replace(one.weight, reads=reads, rows=self.text))

    def _of_text(self, h: int, tp: int) -> list[Linear]:
        return [self._modulation(h, tp, " of text", 2 if self.text_ends else self.modulations)] * (self.text > 0)

    def _modulation(self, h: int, tp: int, stream: str, number: int) -> Linear:
        return Linear(
            f"modulation{stream}",
            "condition",
            h,
            (number * h // tp,),
            kind="condition",
            split="outputs",
            biased=True,
        )


@dataclass(frozen=True)
class Patches:
    """What is around the layers of a diffusion transformer, where others have a vocabulary.

    `embedded`: columns of what is projected to h, and the part of the tokens that has them. `conditions`: columns
    of what two matrices embed, c × h and h × h (of the time step, guidance, pooled text); `classes`: of a table.
    Those conditional embedders are on every pipeline stage, whose layers need the condition, and ranks sum their
    gradients (Megatron-LM, `_allreduce_conditional_embedding_grads`). Behind the layers are a modulation of two
    vectors and a projection to `outputs` columns.
    """

    embedded: tuple[tuple[int, float], ...]
    conditions: tuple[int, ...]
    outputs: int
    classes: int = 0

    def linears(self, h: int) -> list[Linear]:
        """Return the projections to h."""
        return [
            Linear(f"embedding {number}", f"input {number}", columns, (h,), rows=share, biased=True)
            for number, (columns, share) in enumerate(self.embedded, start=1)
        ]

    def embedding_parameters(self, h: int) -> int:
        """Return the parameters of those."""
        return sum(one.weights + one.biases for one in self.linears(h))

    def conditioning_parameters(self, h: int) -> int:
        """Return the parameters of the conditional embedders, which every stage has."""
        return sum((columns + 1) * h + (h + 1) * h for columns in self.conditions) + self.classes * h

    def head_parameters(self, h: int) -> int:
        """Return the parameters behind the last layer."""
        return 2 * h * (h + 1) + (h + 1) * self.outputs
