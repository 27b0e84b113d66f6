"""Slots of a table: which are members, and that a fleet added one by one costs no square of it."""

from __future__ import annotations

import time

import pytest

from router.prefix.table import BlockTable


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 130])
def test_slots_up_to_the_count_are_members(count: int) -> None:
    table = BlockTable(1)
    table.ensure_slots(count)
    bits = [int(table.members[slot >> 6]) >> (slot & 63) & 1 for slot in range(table.slots)]
    assert bits == [1] * count + [0] * (table.slots - count)


def test_room_for_one_slot_more_does_not_visit_all_the_others() -> None:
    table = BlockTable(1)
    began = time.process_time()
    for count in range(1, 6001):
        table.ensure_slots(count)
    assert time.process_time() - began < 3  # 0.1 s; a visit of each slot each time takes 15 s
