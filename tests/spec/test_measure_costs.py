"""The cost table of this machine: what is measured, and that a run can use it."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

import configs
from models import load, load_dspark
from spec import CostTable, DSparkDrafter, NgramDrafter
from spec.measure_costs import main, measure


def test_passes_and_proposals_of_every_width_are_measured(checkpoint: Path) -> None:
    model, _ = load(checkpoint)
    drafter = DSparkDrafter(load_dspark(checkpoint, target=model))
    costs = measure(model, drafter, [3, 4, 5, 6, 7], name="here", rows=4, gamma=3, repeats=2)
    assert (costs.name, list(costs.passes)) == ("here", [1, 2, 3, 4])
    assert set(costs.propose) >= {1, 2, 3}
    assert all(value > 0 for value in (*costs.passes.values(), *costs.propose.values(), costs.snapshot, costs.commit))
    assert costs.step_ms("replay_token", 2) == 2 * costs.pass_ms(1)  # replay and single rows are plain decodes here
    assert costs.verify_ms(1) == costs.pass_ms(1)


def test_a_drafter_without_confidences_has_no_price_for_nothing(checkpoint: Path) -> None:
    model, _ = load(checkpoint)
    costs = measure(model, NgramDrafter(n_max=2, n_min=1), [3, 4, 3, 4, 3, 4], name="here", rows=2, gamma=2, repeats=1)
    assert list(costs.propose) == [1, 2]


def test_the_program_writes_what_the_choice_reads(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "costs.yaml"
    with initialize_config_dir(str(Path(configs.__file__).parent), version_base=None):
        config = compose(
            "measure_costs", overrides=[f"target.path={checkpoint}", f"output={path}", "repeats=1", "rows=3", "gamma=2"]
        )
    main.__wrapped__(config)
    assert list(CostTable.load(str(path)).passes) == [1, 2, 3]
    assert "propose" in capsys.readouterr().out
