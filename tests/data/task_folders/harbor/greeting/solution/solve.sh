#!/bin/bash
set -e
echo "Good morning, harbour!" > /app/greeting.txt
