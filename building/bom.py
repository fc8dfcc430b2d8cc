"""Software bills of materials: CycloneDX 1.5 in JSON (https://cyclonedx.org/docs/1.5/json/)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from building.parts import Part

_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) \(?[A-Za-z0-9.+-]+\)?)+")
# Identifiers of SPDX that our dependencies use. The format refuses an `id` that SPDX does not have; other words
# are a `name`.
_IDS = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"}
_NAMESPACE = uuid.UUID("8a4e5c2e-6d62-5f43-9c1d-3b2f0a6d7e91")


def bill_of_materials(product: str, version: str, parts: Sequence[Part], made_at: float) -> str:
    """The text for `product` (a release file's name without suffixes), which consists of `parts`.

    `made_at` is in seconds since the epoch; the same parts at the same time are the same text.
    """
    by_name = {_key(part.name): part for part in parts}
    own = by_name[_key("llmgw")]
    others = [part for part in sorted(parts, key=lambda part: part.purl) if part is not own]
    seed = "\n".join([product, *(part.purl for part in others), str(made_at)])
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, seed)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(made_at, UTC).isoformat().replace("+00:00", "Z"),
            "component": {"type": "application", "bom-ref": own.purl, "name": product, "version": version}
            | {"purl": own.purl},
        },
        "components": [_component(part) for part in others],
        "dependencies": [
            {
                "ref": part.purl,
                "dependsOn": sorted({by_name[_key(name)].purl for name in part.needs if _key(name) in by_name}),
            }
            for part in [own, *others]
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(part: Part) -> dict[str, Any]:
    if _EXPRESSION.fullmatch(part.licence):
        licences: list[dict[str, Any]] = [{"expression": part.licence}]
    else:
        licences = [{"license": {"id" if part.licence in _IDS else "name": part.licence}}]
    return {
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "licenses": licences,
    }
