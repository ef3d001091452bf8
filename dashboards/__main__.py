"""Writes dashboards and alert rules: `python -m dashboards` (`make docs` does)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import alerts
from dashboards.boards import fairness, pipeline, punishment, traffic

HERE: Final = Path(__file__).parent
RULES: Final = HERE / "provisioning" / "alerting" / "penaltybox.yaml"
BOARDS: Final = (
    traffic.overview,
    fairness.false_positives,
    fairness.nat,
    punishment.penalties,
    punishment.farms,
    traffic.limiter,
    pipeline.pipeline,
)
HEAD: Final = "# Made by `python -m dashboards` from dashboards/alerts.py; not edited here.\n"


def made() -> dict[Path, str]:
    """Every file that is made, and what is in it."""
    files = {}
    for one in BOARDS:
        document: dict[str, Any] = json.loads(json.dumps(one().build(), cls=JSONEncoder))
        files[HERE / "json" / f"{document['uid'].removeprefix('pbx-')}.json"] = json.dumps(document, indent=1) + "\n"
    files[RULES] = HEAD + yaml.safe_dump(alerts.provisioning(), sort_keys=False, width=120, allow_unicode=True)
    return files


def main() -> None:
    """Write them."""
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
