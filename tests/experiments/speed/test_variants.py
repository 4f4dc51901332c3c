"""Variants are compared: by what they write, in turn, with a rest after threads that spin; and end
as whole lines."""

import itertools
import json
import time

from experiments.speed.variants import REST, Variant, Written, compare, publish


def variant(engine, texts, turns, spins=False):
  def decode(x):
    turns.append((engine, x, time.perf_counter()))
    return ()

  return Variant(
    {'engine': engine, 'threads': None}, decode, lambda: [Written(ids, 2) for ids in texts], spins
  )


def test_texts_are_compared_with_the_first_variants():
  turns = []
  one = variant('a', [[1, 2], [3], [4]], turns)
  other = variant('b', [[1, 2], [3, 3], [4]], turns)
  uncompared = Variant({'engine': 'c'}, lambda x: turns.append(('c', x, 0)) or ())
  found = compare([one, other], 1, [(7,)])
  assert [compared.same for compared in found] == [1.0, 2 / 3]
  assert found[1].texts[1] == Written([3, 3], target_calls=2) and found[0].variant is one
  (alone,) = compare([uncompared], 1, [(7,)])
  assert alone.same is None and len(alone.timing.seconds) == 1


def test_variants_take_turns_and_rest_after_threads_that_spin():
  turns = []
  found = compare([variant('a', [], turns, spins=True), variant('b', [], turns)], 2, [(7,)])
  assert [compared.variant.name for compared in found] == ['a, None', 'b, None']
  assert [engine for engine, _, _ in turns] == ['a', 'b', 'a', 'b', 'b', 'a'] and {
    x for _, x, _ in turns
  } == {7}
  rested = [later[2] - turn[2] for turn, later in itertools.pairwise(turns) if turn[0] == 'a']
  assert len(rested) == 2 and min(rested) >= REST
  assert all(compared.timing.median < REST for compared in found)


def test_rows_are_appended_as_whole_lines_with_their_conditions(tmp_path, capsys):
  lines, page = tmp_path / 'new' / 'rows.jsonl', tmp_path / 'page.md'
  publish([{'ms': 1.5}], {'seed': 0}, '| ms |', lines)
  with open(lines, 'a') as file:
    file.write('{"ms": 1')  # killed
  publish([{'ms': 2.5}, {'ms': 3.5}], {'seed': 1, 'jax': 'x'}, '| ms |', lines, page)
  rows = lines.read_text().splitlines()
  assert [json.loads(rows[i]) for i in (0, 2, 3)] == [
    {'ms': 1.5, 'seed': 0}, {'ms': 2.5, 'seed': 1, 'jax': 'x'}, {'ms': 3.5, 'seed': 1, 'jax': 'x'}
  ]  # fmt: skip
  assert (
    page.read_text() == '| ms |\n\nseed 1; jax x\n' and page.read_text() in capsys.readouterr().out
  )
