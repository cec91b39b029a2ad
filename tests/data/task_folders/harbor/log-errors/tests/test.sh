#!/bin/bash
if cmp -s /app/errors.log "$(dirname "$0")/expected.log"; then right=1; else right=0; fi
echo "{\"reward\": $right, \"lines\": $(wc -l < /app/errors.log || echo 0)}" > /logs/verifier/reward.json
