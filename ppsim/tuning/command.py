"""The command that projects a configuration of a search in full."""

import shlex
from typing import TYPE_CHECKING, Any

from ppsim.base.words import sections_of, values_in, words_of
from ppsim.configs.read import model_named
from ppsim.projection.options import PlanOptions
from ppsim.projection.plan import Plan
from ppsim.tuning.options import TuneOptions

if TYPE_CHECKING:
    from ppsim.tuning.search import Found, Tuned


def command_of(
    tuned: "Tuned", found: "Found", *, projected: type = PlanOptions, searched: type = TuneOptions
) -> str:
    """Return the `ppsim project …` line of a configuration, with what the question changes from the defaults."""
    question, one = tuned.question, found.candidate
    job = question.job
    told = {
        "model": job.model_name, "cluster": job.cluster.name, "gpus": question.num_gpus,
        "tp": one.tp, "cp": one.cp, "ep": one.ep, "pp": one.pp, "vpp": one.vpp, "schedule": one.schedule,
        "micro_batch": one.micro_batch, "global_batch": job.global_batch, "seq_len": job.length,
        "split": one.split, "recompute": one.recompute,
    }  # fmt: skip
    num_layers = len(job.model.layers)
    depending = {
        "layers": num_layers if num_layers != len(model_named(job.model_name).layers) else None,
        "sequence_parallel": question.sequence_parallel,
    }
    words, also = words_of(projected), words_of(searched)
    asked = values_in(words, Plan(pp=job.layout.pp, job=job, runtime=question.runtime)) | depending
    changed: dict[str, Any] = {}
    for name in (name for names in sections_of(words.values()).values() for name in names):
        option = words[name].option
        is_same_for_all = option.field and name in also and also[name].option.field == option.field
        if is_same_for_all and name not in told and asked[name] != option.default:
            changed[name] = asked[name]
    values = {name: value for name, value in changed.items() if not isinstance(value, bool)}
    flags = {name: value for name, value in changed.items() if isinstance(value, bool)}
    texts = [f"{words[name].flag} {shlex.quote(str(value))}" for name, value in (told | values).items()]
    texts += [words[name].flag if value else f"--no-{words[name].flag[2:]}" for name, value in flags.items()]
    return "ppsim project " + " ".join(texts)
