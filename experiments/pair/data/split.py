"""Division of documents between train, valid and prompts, by document and by a hash of its name."""

from collections.abc import Iterable

from experiments.pair.data.documents import Document, stable_hash
from spec.errors import UserError


def split_documents(
    documents: Iterable[Document],
    *,
    valid_share: float,
    prompts_share: float,
    min_bytes: int,
    min_documents: int,
    seed: int,
) -> dict[str, list[Document]]:
    """Divides the documents of one class.

    Documents are ordered by a hash of seed and id; prompts are taken from the front, then valid, then train. So a
    document's place does not depend on the order in which sources were read, and adding a source moves few documents.

    Args:
        documents: all of one class.
        valid_share, prompts_share: wanted share of the bytes, in [0, 1).
        min_bytes: least size of valid, and half of it of prompts, in bytes.
        min_documents: least number of documents in each of the two, for variety.
        seed: of the order.

    Returns:
        Documents by split name; every document is in exactly one split.

    Raises:
        UserError: when train would get less than half of the bytes.
    """
    ordered = sorted(documents, key=lambda document: stable_hash(f"{seed}/{document.id}"))
    total = sum(document.num_bytes for document in ordered)
    wanted = {
        "prompts": max(prompts_share * total, min_bytes / 2),
        "valid": max(valid_share * total, min_bytes),
    }
    if sum(wanted.values()) > total / 2 or 2 * min_documents > len(ordered) / 2:
        raise UserError(
            f"{total} bytes in {len(ordered)} documents are too few for {sum(wanted.values()):.0f} bytes of valid and "
            f"prompts with {min_documents} documents each; add sources"
        )
    splits: dict[str, list[Document]] = {"prompts": [], "valid": [], "train": []}
    start = 0
    for name, least in wanted.items():
        taken = 0
        while taken < least or len(splits[name]) < min_documents:
            splits[name].append(ordered[start + len(splits[name])])
            taken += splits[name][-1].num_bytes
        start += len(splits[name])
    splits["train"] = ordered[start:]
    return splits
