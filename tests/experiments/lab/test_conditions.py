"""Conditions name the settings beside the machine."""

from experiments.lab import conditions


def test_conditions_name_the_settings_and_the_machine():
  found = conditions.here('page.py')
  assert found['config'] == 'page.py' and found['platform'] == 'cpu' and 'commit' in found
