"""The cost account: ds4's identities hold on ds4's own line, fail on every altered one, and on our rounds by hand."""

import dataclasses
import re

import pytest

from spec import Round
from spec.measure import Account, IdentityError, account_for, check_round
from spec.measure.generation import Generation
from spec.measure.records import round_record

# From a public report on an M3 Ultra (antirez/ds4, issue 731): 255 tokens from 126 cycles and 8 tail decodes.
DS4_LINE = """
cycles=126 first_tokens=126 proposed=203 accepted_draft=121 accept_rate=59.61% avg_accept=0.960 full=27 partial=22
miss_first=11 no_draft=66 no_room=0 invalid=0 scheduler_skips=54 tail_skips=8 verifier_unavailable=0 errors=0
time_ms propose=588.934 snapshot=25.165 verify=3276.689 replay=3336.601 spec_total=6668.069 target=3683.981
saved=3278.481 net_saved=-3978.522 draft_len_hist=1:6,2:11,3:12,4:16,5:15 accepted_len_hist=0:77,1:14,2:15,3:9,4:5,5:6
"""
TIMES = ("propose", "snapshot", "verify", "replay", "spec_total", "target", "saved", "net_saved")


def ds4_account() -> dict:
    """The line's fields as an account's."""
    fields = dict(re.findall(r"(\w+)=(\S+)", DS4_LINE))
    hists = {
        name: {int(key): int(value) for key, value in (pair.split(":") for pair in fields.pop(name).split(","))}
        for name in ("draft_len_hist", "accepted_len_hist")
    }
    time_ms = {name: float(fields.pop(name)) for name in TIMES}
    counts = {name: int(value) for name, value in fields.items() if value.isdigit()}
    # verify_fused_head=49 of the same line; that build replays after every verify pass
    commits = {"verify_calls": 49, "replay_fallbacks": 49, "direct_full_commits": 0, "direct_partial_commits": 0}
    rest = {"time_ms": time_ms, "num_tokens": 255, "num_pending": 0, "replayed_tokens": 121}
    return counts | hists | commits | rest


def test_ds4s_line_satisfies_every_identity() -> None:
    account = Account(**ds4_account())
    assert account.accept_rate == pytest.approx(0.5961, abs=5e-5)
    assert account.avg_accept == pytest.approx(0.960, abs=5e-4)
    record = account.to_json()
    assert record["draft_len_hist"] == {"1": 6, "2": 11, "3": 12, "4": 16, "5": 15}
    assert record["time_ms"]["net_saved"] == -3978.522


