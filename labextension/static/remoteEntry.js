// JupyterLab asks for this file, which is the container of a federated module: `init` gets the modules that JupyterLab
// shares, `get` answers with the plugin. It is written by hand, so that neither a build nor node is needed.
//
// The kernel (fsdl_dev/notebook/mark.py) says for each exported cell whether it ran as it stands in the saved file. What
// only the page knows, edits that are not saved, is compared here by checksums that the kernel sends.
(() => {
  const TARGET = 'fsdl_dev.mark'; // of the kernel's comm, and the beginning of its id
  const WORDS = { never: 'not run', failed: 'failed', edited: 'edited', unsaved: 'not saved' };
  const STYLE = `
    .jp-Cell.fsdl-marked { position: relative; }
    .fsdl-mark { position: absolute; left: 10px; top: 28px; width: calc(var(--jp-cell-prompt-width, 64px) - 2px);
      box-sizing: border-box; padding-left: 4px; border-left: 3px solid var(--jp-warn-color1); font-size: 10px;
      line-height: 12px; font-family: var(--jp-ui-font-family); color: var(--jp-ui-font-color1); pointer-events: none; z-index: 1; }
    .fsdl-stacked > .fsdl-mark { top: 9px; left: 62px; width: auto; } /* the prompt is above the cell */
    .fsdl-status { display: flex; max-width: 100%; }
    .fsdl-status button { border: 0; padding: 0 6px; background: transparent; font: inherit; color: inherit; cursor: pointer;
      max-width: min(48ch, 45vw); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
    .fsdl-status button:focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: -2px; }
    .fsdl-status[data-state=differ] button { font-weight: 600; border-left: 3px solid var(--jp-warn-color1); }`;

  const table = Uint32Array.from({ length: 256 }, (_, n) => {
    for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
    return n;
  });
  const encoder = new TextEncoder();
  const checksum = text => { // CRC-32, as Python's zlib.crc32
    let sum = -1;
    for (const byte of encoder.encode(text)) sum = table[(sum ^ byte) & 255] ^ (sum >>> 8);
    return (sum ^ -1) >>> 0;
  };

  const isExported = text => { // whether one of the `#|` lines at the top exports the cell, as nbdev reads them
    for (const line of text.split('\n')) {
      const word = /^\s*#\s*\|\s*([\w-]+)/.exec(line);
      if (word && ['export', 'exports', 'exporti'].includes(word[1])) return true;
      if (!word && line.trim() && !/^\s*%%\w+/.test(line)) return false;
    }
    return false;
  };
  const firstLine = text => text.split('\n').map(line => line.trim()).find(line => line && !/^[#%]/.test(line)) ?? '';

  class Panel { // the mark of one notebook
    constructor(panel, changed, makeMessage) {
      Object.assign(this, { panel, changed, makeMessage, comm: null, known: null, asked: false, first: null, sums: new Map() });
      const session = panel.sessionContext, later = () => this.later();
      session.iopubMessage.connect((_, message) => this.heard(message));
      session.kernelChanged.connect(() => { this.forget(); this.find(); });
      session.connectionStatusChanged.connect((_, status) => status === 'connected' && this.find());
      session.statusChanged.connect((_, status) => /restarting|dead|terminating/.test(status) && this.forget());
      session.ready.then(() => this.find(), () => {});
      panel.context.saveState.connect((_, state) => state === 'completed' && this.ask('saved'));
      panel.context.fileChanged.connect(() => this.ask('saved'));
      panel.content.modelContentChanged.connect(later);
      panel.content.modelChanged.connect(later);
      const resized = new ResizeObserver(later);
      resized.observe(panel.node);
      panel.disposed.connect(() => { clearTimeout(this.timer); resized.disconnect(); });
    }

    forget() { this.comm = this.known = null; this.show(); }

    async find() { // a page that was loaded anew asks for the comm of a kernel that has one
      const kernel = this.panel.sessionContext.session?.kernel;
      try {
        const reply = await kernel?.requestCommInfo({ target_name: TARGET });
        this.comm = Object.keys(reply?.content.comms ?? {})[0] ?? this.comm;
        this.asked = true;
        this.comm ? this.ask('hello') : this.show();
      } catch { /* the kernel went away meanwhile */ }
    }

    ask(what) {
      const kernel = this.panel.sessionContext.session?.kernel;
      if (!kernel || !this.comm || this.panel.isDisposed) return;
      const content = { comm_id: this.comm, data: { ask: what } };
      const message = this.makeMessage(
        { msgType: 'comm_msg', channel: 'shell', session: kernel.clientId, username: kernel.username, content });
      try { kernel.sendShellMessage(message, false, true).done.catch(() => {}); } catch { /* it is gone */ }
    }

    heard({ header, content }) {
      if (header.msg_type !== 'comm_msg' || !content.comm_id.startsWith(TARGET)) return;
      if (content.data.here) { this.comm = content.comm_id; this.ask('hello'); return; }
      this.known = content.data;
      this.show();
    }

    later() { clearTimeout(this.timer); this.timer = setTimeout(() => this.show(), 300); }

    sum(id, text) {
      const kept = this.sums.get(id);
      if (kept?.text === text) return kept.sum;
      const sum = checksum(text);
      this.sums.set(id, { text, sum });
      return sum;
    }

    markOf(model) { // {word, text}, or null where the cell agrees or is no exported one
      const { cells, file, names, ran } = this.known, text = model.sharedModel.getSource(), id = model.id;
      if (model.type !== 'code') return null;
      if (!isExported(text) && !(id in file)) return cells[id] ?? null; // a launch cell
      const sum = this.sum(id, text), called = names[id] ?? `the cell “${firstLine(text).slice(0, 40)}”`;
      if (file[id] === sum) return cells[id] ?? null;
      if (ran[id] === sum) return { word: WORDS.unsaved, text: `${called} ran, and is not saved: press Ctrl+S` };
      return ran[id] === undefined
        ? { word: WORDS.never, text: `${called} has not run, and is not saved` }
        : { word: WORDS.edited, text: `${called} was edited after it ran, and is not saved` };
    }

    show() {
      if (this.panel.isDisposed) return;
      this.first = null;
      for (const cell of this.panel.content.widgets) {
        const mark = this.known?.text && cell.model ? this.markOf(cell.model) : null;
        let node = cell.node.querySelector(':scope > .fsdl-mark');
        if (mark && !this.first) this.first = { id: cell.model.id, text: mark.text };
        cell.node.classList.toggle('fsdl-marked', !!mark);
        if (!mark) {
          if (node) cell.node.querySelector('.jp-InputArea-prompt')?.removeAttribute('title');
          node?.remove();
          continue;
        }
        if (!node) {
          node = document.createElement('div');
          node.className = 'fsdl-mark';
          node.setAttribute('role', 'note');
          cell.node.append(node);
        }
        const box = part => cell.node.querySelector(part)?.getBoundingClientRect();
        cell.node.classList.toggle('fsdl-stacked', box('.jp-InputArea-prompt')?.bottom <= box('.jp-InputArea-editor')?.top + 2);
        node.textContent = mark.word;
        const said = mark.fix ? `${mark.text}: ${mark.fix}` : mark.text;
        node.setAttribute('aria-label', `fsdl: ${said}`);
        cell.node.querySelector('.jp-InputArea-prompt')?.setAttribute('title', said); // the mark lets clicks through
      }
      this.changed();
    }

    status() { // what the status bar says; null where there is nothing to say
      if (!this.known) return this.unloaded();
      if (!this.known.text) return null;
      if (this.first) return { state: 'differ', text: `≠ ${this.first.text}`, id: this.first.id };
      return { state: this.known.state, text: this.known.text, detail: this.known.detail };
    }

    unloaded() { // a notebook that has exported cells, in a kernel that knows nothing of fsdl_dev
      const code = this.asked && !this.comm ? this.panel.content.widgets.filter(cell => cell.model.type === 'code') : [];
      const texts = code.map(cell => cell.model.sharedModel.getSource());
      const at = texts.findIndex(text => /^\s*%(re)?load_ext\s+fsdl_dev\b/m.test(text));
      if (at < 0 || !texts.some(isExported)) return null;
      return { state: 'off', text: 'fsdl_dev is not loaded in this kernel', id: code[at].model.id };
    }

    goTo(id) {
      const notebook = this.panel.content, index = notebook.widgets.findIndex(cell => cell.model.id === id);
      if (index < 0) return;
      notebook.deselectAll();
      notebook.activeCellIndex = index;
      (notebook.scrollToItem?.(index, 'smart') ?? Promise.resolve()).catch(() => {});
      notebook.activate();
    }
  }

  const activate = (app, tracker, bar, Widget, makeMessage) => {
    const style = document.createElement('style');
    style.textContent = STYLE;
    document.head.append(style);
    const item = new Widget(), button = document.createElement('button'), panels = new WeakMap();
    let refresh = () => {}, now = null;
    const current = () => app.shell.currentWidget === tracker.currentWidget ? panels.get(tracker.currentWidget) : null;
    const changed = () => {
      now = current()?.status() ?? null;
      item.node.dataset.state = now?.state ?? '';
      button.textContent = now?.text ?? '';
      button.title = now?.detail ?? (now?.id ? `${now.text}. Click: go to that cell.` : '');
      refresh();
    };
    item.addClass('fsdl-status');
    item.node.setAttribute('role', 'status');
    item.node.append(button);
    button.type = 'button';
    button.onclick = () => now?.id && current()?.goTo(now.id);
    const add = (_, panel) => panels.set(panel, new Panel(panel, changed, makeMessage));
    tracker.forEach(panel => add(null, panel));
    tracker.widgetAdded.connect(add);
    tracker.currentChanged.connect(changed);
    app.shell.currentChanged?.connect(changed);
    bar?.registerStatusItem('fsdl_dev:mark', {
      item, align: 'left', rank: 3, priority: 1, isActive: () => now !== null,
      activeStateChanged: { connect: wanted => { refresh = wanted; } },
    });
  };

  let scope = {};
  const shared = async name => { // JupyterLab's own copy of a module
    const versions = Object.values(scope[name] ?? {});
    const found = versions.find(({ from }) => /CORE/.test(from)) ?? versions.find(({ loaded }) => loaded) ?? versions[0];
    return found ? (await found.get())() : null;
  };
  const plugin = async () => {
    const names = ['@jupyterlab/notebook', '@jupyterlab/services', '@lumino/widgets', '@jupyterlab/statusbar'];
    const [notebook, services, widgets, statusbar] = await Promise.all(names.map(shared));
    if (!notebook || !services || !widgets) return []; // an application without notebooks
    return {
      id: 'fsdl_dev:mark', description: 'Says whether kernel, file and package agree.', autoStart: true,
      requires: [notebook.INotebookTracker], optional: statusbar ? [statusbar.IStatusBar] : [],
      activate: (app, tracker, bar) =>
        activate(app, tracker, bar, widgets.Widget, services.KernelMessage.createMessage),
    };
  };
  (window._JUPYTERLAB ??= {}).fsdl_dev = {
    init: modules => { scope = modules; },
    get: async () => { const made = await plugin(); return () => ({ __esModule: true, default: made }); },
  };
})();
