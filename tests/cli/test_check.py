"""What folders are said to hold."""

import shutil


def test_models_heads_and_drafts_are_told_apart(translator, networks, fastdec, tmp_path):
  wide = translator.parent / 'wide'
  ended = fastdec('check', translator, networks['eagle'], wide)
  assert ended.code == 0, ended.err
  lines = ended.out.splitlines()
  assert lines[0] == str(translator) and lines[1].startswith('  model: Transformer, ')
  assert 'd_model 8, vocab_size 30, max_positions 32' in lines[1]
  assert lines[2].startswith('  prediction heads: BlockwiseHeads, ')
  assert lines[3] == '  tokenizer: 30 ids'
  assert lines[5].startswith('  draft network: EagleNetwork, ') and 'd_target 8' in lines[5]
  assert (
    'holds prediction heads alone' in lines[7] and '  prediction heads: MedusaHeads' in lines[8]
  )
  assert lines[9].startswith('  tokenizer: none (')


def test_what_is_not_whole_is_a_mistake(translator, fastdec, tmp_path):
  folder = shutil.copytree(translator, tmp_path / 'model')
  (folder / 'model.safetensors').unlink()
  assert 'model.safetensors is missing' in fastdec('check', folder).mistake
  assert 'is not a folder' in fastdec('check', tmp_path / 'nowhere').mistake
  assert 'name one or more' in fastdec('check').mistake
