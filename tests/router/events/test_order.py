from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.events.order import Action, AskReplay, Deliver, FrameOrder, Gap, NewEpoch, StopReplay


def names(actions: list[Action]) -> list[object]:
    return [action.seq if isinstance(action, Deliver) else type(action) for action in actions]


def live(order: FrameOrder, *seqs: int, now: float = 0.0) -> list[object]:
    return names([action for seq in seqs for action in order.live(seq, b"%d" % seq, now)])


def replayed(order: FrameOrder, *seqs: int, now: float = 0.0) -> list[object]:
    return names([action for seq in seqs for action in order.replayed(seq, b"%d" % seq, now)])


def test_frames_in_order_are_delivered() -> None:
    order = FrameOrder(replayable=False)
    assert live(order, 0, 1, 2) == [0, 1, 2]
    assert order.complete


def test_a_first_frame_above_zero_without_replay_is_delivered_as_incomplete() -> None:
    order = FrameOrder(replayable=False)
    assert live(order, 7, 8) == [7, 8]
    assert not order.complete
    assert order.counters.gaps == 0


def test_a_gap_without_replay_is_lost_and_the_stream_goes_on() -> None:
    order = FrameOrder(replayable=False)
    assert live(order, 0, 3, 4) == [0, Gap, 3, 4]
    assert (order.counters.gaps, order.counters.lost, order.complete) == (1, 1, False)


def test_a_gap_is_repaired_with_the_frames_that_came_meanwhile_behind_it() -> None:
    order = FrameOrder(replayable=True)
    assert live(order, 0) == [0]
    assert names(order.live(3, b"3", 0.0)) == [AskReplay]
    assert live(order, 4) == []
    assert replayed(order, 1, 2, 3) == [1, 2, 3]
    assert names(order.replay_ended(0.0)) == [4]
    assert (order.counters.gaps, order.counters.repaired, order.counters.lost) == (1, 1, 0)
    assert order.complete


def test_a_replay_that_begins_too_late_is_lost() -> None:
    order = FrameOrder(replayable=True)
    live(order, 0, 5)
    assert replayed(order, 3, 4, 5) == [Gap, 3, 4, 5]
    assert names(order.replay_ended(0.0)) == []
    assert (order.counters.lost, order.counters.repaired) == (1, 0)


def test_a_replay_without_the_missing_frames_is_lost() -> None:
    order = FrameOrder(replayable=True)
    live(order, 0, 5)
    assert names(order.replay_ended(0.0)) == [Gap, 5]


def test_a_silent_replay_is_given_up() -> None:
    order = FrameOrder(replayable=True, patience=5.0)
    live(order, 0, 5)
    assert order.tick(4.9) == []
    assert names(order.tick(5.0)) == [StopReplay, Gap, 5]
    assert not order.replaying


def test_a_replay_with_a_hole_is_asked_again_from_the_hole() -> None:
    order = FrameOrder(replayable=True)
    live(order, 0, 9)
    assert replayed(order, 1, 2, 5, 6) == [1, 2]
    assert order.replay_ended(0.0) == [AskReplay(3)]
    assert replayed(order, 3, 4, 5, 6, 7, 8, 9) == [3, 4, 5, 6, 7, 8, 9]
    assert order.replay_ended(0.0) == []
    assert (order.counters.repaired, order.counters.lost) == (1, 0)


def test_a_replay_that_stops_half_way_is_asked_again() -> None:
    order = FrameOrder(replayable=True, patience=5.0)
    live(order, 0, 4)
    replayed(order, 1, 2, now=1.0)
    assert order.tick(5.5) == []
    assert order.tick(6.0) == [AskReplay(3)]


def test_too_many_waiting_frames_end_the_replay() -> None:
    order = FrameOrder(replayable=True, max_waiting=3)
    assert live(order, 0, 2, 3, 4, 5) == [0, AskReplay, StopReplay, Gap, 2, 3, 4, 5]


def test_the_start_asks_from_zero_and_applies_a_buffer_that_begins_later() -> None:
    order = FrameOrder(replayable=True)
    assert order.start(0.0) == [AskReplay(0)]
    assert live(order, 9) == []
    assert replayed(order, 7, 8, 9) == [7, 8, 9]
    assert names(order.replay_ended(0.0)) == []
    assert (order.counters.lost, order.complete) == (0, False)


def test_a_start_without_an_answer_goes_on_live() -> None:
    order = FrameOrder(replayable=True, patience=5.0)
    order.start(0.0)
    live(order, 9, 10)
    assert names(order.tick(5.0)) == [StopReplay, 9, 10]
    assert order.counters.lost == 0


