"""The page of the human evaluation in a real browser: Chromium, headless."""

import json
import re
import shutil
import sqlite3

import numpy as np
import pytest

from experiments.papers.stern2018.voting.store import FILE
from experiments.papers.stern2018.voting.study import Study
from tests.experiments.papers.stern2018.voting.human_eval import (
  PAIRS,
  Client,
  free_port,
  images,
  server,
)

webdriver = pytest.importorskip('selenium.webdriver')
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER, DRIVER = shutil.which('chromium'), shutil.which('chromedriver')
pytestmark = pytest.mark.skipif(
  not (BROWSER and DRIVER), reason='needs the Debian packages chromium, chromium-driver'
)
TELLING = r'fine-?tun|regular|exact|distance|baseline|blockwise|approx|greedy|npz|images/|\bdev\b|\bk\d|\bk ?='
DRAW = """
  const image = document.querySelector(arguments[0]), canvas = document.createElement('canvas');
  const [width, height] = [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const drawing = canvas.getContext('2d');
  drawing.drawImage(image, 0, 0);
  return [height, width, ...drawing.getImageData(0, 0, width, height).data];
"""
LOADED = (
  "return performance.getEntriesByType('resource').map(({ name, encodedBodySize }) =>"
  ' [name,'
  ' encodedBodySize])'
)
HASTE = """
  const down = (key, repeat) =>
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key, repeat, bubbles: true }));
  down('ArrowRight', true);   // still held down from the pair before
  down('ArrowLeft', false);
  down('ArrowLeft', false);   // before the next pair is there
  down('ArrowRight', false);
"""


class Page:
  """What a rater sees and does."""

  def __init__(self, driver):
    self.driver = driver

  def find(self, identity):
    return self.driver.find_element(By.ID, identity)

  def press(self, *keys):
    self.driver.switch_to.active_element.send_keys(*keys)

  def wait(self, what, seconds=20):
    return WebDriverWait(self.driver, seconds, 0.02).until(lambda _: what())

  def shows(self, identity, *words):
    """Waits until an element shows all of the words."""
    self.wait(lambda: all(word in self.find(identity).text for word in words))

  def done(self, count):
    """Waits until so many votes are counted and the next pair is there."""
    self.shows('progress', f'{count} of {PAIRS} done, {PAIRS - count} left')
    self.wait(lambda: self.driver.execute_script('return !busy'))

  def picture(self, identity):
    """The pixels of a picture on the page. uint8[h, w, 3]"""
    height, width, *values = self.driver.execute_script(DRAW, f'#{identity} img')
    return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


@pytest.fixture(scope='module')
def driver():
  options = webdriver.ChromeOptions()
  options.binary_location = BROWSER
  for flag in (
    '--headless=new',
    '--no-sandbox',
    '--disable-dev-shm-usage',
    '--window-size=1000,800',
  ):
    options.add_argument(flag)
  options.set_capability('goog:loggingPrefs', {'performance': 'ALL'})
  driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
  yield driver
  driver.quit()


@pytest.fixture
def page(driver):
  driver.execute_cdp_cmd('Storage.clearDataForOrigin', {'origin': '*', 'storageTypes': 'all'})
  driver.execute_cdp_cmd('Emulation.clearDeviceMetricsOverride', {})
  return Page(driver)


@pytest.fixture(scope='module')
def address(tmp_path_factory):
  """Where a server is that several tests share."""
  with server(images(tmp_path_factory.mktemp('shared'))) as (_, address):
    yield address


def votes(workdir):
  """[(k, rule, image, whether method 1 is preferred)], the newest last."""
  with sqlite3.connect(workdir / FILE) as db:
    return db.execute('SELECT k, rule, image, preferred FROM votes ORDER BY time').fetchall()


