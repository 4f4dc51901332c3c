"""Chat templates: a conversation as the text that a model was trained to answer.

A template is a program of strangers, in Jinja's language. It runs in Jinja's sandbox, which opens
no file and imports nothing, and in a process of its own (`rendering`), with bounded time and
memory: within Python nothing ends a loop without end, or the multiplication of a text. The process
serves later conversations too.
"""

import atexit
import importlib.util
import json
import os
import pathlib
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import read_bytes, read_json, text_of

TEMPLATE, SETTINGS, SPECIAL = (
  'chat_template.jinja',
  'tokenizer_config.json',
  'special_tokens_map.json',
)
START, RENDER = 60.0, 5.0  # most seconds until the process is there, and of a conversation
MARK = 'CONTINUED_FROM_HERE '  # behind the last message while it is rendered; its space shows trims


class Chats:
  """A tokenizer's part that writes conversations; `folder` is where its files lie."""

  folder: pathlib.Path | None = None

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
      continue_final_message: ends within the last message, which is to be gone on with; no answer
        is begun.
      **template_arguments: variables for the template, such as enable_thinking or tools.

    Raises:
      UserError: there is no template, it has a mistake or takes too long, or it refuses these
        messages.
    """
    given = [_message(one) for one in messages] if _is_list(messages) else []
    if not given:
      raise UserError("messages are a list of {'role': 'user', 'content': ...}: give at least one")
    if continue_final_message:
      given[-1]['content'] = _marked(given[-1].get('content'))
    if self.folder is None:
      raise UserError('this tokenizer has no chat template: give texts, or a model made for chats')
    template = template_of(self.folder, template_arguments.get('tools'))
    values = {'tools': None, 'documents': None, **special_tokens(self.folder), **template_arguments}
    values['messages'] = given
    values['add_generation_prompt'] = bool(add_generation_prompt and not continue_final_message)
    text = _process.render(template, values)
    if not continue_final_message:
      return text
    if MARK.strip() not in text:
      raise UserError('the chat template leaves out the last message, so it cannot be gone on with')
    before = text[: text.rindex(MARK.strip())]
    return before if MARK in text else before.rstrip()

  def encode_chat(
    self, messages: Any, add_generation_prompt: bool = True, **template_arguments: Any
  ) -> list[int]:
    """Returns the ids of `render`'s text, in which special tokens count where they are spelt."""
    text = self.render(messages, add_generation_prompt, **template_arguments)
    return self.encode(text, special=False)


def template_of(folder: pathlib.Path, tools: Any = None) -> str:
  """Returns the chat template of a folder: of chat_template.jinja, else tokenizer_config.json.

  Of several named ones it is 'default', or 'tool_use' if tools are given.

  Raises:
    UserError: there is none, or several without a default.
  """
  if (folder / TEMPLATE).is_file():
    try:
      return text_of(read_bytes(folder / TEMPLATE), folder / TEMPLATE)
    except OSError as error:
      raise UserError(f'cannot read {folder / TEMPLATE} ({error.strerror})') from None
  given = _read(folder / SETTINGS).get('chat_template')
  if isinstance(given, list):
    named = {one.get('name'): one.get('template') for one in given if isinstance(one, dict)}
    given = named.get('tool_use' if tools and 'tool_use' in named else 'default')
  if not isinstance(given, str):
    raise UserError(
      f'{folder} has no chat template ({TEMPLATE}, or chat_template in {SETTINGS}): give texts,'
      ' or a model made for chats'
    )
  return given


def special_tokens(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the special tokens that a folder names, as templates see them: bos_token, ..."""
  found = {}
  for file in (SPECIAL, SETTINGS):
    for name, value in _read(folder / file).items():
      text = value.get('content') if isinstance(value, dict) else value
      if name.endswith('_token') and isinstance(text, str):
        found[name] = text
  return found


class Process:
  """The process that renders; it begins with the first conversation, one for all threads."""

  def __init__(self) -> None:
    self._lock, self._owner = threading.Lock(), 0
    self._running: Any = None

  def render(self, template: str, values: Mapping[str, Any]) -> str:
    """Returns the text of a template.

    Raises:
      UserError: a value that JSON lacks; all that is wrong with the template.
    """
    try:
      request = json.dumps({'template': template, 'values': values}).encode() + b'\n'
    except (TypeError, ValueError, RecursionError) as error:
      raise UserError(f'messages and template arguments are texts and numbers: {error}') from None
    with self._lock:
      answer = self._answer(request)
    if 'text' in answer:
      return answer['text']
    raise UserError(answer['refused'])

  def _answer(self, request: bytes) -> dict[str, str]:
    running = self._running
    if running is None or self._owner != os.getpid() or running.poll() is not None:
      running = self._begin()
    try:
      running.stdin.write(request)
      running.stdin.flush()
      line = _line(running, RENDER)
    except OSError:
      line = b''
    except BaseException:  # Ctrl-C: its answer would be taken for the next one's
      self.end()
      raise
    if not line.endswith(b'\n'):
      self.end()
      return {'refused': f'the chat template takes more than {RENDER:.0f} seconds or a gigabyte'}
    return json.loads(line)

  def _begin(self) -> Any:
    if importlib.util.find_spec('jinja2') is None:
      raise UserError('chat templates need jinja2, which is not installed: run pip install jinja2')
    script = pathlib.Path(__file__).with_name('rendering.py')
    command = [sys.executable, '-P', str(script)]
    running = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C is for us
    )
    self._running, self._owner = running, os.getpid()
    if _line(running, START) != b'ready\n':
      self.end()
      raise UserError(f'the process for chat templates does not start: try {" ".join(command)}')
    return running

  def end(self) -> None:
    """Ends the process, if this one began it."""
    running, self._running = self._running, None
    if running is not None and self._owner == os.getpid():
      running.kill()
      running.wait()
      running.stdin.close()
      running.stdout.close()


_process = Process()
atexit.register(_process.end)


def _line(running: Any, seconds: float) -> bytes:
  """Returns the next line of a process; cut short if it takes too long, or the process ends."""
  line, end = b'', time.monotonic() + seconds
  while not line.endswith(b'\n'):
    left = end - time.monotonic()
    ready, _, _ = select.select([running.stdout], [], [], max(left, 0))
    part = os.read(running.stdout.fileno(), 2**16) if ready else b''
    if not part:
      break
    line += part
  return line


def _message(given: Any) -> dict[str, Any]:
  """Returns a message without fields that are None."""
  if not isinstance(given, Mapping):
    raise UserError(f"{shown(given)} is no message: give {{'role': 'user', 'content': ...}}")
  return {name: value for name, value in given.items() if value is not None}


def _marked(content: Any) -> Any:
  """Returns the content of a message, a text or a list of parts, with the mark behind its text."""
  if isinstance(content, str):
    return content + MARK
  if _is_list(content):
    parts = [dict(part) if isinstance(part, Mapping) else part for part in content]
    for part in reversed(parts):
      if isinstance(part, dict) and isinstance(part.get('text'), str):
        part['text'] += MARK
        return parts
  raise UserError('the last message has no text, so it cannot be gone on with')


def _is_list(given: Any) -> bool:
  return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def _read(file: pathlib.Path) -> dict[str, Any]:
  return read_json(file) if file.is_file() else {}
