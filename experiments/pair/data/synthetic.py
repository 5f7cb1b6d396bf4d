"""Seeded record sets such as users ask for: people, orders, sensors, logs, with the regularities such data has.

Ids count up, dates do not go back, an e-mail address repeats the name, a total is price times quantity, and every set
draws from a few categories only. Those regularities are what makes record arrays easy to draft.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.pair.data.fields import DOMAINS, FIELDS, Row
from experiments.pair.data.records import RecordSet
from experiments.pair.data.words import CITIES, NOUNS


@dataclass(frozen=True, kw_only=True)
class SyntheticRecords:
    """Maker of record sets.

    Attributes:
        seed: of the whole sequence; set number n is the same whatever is made before it.
    """

    seed: int

    def record_set(self, number: int, flat: bool) -> RecordSet:
        """Record set `number`.

        Args:
            number: from 0.
            flat: leave out fields that hold lists or objects, as tables need.
        """
        draw = random.Random(f"{self.seed}/{number}/{flat}")
        domain = draw.choice(sorted(DOMAINS))
        names = DOMAINS[domain].split()
        if flat:
            names = [name for name in names if name not in ("tags", "address", "location", "dimensions")]
        kept = set(draw.sample(names, min(len(names), draw.randrange(3, 9)))) | (
            {names[0]} if draw.random() < 0.8 else set()
        )
        names = [name for name in names if name in kept]
        if draw.random() < 0.1:
            draw.shuffle(names)
        tags = draw.sample(NOUNS, draw.randrange(4, 9))
        row = Row(draw, {"cities": draw.sample(CITIES, draw.randrange(2, 9)), "tags": tags})
        rows = []
        for _ in range(draw.randrange(12, 56)):
            row.advance()
            for name in names:
                row.values[name] = FIELDS[name](row)
            rows.append(dict(row.values))
        return RecordSet(title=domain, rows=rows, origin=f"synthetic/{number}")

    def record_sets(self, flat: bool) -> Iterator[RecordSet]:
        """Endless sequence of record sets."""
        number = 0
        while True:
            yield self.record_set(number, flat)
            number += 1
