"""The stack of ``compose/`` on a real engine, from nothing to nothing: ``make stack``.

Builds the image, starts every service and holds it to this: all healthy, nothing recreated by a second ``up --build``,
an answer through the published port for those with the token alone, every target scraped; then, each time under load,
the topics audited after SIGKILL of stages and broker, after ``stop`` and after ``down`` and ``up``. What it made is
removed at the end, its volumes too; ``--keep`` leaves it running. Exit 1 at the first thing that is not so, 2 without
an engine.
"""

import argparse
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from sluicegate.domain.errors import SluiceError
from tests.stack.engine import ROOT, Images, Project, StackError, images, ran, require_engine, told

WORK = ROOT / "build" / "stack"
APPS = ("digits", "signals")
KILLED = ("worker-cpu0", "router", "admission", "planner", "http", "kafka")
"""In this order, one after the other, each back before the next."""
IN_FLIGHT = 500
"""Copies that each killed process may leave (the chaos suite's bound too)."""
_ENDED_WELL = {"kafka": (0, 143)}  # a Java that obeys SIGTERM says 143
_TOPICS = """
import asyncio, json, os
from sluicegate.streams import connect
async def names():
    broker = connect(os.environ["SLUICE_BROKER"])
    print(json.dumps(sorted(await broker.admin().topics())))
    await broker.close()
asyncio.run(names())
"""

console = Console()


