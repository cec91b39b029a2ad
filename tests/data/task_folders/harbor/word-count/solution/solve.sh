#!/bin/bash
set -e
cd /app
python3 - <<'END'
import collections, json, re
words = re.findall(r"[a-z]+", open("poem.txt").read().lower())
json.dump(collections.Counter(words), open("counts.json", "w"))
END
