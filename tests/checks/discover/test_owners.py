"""Label selectors as the API server applies them."""

from __future__ import annotations

from typing import Any

import pytest

from checks.discover.owners import selects

LABELS = {"app": "a", "tier": "gpu"}


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({"app": "a"}, True),
        ({"app": "a", "tier": "cpu"}, False),
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu", "tpu"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gpu"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "Near"}]}, False),
        ("app=a,tier=gpu", True),
        ("app=b", False),
        ("app", False),
        ({}, False),
        (None, False),
        ("", False),
        ({"matchLabels": {}}, False),
    ],
)
def test_selector(selector: Any, taken: bool) -> None:
    assert selects(selector, LABELS) is taken
