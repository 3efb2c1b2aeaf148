"""The command `clusters`."""

import click

from ppsim.cli.common import json_option, print_json
from ppsim.cli.completion import completing


@click.command()
@click.argument("name", required=False, metavar="[NAME|FILE]", shell_complete=completing("cluster"))
@json_option
def clusters(name: str | None, as_json: bool) -> None:
    """List the packaged clusters, or print one (packaged or from a file) with units and sources.

    \b
      ppsim clusters
      ppsim clusters dgx-h100
      ppsim clusters gb200-nvl72 --json

    A .toml, .yaml or .json file describes your own cluster (docs/clusters.md). Throughput is the dense peak of the
    data sheet. Bandwidth is the line rate of one device in one direction. The calibration constants of the GPU type
    give the fraction that runs achieve.
    """
    from dataclasses import asdict

    from ppsim.machine.cluster_files import load_cluster, packaged_clusters
    from ppsim.results import catalogues as show_clusters

    found = [load_cluster(one) for one in ([name] if name else packaged_clusters())]
    if as_json:
        objects = [asdict(cluster) for cluster in found]
        print_json(objects[0] if name else {"clusters": objects})
    elif name:
        show_clusters.print_cluster(found[0])
    else:
        show_clusters.print_clusters(found)
