"""Why a replica goes where it goes, or nowhere, in words; of several nodes: how they sit, what spoke for them.

Nothing is decided here: the ranking's own choices are compared by the ranking's own key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw.config.catalog import Profile
from llmgw.fleet.fabric_facts import FabricFacts
from llmgw.fleet.leaves import ONE_LEAF, spread_of
from llmgw.fleet.model import Fleet, Node
from llmgw.fleet.ranking import Choice

NAMES_MAX = 4
"""So many leaves or nodes are named; of a large replica the rest is counted."""
OTHERS_MAX = 3
"""So many choices that were not taken are told."""
OF_SEVERAL = {"has": "have", "is": "are", "does": "do", "offers": "offer"}
"""The verbs that filters' sentences begin with, of one node → of several."""


def why_these(choices: Sequence[Choice], facts: FabricFacts) -> list[str]:
    """How the nodes of the first choice sit, and what spoke for them rather than for those of the others."""
    if not choices:
        return []
    best = choices[0]
    where = how_they_sit(best.node_ids, best.fabric, facts) or "nobody knows at which leaves"
    told = [f"{_and(best.node_ids)} on {_fabric(best)}: {where}"]
    told += [
        f"rather than {_and(other.node_ids)} on {_fabric(other)}: {_what_decided(best, other)}"
        for other in choices[1 : OTHERS_MAX + 1]
    ]
    return told


def how_they_sit(node_ids: Sequence[str], fabric: str, facts: FabricFacts) -> str | None:
    """`one leaf (leaf02), rails aligned`: how nodes sit to each other; None when nothing is known of any."""
    places = {node_id: facts.place(node_id, fabric) for node_id in node_ids}
    known = [place.leaves for place in places.values() if place.leaves]
    if not known:
        return None
    unknown = [node_id for node_id, place in places.items() if not place.leaves]
    names = [facts.leaf_names.get(leaf) or leaf for leaf in dict.fromkeys(x for each in known for x in each if x)]
    rails = max(len(set(leaves)) for leaves in known)
    spread = spread_of(known, facts)
    if spread == ONE_LEAF:
        said = "one leaf on each rail" if rails > 1 else "one leaf"
    else:
        most = f"{spread.leaves:.3g}"
        said = f"{most} leaves on a rail" if rails > 1 else f"{most} leaves"
    said += f" ({_list(names)})"
    if spread != ONE_LEAF:
        said += f", {_tiers(spread.tiers, facts)}"
    off = [node_id for node_id, place in places.items() if place.aligned is False]
    if off:
        said += f", {_and(off)} not on {'its rails' if len(off) == 1 else 'their rails'}"
    elif all(place.aligned for place in places.values()):
        said += ", rails aligned"
    if unknown:
        said += f"; at which leaf {_and(unknown)} {'is' if len(unknown) == 1 else 'are'} nobody knows"
    return said


def comes_last(node: Node, failures: int, fabrics: Sequence[str], facts: FabricFacts) -> str | None:
    """Why a node that could host a part of a replica of several nodes is taken last, or None."""
    why = [f"it is suspect: {node.suspect}"] if node.suspect is not None else []
    if failures:
        why.append(
            "the profile failed there once" if failures == 1 else f"the profile failed there {failures} times"
        )
    why += [
        doubt if len(fabrics) == 1 else f"{name}: {doubt}"
        for name in fabrics
        for doubt in facts.place(node.node_id, name).doubts
    ]
    return f"comes last: {'; '.join(dict.fromkeys(why))}" if why else None


def why_not(fleet: Fleet, profile: Profile, feasible: Sequence[str], refused: Mapping[str, Sequence[str]]) -> str:
    """Why there are no seats, in one sentence. `refused`: filter's sentence → nodes it refused."""
    if not fleet.nodes:
        return "no node has ever registered"
    gpus = "1 free GPU" if profile.gpus_per_node == 1 else f"{profile.gpus_per_node} free GPUs"
    need = f"{profile.nodes} node{'s' if profile.nodes > 1 else ''} with {gpus}"
    if profile.nodes > 1:
        need += " on one fabric"
    tally = "; ".join(nodes_that(len(nodes), reason) for reason, nodes in refused.items())
    if not feasible:
        return f"needs {need}; {tally}"
    per_fabric: dict[str, int] = {}
    for node_id in feasible:
        for name in fleet.nodes[node_id].usable_fabrics:
            network = fleet.fabric_facts.network(node_id, name) if profile.nodes > 1 else (name, None)
            if network is not None:
                label = name if network[1] is None else f"{name} (the physical fabric {network[1]})"
                per_fabric[label] = per_fabric.get(label, 0) + 1
    have = ", ".join(f"{count} on {label}" for label, count in sorted(per_fabric.items()))
    return f"needs {need}; there is only {have}" + (f"; {tally}" if tally else "")


def nodes_that(count: int, reason: str) -> str:
    """`2 nodes are draining`. `reason`: a filter's sentence, which begins with the verb of one node."""
    if count == 1:
        return f"1 node {reason}"
    verb, rest = reason.split(" ", 1)
    return f"{count} nodes {OF_SEVERAL.get(verb, verb)} {rest}"


def _what_decided(best: Choice, other: Choice) -> str:
    """The first thing by which the better choice is better."""
    if best.suspects != other.suspects:
        return f"{_nodes(other.suspects)} suspect there, {best.suspects or 'none'} here"
    if best.failures != other.failures:
        return f"the profile failed {other.failures} times there of late, {best.failures} times here"
    if best.doubted != other.doubted:
        return f"{_nodes(other.doubted)} doubtful there, {best.doubted or 'none'} here"
    if best.spread.leaves != other.spread.leaves:
        return f"{best.spread.leaves:.3g} against {other.spread.leaves:.3g} leaves"
    if best.spread.tiers != other.spread.tiers:
        return "fewer tiers are crossed"
    if best.off_rail != other.off_rail:
        return f"{_nodes(other.off_rail)} not on the rails there, {best.off_rail or 'none'} here"
    if best.there != other.there:
        return f"{other.there} shards of the model are on that fabric, {best.there} on this"
    if best.fabric == other.fabric and best.beside != other.beside:
        return f"{other.beside} shards of the model are on those nodes, {best.beside} on these"
    if best.free != other.free:
        return f"the tighter fit: these have {best.free} free GPUs, those {other.free}"
    return "alike; the smaller leaf is taken, else the first by name"


def _nodes(count: int) -> str:
    return "1 node is" if count == 1 else f"{count} nodes are"


def _tiers(tiers: float, facts: FabricFacts) -> str:
    if tiers >= facts.far:
        return "not known to be joined"
    if tiers <= 1:
        return "1 tier crossed"
    return f"{tiers:.3g} tiers crossed"


def _fabric(choice: Choice) -> str:
    return choice.fabric if choice.physical is None else f"{choice.fabric} ({choice.physical})"


def _list(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _and(names: Sequence[str]) -> str:
    if len(names) > NAMES_MAX:
        return _list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