class Run:
    """One passage. ``asked``: queries through the front; ``sent``, ``acknowledged``: by replays."""

    def __init__(self, project: Project, token: str) -> None:
        self.project = project
        self._token = token
        self._began = time.monotonic()
        self.asked = self.sent = self.acknowledged = 0
        self._loads = 0
        self._copies_allowed = 0

    def say(self, what: str) -> None:
        """A line with the seconds since the beginning."""
        console.print(f"{time.monotonic() - self._began:6.0f} s  {what}", highlight=False, soft_wrap=True)

    def until(self, what: str, holds: Callable[[], bool], within: float) -> None:
        """Wait. Raises StackError past ``within`` seconds."""
        end = time.monotonic() + within
        while not holds():
            if time.monotonic() > end:
                raise StackError(f"not within {within:.0f} s: {what}")
            time.sleep(1.0)

    def healthy(self, within: float = 240.0) -> None:
        """Every service runs and says that it is healthy; the models' has ended well."""
        wanted = set(self.project.services) - {"load"}

        def not_yet() -> dict[str, str]:
            states = self.project.states()
            return {
                name: f"{one.get('State')} {one.get('Health')}" if (one := states.get(name)) else "absent"
                for name in wanted
                if not _well(name, states.get(name))
            }

        try:
            self.until("all healthy", lambda: not not_yet(), within)
        except StackError as error:
            raise StackError(f"{error}; {not_yet()}") from error

    def get(self, port: str, path: str, *, token: bool = False, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of a published port."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.project.ports[port]}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {self._token}")
        data = None if body is None else json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data=data, timeout=30.0) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, None
        except (OSError, ValueError):
            return 0, None

    def infer(self, app: str) -> tuple[int, Any]:
        """One query of zeros, as the metadata say its inputs are."""
        status, metadata = self.get("HTTP", f"/v2/models/{app}", token=True)
        if status != 200:
            return status, None
        inputs = []
        for one in metadata["inputs"]:
            shape = [1, *one["shape"][1:]]
            size = 1
            for extent in shape:
                size *= extent
            inputs.append({"name": one["name"], "datatype": one["datatype"], "shape": shape, "data": [0] * size})
        body = {"inputs": inputs, "parameters": {"latency_ms": 5000}}
        answer = self.get("HTTP", f"/v2/models/{app}/infer", token=True, body=body)
        self.asked += answer[0] in (200, 503, 504)
        return answer

    def answers(self) -> None:
        """Both apps answer through the published port."""
        for app in APPS:
            self.until(f"{app} answers", lambda app=app: self.infer(app)[0] == 200, 90.0)  # type: ignore[misc]
            _, answer = self.infer(app)
            if answer is None or "label" not in {output["name"] for output in answer["outputs"]}:
                raise StackError(f"{app}: an answer without a label: {answer}")

    def doors(self) -> None:
        """Health without the token; with it the rest; every target is scraped."""
        found = {path: self.get("HTTP", path)[0] for path in ("/v2/health/live", "/v2/health/ready", "/v2")}
        if found != {"/v2/health/live": 200, "/v2/health/ready": 200, "/v2": 401}:
            raise StackError(f"without the token: {found}")
        if (page := (self.get("WEB", "/state")[0], self.get("WEB", "/state", token=True)[0])) != (401, 200):
            raise StackError(f"the page, without and with the token: {page}")
        if self.get("GRAFANA", "/api/health")[0] != 200:
            raise StackError("Grafana does not answer")

        def down() -> list[str]:
            _, told_targets = self.get("PROMETHEUS", "/api/v1/targets?state=active")
            targets = told_targets["data"]["activeTargets"] if told_targets else []
            stages = [n for n, s in self.project.services.items() if s.get("command", [""])[:2] == ["sluice", "up"]]
            up = {t["scrapeUrl"].split("//")[1].split(":")[0] for t in targets if t["health"] == "up"}
            return sorted({*stages, "localhost"} - up)

        self.until("every target up", lambda: not down(), 60.0)

    @contextmanager
    def load(self, seconds: int) -> Iterator[None]:
        """Queries of both apps for so long, whatever happens meanwhile; all must have been acknowledged at the end."""
        self._loads += 1
        name = f"{self.project.name}-load-{self._loads}"
        self.project(
            *("--profile", "load", "run", "--detach", "--no-deps", "--name", name, "load", "sluice", "replay"),
            *("generator", "--qps", "20:60", "--duration", str(seconds), "--latency-ms", "3000"),
            *("--seed", str(self._loads), "--json"),
        )
        try:
            time.sleep(5.0)
            yield
            code = told(["docker", "wait", name], within=seconds + 120.0).strip()
            said = ran(["docker", "logs", name])
            if code != "0":
                raise StackError(f"the replay ended with {code}: {said.stderr.strip()[-300:]} {said.stdout[-300:]}")
            counted = json.loads(said.stdout)
            self.sent += counted["queries"]
            self.acknowledged += counted["acknowledged"]
        finally:
            ran(["docker", "rm", "--force", name])

    def audit(self) -> dict[str, Any]:
        """The topics' own word, once all is settled. Raises StackError where it is not as promised."""
        report: dict[str, Any] = {}

        def settled() -> bool:
            ended = self.project.tried("exec", "-T", "admission", "sluice", "audit", "--json")
            report.clear()
            report.update(json.loads(ended.stdout) if ended.stdout.strip() else {})
            return bool(report) and not report["lost"]

        self.until("an outcome for every query", settled, 120.0)
        bad = {name: report[name] for name in ("unknown", "late_unmarked") if report[name]}
        if bad or report["duplicates"] > self._copies_allowed:
            raise StackError(f"audit: {bad or ''} {report['duplicates']} duplicates, allowed {self._copies_allowed}")
        if report["queries"] < self.acknowledged:
            raise StackError(f"audit: {report['queries']} queries on the topics, {self.acknowledged} were acknowledged")
        kinds = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items() if count)
        self.say(f"audit: {report['queries']} queries, lost 0, duplicates {report['duplicates']}; {kinds}")
        return report

    def topics(self) -> set[str]:
        """Those on the broker."""
        return set(json.loads(self.project("exec", "-T", "admission", "python", "-c", _TOPICS)))

    def start(self) -> None:
        """The models; a planner alone, which waits; its broker, and the same planner serves; then all."""
        self.project("run", "--rm", "--no-deps", "-T", "models")
        self.project("up", "--detach", "--no-deps", "planner")
        self.until(
            "the planner waits for its broker",
            lambda: "trying again in" in self.project("logs", "planner"),
            120.0,
        )
        alone = self.project.inspected("planner")["Id"]
        self.project("up", "--detach", "--no-deps", "kafka")
        self.until("the planner that waited serves", lambda: _well("planner", self.project.states()["planner"]), 120.0)
        now = self.project.inspected("planner")
        if (now["Id"], now["RestartCount"]) != (alone, 0):
            raise StackError(f"the planner that waited was replaced or restarted {now['RestartCount']} times")
        self.project("up", "--detach")
        self.healthy()
        self.say(f"{len(self.project.states())} services up; the planner had waited for its broker")

    def again(self) -> None:
        """A second ``up --build`` of the same changes nothing."""
        before = {name: one["ID"] for name, one in self.project.states().items() if name != "models"}
        self.project("up", "--detach", "--build", within=1800.0)
        after = {name: one["ID"] for name, one in self.project.states().items() if name != "models"}
        if changed := sorted(name for name in before if before[name] != after.get(name)):
            raise StackError(f"`up --build` of what was built recreated {', '.join(changed)}")
        self.say("`up --build` again: no container recreated")

    def registered(self) -> None:
        """Models of one's own are served, alone and beside the demo's, by the guide's commands."""
        folder = WORK / "clouds"
        told([sys.executable, str(ROOT / "examples" / "numpy_model.py"), str(folder)])
        models = [f"/clouds/{path.name}" for path in sorted(folder.glob("*.onnx"))]
        once = (
            "run",
            "--rm",
            "--no-deps",
            "-T",
            "--volume",
            f"{folder}:/clouds:ro",
            "worker-cpu0",
            "sluice",
            "register",
        )
        self.project(*once, *models, "--app", "clouds", "--validation", "/clouds/rows.npz", within=300.0)
        self.until("clouds answers", lambda: self.infer("clouds")[0] == 200, 60.0)
        self.project("exec", "-T", "admission", "sluice", "demo-apps", "off")
        self.until("the demo's apps are no longer served", lambda: self.infer("digits")[0] == 404, 60.0)
        self.project("exec", "-T", "admission", "sluice", "demo-apps", "on")
        self.answers()
        self.say("models of one's own registered, served alone, then beside the demo's")

    def kills(self) -> None:
        """SIGKILL from outside, so that the restart is the engine's own decision."""
        with self.load(15 * len(KILLED)):
            for service in KILLED:
                before = self.project.inspected(service)
                self._copies_allowed += IN_FLIGHT
                kill = f"kill -9 {before['State']['Pid']}"
                hidden = ("--rm", "--network", "none", "--pid", "host", "--user", "0", "--entrypoint", "bash")
                told(["docker", "run", *hidden, self.project.services["models"]["image"], "-c", kill])

                def back(service: str = service, count: int = before["RestartCount"]) -> bool:
                    now = self.project.inspected(service)
                    return now["RestartCount"] > count and now["State"].get("Health", {}).get("Status") == "healthy"

                self.until(f"{service} is back", back, 120.0)
                self.say(f"killed {service}, back and healthy")
        self.healthy()
        self.answers()
        self.audit()

    def stopped(self) -> None:
        """``stop`` and ``up`` under load: everything ends by itself, within its grace."""
        before = self._copies_of(self.audit())
        with self.load(75):
            began = time.monotonic()
            self.project("stop")
            took = time.monotonic() - began
            codes = {name: one["ExitCode"] for name, one in self.project.states().items()}
            if bad := {name: code for name, code in codes.items() if code not in _ENDED_WELL.get(name, (0,))}:
                raise StackError(f"`stop`: exit codes {bad}; 137 is one that had to be killed")
            self.say(f"`stop` under load: {took:.0f} s, every service ended by itself")
            self.project("up", "--detach")
            self.healthy()
        self.answers()
        if (copies := self._copies_of(self.audit())) > before:
            raise StackError(f"`stop` and `up` made {copies - before} duplicates")

    def down_and_up(self) -> None:
        """``down`` under load's end, ``up``: topics, queries and outcomes are there, and go on."""
        before, topics = self.audit(), self.topics()
        self.project("down", "--remove-orphans")
        self.start()
        if gone := sorted(topics - self.topics()):
            raise StackError(f"`down` and `up` lost {len(gone)} topics: {', '.join(gone[:5])}")
        after = self.audit()
        if (after["queries"], after["outcomes"]) != (before["queries"], before["outcomes"]):
            raise StackError(f"`down` and `up`: {before['queries']} queries became {after['queries']}")
        with self.load(20):
            pass
        self.answers()
        if self.audit()["queries"] <= after["queries"]:
            raise StackError("nothing was added after `down` and `up`")

    @staticmethod
    def _copies_of(report: dict[str, Any]) -> int:
        return int(report["duplicates"])


