"""Image and audio encoders: layers before a decoder, whose output replaces the embedding of some of its tokens.

As in Megatron-Bridge at 067f987d, the encoder is on the stage of the embedding
(models/qwen_vl/modelling_qwen3_vl/model.py: `if self.pre_process and self.add_encoder`), in 16 bits, without
sequence and context parallelism (transformer_config.py: `get_vision_model_config`). Qwen3-VL and Qwen3.5 divide its
layers and projector over tp ranks. Other families use the class of transformers, whole on each rank.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ppsim.base.errors import ConfigError
from ppsim.model.fine_tuning import GROUPS, FineTuning, LayerTraining
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes

MEANING_OF_IMAGES = (
    "Image tokens per sequence: N in one image, or IMAGESxTOKENS, as 4x256. They are part of --seq-len. 0: the "
    "encoder holds its weights and encodes nothing. [default: one image, of the size in the configuration]"
)


@dataclass(frozen=True)
class Encoder:
    """An encoder and its projector.

    - `layers`: with attention among the `rows` patches of one image, or of one clip of audio.
    - `embedding`, `projector`: matrices before and after the layers. `WeightMatrix.rows` is the number of inputs
      per patch in `embedding`, and per token of the decoder in `projector`.
    - `own`: parameters outside matrices and layers, of the encoder (positions, class token, norms) and of the
      projector.
    - `merge`: patches per token. `more_rows`: rows besides patches (a class token).
    - `images`, `num_tokens`: images per sequence, and tokens of each. `is_fixed`: all images have `num_tokens`
      tokens.

    >>> from ppsim.model.config import model_from
    >>> text = {"model_type": "gemma3_text", "head_dim": 256, "intermediate_size": 10240, "sliding_window": 1024}
    >>> vision = {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "image_size": 896}
    >>> data = {"model_type": "gemma3", "text_config": text}
    >>> data["vision_config"] = vision | {"num_attention_heads": 16, "patch_size": 14}
    >>> [encoder] = model_from(data).encoders
    >>> encoder.rows, encoder.num_tokens
    (4096, 256)
    """

    kind: Literal["image", "audio"]
    layers: tuple[Any, ...]
    embedding: tuple[WeightMatrix, ...]
    projector: tuple[WeightMatrix, ...]
    own: tuple[int, int]
    merge: int
    num_tokens: int
    source: str
    images: int = 1
    is_fixed: bool = False
    more_rows: int = 0
    is_divided: bool = False
    trains_layers: bool = True
    trains_projector: bool = True

    @property
    def rows(self) -> int:
        return self.num_tokens * self.merge + self.more_rows

    @property
    def tokens(self) -> int:
        """Tokens per sequence."""
        return self.images * self.num_tokens

    @property
    def sentence(self) -> str:
        what = f"{self.kind} encoder of {self.parameters / 1e9:.1f} B parameters"
        if not self.images:
            return f"{what}: encodes nothing (--image-tokens 0)"
        images = f"{self.images} × " if self.images > 1 else ""
        return (
            f"{what}: {images}{self.num_tokens} tokens of {self.rows} rows per sequence ({self.source}), "
            "part of the sequence"
        )

    @property
    def parameters(self) -> int:
        return EncoderPart(self, 0, len(self.layers)).held(ParallelSizes())[0]

    @property
    def forward_flops(self) -> float:
        """FLOPs per sequence, with all scores."""
        layers = self.rows * sum(layer.forward_flops(self.rows) for layer in self.layers)
        return float(self.images * layers + self._embedding_flops + self._projector_flops)

    @property
    def training_flops(self) -> float:
        """FLOPs per sequence, without input gradients of patches and gradients of frozen weights."""
        layers = self.forward_flops - self._embedding_flops - self._projector_flops
        return (
            (3.0 if self.trains_layers else 1.0) * layers
            + (2.0 if self.trains_layers else 1.0) * self._embedding_flops
            + (1.0 + self.trains_layers + self.trains_projector) * self._projector_flops
        )

    @property
    def _embedding_flops(self) -> float:
        return 2.0 * self.tokens * self.merge * sum(matrix.size * matrix.rows for matrix in self.embedding)

    @property
    def _projector_flops(self) -> float:
        return 2.0 * self.tokens * sum(matrix.size * matrix.rows for matrix in self.projector)

    def cut(self, sizes: ParallelSizes) -> ParallelSizes:
        tp = sizes.tp if self.is_divided else 1
        return ParallelSizes(tp=tp, dp=sizes.num_ranks // tp, sequence_parallel=False)

    def with_training(self, tuning: FineTuning | None) -> "Encoder":
        """LoRA adapters are never on an encoder."""
        layers, projector = (tuning is None or tuning.trains(word) for word in ("encoder", "projector"))
        training = None if layers else LayerTraining(frozenset(GROUPS), has_backward=False)
        same = {id(layer): replace(layer, training=training) for layer in self.layers}
        return replace(
            self,
            layers=tuple(same[id(one)] for one in self.layers),
            embedding=tuple(replace(matrix, trainable=layers) for matrix in self.embedding),
            projector=tuple(replace(one, trainable=projector) for one in self.projector),
            trains_layers=layers,
            trains_projector=projector,
        )

    def with_images(self, images: int, num_tokens: int | None) -> "Encoder":
        """`num_tokens`: tokens per image; None if `images` is the total number of tokens.

        Raises `ConfigError` if the encoder's images have a fixed, different number of tokens.
        """
        if images == 0 or num_tokens == 0:
            return replace(self, images=0, source="--image-tokens 0")
        size = self.num_tokens
        if num_tokens is None:
            images, num_tokens = (max(1, images // size), images) if self.is_fixed else (1, images)
            num_tokens = size if self.is_fixed and num_tokens % size == 0 else num_tokens
        if self.is_fixed and num_tokens != size:
            raise ConfigError(
                f"--image-tokens: each image has {size} tokens in this model: give a multiple of {size}, got "
                f"{num_tokens}"
            )
        return replace(self, images=images, num_tokens=num_tokens, source="--image-tokens")


class EncoderPart(NamedTuple):
    """Layers `first` to `last` of an encoder, with its embedding or projector if they are at its ends."""

    encoder: Encoder
    first: int
    last: int

    @property
    def layers(self) -> tuple[Any, ...]:
        return self.encoder.layers[self.first : self.last]

    @property
    def embedding(self) -> tuple[WeightMatrix, ...]:
        return self.encoder.embedding if self.first == 0 else ()

    @property
    def projector(self) -> tuple[WeightMatrix, ...]:
        return self.encoder.projector if self.is_last else ()

    @property
    def is_last(self) -> bool:
        return self.last == len(self.encoder.layers)

    def own_projector(self, sizes: ParallelSizes) -> tuple[WeightMatrix, ...]:
        tp = self.encoder.cut(sizes).tp
        return tuple(
            replace(matrix, columns=tuple(column // tp for column in matrix.columns))
            if matrix.split == "outputs"
            else replace(matrix, inputs=matrix.inputs // tp)
            if matrix.split == "inputs"
            else matrix
            for matrix in self.projector
        )

    def held(self, sizes: ParallelSizes) -> tuple[int, int]:
        """Parameters on a rank, and the frozen ones among them."""
        encoder, own_cut = self.encoder, self.encoder.cut(sizes)
        matrices = [linear for layer in self.layers for linear in layer.linears(own_cut)] + list(self.embedding)
        layers = sum(matrix.weights + matrix.biases for matrix in matrices)
        layers += sum(layer.norm_parameters for layer in self.layers) + encoder.own[0] * (self.first == 0)
        projector = sum(one.weights + one.biases for one in self.own_projector(sizes))
        projector += encoder.own[1] * self.is_last
        frozen = layers * (not encoder.trains_layers) + projector * (not encoder.trains_projector)
        return layers + projector, frozen


def parse_images(text: str) -> tuple[int, int | None]:
    """Return images and tokens of each; a number of tokens alone is returned with None.

    >>> parse_images("4x256"), parse_images("576")
    ((4, 256), (576, None))
    """
    match = re.fullmatch(r"(\d{1,9})(?:[x×](\d{1,9}))?", text.strip())
    if match is None:
        raise ConfigError(f"--image-tokens is '{text}': give a number of tokens, or IMAGESxTOKENS, as 4x256")
    return int(match[1]), None if match[2] is None else int(match[2])


def image_tokens_of(text: str | int) -> str:
    """Normalise the value of --image-tokens.

    >>> image_tokens_of(576), image_tokens_of("04×256"), image_tokens_of("0x16")
    ('576', '4x256', '0')
    """
    if text == "":
        return ""
    images, tokens = parse_images(str(text))
    if images == 0 or tokens == 0:
        return "0"
    return str(images) if tokens is None else f"{images}x{tokens}"