def test_a_rater_votes_to_the_end_over_reload_and_a_restart(page, driver, tmp_path):
  workdir, port = images(tmp_path), free_port()
  study = Study.of(workdir)
  with server(workdir, port) as (process, address):
    driver.get(address)
    page.shows('welcome', 'Which one do you prefer?')
    page.find('name').send_keys('Ada ←', Keys.ENTER)  # keys that vote elsewhere are letters here
    page.done(0)
    assert 'You are Ada ←' in page.find('who').text
    shown = {name: page.picture(name) for name in ('input', 'left', 'right')}

    page.find('left').click()
    page.done(1)
    ((k, rule, image, preferred),) = votes(workdir)
    np.testing.assert_array_equal(shown['input'], study.inputs[image])
    np.testing.assert_array_equal(
      shown['left' if preferred else 'right'], study.outputs[k, rule][image]
    )
    np.testing.assert_array_equal(shown['right' if preferred else 'left'], study.baseline[image])

    page.press(Keys.ARROW_RIGHT)
    page.done(2)
    driver.execute_script(HASTE)
    page.done(3)
    assert len(votes(workdir)) == 3
    assert sum(name.endswith('/vote') for name, _ in driver.execute_script(LOADED)) == 3

    before = page.picture('left')
    driver.refresh()
    page.done(3)
    np.testing.assert_array_equal(page.picture('left'), before)
    page.press(Keys.TAB, Keys.TAB, Keys.ENTER)  # the buttons, by the keyboard alone
    page.done(4)
    page.press(Keys.ALT, Keys.ARROW_RIGHT)  # the browser's own

    process.kill()
    process.wait()
    page.press(Keys.ARROW_LEFT)
    page.shows('notice', 'may not be saved yet')
  with server(workdir, port):
    page.done(5)
    assert page.find('notice').text == '' and len(votes(workdir)) == 5
    for count in range(6, PAIRS + 1):
      page.press(Keys.ARROW_LEFT)
      page.shows('progress', f'{count} of {PAIRS}')
      page.wait(lambda: driver.execute_script('return !busy'))
    page.shows('finished', 'Thank you', f'{PAIRS} choices')
    page.press(Keys.ARROW_LEFT)
    page.find('leave').click()
    page.wait(page.find('welcome').is_displayed)
    assert len({tuple(trial) for *trial, _ in votes(workdir)}) == len(votes(workdir)) == PAIRS


def exchanged(driver):
  """Addresses, headers and contents of all requests, and addresses and headers of their answers."""
  events = [
    json.loads(entry['message'])['message']['params'] for entry in driver.get_log('performance')
  ]
  parts = [event[part] for event in events for part in ('request', 'response') if part in event]
  return [str([part.get(name) for name in ('url', 'headers', 'postData')]) for part in parts]


def test_nothing_tells_the_methods_apart(page, driver, address):
  seen = []
  driver.get(address)
  page.wait(page.find('welcome').is_displayed)
  page.find('begin').submit()
  for count in range(PAIRS):
    page.done(count)
    seen.append(driver.page_source)
    page.press(Keys.ARROW_LEFT)
  page.shows('finished', 'Thank you')

  loaded = driver.execute_script(LOADED)
  pictures = [name for name, _ in loaded if '/picture/' in name]
  assert len(set(pictures)) == len(pictures) == 3 * PAIRS
  # the input's, and that of all others
  assert len({length for name, length in loaded if name in pictures}) == 2

  client = Client(address)
  seen += [
    client.request(path).decode()
    for path in ('', 'state?rater=Ada', 'page/page.js', 'page/style.css')
  ]
  seen += exchanged(driver)
  seen.append(driver.execute_script('return JSON.stringify(localStorage)'))
  assert any(pictures[-1] in text for text in seen)
  assert not re.findall(TELLING, '\n'.join(seen), re.IGNORECASE)


@pytest.mark.parametrize('width, height', [(360, 640), (600, 700), (1000, 800)])
def test_a_pair_fits_on_the_screen_in_whole_pixels(page, driver, address, width, height):
  size = {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': False}
  driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', size)
  driver.get(address)
  page.wait(page.find('welcome').is_displayed)
  page.press(Keys.ENTER)  # the field for the name has the focus
  page.done(0)
  for name in ('left', 'right', 'input'):
    image = driver.find_element(By.CSS_SELECTOR, f'#{name} img')
    box = image.rect
    assert box['width'] == box['height'] and box['width'] % 32 == 0
    assert (
      min(box['x'], box['y']) >= 0
      and box['x'] + box['width'] <= width
      and box['y'] + box['height'] <= height
    )
    assert image.get_attribute('alt')
  assert driver.execute_script('return document.documentElement.scrollWidth') <= width
