"""How the programs write and draw their figures."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any


def write_json(path: str | Path, values: Any) -> None:
    """Writes values as indented JSON; makes the folder if needed."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def load_pyplot() -> ModuleType | None:
    """matplotlib's pyplot, drawing to files only; None, and a hint on standard output, where it is not installed."""
    try:
        import matplotlib  # an optional extra
    except ImportError:
        print("nothing drawn: pip install 'mlx-spec[plot]' brings matplotlib")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # after the backend is chosen

    return pyplot
