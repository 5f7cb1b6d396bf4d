"""Record sets from reference data with structures of their own: CLDR, browser support, countries."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from experiments.pair.data.archives import members
from experiments.pair.data.records import RecordSet, mostly_latin


def _load(archive: Path, pattern: str) -> Iterator[tuple[str, dict]]:
    for name, content in members(archive, [pattern]):
        yield name, json.loads(content)


@dataclass(frozen=True, kw_only=True)
class CldrRecords:
    """Names of months, days, zones, territories, languages, currencies and units in the CLDR JSON packages.

    Attributes:
        locales: locale folders to read.
    """

    locales: list[str]

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """Record sets of every topic that the package holds for the locales."""
        for name, content in members(archive, [f"package/main/{locale}/*.json" for locale in self.locales]):
            locale, topic = name.split("/")[2:4]
            tree = json.loads(content)["main"][locale]
            for title, rows in _cldr_topics(tree, topic.removesuffix(".json")):
                rows = [{**row, "locale": locale} for row in rows if mostly_latin("".join(map(str, row.values())))]
                if len(rows) >= 6:
                    yield RecordSet(title=title, rows=rows, origin=name + ":" + title)


def _cldr_topics(tree: dict, topic: str) -> Iterator[tuple[str, list[dict]]]:
    if topic.startswith("ca-"):
        for calendar in tree["dates"]["calendars"].values():
            for part, title in (("months", "months"), ("days", "weekdays"), ("quarters", "quarters")):
                widths = calendar[part]["format"]
                rows = [
                    {"key": key, **{width: names.get(key, "") for width, names in widths.items()}}
                    for key in widths["wide"]
                ]
                yield title, rows
            skeletons = calendar["dateTimeFormats"].get("availableFormats", {})
            yield "date formats", [{"skeleton": k, "pattern": v} for k, v in skeletons.items() if isinstance(v, str)]
    elif topic == "timeZoneNames":
        rows = []
        for area, zones in tree["dates"]["timeZoneNames"]["zone"].items():
            for zone, names in zones.items():
                if "exemplarCity" in names:
                    rows.append({"zone": f"{area}/{zone}", "city": names["exemplarCity"], "area": area})
        yield "time zones", rows
    elif topic == "currencies":
        yield (
            "currencies",
            [
                {
                    "code": code,
                    "name": names["displayName"],
                    "plural": names.get("displayName-count-other", ""),
                    "symbol": names.get("symbol", ""),
                    "narrow_symbol": names.get("symbol-alt-narrow", ""),
                }
                for code, names in tree["numbers"]["currencies"].items()
                if "displayName" in names
            ],
        )
    elif topic == "units":
        long, short = tree["units"]["long"], tree["units"]["short"]
        yield (
            "units",
            [
                {
                    "unit": key,
                    "name": names["displayName"],
                    "pattern": names.get("unitPattern-count-other", ""),
                    "short": short.get(key, {}).get("unitPattern-count-other", ""),
                }
                for key, names in long.items()
                if isinstance(names, dict) and "displayName" in names
            ],
        )
    elif topic in ("territories", "languages", "scripts"):
        names = tree["localeDisplayNames"][topic]
        yield topic, [{"code": code, "name": name} for code, name in names.items() if "-alt-" not in code]


@dataclass(frozen=True, kw_only=True)
class BrowserCompatibility:
    """MDN's browser-compat-data: for every interface or property group, its members and who supports them."""

    browsers: list[str] = field(
        default_factory=lambda: ["chrome", "edge", "firefox", "safari", "opera", "nodejs", "deno"]
    )

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """One record set for each group with six or more members."""
        for name, tree in _load(archive, "package/data.json"):
            for area in ("api", "css", "html", "http", "javascript", "svg", "webextensions"):
                yield from self._walk(tree[area], f"{name}:{area}", area)

    def _walk(self, tree: dict, origin: str, group: str) -> Iterator[RecordSet]:
        rows = [self._row(key, child["__compat"]) for key, child in tree.items() if "__compat" in child]
        if len(rows) >= 6:
            yield RecordSet(title=f"{group} features", rows=rows, origin=origin)
        for key, child in tree.items():
            if key != "__compat":
                yield from self._walk(child, f"{origin}.{key}", key)

    def _row(self, feature: str, compat: dict) -> dict:
        row = {"feature": feature}
        for browser in self.browsers:
            support = compat["support"].get(browser)
            support = support[0] if isinstance(support, list) else support
            row[browser] = None if support is None else support.get("version_added")
        status = compat.get("status", {})
        return {**row, "experimental": status.get("experimental"), "deprecated": status.get("deprecated")}


