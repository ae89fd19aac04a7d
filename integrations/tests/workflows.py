"""Workflows as ComfyUI's page saves them: made of a few words, and as the graphs that the page would queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphs import Graph

#: Types of inputs that are widgets on a node.
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")

#: Pixels between nodes, and of a line of a node.
COLUMN, LINE, HEAD = 400, 26, 70


@dataclass(frozen=True)
class Node:
    """A node of a workflow.

    Attributes:
        kind: the node's id, as `VAEDecode`.
        at: its column, from 0.
        inputs: values of widgets by their names; the others are their defaults.
        links: inputs that are connected: a node of the workflow by its name, and the output's number.
        lines: lines of its height beside those of its inputs.
    """

    kind: str
    at: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    lines: int = 0


def widgets(about: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """The widgets of a node, in order: name, default, and True if another widget follows that the page adds.

    Args:
        about: what ComfyUI tells of the node.
    """
    for name, kind, options in _inputs(about):
        if (isinstance(kind, list) or kind in WIDGETS) and not options.get("forceInput"):
            # A menu begins with its first choice, if the folder that it lists has any.
            choices = kind if isinstance(kind, list) else options.get("options") or []
            default = options.get("default", choices[0] if choices else None)
            yield name, default, bool(options.get("control_after_generate") or options.get("image_upload"))


def sockets(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The inputs of a node that can only be connected: name and type."""
    shown = {name for name, _, _ in widgets(about)}
    for name, kind, _ in _inputs(about):
        if name not in shown:
            yield name, str(kind)


def _inputs(about: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    for group in ("required", "optional"):
        given = about["input"].get(group, {})
        for name in about["input_order"].get(group, given):
            kind, *rest = given[name]
            yield name, kind, rest[0] if rest else {}


def to_page(nodes: Mapping[str, Node], about: Mapping[str, Any], note: str) -> dict[str, Any]:
    """A workflow as the page saves it.

    Args:
        nodes: the nodes by names.
        about: what ComfyUI tells of all nodes.
        note: a text beside them.
    """
    ids = {name: number for number, name in enumerate(nodes, 2)}
    links: list[list[Any]] = []
    made: list[dict[str, Any]] = [_note(note)]
    heights: dict[int, int] = {}
    outgoing: dict[tuple[str, int], list[int]] = {}
    incoming: dict[tuple[str, str], int] = {}
    for name, node in nodes.items():
        named = [socket for socket, _ in sockets(about[node.kind])]
        for socket, (source, output) in node.links.items():
            number = len(links) + 1
            kind = about[nodes[source].kind]["output"][output]
            links.append([number, ids[source], output, ids[name], named.index(socket), kind])
            outgoing.setdefault((source, output), []).append(number)
            incoming[name, socket] = number
    for order, (name, node) in enumerate(nodes.items(), 1):
        of = about[node.kind]
        values: list[Any] = []
        shown = list(widgets(of))
        for widget, default, is_followed in shown:
            values.append(node.inputs.get(widget, default))
            if is_followed:
                values.append("image" if node.kind == "LoadImage" else "fixed")
        height = HEAD + LINE * (len(values) + max(len(list(sockets(of))), len(of["output"])) + node.lines)
        top = heights.get(node.at, 80)
        heights[node.at] = top + height + 60
        made.append(
            {
                "id": ids[name],
                "type": node.kind,
                "pos": [40 + COLUMN * (node.at + 1), top],
                "size": [COLUMN - 60, height],
                "flags": {},
                "order": order,
                "mode": 0,
                "inputs": [
                    {"name": socket, "type": kind, "link": incoming.get((name, socket))} for socket, kind in sockets(of)
                ],
                "outputs": [
                    {"name": title, "type": kind, "links": outgoing.get((name, output)), "slot_index": output}
                    for output, (title, kind) in enumerate(zip(of["output_name"], of["output"]))
                ],
                "properties": {"Node name for S&R": node.kind},
                "widgets_values": values,
            }
        )
    return {
        "last_node_id": len(nodes) + 1,
        "last_link_id": len(links),
        "nodes": made,
        "links": links,
        "groups": [],
        "config": {},
        "extra": {},
        "version": 0.4,
    }


def _note(text: str) -> dict[str, Any]:
    return {
        "id": 1, "type": "Note", "pos": [40, 80], "size": [COLUMN - 60, 240], "flags": {}, "order": 0, "mode": 0,
        "inputs": [], "outputs": [], "properties": {}, "widgets_values": [text],
    }  # fmt: skip


def to_graph(workflow: Mapping[str, Any], about: Mapping[str, Any]) -> Graph:
    """The graph that the page queues for a workflow.

    Raises:
        ValueError: a node has other widgets or inputs than ComfyUI says.
    """
    sources = {number: (str(source), output) for number, source, output, *_ in workflow["links"]}
    graph: Graph = {}
    for node in workflow["nodes"]:
        if node["type"] == "Note":
            continue
        of = about[node["type"]]
        values: Sequence[Any] = node["widgets_values"]
        given: dict[str, Any] = {}
        place = 0
        for name, _, is_followed in widgets(of):
            given[name] = values[place]
            place += 2 if is_followed else 1
        if place != len(values):
            raise ValueError(f"{node['type']}: {len(values)} values of widgets, and {place} are expected")
        known = [name for name, _ in sockets(of)]
        if [one["name"] for one in node["inputs"]] != known:
            raise ValueError(f"{node['type']}: its inputs are {known}")
        for one in node["inputs"]:
            if one["link"] is not None:
                given[one["name"]] = list(sources[one["link"]])
        graph[str(node["id"])] = {"class_type": node["type"], "inputs": given}
    return graph
