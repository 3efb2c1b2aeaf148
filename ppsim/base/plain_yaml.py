"""PyYAML's safe loader, restricted to plain data."""

from typing import Any, ClassVar

import yaml

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is 10 times as fast
_TEXT, _DATE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"


class PlainLoader(_SafeLoader):  # type: ignore[misc]
    """A loader that reads keys (also `on`, `1` and `null`) and dates as text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = _TEXT
        return super().construct_mapping(node, deep=deep)
