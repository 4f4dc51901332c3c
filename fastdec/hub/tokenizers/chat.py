"""Chat templates: a conversation as the text that a model was trained to answer.

A template is a stranger's program in the language of Jinja. `transformers` renders it in Jinja's
sandbox, which opens no file and imports nothing. The sandbox bounds neither time nor memory, so it
runs in a process of its own (`rendering`), which later conversations use too.
"""

import atexit
import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fastdec import extras
from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import read_bytes, read_json, text_of

TEMPLATE = 'chat_template.jinja'
SETTINGS = 'tokenizer_config.json'
SPECIAL = 'special_tokens_map.json'
START, RENDER = 60.0, 5.0  # seconds that the process may take to start, and to render once


class Chats:
  """The part of a tokenizer that writes conversations; `folder` has its files, if it has any."""

  folder: pathlib.Path | None = None

  def _template(self, tools: Any) -> str:
    """Returns the chat template for a conversation with these tools, or without any.

    Raises:
      UserError: there is none.
    """
    if self.folder is None:
      raise UserError('this tokenizer has no chat template: give texts, or a model made for chats')
    return template_of(self.folder, tools)

  def _special_tokens(self) -> dict[str, str]:
    """Returns the special tokens that templates see."""
    return {} if self.folder is None else special_tokens(self.folder)

  def encode(self, text: str, special: bool = True) -> list[int]:
    raise NotImplementedError

  def render(
    self,
    messages: Any,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **template_arguments: Any,
  ) -> str:
    """Writes a conversation as the tokenizer's chat template does.

    Args:
      messages: {'role': 'user', 'content': 'Hello'}, ...
      add_generation_prompt: ends with the beginning of an answer.
      continue_final_message: ends within the last message, for the model to continue it; no answer
        is begun.
      **template_arguments: variables for the template, such as enable_thinking or tools.

    Raises:
      UserError: there is no template, it has a mistake or takes too long, or it refuses these
        messages.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
      raise UserError("messages are a list of {'role': 'user', 'content': ...}: give at least one")
    template = self._template(template_arguments.get('tools'))
    request = {
      **self._special_tokens(),
      **template_arguments,
      'conversations': [[_without_nulls(message) for message in messages]],
      'chat_template': template,
      'add_generation_prompt': add_generation_prompt and not continue_final_message,
      'continue_final_message': continue_final_message,
    }
    return _process.render(request)

  def encode_chat(
    self, messages: Any, add_generation_prompt: bool = True, **template_arguments: Any
  ) -> list[int]:
    """Returns the ids of `render`'s text; special tokens that the text spells out count as such."""
    text = self.render(messages, add_generation_prompt, **template_arguments)
    return self.encode(text, special=False)


def _without_nulls(message: Any) -> dict[str, Any]:
  """Returns a message without the fields that are None, as `apply_chat_template` does."""
  if not isinstance(message, Mapping):
    raise UserError(f"{shown(message)} is no message: give {{'role': 'user', 'content': ...}}")
  return {name: value for name, value in message.items() if value is not None}


def template_of(folder: pathlib.Path, tools: Any = None) -> str:
  """Returns the chat template of a folder: of chat_template.jinja, else tokenizer_config.json.

  If the latter has several, the template is 'tool_use' if tools are given, otherwise 'default'.

  Raises:
    UserError: there is none, or several without a default.
  """
  if (folder / TEMPLATE).is_file():
    try:
      return text_of(read_bytes(folder / TEMPLATE), folder / TEMPLATE)
    except OSError as error:
      raise UserError(f'cannot read {folder / TEMPLATE} ({error.strerror})') from None
  template = chosen_template(_read(folder / SETTINGS).get('chat_template'), tools)
  if template is None:
    raise UserError(
      f'{folder} has no chat template ({TEMPLATE}, or chat_template in {SETTINGS}): give texts,'
      ' or a model made for chats'
    )
  return template


def chosen_template(template: Any, tools: Any) -> str | None:
  """Returns the only template, or the one of several that fits; None: there is none."""
  if isinstance(template, list):
    named = {str(one.get('name')): one.get('template') for one in template if isinstance(one, dict)}
    template = named.get('tool_use' if tools and 'tool_use' in named else 'default')
  return template if isinstance(template, str) else None


def special_tokens(folder: pathlib.Path) -> dict[str, str]:
  """Returns the special tokens that a folder names, as templates see them: bos_token, ..."""
  tokens = {}
  for file in (SPECIAL, SETTINGS):
    for name, value in _read(folder / file).items():
      text = value.get('content') if isinstance(value, dict) else value
      if name.endswith('_token') and isinstance(text, str):
        tokens[name] = text
  return tokens


def _read(file: pathlib.Path) -> dict[str, Any]:
  return read_json(file) if file.is_file() else {}


class Process:
  """The process that renders; it starts with the first conversation, one for all threads."""

  def __init__(self) -> None:
    self._lock, self._owner = threading.Lock(), 0
    self._running: Any = None  # a Popen

  def render(self, request: Mapping[str, Any]) -> str:
    """Returns the text that `rendering` answers.

    Raises:
      UserError: a value that JSON lacks; any fault of the template.
    """
    try:
      line = json.dumps(request).encode() + b'\n'
    except (TypeError, ValueError, RecursionError) as error:
      raise UserError(f'messages and template arguments are texts and numbers: {error}') from None
    with self._lock:
      answer = self._answer(line)
    if not answer.endswith(b'\n'):
      raise UserError(f'the chat template takes more than {RENDER:.0f} seconds or a gigabyte')
    content = json.loads(answer)
    if 'refused' in content:
      raise UserError(content['refused'])
    return content['text']

  def _answer(self, line: bytes) -> bytes:
    """Returns the line that answers one; cut short where the process takes too long, or ends."""
    running = self._running
    if running is None or self._owner != os.getpid() or running.poll() is not None:
      running = self._start()
    try:
      running.stdin.write(line)
      running.stdin.flush()
      answer = _read_line(running, RENDER)
    except OSError:
      answer = b''
    except BaseException:  # after Ctrl-C, the next conversation would read this one's answer
      self.end()
      raise
    if not answer.endswith(b'\n'):
      self.end()
    return answer

  def _start(self) -> Any:
    with extras.explained():
      for name in ('transformers', 'jinja2'):  # importing them here would take a second
        if importlib.util.find_spec(name) is None:
          raise ModuleNotFoundError(name=name)
    command = [sys.executable, '-P', str(pathlib.Path(__file__).with_name('rendering.py'))]
    running = self._running = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C is for us
      env={**os.environ, 'TRANSFORMERS_VERBOSITY': 'error'},  # it would advise to install PyTorch
    )
    self._owner = os.getpid()
    if _read_line(running, START) != b'ready\n':
      self.end()
      raise UserError(f'the process for chat templates does not start: try {" ".join(command)}')
    return running

  def end(self) -> None:
    """Ends the process, if this one started it."""
    running, self._running = self._running, None
    if running is not None and self._owner == os.getpid():
      running.kill()
      running.wait()
      with contextlib.suppress(OSError):  # what it has not read is lost with it
        running.stdin.close()
      running.stdout.close()


def _read_line(running: Any, seconds: float) -> bytes:
  """Reads a line of a process; killing it after some seconds cuts the line short."""
  deadline = threading.Timer(seconds, running.kill)
  deadline.start()
  try:
    return running.stdout.readline()
  finally:
    deadline.cancel()


_process = Process()
atexit.register(_process.end)
