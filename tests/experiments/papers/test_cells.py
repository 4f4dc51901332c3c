"""Lines of results.jsonl are read, and written again with the same values."""

import json

import pytest

from experiments.lab.cells import append, read
from experiments.papers.incremental.cells import SavingCell
from experiments.papers.stern2018.cells import BlockwiseCell
from fastdec.errors import UserError

CONDITIONS = {'seed': 0, 'commit': 'abc'}
STERN = """
{"k": 4, "regime": "finetune", "rule": "tree-8", "bleu": 30.5, "bleu_signature": null, "compound_bleu": null,
"compound_bleu_signature": null, "bits_per_dimension": null, "psnr": null, "ssim": null, "psnr_to_greedy": null,
"mean_block_size": 2.5, "calls_per_output": null, "ms_per_output": null, "greedy_ms_per_output": null, "speedup": null,
"same_as_greedy": null, "compile_seconds": null, "head_accuracy": [1.0, 0.5, 0.25, 0.125], "outputs": 500,
"split": "dev", "models": "f00d", "error": null, "seed": 0, "commit": "abc"}
"""
INCREMENTAL = """
{"models": "f00d", "error": null, "part": "growth", "model": "fconv", "dtype": "float32", "batch": 1, "length": 32,
"milliseconds": {"uncached": 9.0, "host": 3.0, "device": 1.0}, "to_fastest": null, "to_shortest": null, "steps": 4,
"parted": 0, "largest_gap": null, "counts": null, "seed": 0, "commit": "abc"}
"""
TIMES = {'uncached': 9.0, 'host': 3.0, 'device': 1.0}
CELLS = [
  BlockwiseCell(4, 'finetune', 'tree-8', bleu=30.5, mean_block_size=2.5, head_accuracy=(1.0, 0.5, 0.25, 0.125),
                outputs=500, split='dev', models='f00d', conditions=CONDITIONS),
  SavingCell('growth', 'fconv', 'float32', 1, 32, milliseconds=TIMES, steps=4, parted=0, models='f00d',
             conditions=CONDITIONS),
]  # fmt: skip


# Fields that these lines lack, as they are written then.
LACKING = {
  BlockwiseCell: {'spread': None, 'own_accuracy': [], 'bicubic_psnr': None},
  SavingCell: {'spread': None},
}


@pytest.mark.parametrize('line, cell', [*zip([STERN, INCREMENTAL], CELLS, strict=True)])
def test_a_line_is_read_and_written_again_with_the_same_values(tmp_path, line, cell):
  row = json.loads(line)
  (tmp_path / 'before.jsonl').write_text(json.dumps(row) + '\n')
  assert read(tmp_path / 'before.jsonl', type(cell)) == [cell]
  append(tmp_path / 'now.jsonl', cell)
  again = json.loads((tmp_path / 'now.jsonl').read_text())
  assert again == {**LACKING.get(type(cell), {}), **row}


@pytest.mark.parametrize('kind, line', [(BlockwiseCell, INCREMENTAL), (SavingCell, STERN)])
def test_a_line_of_another_experiment_is_no_cell(tmp_path, kind, line):
  (tmp_path / 'other.jsonl').write_text(json.dumps(json.loads(line)) + '\n')
  with pytest.raises(UserError, match=r'line 1 of .*other.jsonl is no cell'):
    read(tmp_path / 'other.jsonl', kind)
