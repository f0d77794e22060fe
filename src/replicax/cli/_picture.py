"""The demo's picture: the training curves on the left, test digits with predictions on the right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replicax.cli._digits import Digits
from replicax.cli._progress import History

__all__ = ["draw_picture"]

_BLUE, _GREEN, _RED, _GREY, _INK = "#3367d6", "#188038", "#d93025", "#80868b", "#202124"
_SHADES = ("#1f4aa8", "#2f5fc9", "#4775da", "#658de2")
_ROWS, _COLUMNS = 6, 9
_SMOOTHED_STEPS = 15
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.5,
    "text.color": _INK,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def draw_picture(
    path: Path,
    strategy: str,
    history: History,
    shares: Mapping[str, int],
    digits: Digits,
    predictions: np.ndarray,
) -> None:
    """Draw the picture and save it as a PNG.

    Args:
        path: the file.
        strategy: its name.
        history: the metrics of the training run.
        shares: the number of examples that each device processed.
        digits: the test digits.
        predictions: the model's predictions for them.
    """
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot, which may need a display

    with matplotlib.rc_context(_STYLE):
        figure: Any = Figure(figsize=(12, 5.6), dpi=110, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.05, h_pad=0.04)
        left, right = figure.subfigures(1, 2, width_ratios=(1, 1.12), wspace=0.03)
        _draw_training(left, history, shares)
        _draw_digits(right, digits, predictions)
        count = "1 replica" if len(shares) == 1 else f"{len(shares)} replicas"
        accuracy = np.mean(predictions == digits.labels)
        figure.suptitle(
            f"Handwritten digits, {strategy} with {count}: {accuracy:.1%} correct",
            fontsize=13,
            weight="bold",
        )
        figure.savefig(path, format="png")


def _draw_training(figure: Any, history: History, shares: Mapping[str, int]) -> None:
    above, below, last = figure.subplots(3, 1, height_ratios=(5, 3, 0.5))
    above.plot(history.steps, history.losses, color=_BLUE, alpha=0.25, linewidth=0.8)
    above.plot(history.steps, _smooth(history.losses), color=_BLUE, linewidth=1.8)
    above.set_yscale("log")
    above.set_ylabel("loss")
    above.tick_params(labelbottom=False)
    below.plot(history.rate_steps, history.rates, color=_GREEN, linewidth=1.4, marker="o", markersize=3)
    below.set_ylim(0, 1.15 * max(history.rates, default=1))
    below.yaxis.set_major_formatter("{x:,.0f}")
    below.set_ylabel("examples / s")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.set_xlim(0, history.steps[-1] * 1.01)
        axes.grid(axis="y", color=_GREY, alpha=0.2, linewidth=0.6)
        if history.resumed_at is not None:
            axes.axvline(history.resumed_at, color=_GREY, linestyle=(0, (4, 3)), linewidth=1.2)
    if history.resumed_at is not None:
        above.annotate(
            "stopped, and resumed\nfrom a checkpoint",
            (history.resumed_at, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(6, 0),
            textcoords="offset points",
            va="top",
            color=_GREY,
        )
    _draw_shares(last, shares)


def _draw_shares(axes: Any, shares: Mapping[str, int]) -> None:
    """A stacked bar with one part per device."""
    start, fits = 0, len(shares) <= 8
    for i, (device, count) in enumerate(shares.items()):
        axes.barh(0, count, left=start, color=_SHADES[i % len(_SHADES)], edgecolor="white")
        if fits:
            text = f"{device}: {count:,}" if len(shares) <= 4 else device
            axes.text(start + count / 2, 0, text, ha="center", va="center", color="white", fontsize=8.5)
        start += count
    axes.set_xlim(0, start)
    axes.set_axis_off()
    axes.set_title("examples per device", fontsize=9.5, loc="left", pad=3)


def _smooth(numbers: list[float]) -> np.ndarray:
    """A running geometric mean."""
    width = min(_SMOOTHED_STEPS, len(numbers))
    logs = np.log(np.maximum(numbers, 1e-7))
    padded = np.concatenate([np.repeat(logs[:1], width - 1), logs])
    return np.exp(np.convolve(padded, np.ones(width) / width, mode="valid"))


def _draw_digits(figure: Any, digits: Digits, predictions: np.ndarray) -> None:
    """A grid of test digits, misclassified ones first."""
    wrong = np.flatnonzero(predictions != digits.labels)
    right = np.flatnonzero(predictions == digits.labels)
    shown = np.concatenate([wrong, right])[: _ROWS * _COLUMNS]
    all_axes = figure.subplots(_ROWS, _COLUMNS).flat
    for axes, index in zip(all_axes, shown, strict=True):
        prediction, label = predictions[index], digits.labels[index]
        axes.imshow(digits.images[index, :, :, 0], cmap="gray_r", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        is_right = prediction == label
        axes.set_title(
            f"{prediction}" if is_right else f"{prediction}, not {label}",
            color=_GREEN if is_right else _RED,
            fontsize=9,
            pad=2.5,
        )
        for spine in axes.spines.values():
            spine.set(visible=True, color=_GREY if is_right else _RED, linewidth=0.5 if is_right else 2.2)
    figure.suptitle(
        f"Predictions for test digits; {len(wrong)} of {len(predictions)} are wrong (red)",
        fontsize=10.5,
    )
