"""Chat templates: a conversation as the text that a model was trained to answer.

A template is a program from the model's publisher, in the language of Jinja. `transformers` renders
it in Jinja's sandbox, which opens no file and imports nothing. The sandbox limits neither time nor
memory, so it runs in a process of its own (`rendering`), which later conversations use too.
"""

import atexit
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastdec import extras
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import explained, read_bytes, read_json, text_of
from fastdec.folders.folder import TEMPLATES

TEMPLATE = 'chat_template.jinja'
SETTINGS = 'tokenizer_config.json'
SPECIAL = 'special_tokens_map.json'
_TEXT_END = '<|endoftext|>'
_OF_LLAMA = {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>'}
OF_CLASSES = {  # the tokens of classes in `transformers` whose files may name none
  'LlamaTokenizer': _OF_LLAMA, 'CodeLlamaTokenizer': _OF_LLAMA,
  'GemmaTokenizer': {'bos_token': '<bos>', 'eos_token': '<eos>', 'unk_token': '<unk>'},
  'GPT2Tokenizer': dict.fromkeys(_OF_LLAMA, _TEXT_END),
  'Qwen2Tokenizer': {'eos_token': _TEXT_END, 'unk_token': _TEXT_END, 'pad_token': _TEXT_END},
}  # fmt: skip
GENERATION = 'add_generation_prompt', 'continue_final_message'  # every template has these
# Names that `render` itself gives to a template, or that change how it is rendered.
RESERVED = ('messages', 'conversations', 'chat_template', 'return_assistant_tokens_mask')
# Roles of messages that any template may get; others must occur in the template.
ROLES = ('system', 'developer', 'user', 'assistant', 'tool')
START, RENDER = 60.0, 5.0  # seconds that the process may take to start, and to render once


class Chats:
  """The part of a tokenizer that writes conversations; `folder` is the folder of its files."""

  folder: pathlib.Path | None = None

  def templates(self) -> dict[str, str]:
    """Returns the chat templates by their names."""
    return read_templates(self.folder) if self.folder else {}

  def special_names(self) -> dict[str, str]:
    """Returns the special tokens that templates see: bos_token, ..."""
    return special_tokens(self.folder) if self.folder else {}

  def template(self, tools: Any = None) -> str:
    """Returns the chat template 'tool_use' if tools are given, otherwise 'default'.

    Raises:
      UserError: there is none, or several without a default.
    """
    templates = self.templates()
    if tools is not None and 'tool_use' in templates:
      return templates['tool_use']
    if 'default' in templates:
      return templates['default']
    where = self.folder or getattr(self, '_source', 'this tokenizer')
    if templates:
      raise UserError(
        f'{where} has the chat templates {", ".join(sorted(templates))}, and none is called'
        " 'default': rename one"
      )
    raise UserError(f'{where} has no chat template: give texts, or a model made for chats')

  def check_variables(
    self, variables: Mapping[str, Any], advise: Callable[[str], str] = lambda name: 'leave it out'
  ) -> None:
    """Raises UserError for a variable that the chat template does not use, with advice about it."""
    template = self.template(variables.get('tools'))
    for name in variables:
      if name not in GENERATION and not re.search(rf'\b{re.escape(name)}\b', template):
        raise UserError(
          f'the chat template has no variable {name!r}, and the call no such argument:'
          f' {advise(name)}'
        )

  def encode(self, text: str, special: bool = True) -> list[int]:
    raise NotImplementedError

  def render(
    self,
    messages: Any = None,
    /,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **template_arguments: Any,
  ) -> str:
    """Writes a conversation as the tokenizer's chat template does.

    Args:
      messages: {'role': 'user', 'content': 'Hello'}, ...
      add_generation_prompt: ends with the beginning of an answer.
      continue_final_message: ends inside the last message, for the model to continue it, without
        the beginning of an answer.
      **template_arguments: variables for the template, such as enable_thinking or tools.

    Raises:
      UserError: the tokenizer has no template, or the template has a mistake, takes too long, or
        refuses these messages.
    """
    if messages is None:
      messages = template_arguments.pop('messages', None)
    for name in RESERVED:
      if name in template_arguments:
        raise UserError(f'a template argument cannot be called {name!r}: give it another name')
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
      raise UserError(
        "messages must be a list of {'role': 'user', 'content': ...}: give at least one"
      )
    tools = template_arguments.get('tools')
    template = self.template(tools)
    if isinstance(tools, list | tuple):
      template_arguments['tools'] = list(map(_describe_tool, tools))

    # As in `apply_chat_template`, fields that are None count as absent.
    conversation = []
    for message in messages:
      fields = {}
      if isinstance(message, Mapping):
        fields = {name: value for name, value in message.items() if value is not None}
      role = fields.get('role')
      if not isinstance(role, str) or not {'content', 'tool_calls'} & set(fields):
        raise UserError(
          f"a message must be {{'role': 'user', 'content': ...}}, not {quote(message)}"
        )
      conversation.append(fields)
    request = {
      **self.special_names(),
      **template_arguments,
      'conversations': [conversation],
      'chat_template': template,
      'add_generation_prompt': add_generation_prompt and not continue_final_message,
      'continue_final_message': continue_final_message,
    }
    text = _process.render(request)
    for message in conversation:
      role = message['role']
      if role not in ROLES and not re.search(rf'\b{re.escape(role)}\b', template):
        raise UserError(
          f'the role of a message must be {", ".join(ROLES)}, or one that the chat template names,'
          f' not {quote(role)}'
        )
    return text

  def encode_chat(
    self, messages: Any = None, /, add_generation_prompt: bool = True, **template_arguments: Any
  ) -> list[int]:
    """Returns the ids of `render`'s text, in which special tokens are spelled out."""
    text = self.render(messages, add_generation_prompt, **template_arguments)
    return self.encode(text, special=False)

  def turn_end(self) -> tuple[int, str] | None:
    """Returns the eos_token of the settings, with its id; None if no chat template writes it."""
    with contextlib.suppress(UserError):  # only a chat needs a template that is not damaged
      token = self.special_names().get('eos_token', '')
      templates = self.templates().values()
      if token and any(token in text or 'eos_token' in text for text in templates):
        ids = self.encode(token, special=False)
        if len(ids) == 1:
          return ids[0], token
    return None


def read_templates(folder: pathlib.Path) -> dict[str, str]:
  """Returns a folder's chat templates by their names."""
  templates = {}
  for file in (*sorted((folder / TEMPLATES).glob('*.jinja')), folder / TEMPLATE):
    name = file.stem
    if file.name == TEMPLATE:
      name = 'default'
    if file.is_file():
      with explained('read', file, 'restore the file'):
        templates[name] = text_of(read_bytes(file), file)
  if templates:
    return templates
  return name_templates(read_if_there(folder / SETTINGS).get('chat_template'))


def name_templates(content: Any) -> dict[str, str]:
  """Returns the templates of a setting, which has one, or several with names, by their names."""
  if not isinstance(content, list):
    content = [{'name': 'default', 'template': content}]
  templates = {}
  for entry in content:
    if isinstance(entry, dict) and isinstance(entry.get('template'), str):
      templates[str(entry.get('name'))] = entry['template']
  return templates


def copy_templates(folder: pathlib.Path, to: pathlib.Path) -> None:
  """Copies the templates that have their own files into another folder."""
  for file in (folder / TEMPLATES).glob('*.jinja'):
    (to / TEMPLATES).mkdir(exist_ok=True)
    shutil.copy(file, to / TEMPLATES / file.name)


def named_tokens(folder: pathlib.Path, kind: str = '') -> dict[str, str | dict[str, Any]]:
  """Returns the tokens that a folder names, such as bos_token, as its files have them.

  As in `transformers`, special_tokens_map.json wins over tokenizer_config.json, but is ignored if
  that has an added_tokens_decoder. Tokens that no file names are those of the class `kind`.
  """
  files = [read_if_there(folder / SETTINGS)]
  if files[0].get('added_tokens_decoder') is None:
    files.append(read_if_there(folder / SPECIAL))
  tokens: dict[str, Any] = dict(OF_CLASSES.get(kind.removesuffix('Fast'), {}))
  for content in files:
    extra = content.get('extra_special_tokens')
    named = {name: value for name, value in content.items() if name.endswith('_token')}
    if isinstance(extra, dict):
      named |= extra
    for name, value in named.items():
      text = value.get('content') if isinstance(value, dict) else value
      if isinstance(text, str):
        tokens[name] = value
      elif value is None:
        tokens.pop(name, None)
      elif isinstance(value, dict):
        raise UserError(f'{folder} has {name}={quote(value)}, which needs a text as "content"')
  return tokens


def special_tokens(folder: pathlib.Path, kind: str = '') -> dict[str, str]:
  """Returns the tokens of `named_tokens` as templates see them: bos_token, ..."""
  tokens = {}
  for name, value in named_tokens(folder, kind).items():
    if isinstance(value, dict):
      value = value['content']
    tokens[name] = value
  return tokens


def _describe_tool(tool: Any) -> Any:
  """Returns the JSON schema of a function, by its signature and docstring; others as they are."""
  if not callable(tool):
    return tool
  with extras.explained():
    from transformers.utils import chat_template_utils
  try:
    return chat_template_utils.get_json_schema(tool)
  except Exception as error:  # of several kinds
    reason = str(error).splitlines()[0]
    raise UserError(
      f'{quote(tool)} cannot be a tool ({reason}): give types and a docstring with "Args:", or its'
      ' JSON schema'
    ) from None


def read_if_there(file: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON file; {} if there is none."""
  return read_json(file) if file.is_file() else {}


class Process:
  """The process that renders; it starts with the first conversation, one for all threads."""

  def __init__(self) -> None:
    self._lock, self._owner = threading.Lock(), 0
    self._running: Any = None  # a Popen

  def render(self, request: Mapping[str, Any]) -> str:
    """Returns the text that `rendering` answers.

    Raises:
      UserError: a value has no form in JSON, or the template fails.
    """
    try:
      line = json.dumps(request).encode() + b'\n'
    except (TypeError, ValueError, RecursionError) as error:
      raise UserError(
        f'messages and template arguments must be texts and numbers: {error}'
      ) from None
    with self._lock:
      answer = self._answer(line)
    if not answer.endswith(b'\n'):
      raise UserError(f'the chat template takes more than {RENDER:.0f} seconds or a gigabyte')
    content = json.loads(answer)
    if 'refused' in content:
      raise UserError(content['refused'])
    return content['text']

  def _answer(self, line: bytes) -> bytes:
    """Returns the answer to a line; cut short if the process takes too long, or ends."""
    running = self._running
    if running is None or self._owner != os.getpid() or running.poll() is not None:
      running = self._start()
    try:
      with _deadline(running, RENDER):
        running.stdin.write(line)
        running.stdin.flush()
        answer = running.stdout.readline()
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
    running: Any = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C does not reach it
      env={**os.environ, 'TRANSFORMERS_VERBOSITY': 'error'},  # it would advise to install PyTorch
    )
    self._running, self._owner = running, os.getpid()
    with _deadline(running, START):
      is_ready = running.stdout.readline() == b'ready\n'
    if not is_ready:
      self.end()
      raise UserError(f'the process for chat templates does not start: try {" ".join(command)}')
    return running

  def end(self) -> None:
    """Ends the process, if this one started it."""
    running, self._running = self._running, None
    if running is not None and self._owner == os.getpid():
      running.kill()
      running.wait()
      with contextlib.suppress(OSError):  # it may not have read everything
        running.stdin.close()
      running.stdout.close()


@contextlib.contextmanager
def _deadline(running: Any, seconds: float) -> Iterator[None]:
  """Kills a process after some seconds, so that a block that reads its output ends."""
  deadline = threading.Timer(seconds, running.kill)
  deadline.start()
  try:
    yield
  finally:
    deadline.cancel()


_process = Process()
atexit.register(_process.end)