@pytest.mark.parametrize(
    ("change", "identity"),
    [
        ({"no_draft": 67}, "cycles = sum of outcomes"),
        ({"first_tokens": 125}, "first_tokens = cycles"),
        ({"proposed": 204}, "proposed = sum of draft_len_hist"),
        ({"draft_len_hist": {1: 7, 2: 11, 3: 12, 4: 16, 5: 15}, "proposed": 204}, "drafted rounds = draft_len_hist"),
        ({"accepted_draft": 120}, "accepted_draft = sum of accepted_len_hist"),
        ({"accepted_len_hist": {0: 78, 1: 14, 2: 15, 3: 9, 4: 5, 5: 6}}, "cycles = accepted_len_hist"),
        ({"miss_first": 12, "partial": 21}, r"accepted_len_hist\[0\]"),
        ({"draft_len_hist": {1: 50, 2: 10}, "proposed": 70}, "accepted_draft <= proposed"),
        ({"scheduler_skips": 67}, "scheduler_skips <= no_draft"),
        ({"num_tokens": 256}, "num_tokens = cycles"),
        ({"tail_skips": 9}, "num_tokens = cycles"),
        ({"verify_calls": 48, "replay_fallbacks": 48}, r"full \+ partial <= verify_calls"),
        ({"verify_calls": 61, "replay_fallbacks": 61}, r"verify_calls <= full \+ partial \+ miss_first"),
        ({"direct_full_commits": 1}, "verify_calls = sum of commits"),
        ({"replayed_tokens": 48}, "replay_fallbacks <= replayed_tokens"),
        ({"time_ms": {"spec_total": 6638.0}}, "replay <= spec_total"),
        ({"time_ms": {"other": 0.0, "wall": 10_941.0}}, "wall = propose"),
        ({"time_ms": {"baseline_wall": 7000.0, "wall_saved": 1.0}}, "wall_saved = baseline_wall"),
        ({"time_ms": {"net_saved": -3978.6}}, "net_saved = saved"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(change: dict, identity: str) -> None:
    fields = ds4_account()
    times = fields["time_ms"] | {"other": 0.0, "wall": 10_940.984} | change.get("time_ms", {})
    with pytest.raises(IdentityError, match=identity):
        Account(**(fields | change | {"time_ms": times}))


def make_round(**changes) -> Round:
    """A full round of one draft with ten milliseconds of verify."""
    fields = {
        "index": 1,
        "position": 7,
        "gamma": 3,
        "proposed": (1,),
        "accepted": 1,
        "tokens": (1, 2),
        "kind": "bonus",
        "outcome": "full",
        "reason": None,
        "confidence": None,
        "finish_reason": None,
        "propose_s": 0.002,
        "verify_s": 0.010,
        "target_s": 0.0,
        "commit_s": 0.001,
        "replay_s": 0.0,
        "duration_s": 0.014,
        "decoded": 0,
        "verify_rows": 2,
        "replayed_tokens": 0,
    }
    return Round(**(fields | changes))


PREFILL = make_round(
    index=0,
    gamma=0,
    proposed=(),
    accepted=0,
    tokens=(4,),
    outcome="prefill",
    reason="prefill",
    target_s=1.0,
    duration_s=1.0,
)


def three_rounds(last_kind: str) -> Generation:
    """A full, a missed and a third round: undrafted, or one that ends inside its drafts; 1 + 3 + 1 + 1 tokens."""
    rounds = (
        make_round(proposed=(1, 2), accepted=2, tokens=(1, 2, 3), verify_rows=3),
        make_round(
            proposed=(1, 2, 3),
            accepted=0,
            tokens=(9,),
            kind="correction",
            outcome="miss_first",
            replay_s=0.003,
            verify_rows=4,
            replayed_tokens=1,
            duration_s=0.017,
        ),
        make_round(
            proposed=(),
            accepted=0,
            tokens=(5,),
            outcome="no_draft",
            reason="why",
            verify_s=0.0,
            commit_s=0.0,
            target_s=0.006,
            decoded=1,
            verify_rows=0,
            duration_s=0.009,
        )
        if last_kind == "bonus"
        else make_round(proposed=(5, 6), accepted=1, tokens=(5,), kind="none", outcome="partial", verify_rows=3),
    )
    tokens = (4, *(token for item in rounds for token in item.tokens))
    return Generation(tokens=tokens, finish_reason="eos", prefill=PREFILL, rounds=rounds)


def test_three_rounds_by_hand() -> None:
    account = account_for([three_rounds("bonus")], [5.0])
    assert (account.cycles, account.first_tokens, account.proposed, account.accepted_draft) == (3, 3, 5, 2)
    assert (account.full, account.partial, account.miss_first, account.no_draft) == (1, 0, 1, 1)
    assert (account.num_tokens, account.num_pending) == (6, 1)
    assert account.draft_len_hist == {2: 1, 3: 1}
    assert account.accepted_len_hist == {0: 2, 2: 1}
    assert account.accept_rate == 2 / 5
    assert account.avg_accept == 2 / 3
    expected = {
        "propose": 6.0,
        "snapshot": 0.0,
        "verify": 20.0,
        "replay": 3.0,
        "commit": 2.0,
        "spec_total": 25.0,
        "target": 6.0,
        "other": 14.0 + 17.0 + 9.0 - 37.0,
        "saved": (2 + 1) * 5.0 + 1 * 5.0,  # two drafts and an anchor, then an anchor
        "net_saved": 20.0 - 25.0 - 6.0,
        "wall": 40.0,
        "baseline_wall": 5 * 5.0,  # five tokens after the first
        "wall_saved": 25.0 - 40.0,
    }
    assert (account.verify_calls, account.direct_full_commits, account.direct_partial_commits) == (2, 1, 0)
    assert (account.replay_fallbacks, account.replayed_tokens) == (1, 1)
    assert dict(account.time_ms) == pytest.approx(expected)


def test_in_the_separate_loop_saved_is_ds4s_accepted_drafts_at_their_cycles_own_decode() -> None:
    ours = {"decoded": 1, "duration_s": 0.03}
    missed = {"kind": "correction", "outcome": "miss_first", "verify_rows": 0, "verify_s": 0.0}
    partial = {"kind": "correction", "outcome": "partial", "verify_rows": 3}
    rounds = (
        make_round(proposed=(1, 2, 3), accepted=2, tokens=(1, 2, 9), target_s=0.007, **partial, **ours),
        make_round(proposed=(1, 2), accepted=2, tokens=(1, 2, 3), target_s=0.005, **ours),
        make_round(proposed=(1,), accepted=0, tokens=(8,), target_s=0.004, **missed, **ours),
    )
    tokens = (4, *(token for item in rounds for token in item.tokens))
    account = account_for([Generation(tokens=tokens, finish_reason="eos", prefill=PREFILL, rounds=rounds)], [None])
    assert account.time_ms["saved"] == pytest.approx(2 * 7.0 + 2 * 5.0)
    assert account.time_ms["wall_saved"] is None  # no baseline to compare with
    assert (account.full, account.partial, account.miss_first, account.verify_calls) == (1, 1, 1, 2)
    assert (account.direct_full_commits, account.direct_partial_commits) == (1, 1)


@pytest.mark.parametrize(
    ("change", "identity"),
    [
        ({"proposed": (1, 2, 3), "accepted": 3, "tokens": (1, 2)}, "accepted <= emitted"),
        ({"proposed": (1,), "accepted": 2, "tokens": (1, 2, 3)}, "accepted <= proposed"),
        ({"tokens": (1, 2, 3)}, "emitted = accepted, and 1 for a next token"),
        ({"kind": "none"}, "emitted = accepted, and 1 for a next token"),
        ({"gamma": 0}, "proposed <= gamma"),
        ({"reason": "none"}, "a reason exactly where nothing was proposed"),
        ({"proposed": (), "accepted": 0, "tokens": (1,)}, "a reason exactly where nothing was proposed"),
    ],
)
def test_a_round_that_contradicts_itself_is_neither_counted_nor_recorded(change: dict, identity: str) -> None:
    bad = make_round(**change)
    with pytest.raises(IdentityError, match=identity):
        check_round(bad)
    with pytest.raises(IdentityError, match=identity):
        round_record("p", 0, bad)
    with pytest.raises(IdentityError, match=identity):
        account_for([Generation(tokens=(4, *bad.tokens), finish_reason="eos", prefill=PREFILL, rounds=(bad,))], [1.0])


def test_an_end_inside_the_block_leaves_nothing_pending() -> None:
    account = account_for([three_rounds("none"), three_rounds("bonus")], [5.0, 5.0])
    assert (account.cycles, account.accepted_draft, account.num_tokens, account.num_pending) == (6, 5, 12, 1)
    assert account.partial == 1


def test_without_a_baseline_nothing_is_said_to_be_saved() -> None:
    account = account_for([three_rounds("bonus")], [None])
    assert account.time_ms["saved"] is None
    assert account.time_ms["net_saved"] is None


def test_a_generation_of_one_token_has_no_rounds() -> None:
    only = Generation(tokens=(4,), finish_reason="max_tokens", prefill=PREFILL, rounds=())
    account = account_for([only], [0.0])
    assert (account.cycles, account.num_tokens, account.num_pending) == (0, 1, 1)
    assert account.accept_rate is None
    assert account.avg_accept is None
    assert only.tokens_per_s is None


def test_accounts_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Account(**ds4_account()).cycles = 1
