"""The forms of products are timed once on a machine, and the fastest are chosen with care."""

import json

import pytest

from fastdec.kernels import forms
from fastdec.text import programs
from fastdec.tuning import products


@pytest.fixture(autouse=True)
def fresh_forms():
  programs._read_forms.cache_clear()
  yield
  forms.use({})
  programs._read_forms.cache_clear()


def test_forms_are_measured_once_on_a_machine(monkeypatch, tmp_path):
  monkeypatch.setenv(programs.VARIABLE, str(tmp_path))
  monkeypatch.setattr(products, 'BYTES', 2**12)
  programs.measure_forms()
  (file,) = programs.folder().iterdir()
  table = json.loads(file.read_text())
  assert table.keys() == forms.TABLE.keys()
  for sizes in table.values():
    assert sizes.keys() == set(forms.SIZES)
    for chosen in sizes.values():
      assert len(chosen) == len(forms.COUNTS)
      known = {*forms.FORMS, forms.UNSIGNED}
      assert all(name in known and least in forms.COUNTS for name, least in chosen)

  # A second process uses the file, and measures nothing.
  by_lanes = [['lanes', 1]] * len(forms.COUNTS)
  file.write_text(json.dumps({t: dict.fromkeys(forms.SIZES, by_lanes) for t in forms.TABLE}))
  programs._read_forms.cache_clear()
  monkeypatch.setattr(products, 'measure_forms', None)
  programs.measure_forms()
  assert forms._used[0]['float32']['large'] == [('lanes', 1)] * len(forms.COUNTS)


def test_rows_are_filled_up_where_that_is_clearly_faster():
  seconds = {('rows', 1): 1.0, ('rows', 2): 0.95, ('kernel', 4): 0.5}
  fast = products.choose_forms(seconds | {('rows', 8): 3.0, ('rows', 16): 6.0})
  assert fast[0] == ('kernel', 4)
  slower = seconds | {('kernel', 4): 2.0, ('rows', 8): 3.0, ('rows', 16): 6.0}
  assert products.choose_forms(slower)[:2] == [('rows', 1), ('rows', 1)]
