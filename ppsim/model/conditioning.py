"""Parts of diffusion transformers: patches, a text stream, and conditions that modulate layers.

A modulation is a matrix that maps the condition (one vector per sequence) to vectors of size h: shift and scale
after a norm, and a gate before a residual (Peebles & Xie 2023, arXiv 2212.09748, §3.2, adaLN-Zero).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ppsim.model.operators import Operator
from ppsim.model.weight_matrices import WeightMatrix

_KEYS_AND_VALUES = "queries, keys, values"


@dataclass(frozen=True)
class Conditioning:
    """Conditioning of a layer.

    `modulations`: vectors per stream, three for each of its norms. `text`: the fraction of tokens that have their
    own matrices, the text stream (Esser et al. 2024, arXiv 2403.03206, §4, MM-DiT); 0: one stream. `text_ends`: the
    text stream has only queries, keys and values, because this is the last layer and its output is not used.
    """

    modulations: int
    text: float = 0.0
    text_ends: bool = False

    @property
    def num_modulated(self) -> int:
        return self.modulations // 3

    def linears(self, h: int, tp: int, of_layer: Sequence[WeightMatrix]) -> list[WeightMatrix]:
        matrices = [replace(one, rows=1 - self.text) for one in of_layer] + [
            self._modulation(h, tp, "", self.modulations)
        ]
        of_text = [matrix for matrix in of_layer if not self.text_ends or matrix.name == _KEYS_AND_VALUES]
        matrices += [replace(one, reads=f"{one.reads} of text", rows=self.text) for one in of_text if self.text]
        return [*matrices, *self._of_text(h, tp)]

    def conditioned(self, operators: Iterable[Operator], h: int, tp: int) -> Iterator[Operator]:
        """The GEMMs of the text stream write no tensors: tensors of the image stream have the rows of both."""
        modulations = [self._modulation(h, tp, "", self.modulations), *self._of_text(h, tp)]
        for linear in modulations:
            yield Operator(linear.name, "", (), (), weight=linear)
        for operator in operators:
            ends = self.text_ends and operator.name != "qkv"
            scaled = replace(operator, share=1 - self.text) if ends else operator
            if operator.weight is None:
                yield scaled
                continue
            yield replace(scaled, weight=replace(operator.weight, rows=1 - self.text))
            if self.text and not ends:
                name, reads = f"{operator.name} of text", f"{operator.weight.reads} of text"
                yield Operator(
                    name, operator.module, (), (), weight=replace(operator.weight, reads=reads, rows=self.text)
                )

    def _of_text(self, h: int, tp: int) -> list[WeightMatrix]:
        return [self._modulation(h, tp, " of text", 2 if self.text_ends else self.modulations)] * (self.text > 0)

    def _modulation(self, h: int, tp: int, stream: str, number: int) -> WeightMatrix:
        return WeightMatrix(
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
    """Input and output of a diffusion transformer, in place of a vocabulary.

    `embedded`: (columns projected to h, fraction of the tokens that have them). `conditions`: columns of conditions
    (time step, guidance, pooled text), each embedded by two matrices; `classes`: rows of a table of class
    embeddings. These conditional embedders are on every pipeline stage, and ranks sum their gradients (Megatron-LM,
    `_allreduce_conditional_embedding_grads`).
    """

    embedded: tuple[tuple[int, float], ...]
    conditions: tuple[int, ...]
    outputs: int
    classes: int = 0

    def linears(self, h: int) -> list[WeightMatrix]:
        return [
            WeightMatrix(f"embedding {number}", f"input {number}", size, (h,), "outside", rows=share, biased=True)
            for number, (size, share) in enumerate(self.embedded, start=1)
        ]

    def condition_linears(self, h: int) -> list[WeightMatrix]:
        """Each has an input more for biases; the first includes the table of classes."""
        sizes = [size + 1 for columns in self.conditions for size in (columns, h)]
        sizes[0] += self.classes
        return [
            WeightMatrix(f"embedder {number}", f"condition {number}", size, (h,), "condition")
            for number, size in enumerate(sizes)
        ]

    def head_parameters(self, h: int) -> int:
        return 2 * h * (h + 1) + (h + 1) * self.outputs
