"""Hugging Face's transformers on PyTorch, which generates text from the folders that we load: a
peer."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from fastdec import extras
from fastdec.models.lm import LMConfig


def versions() -> dict[str, Any]:
  """The versions of the installed packages and the number of their threads; UserError where one is
  missing."""
  with extras.explained():
    import torch
    import transformers
  threads = torch.get_num_threads()
  return {
    'transformers': transformers.__version__,
    'torch': torch.__version__,
    'torch_threads': threads,
  }


def write(folder: str, sizes: LMConfig, seed: int) -> None:
  """A Llama folder of these sizes, its weights random as transformers makes them."""
  import torch
  import transformers

  _quiet(transformers)
  torch.manual_seed(seed)
  config = transformers.LlamaConfig(
    vocab_size=sizes.vocab_size,
    hidden_size=sizes.d_model,
    intermediate_size=sizes.d_ff,
    num_hidden_layers=sizes.layers,
    num_attention_heads=sizes.heads,
    num_key_value_heads=sizes.kv_heads,
    rms_norm_eps=sizes.norm_epsilon,
    tie_word_embeddings=sizes.tied,
  )
  transformers.LlamaForCausalLM(config).save_pretrained(folder)


def load(folder: str, dtype: str) -> Any:
  """The folder's model. What its generation_config.json says is forgotten: no token ends a text or
  is suppressed."""
  import torch
  import transformers

  _quiet(transformers)
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
  model.generation_config = transformers.GenerationConfig(do_sample=False)
  return model.eval()


def drafting(model: Any, gamma: int) -> Any:
  """The same model, its weights shared, as an assistant that drafts `gamma` tokens each time."""
  import transformers

  twin = copy.copy(model)
  twin.generation_config = transformers.GenerationConfig(
    do_sample=False,
    num_assistant_tokens=gamma,
    num_assistant_tokens_schedule='constant',
    assistant_confidence_threshold=0.0,
  )
  return twin


def generate(model: Any, prompt: Any, tokens: int, **options: Any) -> list[int]:
  """The `tokens` most likely tokens after one prompt [1, t], one by one or as `options` of
  `generate` speed it up."""
  import torch

  ids = torch.from_numpy(prompt).long()
  with torch.inference_mode():
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options)
  return out[0, ids.shape[1] :].tolist()


@contextlib.contextmanager
def counted(models: Sequence[Any]) -> Iterator[list[int]]:
  """Counts the calls of each model while it is open; the list is theirs."""
  counts = [0] * len(models)

  def count(module: Any, *_: Any) -> None:
    for i, model in enumerate(models):  # by identity: a draft may share the hooks of the target
      counts[i] += module is model

  hooks = {id(model._forward_hooks): model for model in models}
  handles = [model.register_forward_hook(count) for model in hooks.values()]
  try:
    yield counts
  finally:
    for handle in handles:
      handle.remove()


def _quiet(transformers: Any) -> None:
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
