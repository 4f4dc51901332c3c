"""The page that shows two ways to decode: its facts, what it refuses, and a real browser."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import threading

import numpy as np
import pytest

import fastdec as fd
from fastdec.cli import demo, page

ODD = 'a dog </script><b>sits'


@pytest.fixture(scope='module')
def server(translator):
  with demo.Server('127.0.0.1', 0) as server:
    server.fill(fd.Generator.load(translator, strategy='blockwise(k=2)'), 12)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def ask(server, path, body=None, **headers):
  connection = http.client.HTTPConnection(*server.server_address, timeout=600)
  connection.request('GET' if body is None else 'POST', path, body, headers)
  answer = connection.getresponse()
  return answer.status, answer.read().decode()


@pytest.mark.parametrize('prompt', ['a dog sits', ODD])
def test_both_ways_write_what_the_model_writes_and_their_blocks_add_up(
  server, translator, prompt, ticks
):
  status, answer = ask(server, '/write', json.dumps(prompt))
  assert status == 200
  plain, fast = json.loads(answer)['runs']
  wanted = fd.Generator.load(translator)(prompt, max_new_tokens=12)
  for run in (plain, fast):
    assert ''.join(text for text, _, _ in run['blocks']) == wanted.text
    assert sum(tokens for _, tokens, _ in run['blocks']) == run['tokens'] == len(wanted.tokens)
    # Milliseconds since the beginning, by a clock that is read once for each block
    times = [time for _, _, time in run['blocks']]
    assert times == pytest.approx(np.arange(1, len(times) + 1))
  assert plain['calls'] == wanted.calls == len(wanted.tokens) - 1
  assert -(-wanted.calls // 2) <= fast['calls'] <= wanted.calls


def test_the_page_has_its_facts_and_nothing_ends_its_script(server, monkeypatch):
  status, html = ask(server, '/')
  facts = facts_of(html)
  assert status == 200 and facts['names'] == ['Greedy', 'Blockwise(k=2)'] and facts['most'] == 12
  monkeypatch.setattr(demo.Server, 'facts', {'names': [ODD]})
  assert facts_of(ask(server, '/')[1])['names'] == [ODD]


def test_a_text_is_put_into_the_chat_template(talker):
  g = fd.Generator.load(talker)
  with demo.Server('127.0.0.1', 0) as server:
    server.fill(g, 4, [{'role': 'system', 'content': 'Be brief'}, {'role': 'user', 'content': ''}])
    (plain, _), facts = server.write('Who sees?'), server.facts
  asked = [{'role': 'system', 'content': 'Be brief'}, {'role': 'user', 'content': 'Who sees?'}]
  assert facts['asks'] == 'Message'
  assert ''.join(text for text, _, _ in plain['blocks']) == g(asked, max_new_tokens=4).text


def facts_of(html):
  return json.loads(re.search('id="facts">(.*?)</script>', html)[1])


@pytest.mark.parametrize('body, message', [
  ('""', 'not a text'), ('" "', 'not a text'), ('5', 'not a text'), ('{', 'UTF-8'),
  ('"\\ud800"', 'UTF-8'),
  ('"' + 'a dog ' * 200 + '"', 'positions'),
])  # fmt: skip
def test_text_that_the_model_cannot_read_is_a_sentence(server, body, message):
  status, answer = ask(server, '/write', body)
  assert status == 200 and message in json.loads(answer)['error']


def test_other_paths_pages_and_bodies_without_end_are_refused(server):
  assert ask(server, '/etc/passwd')[0] == 404 and ask(server, '/other', '"a"')[0] == 413
  assert ask(server, '/write', '"' + 'a' * demo.BYTES + '"')[0] == 413
  assert ask(server, '/', Host='elsewhere.org')[0] == 403
  assert ask(server, '/write', '"a dog"', Origin='http://elsewhere.org')[0] == 403


def test_an_idle_connection_keeps_no_other_waiting_and_is_closed(server, monkeypatch):
  with socket.create_connection(server.server_address, timeout=600):
    assert ask(server, '/')[0] == 200
  monkeypatch.setattr(page.Handler, 'timeout', 0.01)
  with socket.create_connection(server.server_address, timeout=600) as idle:
    assert idle.recv(1) == b''


def test_a_taken_port_is_refused_before_a_model_is_read(server, fastdec):
  port = server.server_address[1]
  ended = fastdec('demo', '--model=missing', f'--port={port}')
  assert f'cannot serve on 127.0.0.1:{port}' in ended.mistake and '--port' in ended.mistake


def test_the_address_is_only_of_this_machine(server):
  assert server.address == f'http://127.0.0.1:{server.server_address[1]}/'
  assert page.HOST.fullmatch('127.0.0.1:8000') and not page.HOST.fullmatch('evil.org:8000')


@contextlib.contextmanager
def browser():
  webdriver = pytest.importorskip('selenium.webdriver', reason='a browser is driven by selenium')
  if shutil.which('chromium') is None or shutil.which('chromedriver') is None:
    pytest.skip('needs chromium and chromedriver')
  options = webdriver.ChromeOptions()
  for flag in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage'):
    options.add_argument(flag)
  service = webdriver.ChromeService(shutil.which('chromedriver'))
  driver = webdriver.Chrome(options, service)
  try:
    yield driver
  finally:
    driver.quit()


@pytest.mark.slow
def test_a_browser_shows_both_texts_by_keyboard(server):
  with browser() as driver:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(server.address)
    status = driver.find_element('id', 'said')
    driver.switch_to.active_element.send_keys(ODD, Keys.CONTROL, Keys.ENTER)
    WebDriverWait(driver, 60).until(lambda _: 'The texts are the same.' in status.text)
    texts = [driver.find_element('id', f'text{i}').get_attribute('textContent') for i in (0, 1)]
    assert texts[0] == texts[1] != '' and not driver.find_elements('css selector', '.text b')
    assert 'Blockwise(k=2)' in status.text and status.get_attribute('role') == 'status'
    driver.switch_to.active_element.send_keys('a dog ' * 200, Keys.CONTROL, Keys.ENTER)
    WebDriverWait(driver, 60).until(lambda _: 'positions' in status.text)
    assert not [one for one in driver.get_log('browser') if one['level'] == 'SEVERE']
