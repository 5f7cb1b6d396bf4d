"""Members of package archives (wheel, zip, tar, deb) by glob patterns, without unpacking them to disk."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from spec.errors import UserError


def members(archive: Path, include: list[str], exclude: list[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Files of an archive, in archive order.

    Args:
        archive: a `.whl`, `.zip`, `.tar.*`, `.tgz` or `.deb` file.
        include: glob patterns over the whole member name; `*` also matches `/`.
        exclude: patterns of members to leave out although they match `include`.

    Yields:
        Member name (without a leading `./`) and content.

    Raises:
        UserError: when the archive's suffix is not known.
    """

    def wanted(name: str) -> bool:
        return any(fnmatch(name, p) for p in include) and not any(fnmatch(name, p) for p in exclude or ())

    if archive.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if not name.endswith("/") and wanted(name):
                    yield name, opened.read(name)
    elif archive.suffix == ".deb":
        yield from _tar_members(io.BytesIO(debian_payload(archive.read_bytes())), wanted)
    elif ".tar" in archive.name or archive.suffix == ".tgz":
        with archive.open("rb") as file:
            yield from _tar_members(file, wanted)
    else:
        raise UserError(f"{archive}: wanted a wheel, zip, tar or deb file")


def _tar_members(file: io.BufferedIOBase, wanted) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=file) as opened:
        for member in opened:
            name = member.name.removeprefix("./")
            if member.isfile() and wanted(name):
                yield name, opened.extractfile(member).read()


def debian_payload(package: bytes) -> bytes:
    """The `data.tar.*` member of a Debian package.

    A `.deb` is a Unix `ar` file: the 8 bytes `!<arch>\\n`, then members with a 60-byte header whose bytes 48..58 hold
    the decimal size, each padded to an even length (deb(5), ar(5)).

    Raises:
        UserError: when the file is no `ar` archive or has no data member.
    """
    if package[:8] != b"!<arch>\n":
        raise UserError("not a Debian package: the ar signature is missing")
    position = 8
    while position + 60 <= len(package):
        name = package[position : position + 16].decode().strip().rstrip("/")
        size = int(package[position + 48 : position + 58])
        position += 60
        if name.startswith("data.tar"):
            return package[position : position + size]
        position += size + size % 2
    raise UserError("Debian package without a data.tar member")
