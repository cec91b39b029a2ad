#!/bin/bash
set -e
python3 -c "
import sqlite3
row = sqlite3.connect('/app/shop.db').execute('select customer from orders group by 1 order by sum(amount) desc').fetchone()
open('/app/answer.txt', 'w').write(row[0])"
