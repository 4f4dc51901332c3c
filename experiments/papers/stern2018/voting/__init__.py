"""The human evaluation behind `python -m experiments.human_eval`.

study.py     what is compared: the images that table2 left, one trial for every picture and every method
store.py     the votes: a SQLite file, a transaction a vote
web.py       what a rater sees, and the page's server; page/ is the page
results.py   Table 3 from the votes
"""
