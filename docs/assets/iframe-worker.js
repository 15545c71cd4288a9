/* Pages that are opened from a folder (file:) may not start workers, and the search runs in one. Here an invisible frame runs the
   worker's script: it finds postMessage and importScripts in its window, as a worker does in its global scope. */
(() => {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.window = this.frame.contentWindow;
      const page = this.window.document;
      page.open();
      page.write("<body></body>");
      page.close();
      const run = (source) =>
        new Promise((done, failed) => {
          const script = page.createElement("script");
          script.src = source;
          script.onload = done;
          script.onerror = failed;
          page.body.appendChild(script);
        });
      this.window.postMessage = (data) => this.receive(data);
      this.window.importScripts = async (...sources) => {
        for (const source of sources) await run(source);
      };
      this.ready = run(url).catch(() => this.dispatchEvent(new Event("error")));
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    async postMessage(data) {
      await this.ready;
      this.window.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = FrameWorker; // by this name the script knows that it runs in a frame
  if (location.protocol === "file:") window.Worker = FrameWorker;
})();
