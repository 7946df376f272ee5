"""The picture of a rewritten model as one SVG, for papers and READMEs: memory over time, and every buffer's address."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poet_onnx.reporting.figures import bytes_text, scaled_text
from poet_onnx.reporting.layers import Layer
from poet_onnx.reporting.picture import StepPicture

_STYLE = Path(__file__).with_name("page") / "page.css"
_INKS = ("original", "ordered", "rewritten")
_WIDTH, _LEFT, _RIGHT = 960, 78, 946
_CURVES, _MAP, _HEIGHT = (64, 214), (284, 584), 652
"""Top and bottom of the two drawings, and the height of all."""


@dataclass(frozen=True)
class _Frame:
    """Where a drawing's numbers lie.

    Attributes:
        top, bottom: of the drawing.
        most_x, most_bytes: at its right and its upper edge.
    """

    top: float
    bottom: float
    most_x: float
    most_bytes: float

    def x(self, value: float) -> float:
        return _LEFT + value / self.most_x * (_RIGHT - _LEFT)

    def y(self, size_bytes: float) -> float:
        return self.bottom - size_bytes / self.most_bytes * (self.bottom - self.top)


def drawing_of(picture: StepPicture) -> str:
    """Return the picture as SVG, in light colors and where the reader's screen is dark in dark ones."""
    parts = "\n".join((*_curves(picture), *_map(picture)))
    title = html.escape(f"{picture.model}: {picture.verdict[0]}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">\n'
        f"<title>{title}</title>\n<style>{_style()}</style>\n"
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" class="card"/>\n{parts}\n</svg>\n'
    )


def _style() -> str:
    """Return the page's colors, and a class of each for what is filled with it."""
    roots = re.findall(r":root \{(.*?)\}", _STYLE.read_text(encoding="utf-8"), re.DOTALL)
    light, dark = (" ".join(root.split()) for root in roots[:2])
    names = re.findall(r"--([a-z-]+):", light)
    fills = "".join(f".{name}{{fill:var(--{name})}}" for name in names)
    return (
        f"svg{{{light} font:13px system-ui,'Segoe UI',Roboto,'Liberation Sans',Arial,sans-serif}}"
        f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}{fills}"
        ".head{font-size:15px;font-weight:650}.end{text-anchor:end}.mid{text-anchor:middle}"
        ".grid{stroke:var(--line)}.level{stroke:var(--budget);stroke-width:1.5;stroke-dasharray:6 4}"
        + "".join(f".line-{name}{{fill:var(--{name});fill-opacity:.16;stroke:var(--{name})}}" for name in _INKS)
    )


def _words(x: float, y: float, text: str, classes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}">{html.escape(text)}</text>'


def _axis(frame: _Frame) -> Iterator[str]:
    """Yield lines at round numbers of bytes."""
    raw = frame.most_bytes / 4
    step = 2 ** math.floor(math.log2(raw)) if raw >= 1 else 1
    for count in range(int(frame.most_bytes // step) + 1):
        y = frame.y(count * step)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield _words(_LEFT - 8, y + 4, bytes_text(count * step), "soft end")


def _budget(picture: StepPicture, frame: _Frame) -> Iterator[str]:
    budget = picture.activation_budget_bytes
    if budget is not None and budget <= frame.most_bytes:
        y = frame.y(budget)
        yield f'<path class="level" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield _words(_RIGHT - 4, y - 6, f"budget {bytes_text(budget)}", "budget end")


def _curves(picture: StepPicture) -> Iterator[str]:
    """Yield the memory of each layer over time."""
    layers = picture.layers
    seconds = max(layer.seconds for layer in layers) or 1.0
    frame = _Frame(*_CURVES, seconds, max(layer.transient_peak_bytes for layer in layers) * 1.08 or 1.0)
    yield _words(_LEFT - 62, 26, f"{picture.model}: memory of one training step on {picture.device}", "ink head")
    yield from _axis(frame)
    for layer, ink in zip(layers, _INKS, strict=True):
        yield f'<path class="line-{ink}" d="{_outline(layer, frame)}"/>'
    yield from _budget(picture, frame)
    yield _words(_RIGHT, frame.bottom + 20, f"time of a step: {scaled_text(picture.seconds, 's')}", "soft end")
    labels = [f"{layer.name}: {bytes_text(layer.transient_peak_bytes)}" for layer in layers]
    yield from _legend(zip(labels, _INKS, strict=True), 46)


def _outline(layer: Layer, frame: _Frame) -> str:
    ends = (*layer.steps.starts[1:], layer.seconds)
    parts = [f"M{_LEFT} {frame.bottom:.1f}"]
    for size_bytes, end in zip(layer.steps.live_bytes, ends, strict=True):
        parts.append(f"V{frame.y(size_bytes):.1f}H{frame.x(end):.1f}")
    return "".join((*parts, f"V{frame.bottom:.1f}Z"))


def _map(picture: StepPicture) -> Iterator[str]:
    """Yield the buffers of the rewritten step, those of a kind as one path."""
    layer = picture.layers[-1]
    steps = len(layer.steps.actions) or 1
    budget = picture.activation_budget_bytes or 0
    held = max(layer.region_bytes, 1)
    frame = _Frame(*_MAP, steps, max(held, budget if budget < 3 * held else 0) * 1.1)
    yield _words(_LEFT - 62, frame.top - 22, "where every buffer of the rewritten step lies", "ink head")
    yield from _axis(frame)
    paths: dict[int, list[str]] = {}
    blocks = layer.blocks
    rows = zip(blocks.born, blocks.dies, blocks.offsets, blocks.sizes, blocks.fates, strict=True)
    for born, dies, offset, size_bytes, fate in rows:
        if offset < 0:
            continue
        width = max(0.4, frame.x(dies + 1) - frame.x(born) - 0.4)
        top = frame.y(offset + size_bytes)
        height = max(0.4, frame.y(offset) - top - 0.4)
        paths.setdefault(fate, []).append(f"M{frame.x(born):.1f} {top:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z")
    fates = [name for name, _ in picture.fates]
    for fate in sorted(paths):
        yield f'<path class="{_ink(fates[fate])}" d="{"".join(paths[fate])}"/>'
    yield from _budget(picture, frame)
    yield _words(_RIGHT, frame.bottom + 20, f"{steps:,} steps, from left to right", "soft end")
    yield from _legend(((fates[fate], _ink(fates[fate])) for fate in sorted(paths)), _HEIGHT - 24)


def _ink(fate: str) -> str:
    return fate.replace(" ", "-")


def _legend(entries: Iterator[tuple[str, str]], y: float) -> Iterator[str]:
    x = float(_LEFT)
    for name, ink in entries:
        yield f'<rect x="{x:.1f}" y="{y - 10}" width="11" height="11" rx="2" class="{ink}"/>'
        yield _words(x + 17, y, name, "soft")
        x += 40 + 6.6 * len(name)
