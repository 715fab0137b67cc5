#!/usr/bin/env bash
# On a machine with a CUDA device: the test suite on CuPy arrays, then the timings against torch CUDA and cupyx; in 8 minutes in all.
# Needs an environment with sparsekit[torch,dev], cupy for the device's CUDA, and a CUDA build of torch:
#     bench/gpu_check.sh [FOLDER]      FOLDER (gpu-check) gets tests.xml, bench.jsonl and summary.json; PYTHON names the interpreter
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-gpu-check}")
python=${PYTHON:-python3}
mkdir -p "$out"
start=$SECONDS

# Each part has a limit of its own, so that the other reports even where one hangs. tests/test_cuda_* are for machines without a GPU.
export SPARSEKIT_TEST_DEVICE=cuda SPARSEKIT_REQUIRE_BACKENDS=1 HYPOTHESIS_PROFILE=ci PYTHONPATH=.:backends
timeout 270 "$python" -m pytest -q -n 8 --dist loadfile -m "not slow" -k "(cupy or gpu or device) and not test_cuda_" \
    --junitxml "$out/tests.xml" tests >"$out/tests.txt" 2>&1
tests=$?
tail -n 40 "$out/tests.txt"
tests_s=$((SECONDS - start))

timeout 200 "$python" -m bench cuda --json "$out/bench.jsonl" >"$out/bench.txt" 2>&1
bench=$?
tail -n 60 "$out/bench.txt"

"$python" - "$out" "$tests" "$tests_s" "$bench" $((SECONDS - start)) <<'PY'
import json, pathlib, sys, xml.etree.ElementTree as xml
out = pathlib.Path(sys.argv[1])
names = ("tests_status", "tests_seconds", "bench_status", "seconds")
summary = dict(zip(names, map(int, sys.argv[2:])))
if (out / "tests.xml").exists():
    suite = xml.parse(out / "tests.xml").getroot()[0]
    summary["tests"] = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
rows = [json.loads(line) for line in (out / "bench.jsonl").read_text().splitlines()] if (out / "bench.jsonl").exists() else []
summary["bandwidth_bytes_per_s"] = max((row["bandwidth"] for row in rows), default=None)
keep = ("operation", "case", "contender", "status", "note", "median_s", "floor_s", "over_floor", "best_peer", "best_peer_over_this")
summary["machine"] = rows[0]["machine"] if rows else None
summary["rows"] = [{name: row[name] for name in keep} for row in rows]
(out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
print(json.dumps({name: summary.get(name) for name in (*names, "tests")}))
PY
exit $((tests || bench))
