"""Conditions say on which machine, with which flags and by which commit something was measured."""

import re

import jax

from experiments.lab import conditions


def test_conditions_name_the_machine_and_the_commit():
  found = conditions.here('page.py')
  assert found['config'] == 'page.py' and found['platform'] == 'cpu' and found['cpus'] >= 1
  assert re.fullmatch(r'[0-9a-f]{12}(-dirty)?|unknown', found['commit'])


def test_conditions_name_the_flags_of_the_compiler_where_there_are_some(monkeypatch):
  jax.devices()  # they were read long ago
  monkeypatch.setenv('XLA_FLAGS', '--fast')
  assert conditions.here()['xla_flags'] == '--fast'
  monkeypatch.delenv('XLA_FLAGS')
  assert 'xla_flags' not in conditions.here()
