#!/bin/bash
set -e
cd /app && patch -p1 < change.diff || git apply change.diff
