"""The human evaluation behind `python -m experiments.human_eval`.

study.py   what is compared: the images that table2 left, one trial for every picture and every method
blind.py   what a rater sees: an order, sides and image addresses that tell nothing
store.py   the votes: a SQLite file, a transaction a vote
web.py     the page's server; page/ is the page
"""