def _well(name: str, state: dict[str, Any] | None) -> bool:
    if state is None:
        return False
    if name == "models":
        return state["State"] == "exited" and state["ExitCode"] == 0
    return bool(state["State"] == "running" and state["Health"] == "healthy")


def passage(project: Project, found: Images, *, keep: bool) -> None:
    """All steps, in order. Raises StackError at the first that fails; what the services said is kept then."""
    run = Run(project, (WORK / "secrets" / "token").read_text())
    stand_ins = ", ".join(sorted(found.stand_ins)) or "none"
    project("down", "--volumes", "--remove-orphans")
    try:
        project("build", within=1800.0)
        size = told(["docker", "image", "inspect", "--format", "{{.Size}}", project.services["models"]["image"]])
        run.say(f"image built, {int(size) / 1e6:.0f} MB; stand-ins: {stand_ins}")
        run.start()
        run.doors()
        run.answers()
        run.say("answers through the published port, health without the token, every target up")
        run.again()
        run.registered()
        run.kills()
        run.stopped()
        run.down_and_up()
        run.say("after `down` and `up`: topics, queries and outcomes were there")
    except BaseException:
        (WORK / "logs.txt").write_text(project.tried("logs", "--no-color", "--timestamps").stdout)
        console.print(f"what the services said: {WORK / 'logs.txt'}", soft_wrap=True)
        raise
    finally:
        if not keep:
            project.tried("down", "--volumes", "--remove-orphans", "--timeout", "5")


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave it running at the end")
    arguments = parser.parse_args()
    try:
        console.print(f"stack: {require_engine()}", highlight=False)
    except StackError as error:
        console.print(f"stack: {error}", highlight=False, soft_wrap=True)
        return 2
    shutil.rmtree(WORK, ignore_errors=True)
    Path(WORK).mkdir(parents=True)
    told(["sh", str(ROOT / "compose" / "make-secrets.sh"), str(WORK / "secrets")])
    began = time.monotonic()
    try:
        found = images()
        passage(Project(WORK, found), found, keep=arguments.keep)
    except (StackError, SluiceError) as error:
        console.print(f"[bold red]stack: {error}[/]", highlight=False, soft_wrap=True)
        return 1
    console.print(f"stack: all as promised, in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
