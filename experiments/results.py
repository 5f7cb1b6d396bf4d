"""How the programs write their figures."""

import json
from pathlib import Path
from typing import Any


def write_json(path: str | Path, values: Any) -> None:
    """Writes values as indented JSON; makes the folder if needed."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