def test_a_hole_among_the_frames_that_waited_for_the_start_is_a_gap() -> None:
    order = FrameOrder(replayable=True, patience=5.0)
    order.start(0.0)
    live(order, 0, 2)
    assert names(order.tick(5.0)) == [StopReplay, 0, AskReplay]
    assert names(order.tick(10.0)) == [StopReplay, Gap, 2]


def test_a_source_that_cannot_be_asked_goes_on_without() -> None:
    order = FrameOrder(replayable=True)
    live(order, 0, 2)
    assert names(order.cannot_ask("bad address", 0.0)) == [StopReplay, Gap, 2]
    assert live(order, 5) == [Gap, 5]


def test_a_copy_of_a_frame_that_the_replay_brought_is_dropped() -> None:
    order = FrameOrder(replayable=True)
    order.start(0.0)
    replayed(order, 0, 1, 2)
    order.replay_ended(0.0)
    assert live(order, 1, 2, 3) == [3]
    assert order.counters.copies == 2


def test_a_lower_number_with_other_bytes_is_a_new_epoch() -> None:
    order = FrameOrder(replayable=True)
    live(order, 0)
    order.replay_ended(0.0)
    live(order, 1)
    assert names(order.live(0, b"other", 0.0)) == [NewEpoch, AskReplay]
    assert names(order.replayed(0, b"other", 0.0)) == [0]
    assert names(order.replay_ended(0.0)) == []
    assert order.complete


def test_a_new_epoch_without_replay_begins_with_its_frame() -> None:
    order = FrameOrder(replayable=False)
    live(order, 0, 1, 2)
    assert names(order.live(0, b"other", 0.0)) == [NewEpoch, 0]


def test_a_restart_forgets_what_waits() -> None:
    order = FrameOrder(replayable=True)
    live(order, 0, 5, 6)
    assert names(order.restart("again", 0.0)) == [StopReplay, NewEpoch, AskReplay]
    assert names(order.replay_ended(0.0)) == []
    assert order.last == -1


event = st.sampled_from(["publish", "publish", "lose", "trim", "restart", "answer", "answer_cut", "silence"])


@settings(max_examples=500, deadline=None)
@given(st.lists(event, max_size=60), st.booleans())
def test_no_script_mixes_epochs_or_delivers_twice_or_skips_silently(script: list[str], replayable: bool) -> None:
    """An engine publishes, loses frames on the way, trims its buffer and restarts; replays answer late or partly."""
    order = FrameOrder(replayable=replayable, patience=5.0)
    buffer: list[tuple[int, bytes]] = []
    epoch, following, now = 0, 0, 0.0
    asked: int | None = None
    got: list[tuple[int, int]] = []
    believed, last, pardoned = 0, -1, True

    def do(actions: list[Action]) -> None:
        nonlocal asked, believed, last, pardoned
        for action in actions:
            if isinstance(action, Deliver):
                of, number = (int(part) for part in action.payload.split())
                assert of == believed
                assert number == action.seq
                assert number == last + 1 or (pardoned and number > last)
                last, pardoned = number, False
                got.append((of, number))
            elif isinstance(action, NewEpoch):
                believed, last, pardoned, asked = epoch, -1, True, None
            elif isinstance(action, Gap):
                pardoned = True
            elif isinstance(action, AskReplay):
                asked = action.first
            else:
                asked = None

    do(order.start(now))
    for step in script:
        now += 1.0
        if step in ("publish", "lose"):
            payload = b"%d %d" % (epoch, following)
            buffer.append((following, payload))
            following += 1
            if step == "publish":
                do(order.live(following - 1, payload, now))
        elif step == "trim":
            del buffer[:2]
        elif step == "restart":
            epoch, following = epoch + 1, 0
            buffer.clear()
            do(order.restart("restart", now))
        elif step == "silence":
            now += 10.0
            do(order.tick(now))
        elif asked is not None:
            first, asked = asked, None
            answers = [entry for entry in buffer if entry[0] >= first]
            for seq, payload in answers[: len(answers) // 2] if step == "answer_cut" else answers:
                do(order.replayed(seq, payload, now))
            if step == "answer":
                do(order.replay_ended(now))
    assert len(set(got)) == len(got)
    assert order.last == last


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_with_a_replay_that_has_everything_nothing_is_lost(arrives: list[bool]) -> None:
    order = FrameOrder(replayable=True)
    got: list[int] = []

    def do(actions: list[Action], upto: int) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                got.append(action.seq)
            elif isinstance(action, AskReplay):
                for seq in range(action.first, upto):
                    do(order.replayed(seq, b"%d" % seq, 0.0), upto)
                do(order.replay_ended(0.0), upto)
            else:
                raise AssertionError(action)

    for seq, ok in enumerate([*arrives, True]):
        if ok:
            do(order.live(seq, b"%d" % seq, 0.0), seq + 1)
    assert got == list(range(len(arrives) + 1))
