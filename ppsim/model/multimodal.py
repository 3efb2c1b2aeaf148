"""Models with image and audio encoders."""

from collections.abc import Sequence
from dataclasses import replace

from ppsim.model import encoder_readers
from ppsim.model.architecture import Model
from ppsim.model.config_parts import Reader
from ppsim.model.hf_fields import ConfigFields

_OF_ENCODERS = frozenset(
    {
        "audio_token_id", "audio_token_index", "boi_token_index", "eoi_token_index", "image_end_token_id",
        "image_start_token_id", "image_token_id", "image_token_index", "ignore_index", "media_placeholder_token_id",
        "mm_tokens_per_image", "multimodal_projector_bias", "projection_hidden_size", "projection_layer_norm_eps",
        "projector_hidden_act", "spatial_merge_size", "use_unified_vision_chunk", "video_end_token_id",
        "video_placeholder", "video_start_token_id", "video_token_id", "vision_end_token_id",
        "vision_feature_layer", "vision_feature_select_strategy", "vision_start_token_id", "vision_token_id",
    }
)  # fmt: skip
"""Fields of a file with an encoder that change no size of the decoder."""


def multimodal_model(fields: ConfigFields, read: Reader, kinds: Sequence[str] = ("vision",)) -> Model:
    """Encoders without a reader are listed in `left_out`."""
    fields.seen |= _OF_ENCODERS
    has_text = not fields.is_word("text_config", None)
    text = fields.nested("text_config") if has_text else fields
    found = read(text)
    if has_text:
        text.require_all_known()
        found = replace(found, tied_embeddings=fields.flag("tie_word_embeddings", default=found.tied_embeddings))
    encoders, ignored = [], []
    for kind in kinds:
        encoder = fields.nested(f"{kind}_config")
        reader = encoder_readers.READERS.get((fields.text("model_type") or "", kind))
        if reader is None or not encoder.has_any("hidden_size", "vt_hidden_size", "d_model"):
            ignored.append(f"{'image' if kind == 'vision' else kind} encoder")
            continue
        encoders.append(reader(encoder, fields, found.hidden_size))
        encoder.seen |= {"initializer_factor", "layer_norm_eps", "projector_hidden_act", "vocab_size"}
        encoder.require_all_known()
    left_out = f"text model only, {' and '.join(ignored)} ignored" if ignored else found.left_out
    return replace(found, encoders=tuple(encoders), left_out=left_out)


def omni_thinker(fields: ConfigFields, read: Reader) -> Model:
    """Read the thinker of Qwen-Omni, a text model with an image and an audio encoder."""
    fields.seen |= {"talker_config", "code2wav_config", "token2wav_config", "enable_audio_output"}
    fields.seen |= {"enable_talker"} | {name for name in fields.names() if name.endswith("_token_id")}
    thinker = fields.nested("thinker_config")
    thinker.seen |= {"position_id_per_seconds", "seconds_per_chunk"}
    thinker.seen |= {name for name in thinker.names() if name.endswith(("_token_id", "_token_index"))}
    found = multimodal_model(thinker, read, ("vision", "audio"))
    thinker.require_all_known()
    return replace(found, left_out="; ".join(filter(None, (found.left_out, "talker and speech decoder left out"))))
