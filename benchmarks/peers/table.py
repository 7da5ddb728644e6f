"""Measure systems side by side, and print the table.

    python table.py --all --out results.jsonl --plot results.svg        # the whole table, about 6 minutes
    python table.py --systems jbi --styles rect,varied --n 10           # some rows, with the baseline beside them
    python table.py --systems jbi,nats-lean --n 10 --m all              # every object matches all ten
    python table.py --systems jbi --n 10 --own-connections              # a process for each subscriber
    python table.py --systems jbi --n 10 --stall                        # one of ten subscribers stops reading
    python table.py --from results.jsonl --plot results.svg             # print and draw again what was measured

Rows with the same documents, N and matches are measured one after the other, the baseline first (no broker: the publisher
itself matches, `direct-index` by a grid, for predicates of all kinds `direct-lxml`); ratios are to that baseline.
What cannot be run here is named below the table. Each cell is run by a process of its own.

Subscribers live in two processes (one subscriber in one). Those of jbi in one process share its connections; those of all
other systems have one each. With `--own-connections` every subscriber of any system is a process with its own.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
from itertools import groupby

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import workload                 # noqa: E402

PLAN = [                        # (style, N, matches, subscriber processes if not 1 or 2, systems); the baseline comes by itself
    ("rect", 1, 1, 0, "jbi nats-lean zenoh redis mosquitto activemq-sql"),
    ("rect", 10, 1, 0, "jbi nats-lean nats-lean-cells zenoh zenoh-cells activemq-sql activemq-xpath"),
    ("rect", 10, 1, 10, "jbi nats-lean-cells"),
    ("rect", 100, 1, 0, "jbi nats-lean nats-lean-cells redis mosquitto activemq-sql"),
    ("rect", 1000, 1, 0, "jbi nats-lean-cells"),
    ("comment", 10, 1, 0, "jbi"),
    ("comment", 1000, 1, 0, "jbi"),
    ("varied", 10, 1, 0, "jbi nats-lean-cells"),
    ("varied", 1000, 1, 0, "jbi nats-lean-cells"),
    ("wide", 10, 1, 0, "jbi nats-lean-cells"),
    ("mixed", 10, 1, 0, "jbi nats-lean"),
    ("mixed", 1000, 1, 4, "jbi"),
    ("rect", 10, 10, 0, "jbi nats-lean"),
    ("rect", 10, 10, 10, "jbi nats-lean"),
]
QUIET = 0.3
"""Cores that others may use while we measure; the kernel's own network work is among them."""
CELL_SECONDS = 150


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--all", action="store_true", help="the whole table")
    a.add_argument("--systems", default="jbi", help="adapters/__init__.py lists them")
    a.add_argument("--styles", default="rect", help="of " + ", ".join(workload.STYLES))
    a.add_argument("--n", default="1,10", help="numbers of subscribers")
    a.add_argument("--m", default="1", help="mean matches per object, or 'all'")
    a.add_argument("--payload", type=int, default=1024)
    a.add_argument("--seconds", type=float, default=2.0, help="of each phase")
    a.add_argument("--window", type=int, default=256, help="objects in flight at most")
    a.add_argument("--processes", type=int, default=0, help="of subscribers; else 1 for one, 2 for more")
    a.add_argument("--own-connections", action="store_true", help="a process, so a connection, for each subscriber")
    a.add_argument("--lat-most", type=float, default=2000, help="objects/s at most when latency is measured")
    a.add_argument("--stall", action="store_true", help="one of N subscribers stops reading")
    a.add_argument("--out", help="JSON lines are added to this file")
    a.add_argument("--from", dest="files", nargs="+", help="measure nothing, read these")
    a.add_argument("--plot", help="an SVG or PNG file: objects/s over N (needs matplotlib)")
    a.add_argument("--cell", help=argparse.SUPPRESS)
    o = a.parse_args()
    if o.cell:
        return run_cell(json.loads(o.cell))
    if o.files:
        rows = [json.loads(line) for name in o.files for line in open(name) if line.strip()]
    else:
        rows = list(measured(cells(o), o.out))
    print("\n".join(stalls(rows) if o.stall else table(rows)))
    if o.plot:
        plot(rows, o.plot)


# --- measuring ----------------------------------------------------------------------------
def cells(o):
    """What is to be measured, in order."""
    if o.all:
        plan = [(*of, names.split()) for *of, names in PLAN]
    else:
        plan = [(style, n, n if o.m == "all" else min(n, int(o.m)), n if o.own_connections else o.processes, o.systems.split(","))
                for style in o.styles.split(",") for n in map(int, o.n.split(","))]
    if o.stall:
        return [{"stall": True, "system": name, "n_subscribers": n, "payload": o.payload}
                for _, n, _, _, names in plan for name in names]
    return [{"system": name, "style": style, "n_subscribers": n, "matches_per_object": m, "payload": o.payload,
             "seconds": o.seconds, "window": o.window, "subprocs": processes, "lat_most": o.lat_most}
            for style, n, m, processes, names in plan for name in dict.fromkeys([baseline(style), *names])]


def baseline(style):
    return "direct-lxml" if style in ("mixed", "kinds") else "direct-index"


def measured(plan, out):
    """The rows of each cell, also added to the file `out`; with a bar, if somebody watches."""
    from rich.progress import track
    for cell in track(plan, "measuring", disable=not sys.stderr.isatty(), transient=True):
        for row in measure(cell):
            if out:
                with open(out, "a") as f:
                    f.write(json.dumps(row) + "\n")
            yield row


