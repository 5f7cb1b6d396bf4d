"""How every training program starts."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from experiments.pair.training.parallel import Group, process_group, rank_of


def start(config: DictConfig) -> Group | None:
    """Joins the processes that train together; rank 0 records the resolved configuration in ``<folder>/config.yaml``.

    Returns:
        The group; None for a process alone.

    Raises:
        UserError: as `process_group`.
    """
    group = process_group()
    if rank_of(group) == 0:
        folder = Path(config.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    return group
