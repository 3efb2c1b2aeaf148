"""The models that `ppsim profile --model` knows by name. Does not need torch."""

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import NameLookup
from ppsim.model.registry import NAMES, aliases, plain_model
from ppsim.model.registry import find_model as model_by_name
from ppsim.model.shapes import LayerShape, ModelShape, model_shape_of
from ppsim.profiling.grids import tables
from ppsim.runtime.train_config import MODELS as GPTS
from ppsim.runtime.train_config import GPTShape


def of_gpt(shape: GPTShape) -> ModelShape:
    return ModelShape(
        shape.layer,
        num_layers=shape.num_layers,
        vocab_size=shape.vocab_size,
        sequence_length=shape.sequence_length,
    )


MODELS: dict[str, ModelShape] = {
    **{name: of_gpt(shape) for name, shape in GPTS.items()},
    **{
        name: ModelShape(**sizes | {"layer": LayerShape(**sizes["layer"])})
        for name, sizes in tables()["models"].items()
    },
    **{name: shape for name in NAMES if (shape := model_shape_of(model_by_name(name))) is not None},
}


def find_model(name: str) -> ModelShape:
    """Raise `ConfigError` with the close matches for an unknown name."""
    also = {word: known for word, known in aliases().items() if known in MODELS}
    names = NameLookup("model", MODELS, also=also, plain_of=plain_model)
    if (known := names.find(name)) is None:
        raise ConfigError(names.unknown(name))
    return MODELS[known]
