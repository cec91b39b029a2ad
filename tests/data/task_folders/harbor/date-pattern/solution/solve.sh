#!/bin/bash
set -e
echo '(?<!\d)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?!\d)' > /app/pattern.txt
