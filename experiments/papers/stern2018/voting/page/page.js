// The page follows from the server's state; a vote has an id made here, so that sending it twice is voting once.
'use strict';

const $ = (id) => document.getElementById(id);
const ALTS = {
  input: 'The photograph as it was given, 8 by 8 pixels',
  left: 'Enlargement on the left',
  right: 'Enlargement on the right',
};
let state = null;
let busy = true;   // between a choice and the next pair: neither keys nor clicks count

function newId() {   // crypto.randomUUID is not there where the page is opened over the network without TLS
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function notice(text) {
  $('notice').textContent = text;
  $('notice').hidden = !text;
}

// Sends until the server has answered, and its pictures are here. Resolves to its new state and its images.
async function ask(path, body) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 4000)) {
    try {
      const sent = body && { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) };
      const answer = await fetch(path, sent);
      const next = await answer.json();
      if (answer.ok) {
        const images = await Promise.all(Object.keys(next.trial ? ALTS : {}).map((name) => load(name, next.trial[name])));
        notice('');
        return { next, images };
      }
      if (answer.status < 500) {   // such as a rater that the server does not know: asking again will not help
        return { refused: next.error };
      }
    } catch (error) {
      console.warn(error.message);   // no connection, or it broke off
    }
    notice('The server does not answer. ' + (path === '/vote' ? 'Your last choice may not be saved yet; t' : 'T') +
      'rying again. Leave this page open.');
    await new Promise((done) => setTimeout(done, wait));
  }
}

async function load(name, address) {
  const image = new Image();
  image.alt = ALTS[name];
  image.draggable = false;
  image.src = address;
  await image.decode();
  return image;
}

function show(next, images) {
  state = next;
  images.forEach((image, index) => {
    const place = $(Object.keys(ALTS)[index]);
    (place.querySelector('.frame') || place).replaceChildren(image);
    place.classList.remove('chosen');
  });
  $('welcome').hidden = state.rater !== null;
  $('voting').hidden = !state.trial;
  $('finished').hidden = state.rater === null || Boolean(state.trial);
  $('foot').hidden = state.rater === null;
  $('total').textContent = state.total;
  if (state.rater === null) {
    $('name').focus();
    return;
  }
  $('votes').textContent = state.done;
  $('bar').max = state.total;
  $('bar').value = state.done;
  $('progress').textContent = `${state.done} of ${state.total} done, ${state.total - state.done} left`;
  $('undo').disabled = state.last === null;
  $('who').textContent = state.rater ? `You are ${state.rater}.` : 'You vote without a name.';
}

// One request after another; what is pressed meanwhile is not taken for an answer to what nobody has seen.
async function step(path, body) {
  busy = true;
  const { next, images, refused } = await ask(path, body);
  if (refused) {
    notice(`That did not work: ${refused}.`);
  } else {
    show(next, images);
  }
  busy = false;
}

function choose(side) {
  if (!busy && state.trial) {
    $(side).classList.add('chosen');
    step('/vote', { id: newId(), place: state.trial.place, side });
  }
}

function undo() {
  if (!busy && state.last) {
    step('/undo', { id: state.last });
  }
}

$('left').addEventListener('click', () => choose('left'));
$('right').addEventListener('click', () => choose('right'));
$('undo').addEventListener('click', undo);
$('leave').addEventListener('click', () => busy || step('/leave', {}));
$('begin').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!busy) {
    step('/rater', { name: $('name').value });
  }
});
document.addEventListener('keydown', (event) => {
  const keys = { ArrowLeft: () => choose('left'), ArrowRight: () => choose('right'), Backspace: undo, u: undo, U: undo };
  const action = keys[event.key];
  const elsewhere = event.ctrlKey || event.altKey || event.metaKey || event.target.matches('input');
  if (action && !elsewhere && state && state.rater !== null) {
    event.preventDefault();
    if (!event.repeat) {   // a key held down is one answer
      action();
    }
  }
  if (event.repeat && event.key === 'Enter') {   // which presses the button that has the focus
    event.preventDefault();
  }
});
step('/state');
