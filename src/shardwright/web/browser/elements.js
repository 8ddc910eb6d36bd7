// Elements of the page that answers are made of.

const SHORT = 20;

/** A table with a heading for each column. */
export function table(heads, rows) {
  const element = document.createElement("table");
  const row = (cells, tag) => {
    const line = document.createElement("tr");
    line.append(...cells.map((text) => Object.assign(document.createElement(tag), {
      textContent: text, className: text.length <= SHORT ? "short" : "",
    })));
    return line;
  };
  const head = document.createElement("thead"), body = document.createElement("tbody");
  head.append(row(heads, "th"));
  body.append(...rows.map((cells) => row(cells, "td")));
  element.append(head, body);
  const scroll = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
  scroll.append(element);
  return scroll;
}

/** A list of names and texts. */
export function figures(pairs) {
  const list = Object.assign(document.createElement("dl"), { className: "figures" });
  for (const [name, text] of pairs) {
    const pair = document.createElement("div");
    pair.append(
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: text }),
    );
    list.append(pair);
  }
  return list;
}

/** A paragraph of a class. */
export function paragraph(className, text) {
  return Object.assign(document.createElement("p"), { className, textContent: text });
}

/** A link of a class. */
export function link(href, textContent, more = {}) {
  return Object.assign(document.createElement("a"), { href, textContent, ...more });
}
