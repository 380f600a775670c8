"""What a page holds after everything in it was clicked and pointed at."""

import itertools
import re

from transformer_norms.text_tables import printable

MARK = re.compile(r"mark\d\d")
PLOT = ".chart"
FOUND = """() => {
    const elements = {}, drawn = new Set(), attributes = new Set(), tags = new Set()
    const addresses = [], texts = []
    const named = /^(action|background|cite|data|formaction|href|ping|poster|src|srcset)$/
    const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL)
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        if (node.nodeType == Node.TEXT_NODE && !node.parentNode.closest("script, style, noscript"))
            texts.push(node.data)
        if (node.nodeType == Node.COMMENT_NODE)
            elements["#comment"] = 1 + (elements["#comment"] || 0)
        if (node.nodeType != Node.ELEMENT_NODE) continue
        const own = [...node.attributes].map(attribute => attribute.name)
        tags.add(node.localName)
        for (const attribute of node.attributes) {
            attributes.add(attribute.name)
            if (named.test(attribute.localName)) addresses.push(attribute.value)
            if (/^(alt|aria-label|title|value)$/.test(attribute.name))
                texts.push("\\n" + attribute.value + "\\n")
            if (/^(style|fill|stroke|filter|mask|clip-path|marker.*)$/.test(attribute.name))
                for (const [, inner] of attribute.value.matchAll(/url\\(['"]?([^'")]*)/g))
                    addresses.push(inner)
        }
        if (node.closest(".chart")) drawn.add(node.localName)
        else {
            const kind = [node.localName, ...own.sort()].join(" ")
            elements[kind] = 1 + (elements[kind] || 0)
        }
    }
    return {elements, drawn: [...drawn], attributes: [...attributes], tags: [...tags],
            addresses, text: texts.join(""), canary: window.canary}
}"""
LABELS = "document.querySelector('#pointed').textContent"
PRESS = """() => {
    for (const one of document.querySelectorAll("details")) one.open = true
    for (const one of document.querySelectorAll("button, [type=radio], [type=checkbox]"))
        if (!one.closest(".chart")) { one.click(); one.click() }
}"""


def spelled(text):
    """As a page shows it, runs of spaces as one."""
    return re.sub(r"\s+", " ", printable(text))


class Page:
    """`first`: what was found before anything was done; `texts`: all that was seen so far."""

    def __init__(self, opened):
        self.opened, self.page = opened, opened.page
        self.texts = []
        self.first = self.found()

    def found(self):
        """`elements`: how often each tag with its attributes is there outside of figures; `drawn`:
        the tags within them; `canary`: what only a payload makes."""
        found = self.page.evaluate(FOUND)
        self.texts.append(re.sub(r"[ \n\t]+", " ", found["text"]))
        return found

    def walk(self):
        """Opens and presses all; then points at what is drawn, which has its label while it is."""
        self.page.evaluate(PRESS)
        for plot in self.page.locator(PLOT).all()[:3]:
            if plot.is_visible():
                plot.scroll_into_view_if_needed()
                box = plot.bounding_box()
                for across, down in itertools.product((0.1, 0.3, 0.5, 0.7), (0.3, 0.6)):
                    left, top = box["x"] + across * box["width"], box["y"] + down * box["height"]
                    self.page.mouse.move(left, top)
                    self.texts.append(self.page.evaluate(LABELS))
