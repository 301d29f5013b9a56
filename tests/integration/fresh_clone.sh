#!/usr/bin/env bash
# Clones HEAD into a new folder, installs it there, and asks the router of `make up` one question.
# Not part of the suite, because installing takes minutes. Usage: tests/integration/fresh_clone.sh [make test]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
up=
finish() {
    if [ -n "$up" ]; then kill -INT "$up" 2>/dev/null || true; wait "$up" || true; fi
    rm -rf "$folder"
}
trap finish EXIT

git clone --quiet "$root" "$folder/pointsman"
cd "$folder/pointsman"
git log --oneline -1
make .venv/.installed

# A shell without job control starts background commands deaf to Ctrl-C; with it, `make up` hears it.
set -m
make up >"$folder/up.log" 2>&1 &
up=$!
for _ in $(seq 600); do
    if grep -q 'Ctrl-C stops all of it' "$folder/up.log"; then break; fi
    kill -0 "$up" 2>/dev/null || { cat "$folder/up.log"; exit 1; }
    sleep 0.1
done
curl --silent --show-error --fail http://127.0.0.1:30000/v1/chat/completions \
    -H 'Content-Type: application/json' \
    -d '{"model": "qwen2.5-3b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}'
echo
.venv/bin/pointsman replay --limit 20 --speed 10
kill -INT -- "-$up"
wait "$up" || true # make itself ends by the signal
up=
for port in 30000 29001 9001 9002 9003 9004 9005 9006; do
    if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "port $port is still open"; exit 1; fi
done
echo "Ctrl-C stopped all of it"
if [ $# -gt 0 ]; then "$@"; fi
git status --short
