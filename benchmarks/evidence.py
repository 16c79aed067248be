"""Claims of README beside what they rest on: EVIDENCE.md, written and checked from artifacts.

    python benchmarks/evidence.py --check        # hashes, tables and quotations; nothing is run
    python benchmarks/evidence.py --rerun=NAME   # makes an artifact anew, beside the recorded one
    python benchmarks/evidence.py --write        # writes EVIDENCE.md from the artifacts

A claim's numbers are computed from its artifact, a file of results in the repository. `--check`
compares the artifacts' hashes, computes all tables anew, and looks for each of them in EVIDENCE.md
and in the documents that quote them; it ends with status 1 and a line for each difference.
`--rerun` prints the new table below the recorded one, and keeps the new artifact in `runs/`.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from evidence_claims import CLAIMS, WITHOUT_ARTIFACT, Claim

from rl_sync.records.json_lines import read_json_lines
from rl_sync.spelling import require_one_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = "EVIDENCE.md"
_OPENING = (
    "# Evidence\n\nThe measured claims of [README](README.md), and what each rests on. An artifact"
    " is a file of results in this repository. `python benchmarks/evidence.py --check` compares its"
    " hash, and computes from it the tables below and those of other documents that quote it; the"
    " gate does so too. `python benchmarks/evidence.py --rerun=NAME` makes an artifact anew, which"
    " takes from minutes to hours, and prints the new table below the recorded one.\n\n"
    "In tables, `a / b / c` are the least, the median and the greatest of the seeds, `b (a to c)`"
    " the median with the least and the greatest, and `b ± s` the mean with its standard error."
)


def page(root: Path = ROOT, claims: Mapping[str, Claim] = CLAIMS) -> str:
    """Writes the page from the artifacts."""
    parts = [_OPENING]
    for name, claim in claims.items():
        command = claim.command.format(artifact=claim.artifact)
        table = "\n".join(claim.table(read_json_lines(root / claim.artifact)))
        parts.append(f"## {name.capitalize()}\n\n{claim.says}\n\n{table}")
        parts.append(
            "\n".join(
                [
                    f"- *Command*: `{command}`, at {claim.commit}",
                    f"- *Artifact*: `{claim.artifact}`, SHA-256 `{claim.digest}`",
                    f"- *Runs*: {claim.runs}",
                    f"- *Peer*: {claim.peer}",
                    f"- *Weak points*: {claim.weak}",
                    f"- *Not claimed*: {claim.not_claimed}",
                ]
            )
        )
    parts.append("## Claims without an artifact")
    parts.append("\n".join(f"- *{name}*: {why}" for name, why in WITHOUT_ARTIFACT.items()))
    return "\n\n".join(parts) + "\n"


def differences(root: Path = ROOT, claims: Mapping[str, Claim] = CLAIMS) -> Iterator[str]:
    """Yields a line for each thing that is not as the artifacts say."""
    documents: dict[str, str] = {}
    for name, claim in claims.items():
        path = root / claim.artifact
        if not path.exists():
            yield f"{name}: {claim.artifact} is missing."
            return
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != claim.digest:
            yield f"{name}: {claim.artifact} has the hash {found}, and {claim.digest} is recorded."
        for document, texts in claim.quotes(read_json_lines(path)).items():
            if document not in documents:
                documents[document] = (root / document).read_text(encoding="utf-8")
            for text in texts:
                if text not in documents[document]:
                    yield f"{name}: {document} lacks what {claim.artifact} says: {text}"
    written = page(root, claims).splitlines()
    known = (root / PAGE).read_text(encoding="utf-8").splitlines()
    for line in written:
        if line not in known:
            yield f"{PAGE} lacks: {line}"
    for line in known:
        if line not in written:
            yield f"{PAGE} has, and no artifact says it: {line}"


def rerun(name: str) -> int:
    """Makes the artifact of a claim anew in `runs/`; returns the exit status of the command."""
    claim = CLAIMS[name]
    path = ROOT / "runs" / "evidence" / Path(claim.artifact).name
    path.parent.mkdir(parents=True, exist_ok=True)
    words = shlex.split(claim.command.format(artifact=path))
    print(shlex.join(words), flush=True)
    status = subprocess.call([sys.executable, *words[1:]], cwd=ROOT)
    if status == 0:
        print(f"\nRecorded, at {claim.commit}:\n")
        print("\n".join(claim.table(read_json_lines(ROOT / claim.artifact))))
        print(f"\nNow, in {path}:\n")
        print("\n".join(claim.table(read_json_lines(path))))
    return status


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare, and run nothing")
    what.add_argument("--write", action="store_true", help=f"write {PAGE}")
    what.add_argument("--rerun", metavar="NAME", help=f"one of {', '.join(CLAIMS)}")
    arguments = parser.parse_args()
    if arguments.rerun is not None:
        try:
            require_one_of("--rerun", arguments.rerun, [*CLAIMS])
        except ValueError as error:
            parser.error(str(error))
        return rerun(arguments.rerun)
    if arguments.write:
        (ROOT / PAGE).write_text(page(), encoding="utf-8")
        return 0
    found = [*differences()]
    for line in found:
        print(line)
    told = f"{len(CLAIMS)} claims: " + ("as recorded." if not found else "see above.")
    print(told)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
