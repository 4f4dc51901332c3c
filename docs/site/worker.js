/* Lets a page that was opened from a folder be searched: browsers start no workers there, so the
   search runs in a hidden frame. */
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      this.inside = new Promise(resolve => {
        frame.onload = () => {
          const inside = frame.contentWindow
          inside.postMessage = data => {
            const event = new MessageEvent('message', { data })
            this.dispatchEvent(event)
            if (this.onmessage) this.onmessage(event)
          }
          inside.importScripts = (...urls) => Promise.all(urls.map(one => load(inside, one)))
          load(inside, url).then(() => resolve(inside))
        }
      })
      document.body.appendChild(frame)
    }
    postMessage(data) {
      this.inside.then(inside => inside.dispatchEvent(new MessageEvent('message', { data })))
    }
    terminate() {}
  }
  const load = (inside, url) => new Promise((resolve, reject) => {
    const script = inside.document.createElement('script')
    script.onload = resolve
    script.onerror = reject
    script.src = url
    inside.document.body.appendChild(script)
  })
}
