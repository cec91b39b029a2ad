#!/bin/bash
set -e
cd /app
python3 - <<'END'
import csv, collections
totals = collections.defaultdict(float)
for row in csv.DictReader(open("orders.csv")):
    totals[row["city"]] += float(row["amount"])
with open("totals.csv", "w") as file:
    file.write("city,total\n")
    for city in sorted(totals):
        file.write(f"{city},{totals[city]:.2f}\n")
END
