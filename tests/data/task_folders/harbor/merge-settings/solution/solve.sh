#!/bin/bash
set -e
cd /app
python3 - <<'END'
import json
def merge(a, b):
    return {**a, **{k: merge(a[k], v) if isinstance(v, dict) and isinstance(a.get(k), dict) else v for k, v in b.items()}}
json.dump(merge(json.load(open("default.json")), json.load(open("user.json"))), open("merged.json", "w"))
END