def measure(cell):
    """The rows of a cell, run in a process of its own; one with an error, if it came to nothing."""
    p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--cell", json.dumps(cell)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, complained = p.communicate(timeout=CELL_SECONDS)
    except subprocess.TimeoutExpired:
        p.terminate()               # it ends its brokers
        said, complained = p.communicate()
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if not rows:
        sys.stderr.write(complained)
        why = complained.strip().splitlines()[-1:] or ["nothing was said"]
        rows = [{"system": cell["system"], "N": cell["n_subscribers"], "style": cell.get("style"), "error": why[0]}]
    return rows


def run_cell(cell):
    import adapters
    import harness
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("took too long"))
    adapter = adapters.get(cell.pop("system"))
    run = harness.run_stall if cell.pop("stall", False) else harness.run_cell
    for row in run(adapter, **cell):
        print(json.dumps(row), flush=True)


# --- showing ------------------------------------------------------------------------------
def joined(rows):
    """(style, N, m, payload, subscriber processes) -> system -> its row of rates, with the one of latencies as "lat"; the
    latest counts."""
    groups = {}
    for r in rows:
        if r.get("kind") in ("rate", "lat50"):
            key = r["style"], r["N"], r["m"], r["payload"], r["processes"][2]
            cell = groups.setdefault(key, {}).setdefault(r["system"], {})
            cell.update({"lat": r} if r["kind"] == "lat50" else r)
    return groups


def is_void(r):
    """Whether somebody did not get what he should, or got what he should not."""
    return any(x.get(k) for x in (r, r.get("lat", {})) for k in ("lost", "extra", "stuck", "bad"))


def table(rows):
    """Markdown."""
    yield "| documents | N | matches | system | objects/s | ratio | deliveries/s | CPU us | p50 / p99 ms | lost / extra | processes |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    noisy = 0
    for (style, n, m, *_), found in joined(rows).items():
        base = found.get(baseline(style), {}).get("obj_s")
        for system, r in found.items():
            lat = r.get("lat", {})
            loud = max(r["cpu_other"], lat.get("cpu_other", 0)) > QUIET
            noisy += loud
            yield "| " + " | ".join((
                style, f"{n:,}", "all" if m == n > 1 else f"{m}", system + " *" * loud,
                ("void: " if is_void(r) else "") + f"{r['obj_s']:,.0f}", f"{r['obj_s'] / base:.2f}" if base else "-",
                f"{r['deliv_s']:,.0f}", f"{r['cpu_us_per_obj']:,.0f}",
                f"{lat['p50_ms']:.2f} / {lat['p99_ms']:.1f} at {lat['obj_s']:,.0f}/s" if lat.get("p50_ms") else "-",
                f"{r['lost'] + lat.get('lost', 0)} / {r['extra'] + lat.get('extra', 0)}",
                "{} + {} + {}".format(*r["processes"]))) + " |"
    sizes = sorted({r["payload"] for r in rows if "payload" in r})
    yield ""
    yield (f"Payload {', '.join(f'{size:,}' for size in sizes)} bytes. Processes: broker, publisher, subscribers. CPU us: "
           "of all of them, an object. Ratio: to the system without broker, measured first in each group. One row: "
           "`python benchmarks/peers/table.py --systems SYSTEM --styles DOCUMENTS --n N --m MATCHES --processes SUBSCRIBERS`.")
    if noisy:
        yield f"\n\\* {noisy} rows: others used more than {QUIET} cores meanwhile, so the machine was not quiet."
    for why, failed in groupby(sorted((r["error"], r["system"], r["N"]) for r in rows if "error" in r), lambda r: r[0]):
        yield f"\nLeft out: {', '.join(f'{system} (N={n:,})' for _, system, n in failed)}: {why}"


def stalls(rows):
    """Markdown: what one stopped subscriber does."""
    keys = ["system", "N", "payload", "target_rate", "published", "others_expected", "others_delivered", "publisher_blocked",
            "others_p50_ms", "others_p99_ms", "broker_mb_before", "broker_mb_early", "broker_mb_peak", "stalled_got",
            "stalled_lost", "others_lost"]
    yield "| " + " | ".join(keys) + " |"
    yield "|---" * len(keys) + "|"
    for r in rows:
        yield f"| {r['system']} | {r['N']} | {r['error']} |" if "error" in r else "| " + " | ".join(
            str(r.get(k, "")) for k in keys) + " |"


def plot(rows, name):
    """Objects/s over N, a line for each system and style."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    lines = {}
    for (style, n, m, _, processes), found in joined(rows).items():
        for system, r in found.items():
            if m == 1 and (n, processes) != (10, 10) and not is_void(r):
                lines.setdefault((style, system), {})[n] = r["obj_s"]
    styles = [s for s in workload.STYLES if any(style == s for style, _ in lines)]
    figure, panels = pyplot.subplots(1, len(styles), figsize=(1 + 4 * len(styles), 5), sharey=True, squeeze=False)
    colours = {system: f"C{i}" for i, system in enumerate(dict.fromkeys(system for _, system in lines))}
    for panel, style in zip(panels[0], styles):
        for (of, system), points in lines.items():
            if of == style:
                ns = sorted(points)
                panel.plot(ns, [points[n] for n in ns], "o--" if system.startswith("direct") else "o-",
                           color=colours[system], label=system, linewidth=3 if system == "jbi" else 1)
        panel.set(title=style, xscale="log", yscale="log", xlabel="subscribers")
        panel.legend(fontsize=7)
        panel.grid(alpha=.3)
    panels[0][0].set_ylabel("objects/s")
    figure.tight_layout()
    figure.savefig(name)


if __name__ == "__main__":
    main()
