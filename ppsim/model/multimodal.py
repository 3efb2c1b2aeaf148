"""Models with image and audio encoders."""

from collections.abc import Sequence
from dataclasses import replace

from ppsim.model import encoder_readers
from ppsim.model.architecture import Model
from ppsim.model.config_parts import Reader
from ppsim.model.hf_fields import ConfigFields


def multimodal_model(fields: ConfigFields, read: Reader, kinds: Sequence[str] = ("vision",)) -> Model:
    """Encoders without a reader are listed in `left_out`."""
    fields.kinds.add("with-encoders")
    has_text = not fields.is_word("text_config", None)
    text = fields.nested("text_config") if has_text else fields
    model = read(text)
    if has_text:
        text.require_all_known()
        model = replace(model, tied_embeddings=fields.flag("tie_word_embeddings", default=model.tied_embeddings))
    encoders, ignored = [], []
    for kind in kinds:
        encoder = fields.nested(f"{kind}_config")
        model_type = fields.text("model_type") or ""
        reader = encoder_readers.READERS.get((model_type, kind))
        if reader is None or not encoder.has_any("hidden_size", "vt_hidden_size", "d_model"):
            ignored.append(f"{'image' if kind == 'vision' else kind} encoder")
            continue
        encoder.kinds |= {"any-encoder", f"{model_type}.{kind}"}
        encoders.append(reader(encoder, fields, model.hidden_size))
        encoder.require_all_known()
    left_out = f"text model only, {' and '.join(ignored)} ignored" if ignored else model.left_out
    return replace(model, encoders=tuple(encoders), left_out=left_out)


def omni_thinker(fields: ConfigFields, read: Reader) -> Model:
    """Read the thinker of Qwen-Omni, a text model with an image and an audio encoder."""
    fields.kinds.add("omni")
    thinker = fields.nested("thinker_config")
    model = multimodal_model(thinker, read, ("vision", "audio"))
    thinker.require_all_known()
    return replace(model, left_out="; ".join(filter(None, (model.left_out, "talker and speech decoder left out"))))
