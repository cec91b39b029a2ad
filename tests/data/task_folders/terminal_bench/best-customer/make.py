import sqlite3

shop = sqlite3.connect("shop.db")
shop.execute("create table orders (customer text, amount real)")
rows = [("Ada", 9), ("Ines", 4), ("Ines", 4), ("Bo", 7.5), ("Ines", 2)]
shop.executemany("insert into orders values (?, ?)", rows)
shop.commit()
