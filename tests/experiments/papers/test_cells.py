"""Lines of results.jsonl are read, and written again with the same values."""

import json

import pytest

from experiments.lab.cells import append, read
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
OTHER = '{"part": "growth", "model": "fconv", "models": "f00d", "error": null, "seed": 0}'
CELL = BlockwiseCell(
  4, 'finetune', 'tree-8', bleu=30.5, mean_block_size=2.5, head_accuracy=(1.0, 0.5, 0.25, 0.125),
  outputs=500, split='dev', models='f00d', conditions=CONDITIONS,
)  # fmt: skip
LACKING = {'spread': None, 'own_accuracy': [], 'bicubic_psnr': None}  # fields that the line lacks


def test_a_line_is_read_and_written_again_with_the_same_values(tmp_path):
  row = json.loads(STERN)
  (tmp_path / 'before.jsonl').write_text(json.dumps(row) + '\n')
  assert read(tmp_path / 'before.jsonl', BlockwiseCell) == [CELL]
  append(tmp_path / 'now.jsonl', CELL)
  assert json.loads((tmp_path / 'now.jsonl').read_text()) == {**LACKING, **row}


def test_a_line_of_another_experiment_is_no_cell(tmp_path):
  (tmp_path / 'other.jsonl').write_text(OTHER + '\n')
  with pytest.raises(UserError, match=r'line 1 of .*other.jsonl is no cell'):
    read(tmp_path / 'other.jsonl', BlockwiseCell)
