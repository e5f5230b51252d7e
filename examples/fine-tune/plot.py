#!/usr/bin/env python3
"""Draws the losses of runs as an SVG page, from what they wrote.

    plot.py OUT.svg TITLE=FOLDER ...

Each FOLDER holds the metrics.jsonl of a run; its evaluations are drawn as points.
"""
import html
import json
import os
import sys

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 460, 260, 52, 34, 14, 38
SMOOTHED_OVER = 20  # steps


def records(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def smoothed(points):
    """Means over the last steps."""
    losses = [loss for _, loss in points]
    return [(step, sum(losses[max(0, i + 1 - SMOOTHED_OVER):i + 1]) / min(i + 1, SMOOTHED_OVER))
            for i, (step, _) in enumerate(points)]


def panel(title, training, held_out, x0):
    steps = [step for step, _ in training] or [0, 1]
    losses = [loss for _, loss in training + held_out] or [0, 1]
    low, high = min(losses), max(losses)
    high = high if high > low else low + 1

    def x(step):
        return x0 + LEFT + (WIDTH - LEFT - RIGHT) * (step - steps[0]) / max(1, steps[-1] - steps[0])

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    def line(points, style):
        return (f'<polyline fill="none" {style} points="'
                + " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points) + '"/>')

    parts = [f'<text x="{x0 + LEFT}" y="20" font-weight="bold">{html.escape(title)}</text>']
    for i in range(5):
        loss = low + (high - low) * i / 4
        parts.append(f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" '
                     f'stroke="#ddd"/><text x="{x0 + LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
    for step in (steps[0], (steps[0] + steps[-1]) // 2, steps[-1]):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{x0 + (LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">step</text>')
    parts.append(line(training, 'stroke="#9bc" stroke-width="1"'))
    parts.append(line(smoothed(training), 'stroke="#157" stroke-width="2"'))
    if held_out:
        parts.append(line(held_out, 'stroke="#c40" stroke-width="1.5"'))
        parts += [f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3" fill="#c40"/>' for step, loss in held_out]
    key = x0 + WIDTH - RIGHT - 190
    for i, (colour, name) in enumerate((("#157", "training, mean of 20 steps"), ("#c40", "held-out words"))):
        parts.append(f'<line x1="{key}" x2="{key + 20}" y1="{TOP + 8 + 16 * i}" y2="{TOP + 8 + 16 * i}" '
                     f'stroke="{colour}" stroke-width="2"/><text x="{key + 26}" y="{TOP + 12 + 16 * i}">{name}</text>')
    return "\n".join(parts)


def main():
    out, runs = sys.argv[1], [argument.split("=", 1) for argument in sys.argv[2:]]
    panels = []
    for i, (title, folder) in enumerate(runs):
        training = [(each["step"], each["loss"]) for each in records(folder, "metrics.jsonl")
                    if "tokens" in each and each["loss"] is not None]
        held_out = [(each["step"], each["eval_loss"]) for each in records(folder, "metrics.jsonl")
                    if each.get("eval_loss") is not None]
        panels.append(panel(title, training, held_out, i * WIDTH))
    with open(out, "w", encoding="utf-8") as svg:
        svg.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(runs)}" height="{HEIGHT}" '
                  f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
                  + "\n".join(panels) + "\n</svg>\n")


if __name__ == "__main__":
    main()
