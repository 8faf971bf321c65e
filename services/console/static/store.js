// The state as the server last told it, and its changes as they come.
// An item that did not change stays the same object.

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
// The server says something every ten seconds at least. A connection may die without a word, for example while a
// machine sleeps; nobody would tell the page.
const SILENT_MS = 40000;
const ANSWER_MS = 60000;

export class Store {
  constructor() {
    this.sections = {};
    this.version = "";
    this.standing = "connecting";
    this.heardAt = 0;
    this.stream = null;
    this.listeners = new Set();
    this.failures = 0;
  }

  items(section) {
    return Object.values(this.sections[section] || {});
  }

  has(section) {
    return Object.keys(this.sections[section] || {}).length > 0;
  }

  onChange(listener) {
    this.listeners.add(listener);
  }

  async start() {
    try {
      const answer = await fetch("/api/state", { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(ANSWER_MS) });
      if (answer.status === 401) return location.assign("/login");
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const { version, sections } = await answer.json();
      this.replace(version, sections);
      this.follow();
    } catch (error) {
      this.lost();
    }
    return undefined;
  }

  follow() {
    const stream = new EventSource(`/api/events?after=${encodeURIComponent(this.version)}`);
    this.stream = stream;
    this.heard();
    stream.addEventListener("open", () => {
      // Not before: a server that gives the state but no stream is asked ever more rarely.
      this.failures = 0;
      this.heard();
      this.stand("live");
    });
    stream.addEventListener("beat", () => this.heard());
    stream.addEventListener("full", (event) => {
      const { version, sections } = JSON.parse(event.data);
      this.replace(version, sections);
    });
    stream.addEventListener("delta", (event) => {
      if (this.apply(JSON.parse(event.data))) return;
      this.end();
      this.start();
    });
    stream.addEventListener("error", () => {
      this.stand("lost");
      // The browser comes back by itself after a broken connection, but not after a refusal.
      if (stream.readyState === EventSource.CLOSED) this.lost();
    });
  }

  heard() {
    this.heardAt = performance.now();
  }

  /* To be called now and then. */
  checkHeard() {
    if (this.stream && performance.now() - this.heardAt > SILENT_MS) this.lost();
  }

  end() {
    this.stream?.close();
    this.stream = null;
  }

  lost() {
    this.end();
    this.stand("lost");
    const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    this.failures += 1;
    setTimeout(() => this.start(), wait * (0.75 + Math.random() / 2));
  }

  replace(version, sections) {
    const changed = new Set([...Object.keys(this.sections), ...Object.keys(sections)]);
    this.version = version;
    this.sections = sections;
    this.tell(changed);
  }

  /* False if it does not follow what is here. */
  apply({ after, version, set, gone }) {
    if (after !== this.version) return false;
    for (const [section, items] of Object.entries(set)) {
      this.sections[section] = Object.assign(this.sections[section] || {}, items);
    }
    for (const [section, keys] of Object.entries(gone)) {
      for (const key of keys) delete this.sections[section]?.[key];
    }
    this.version = version;
    this.tell(new Set([...Object.keys(set), ...Object.keys(gone)]), set);
    return true;
  }

  tell(changed, set) {
    this.heard();
    for (const listener of this.listeners) listener(changed, set);
  }

  stand(standing) {
    if (this.standing === standing) return;
    this.standing = standing;
    for (const listener of this.listeners) listener(new Set());
  }
}
