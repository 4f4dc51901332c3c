"""Columns, notes and conditions of the tables that put a strategy beside plain decoding
."""

from experiments.lab.report import Column, between, field

SPEED_UP = Column(
  'Speed-up', 'speedup', '.2f', '×', beside=lambda cell: between(field(cell, 'spread'))
)
CALLS_ALONE = Column('Calls alone', 'speedup_calls', '.2f', '×')
SAME = Column('Same %', 'same_as_plain', '.1f', scale=100)
SAME_NOTE = (
  "Same: texts that are greedy decoding's, token for token; the others part at near ties"
  ' (float32 rounding).'
)
# conditions of all tables
MACHINE = ('config', 'seed', 'dtype', 'device', 'processor', 'cpus', 'xla_flags', 'commit')
