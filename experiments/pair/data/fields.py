"""What a synthetic record can hold: how each field is made, and which fields belong to which kind of record."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from experiments.pair.data.words import ADJECTIVES, FIRST_NAMES, LAST_NAMES, NOUNS, VERBS

Maker = Callable[["Row"], object]


class Row:
    """What the fields of one record share.

    Attributes:
        draw: the record set's random stream.
        index: number of the record, from 0.
        pools: short lists of values that the whole record set draws from.
        values: fields made so far, by name, for the fields that depend on others.
        moment: a time that never goes back from record to record.
    """

    def __init__(self, draw: random.Random, pools: dict[str, list]):
        self.draw, self.pools = draw, pools
        self.index = -1
        self.moment = datetime(2018, 1, 1) + timedelta(days=draw.randrange(2800), seconds=draw.randrange(86400))
        self.pace = draw.choice((60, 300, 900, 3600, 86400, 604800))
        self.first_id = draw.choice((1, 1, 1, 100, 1000, draw.randrange(2, 90000)))
        self.values: dict = {}

    def advance(self) -> None:
        """Goes on to the next record."""
        self.index += 1
        self.moment += timedelta(
            seconds=self.pace if self.pace < 1000 else self.draw.randrange(self.pace // 2, 2 * self.pace)
        )
        self.first, self.last = self.draw.choice(FIRST_NAMES), self.draw.choice(LAST_NAMES)
        self.city, self.country = self.draw.choice(self.pools["cities"])
        self.values = {}

    def pick(self, name: str, *options):
        """One of 2-5 options that this record set keeps to."""
        if name not in self.pools:
            self.pools[name] = self.draw.sample(options, min(len(options), self.draw.randrange(2, 6)))
        return self.draw.choice(self.pools[name])

    def number(self, low: float, high: float, digits: int = 0):
        """A number in [low, high], an int when digits is 0."""
        return (
            self.draw.randrange(int(low), int(high) + 1) if digits == 0 else round(self.draw.uniform(low, high), digits)
        )


def _slug(text: str) -> str:
    return text.lower().replace("ü", "ue").replace(" ", "-")


def _product(row: Row) -> str:
    return f"{row.draw.choice(ADJECTIVES)} {row.draw.choice(NOUNS)}".title()


FIELDS: dict[str, Maker] = {
    "id": lambda r: r.first_id + r.index,
    "name": lambda r: f"{r.first} {r.last}",
    "first_name": lambda r: r.first,
    "last_name": lambda r: r.last,
    "email": lambda r: f"{_slug(r.first)}.{_slug(r.last)}@example.{r.pick('tld', 'com', 'org', 'net')}",
    "username": lambda r: f"{_slug(r.first)[0]}{_slug(r.last)}",
    "age": lambda r: r.number(18, 79),
    "city": lambda r: r.city,
    "country": lambda r: r.country,
    "phone": lambda r: f"+{r.pick('dial', '1', '44', '49', '33', '81')}-555-{r.number(1000, 9999)}",
    "active": lambda r: r.draw.random() < 0.8,
    "verified": lambda r: r.draw.random() < 0.6,
    "role": lambda r: r.pick("role", "admin", "editor", "viewer", "owner", "guest", "developer", "manager", "analyst"),
    "department": lambda r: r.pick(
        "dept", "Engineering", "Sales", "Marketing", "Finance", "Support", "Legal", "Research"
    ),
    "salary": lambda r: r.number(32, 160) * 1000,
    "hire_date": lambda r: (r.moment - timedelta(days=r.number(100, 3000))).strftime("%Y-%m-%d"),
    "date": lambda r: r.moment.strftime("%Y-%m-%d"),
    "timestamp": lambda r: r.moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "created_at": lambda r: r.moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "updated_at": lambda r: (r.moment + timedelta(days=r.number(0, 30))).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "due_date": lambda r: (r.moment + timedelta(days=r.number(3, 45))).strftime("%Y-%m-%d"),
    "time": lambda r: r.moment.strftime("%H:%M"),
    "product": _product,
    "sku": lambda r: f"{r.pick('sku', 'AB', 'QX', 'TR', 'ZK', 'MN')}-{r.first_id + r.index:05d}",
    "category": lambda r: r.pick(
        "category", "Home", "Garden", "Tools", "Books", "Toys", "Office", "Sports", "Electronics"
    ),
    "price": lambda r: r.number(2, 400, 2),
    "quantity": lambda r: r.number(1, 20),
    "total": lambda r: round(r.values.get("price", 10.0) * r.values.get("quantity", 3), 2),
    "currency": lambda r: r.pick("currency", "USD", "EUR", "GBP", "JPY", "CHF"),
    "in_stock": lambda r: r.draw.random() < 0.75,
    "stock": lambda r: r.number(0, 500),
    "rating": lambda r: r.number(1, 5, 1),
    "reviews": lambda r: r.number(0, 2000),
    "discount": lambda r: r.pick("discount", 0, 5, 10, 15, 20, 25),
    "status": lambda r: r.pick(
        "status", "active", "pending", "closed", "open", "shipped", "failed", "done", "in_progress"
    ),
    "priority": lambda r: r.pick("priority", "low", "medium", "high", "critical"),
    "customer": lambda r: f"{r.first} {r.last}",
    "owner": lambda r: f"{r.first} {r.last}",
    "assignee": lambda r: _slug(r.first),
    "order_id": lambda r: f"ORD-{r.first_id + r.index:06d}",
    "invoice": lambda r: f"INV-{r.moment.year}-{r.first_id + r.index:04d}",
    "amount": lambda r: r.number(5, 5000, 2),
    "paid": lambda r: r.draw.random() < 0.7,
    "method": lambda r: r.pick("pay", "card", "cash", "transfer", "invoice"),
    "title": lambda r: f"{r.draw.choice(VERBS).title()} the {r.draw.choice(ADJECTIVES)} {r.draw.choice(NOUNS)}",
    "description": lambda r: f"{_product(r)} for the {r.draw.choice(ADJECTIVES)} {r.draw.choice(NOUNS)}",
    "tags": lambda r: r.draw.sample(r.pools["tags"], r.number(1, 3)),
    "sensor": lambda r: f"{r.pick('sensor', 'temp', 'hum', 'co2', 'lux', 'flow')}-{r.number(1, 6):02d}",
    "temperature": lambda r: r.number(-5, 35, 1),
    "humidity": lambda r: r.number(20, 95, 1),
    "pressure": lambda r: r.number(980, 1035, 1),
    "wind_speed": lambda r: r.number(0, 25, 1),
    "unit": lambda r: r.pick("unit", "C", "%", "ppm", "kWh", "bar"),
    "value": lambda r: r.number(0, 100, 2),
    "ok": lambda r: r.draw.random() < 0.9,
    "host": lambda r: f"{r.pick('host', 'web', 'db', 'cache', 'worker', 'api')}-{r.number(1, 12):02d}",
    "ip": lambda r: f"10.{r.number(0, 3)}.{r.number(0, 20)}.{r.number(1, 254)}",
    "port": lambda r: r.pick("port", 22, 80, 443, 5432, 6379, 8080),
    "cpu": lambda r: r.number(1, 99, 1),
    "memory_mb": lambda r: r.number(1, 64) * 256,
    "uptime_s": lambda r: r.number(1000, 900000),
    "level": lambda r: r.pick("level", "DEBUG", "INFO", "WARN", "ERROR"),
    "service": lambda r: r.pick("service", "auth", "billing", "search", "gateway", "mailer", "scheduler"),
    "message": lambda r: (
        f"{r.draw.choice(VERBS)} {r.draw.choice(NOUNS)} {r.pick('end', 'completed', 'failed', 'timed out')}"
    ),
    "http_method": lambda r: r.pick("verb", "GET", "POST", "PUT", "DELETE"),
    "path": lambda r: (
        f"/{r.pick('api', 'api', 'v1', 'v2', 'static')}/{r.pick('res', 'users', 'orders', 'items', 'files')}"
    ),
    "status_code": lambda r: r.pick("code", 200, 201, 204, 301, 400, 404, 500),
    "duration_ms": lambda r: r.number(1, 900),
    "bytes": lambda r: r.number(100, 90000),
    "author": lambda r: f"{r.first} {r.last}",
    "book": lambda r: f"The {r.draw.choice(ADJECTIVES)} {r.draw.choice(NOUNS)}".title(),
    "year": lambda r: r.number(1950, 2024),
    "pages": lambda r: r.number(80, 900),
    "language": lambda r: r.pick("language", "English", "French", "German", "Spanish", "Italian"),
    "genre": lambda r: r.pick("genre", "fiction", "history", "science", "poetry", "travel", "biography"),
    "isbn": lambda r: f"978-{r.number(0, 9)}-{r.number(1000, 9999)}-{r.number(1000, 9999)}-{r.number(0, 9)}",
    "flight": lambda r: f"{r.pick('carrier', 'LH', 'BA', 'AF', 'KL', 'SK')}{r.number(100, 999)}",
    "origin": lambda r: r.draw.choice(r.pools["cities"])[0],
    "destination": lambda r: r.city,
    "gate": lambda r: f"{r.pick('gate', 'A', 'B', 'C', 'D')}{r.number(1, 40)}",
    "delay_min": lambda r: r.pick("delay", 0, 5, 10, 15, 30, 45),
    "seats": lambda r: r.number(50, 300),
    "distance_km": lambda r: r.number(2, 9000),
    "lat": lambda r: r.number(-60, 60, 4),
    "lon": lambda r: r.number(-170, 170, 4),
    "population": lambda r: r.number(10, 9000) * 1000,
    "score": lambda r: r.number(0, 100),
    "grade": lambda r: r.pick("grade", "A", "B", "C", "D", "F"),
    "subject": lambda r: r.pick("subject", "Math", "Physics", "History", "Biology", "Art", "Chemistry"),
    "team": lambda r: (
        f"{r.pick('team', 'Red', 'Blue', 'Green', 'North', 'South')} {r.pick('mascot', 'Foxes', 'Owls', 'Bears')}"
    ),
    "wins": lambda r: r.number(0, 30),
    "losses": lambda r: r.number(0, 30),
    "points": lambda r: 3 * r.values.get("wins", 7) + r.number(0, 5),
    "model": lambda r: f"{r.pick('model', 'mini', 'base', 'large', 'xl')}-v{r.number(1, 4)}",
    "epoch": lambda r: r.index + 1,
    "loss": lambda r: round(3.5 / (1 + 0.15 * r.index) + r.number(0, 0.2, 4), 4),
    "accuracy": lambda r: round(1 - 0.7 / (1 + 0.2 * r.index) - r.number(0, 0.02, 4), 4),
    "learning_rate": lambda r: r.pick("rate", 0.1, 0.01, 0.001, 0.0003, 0.0001),
    "version": lambda r: f"{r.number(0, 4)}.{r.index % 10}.{r.number(0, 9)}",
    "changes": lambda r: r.number(1, 60),
    "calories": lambda r: r.number(20, 900),
    "protein_g": lambda r: r.number(0, 60, 1),
    "color": lambda r: r.pick("color", "red", "green", "blue", "black", "white", "yellow"),
    "weight_kg": lambda r: r.number(0, 40, 2),
    "size": lambda r: r.pick("size", "XS", "S", "M", "L", "XL"),
    "address": lambda r: {"street": f"{r.number(1, 200)} {r.draw.choice(NOUNS).title()} Street", "city": r.city},
    "location": lambda r: {"lat": r.number(-60, 60, 4), "lon": r.number(-170, 170, 4)},
    "dimensions": lambda r: {"width": r.number(1, 90), "height": r.number(1, 90), "depth": r.number(1, 90)},
    "parent_id": lambda r: None if r.draw.random() < 0.4 else r.first_id + max(0, r.index - r.number(1, 4)),
}
"""How each field is made. A maker may read `row.values` of fields that precede it in `DOMAINS`."""

DOMAINS: dict[str, str] = {
    "users": (
        "id name first_name last_name username email age city country phone "
        "role active verified created_at tags address"
    ),
    "employees": "id name email department role salary hire_date city country owner active",
    "customers": "id customer email phone city country active created_at address total",
    "products": (
        "id sku product category price currency stock in_stock rating reviews "
        "discount color size weight_kg tags dimensions"
    ),
    "orders": "order_id date customer product price quantity total currency status method paid city",
    "invoices": "invoice date due_date customer amount currency paid method status",
    "transactions": "id timestamp customer amount currency method status category",
    "tasks": "id title assignee priority status due_date created_at tags parent_id description",
    "tickets": "id title customer priority status assignee created_at updated_at service",
    "readings": "timestamp sensor temperature humidity pressure unit value ok location",
    "weather": "date time city country temperature humidity pressure wind_speed",
    "servers": "id host ip port cpu memory_mb uptime_s status service tags",
    "logs": "timestamp level service host message duration_ms",
    "requests": "timestamp http_method path status_code duration_ms bytes ip",
    "books": "id book author year pages language genre isbn price rating in_stock",
    "flights": "flight date time origin destination gate status delay_min seats distance_km",
    "places": "id city country lat lon population active",
    "students": "id name age subject grade score email active",
    "standings": "team wins losses points score",
    "runs": "epoch loss accuracy learning_rate model duration_ms",
    "releases": "version date author changes status description",
    "foods": "id product category calories protein_g weight_kg price",
    "inventory": "sku product color size quantity price total in_stock location",
    "events": "id title date time city country owner seats price status",
}
"""Record kinds and the fields they may have, in their usual order."""
