"""Reader of Megatron-LM's arguments."""

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.read_model import model_of
from ppsim.trainers.megatron.settings import read_settings
from ppsim.trainers.run_config import RunConfig


def from_megatron(arguments: Arguments, trainer: str = "Megatron-LM") -> RunConfig:
    model, why_no_model = _model(arguments)
    options = read_settings(arguments, model)
    each = arguments.count("num_layers_per_virtual_pipeline_stage", word="vpp")
    ignored = arguments.ignored if model is not None else arguments.ignored_that_matter
    return arguments.config(trainer, options, model, why_no_model, ignored=ignored, layers_per_virtual_stage=each)


def _model(arguments: Arguments) -> tuple[Model | None, str]:
    try:
        return model_of(arguments), ""
    except ConfigError as error:
        return None, str(error)
