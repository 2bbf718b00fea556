// A long list of which only the rows in sight are elements. Rows are links, all of one height.

class LongList {
  constructor(label, height, draw) {
    Object.assign(this, { height, draw, count: 0, from: -1, to: -1, current: -1 });
    this.rows = h('ul', { role: 'list' });
    this.element = h('div', { class: 'long', tabIndex: 0, role: 'region', 'aria-label': label }, this.rows);
    this.element.addEventListener('scroll', () => this.refresh(), { passive: true });
    new ResizeObserver(() => this.refresh()).observe(this.element);
  }

  // Show a number of rows anew.
  show(count) {
    this.count = count;
    this.rows.style.height = `${count * this.height}px`;
    this.from = this.to = -1;
    this.refresh();
  }

  refresh() {
    const top = Math.floor(this.element.scrollTop / this.height);
    const from = Math.max(0, top - 8);
    const to = Math.min(this.count, top + Math.ceil(this.element.clientHeight / this.height) + 8);
    if (from === this.from && to === this.to) return;
    Object.assign(this, { from, to });
    const made = [];
    for (let at = from; at < to; at++) {
      const row = h('li', { 'aria-setsize': this.count, 'aria-posinset': at + 1 }, this.draw(at));
      row.style.transform = `translateY(${at * this.height}px)`;
      row.style.height = `${this.height}px`;
      if (at === this.current) row.firstChild.setAttribute('aria-current', 'true');
      made.push(row);
    }
    const focused = this.rows.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
    this.rows.replaceChildren(...made);
    if (focused) this.rows.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  // Mark a row as the one at hand, and bring it into sight.
  mark(at, focus) {
    this.current = at;
    if (at >= 0) {
      const top = at * this.height;
      const box = this.element;
      if (top < box.scrollTop) box.scrollTop = top;
      else if (top + this.height > box.scrollTop + box.clientHeight) box.scrollTop = top + this.height - box.clientHeight;
    }
    this.from = -1;
    this.refresh();
    if (focus) this.rows.querySelector('[aria-current]')?.focus({ preventScroll: true });
  }
}
