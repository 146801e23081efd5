"""YAML whose reading takes time in proportion to its text."""

from __future__ import annotations

from typing import Any

import yaml

MOST_MERGED = 10_000
_LONGEST_NUMBER = 400


class BoundedLoader(yaml.SafeLoader):
    """The safe loader without two things that take longer than their text: ``<<`` of ``<<`` of ``<<``, each of several
    mappings, and numbers of many digits in base 60."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge as YAML says; YAMLError once too many entries were merged."""
        own = len(node.value)
        super().flatten_mapping(node)
        self._merged += max(0, len(node.value) - own)
        if self._merged > MOST_MERGED:
            raise yaml.YAMLError(f"more than {MOST_MERGED:,} entries are merged by <<")

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """An integer or a float; YAMLError for one of very many digits."""
        if len(node.value) > _LONGEST_NUMBER:
            raise yaml.YAMLError(f"a number of {len(node.value):,} characters")
        make = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        return make(node)


BoundedLoader.add_constructor("tag:yaml.org,2002:int", BoundedLoader.construct_number)
BoundedLoader.add_constructor("tag:yaml.org,2002:float", BoundedLoader.construct_number)
