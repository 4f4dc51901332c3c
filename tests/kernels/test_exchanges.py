"""What devices exchange in a call, for every strategy: sums of activations and candidates, never a
weight, a cache, an embedding table or a row of logits."""

import pytest

from tests.decoding import methods_table as table
from tests.kernels.test_sharding import on_eight_devices

TYPES = ('float32', 'int8w', 'int8', 'int8 with sums')
WAYS = [f'{mesh}, {rows}' for rows in ('1 row', '2 rows') for mesh in ('1 x 8', '2 x 4')]
WHOLE = ('every id separate',)  # its guesses are as many as there are words


def in_turns(names):
  """Each strategy by both kinds of models; types, meshes and rows take turns."""
  cases = []
  for i, name in enumerate(names):
    cases.append(f'lm, {TYPES[i % 4]}, {WAYS[i // 2 % 4]}, {name}')
    cases.append(f'translator, {TYPES[(i + 1) % 4]}, {WAYS[(i // 2 + 1) % 4]}, {name}')
  return [case for case in cases if not case.endswith(WHOLE)]


GROUPS = {
  'few': [
    'lm, float32, 1 x 8, 1 row, greedy',
    'lm, int8w, 2 x 4, 2 rows, medusa',
    'translator, int8, 1 x 8, 1 row, blockwise',
  ],
  # every form of a product
  'types': [
    f'{network}, {dtype}, {way}, greedy'
    for network in ('lm', 'two key heads', 'translator')
    for dtype in TYPES
    for way in WAYS[:3:2]
  ],
  'methods': in_turns(table.METHODS),
  'variants': in_turns(table.VARIANTS),
  'networks': in_turns(table.NETWORKS),
  'drawn': in_turns([f'{name}, sampled' for name in table.DRAWN]),
  'others': in_turns(table.OTHERS),
}
KNOWN: set[str] = set()  # cases that exchange too much


@pytest.mark.wide('few')
@pytest.mark.parametrize('group', GROUPS)
def test_devices_exchange_activations_and_candidates_only(group):
  faults = on_eight_devices('tests.kernels.exchanges', *GROUPS[group])
  assert faults.keys() == set(GROUPS[group])
  assert {case for case in faults if faults[case]} == KNOWN & faults.keys(), faults