@dataclass(frozen=True, kw_only=True)
class WebFeatures:
    """caniuse: features with their usage, and the support of each by browser version."""

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """All features, then one record set of browser versions for each browser."""
        for name, data in _load(archive, "package/fulldata-json/data-2.0.json"):
            features = [
                {
                    "id": key,
                    "title": feature["title"],
                    "status": feature["status"],
                    "category": ", ".join(feature["categories"]),
                    "usage": feature["usage_perc_y"],
                    "partial": feature["usage_perc_a"],
                    "description": feature["description"] if len(feature["description"]) < 160 else None,
                }
                for key, feature in data["data"].items()
            ]
            yield RecordSet(title="web platform features", rows=features, origin=name)
            for browser, agent in data["agents"].items():
                rows = [
                    {"feature": f["title"], **self._support(f["stats"].get(browser, {}))} for f in data["data"].values()
                ]
                yield RecordSet(title=f"{agent['browser']} features", rows=rows, origin=f"{name}:{browser}")

    @staticmethod
    def _support(stats: dict) -> dict:
        """Flags of the last versions: `y`es, `n`o, `a`lmost, with notes as `#1`."""
        return {f"v{version}": flag for version, flag in list(stats.items())[-8:]}


@dataclass(frozen=True, kw_only=True)
class CountryFacts:
    """The World Factbook: a row for each country, the fields cut to their first clause.

    Attributes:
        fields: `section/field` or `section/field/part` paths, by column name. Each record set has the name and some
        fields. columns: how many fields a record set has.
    """

    fields: dict[str, str]
    columns: int = 5

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """Record sets of all countries for each run of `columns` fields."""
        countries = []
        for _, profile in members(archive, ["package/*/??.json"]):
            profile = json.loads(profile)
            country = self._text(profile, "Government/Country name/conventional short form")
            if country and country != "none":
                countries.append((country, profile))
        names = list(self.fields)
        for start in range(0, len(names), self.columns):
            group = names[start : start + self.columns]
            rows = [
                {"country": c, **{n: self._text(p, self.fields[n]) for n in group}}
                for c, p in sorted(countries, key=str)
            ]
            yield RecordSet(
                title="countries", rows=[r for r in rows if any(r[n] for n in group)], origin=f"factbook:{start}"
            )

    @staticmethod
    def _text(profile: dict, path: str) -> str:
        value = profile
        for part in path.split("/"):
            value = value.get(part, {}) if isinstance(value, dict) else {}
        value = value.get("text", "") if isinstance(value, dict) else ""
        return re.split(r"\s\(|;|\s\+\+", value)[0][:80].strip()


@dataclass(frozen=True, kw_only=True)
class TerritoryFigures:
    """CLDR's population, literacy and product of every territory."""

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """One record set."""
        for name, tree in _load(archive, "package/supplemental/territoryInfo.json"):
            rows = [
                {
                    "territory": code,
                    "population": int(info["_population"]),
                    "gdp": int(info["_gdp"]),
                    "literacy_percent": float(info["_literacyPercent"]),
                    "main_language": max(
                        info.get("languagePopulation", {"": {}}).items(),
                        key=lambda item: float(item[1].get("_populationPercent", 0)),
                    )[0],
                }
                for code, info in tree["supplemental"]["territoryInfo"].items()
            ]
            yield RecordSet(title="territories", rows=rows, origin=name)
