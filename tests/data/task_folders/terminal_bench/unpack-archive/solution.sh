#!/bin/bash
set -e
cd /app
mkdir -p restored
tar xzf backup.tar.gz -C restored
find restored -name '*.txt' -printf '%s %f\n' | sort -n | tail -1 | cut -d' ' -f2 > largest.txt
