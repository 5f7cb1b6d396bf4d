"""Cost tables: interpolation, files, what is refused; and the figures of the named ones against their sources."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec import CostTable, UserError
from spec.costs import on_curve
from spec.programs.parts import build
from tests.test_configs import composed

TABLE = {"name": "x", "passes": {1: 10.0, 2: 16.0, 4: 20.0}, "propose": {0: 2.0, 4: 6.0}}


def table(**changes) -> CostTable:
    return CostTable(**(TABLE | changes))


def named(choice: str) -> CostTable:
    return build("costs", composed(f"costs={choice}").costs)


def test_costs_are_read_off_the_curve() -> None:
    costs = table(snapshot=0.5, commit=0.25)
    assert [costs.pass_ms(rows) for rows in (1, 2, 3, 4, 5, 8)] == [10, 16, 18, 20, 22, 28]
    assert [costs.propose_ms(count) for count in (0, 1, 4, 6)] == [2, 3, 6, 8]
    assert (costs.step_ms("snapshot"), costs.step_ms("commit")) == (0.5, 0.25)
    assert table(passes={1: 10, 2: 30, 6: 30}).pass_ms(9) == 30  # flat stays flat
    assert table(passes={1: 10, 2: 30, 3: 25}).pass_ms(9) == 25  # and noise that falls does not fall on
    assert table(propose={0: 5}).propose_ms(7) == 5


def test_replay_and_single_rows() -> None:
    costs = table()
    assert (costs.step_ms("replay_token", 3), costs.step_ms("replay_batch", 3), costs.step_ms("replay_batch", 0)) == (
        30,
        18,
        0,
    )
    assert table(replay_token=11).step_ms("replay_token", 3) == 33
    assert (costs.verify_ms(1), costs.verify_ms(2)) == (10, 16)
    assert (table(one_row_verify=15).verify_ms(1), table(one_row_verify=15).pass_ms(1)) == (15, 10)


@given(st.dictionaries(st.integers(1, 12), st.floats(0, 100), min_size=1), st.integers(1, 12))
def test_a_curve_goes_through_its_points_and_stays_between_them(points: dict[int, float], at: int) -> None:
    points = dict(sorted(points.items()))
    assert all(on_curve(points, known) == pytest.approx(value) for known, value in points.items())
    if at <= max(points):
        assert min(points.values()) - 1e-9 <= on_curve(points, at) <= max(points.values()) + 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": {2: 5.0}}, "cost of 1 row"),
        ({"passes": {}}, "costs.passes must hold"),
        ({"passes": {0: 1.0, 1: 2.0}}, "for 1 or more"),
        ({"passes": {1: -1.0}}, "0 ms or more"),
        ({"passes": 5}, "milliseconds by a whole number"),
        ({"propose": {"one": 1.0}}, "milliseconds by a whole number"),
        ({"propose": {-1: 1.0}}, "for 0 or more"),
        ({"snapshot": -1.0}, "costs.snapshot must be a number of 0 or more"),
        ({"replay_token": float("nan")}, "costs.replay_token"),
    ],
)
def test_impossible_costs_are_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        table(**change)


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    costs = table(replay_token=11.5)
    costs.save(tmp_path / "new" / "costs.yaml")
    assert CostTable.load(str(tmp_path / "new" / "costs.yaml")) == costs
    with pytest.raises(UserError, match=r"python -m spec\.measure_costs"):
        CostTable.load(str(tmp_path / "none.yaml"))
    (tmp_path / "broken.yaml").write_text("name: x\nspeed: 3\n")
    with pytest.raises(UserError, match=r"costs\.passes is missing"):
        CostTable.load(str(tmp_path / "broken.yaml"))


def test_the_m3_ultras_figures_are_quotients_of_the_reports_line() -> None:
    costs = named("m3_ultra")
    assert costs.pass_ms(1) == pytest.approx(3683.981 / 134, abs=5e-4)
    assert costs.verify_ms(1) == costs.verify_ms(5) == costs.pass_ms(6) == pytest.approx(3276.689 / 49, abs=5e-4)
    assert 72 * costs.propose_ms(0) + 203 * (costs.propose_ms(1) - costs.propose_ms(0)) == pytest.approx(
        588.934, abs=0.1
    )
    assert costs.snapshot == pytest.approx(25.165 / 49, abs=5e-4)
    assert costs.step_ms("replay_token", 121) == pytest.approx(3336.601, abs=0.1)
    assert costs.commit == pytest.approx((6668.069 - 25.165 - 3276.689 - 3336.601) / 49, abs=5e-4)


def test_the_other_machines() -> None:
    m4 = named("m4_max")
    assert m4.pass_ms(1) == pytest.approx(1000 / 31.31, abs=5e-3)
    # within what that report allows
    assert m4.propose_ms(5) <= 1000 / 21.21 - 1000 / 31.31
    assert m4.propose_ms(5) + m4.verify_ms(5) <= 6000 / 38.10 - 1000 / 28.40
    m5 = named("m5_max")
    assert [m5.pass_ms(rows) for rows in range(1, 6)] == [28, 43.6, 59.7, 65.8, 74.5]
    # the break-even worked out for it: accepted drafts that pay for one and for four
    assert (m5.propose_ms(1) + m5.pass_ms(2)) / m5.pass_ms(1) - 1 == pytest.approx(0.74, abs=5e-3)
    assert (m5.propose_ms(4) + m5.pass_ms(5)) / m5.pass_ms(1) - 1 == pytest.approx(1.84, abs=5e-3)


def test_without_a_choice_there_is_none() -> None:
    assert composed().costs is None
