#!/bin/bash
set -e
grep -hE "^[^ ]+ ERROR " /app/logs/*.log | sort > /app/errors.log
