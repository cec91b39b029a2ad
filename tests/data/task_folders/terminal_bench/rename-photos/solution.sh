#!/bin/bash
set -e
cd /app/photos
for file in *.jpeg *.JPG; do mv "$file" "${file%.*}.jpg"; done
